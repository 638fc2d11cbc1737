"""Finding a policy, and asking it on a thread of its own, which may break."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from go_opt.agents.decoding.proposals import advice
from go_opt.agents.networks import PolicyConfig
from go_opt.agents.policy.network import save_policy, untrained
from go_opt.agents.policy.policy_file import load_policy
from go_opt.errors import PolicyError
from go_opt.search.shared import policies
from go_opt.search.shared.policies import ask_policy, find_policy
from tests.strategies import small_mcm, toy_graph

CONFIG = PolicyConfig(width=8, graphsage_layers=1, attention_layers=1, num_heads=2, rounds=1)


@pytest.fixture(scope="module")
def policy_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policy") / "policy.safetensors"
    save_policy(path, untrained(CONFIG, 0), {})
    return path


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


def test_it_says_on_its_thread_what_it_says_here(policy_file: Path) -> None:
    graph, target = toy_graph(), small_mcm(2)
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


def test_one_that_breaks_is_gone_on_without(
    policy_file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(policies, "advice", lambda *asked: 1 // 0)
    with caplog.at_level(logging.WARNING):
        assert ask_policy(policy_file, toy_graph(), small_mcm(2)).result() is None
    assert "goes on without the policy: ZeroDivisionError" in caplog.text


def test_nobody_waits_for_it_at_the_end(policy_file: Path) -> None:
    code = f"""
import time
from pathlib import Path
from go_opt.search.shared import policies
from tests.strategies import small_mcm, toy_graph
policies.advice = lambda *asked: time.sleep(600)
heard = policies.ask_policy(Path({str(policy_file)!r}), toy_graph(), small_mcm(2))
heard.add_done_callback(lambda _: print("heard"))
print("end")
"""
    run = subprocess.run(
        [sys.executable, "-X", "dev", "-c", code],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "end\n", "")
