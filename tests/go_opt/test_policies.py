"""Finding a policy, and asking it in a process of its own, which may break."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from go_opt.agents.decoding.proposals import advice
from go_opt.agents.networks import PolicyConfig, initial_parameters
from go_opt.agents.policy.network import Policy
from go_opt.agents.policy.policy_file import load_policy, save_policy
from go_opt.errors import PolicyError
from go_opt.search import policies
from go_opt.search.policies import ask_policy, find_policy
from tests.strategies import small_mcm, toy_graph

CONFIG = PolicyConfig(width=8, graphsage_layers=1, attention_layers=1, num_heads=2, rounds=1)


@pytest.fixture(scope="module")
def policy_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policy") / "policy.safetensors"
    save_policy(path, Policy(CONFIG, initial_parameters(CONFIG, 0)), {})
    return path


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> policies._PolicyProcess:
    """A process of this test's own, not started yet."""
    process = policies._PolicyProcess()
    monkeypatch.setattr(policies, "_process", lambda pid: process)
    return process


def test_names(policy_file: Path) -> None:
    assert find_policy(None) is None
    assert find_policy("none") is None
    assert find_policy(policy_file) == policy_file
    shipped = find_policy("default")
    assert shipped is None or shipped.name == policies.SHIPPED


@pytest.mark.parametrize("content", [None, b"", b"\x00" * 50], ids=["missing", "empty", "other"])
def test_a_file_that_is_no_policy_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "mine.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(PolicyError, match=r"mine\.safetensors"):
        find_policy(path)
    with pytest.raises(PolicyError, match=r"mine\.safetensors"):
        ask_policy(path, toy_graph(), small_mcm(2)).result()


def test_it_says_what_it_says_in_this_process(policy_file: Path) -> None:
    graph, target = toy_graph(), small_mcm(2)
    graph.op_index  # noqa: B018 a read-only mapping that stays on the graph
    here = advice(load_policy(policy_file), graph, target)
    there = ask_policy(policy_file, graph, target).result()
    assert there is not None
    for array, twin in zip((*there.outputs, there.directions), (*here.outputs, here.directions), strict=True):
        np.testing.assert_array_equal(array, twin)


def test_a_changed_file_is_read_again(policy_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    path.write_bytes(policy_file.read_bytes())
    assert find_policy(path) == path
    path.write_bytes(b"")
    with pytest.raises(PolicyError):
        find_policy(path)


def test_no_process_no_policy(
    fresh: policies._PolicyProcess,
    policy_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with caplog.at_level(logging.WARNING):
        assert ask_policy(policy_file, toy_graph(), small_mcm(2)).result() is None
    assert "goes on without the policy" in caplog.text
    with pytest.raises(PolicyError, match="cannot be run"):
        find_policy(policy_file)


def test_a_process_that_was_killed_is_started_again(
    fresh: policies._PolicyProcess, policy_file: Path
) -> None:
    assert fresh.ask(policies._request(policy_file, None)) == ("advice", None)
    assert fresh._process is not None
    os.kill(fresh._process.pid, signal.SIGKILL)
    assert ask_policy(policy_file, toy_graph(), small_mcm(2)).result() is None
    assert fresh.ask(policies._request(policy_file, None)) == ("advice", None)
    fresh.end_if_idle(os.getpid())
    assert fresh._process is None


def test_an_answer_that_nobody_took_is_not_the_next_one(
    fresh: policies._PolicyProcess, policy_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(stream: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(policies.pickle, "load", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fresh.ask(policies._request(Path("mine"), None))
    assert fresh._process is None
    assert fresh.ask(policies._request(policy_file, None)) == ("advice", None)
    fresh.end_if_idle(os.getpid())


def test_nobody_waits_for_it_at_the_end(policy_file: Path) -> None:
    # It has just begun to load JAX; a process that waited would run until it has the answer.
    code = f"""
from pathlib import Path
from go_opt.search.policies import ask_policy
from tests.strategies import small_mcm, toy_graph
heard = ask_policy(Path({str(policy_file)!r}), toy_graph(), small_mcm(2))
heard.add_done_callback(lambda _: print("heard"))
print("end")
"""
    run = subprocess.run(
        [sys.executable, "-X", "dev", "-c", code],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "end\n", "")


def test_a_process_that_has_grown_large_is_renewed_and_answers_the_same(
    fresh: policies._PolicyProcess, policy_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ask_policy(policy_file, toy_graph(), small_mcm(2)).result()
    process = fresh._process
    assert process is not None
    assert process.poll() is None
    monkeypatch.setattr(policies, "_MOST_BYTES", 1)
    again = ask_policy(policy_file, toy_graph(), small_mcm(2)).result()
    assert first is not None
    assert again is not None
    assert again.__class__ is first.__class__
    assert process.poll() is not None
    assert fresh._process is not process
    monkeypatch.undo()
    fresh._end()
