"""``go-opt pretrain`` and ``finetune`` as a user meets them: to the end, interrupted, refused."""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from pathlib import Path

import pytest

from go_opt import training
from go_opt.agents.networks import PolicyConfig
from go_opt.agents.policy.network import save_policy, untrained
from go_opt.agents.training.run import Progress
from go_opt.report.training import format_time_left, progress_line
from tests.cli.conftest import Cli, graph_file
from tests.cli.test_process import PATIENCE_S, start

CONFIG = PolicyConfig(width=16, graphsage_layers=1, attention_layers=1, num_heads=2, segment_ops=16, rounds=1)
GRAPH = "zoo:din"
PRETRAIN = ("pretrain", "--graph", GRAPH, "--target", "mcm-2x2", "--samples", "16", "--lesson", "placement")


@pytest.fixture(scope="module")
def small_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained policy that compiles in no time."""
    path = tmp_path_factory.mktemp("policy") / "small.safetensors"
    save_policy(path, untrained(CONFIG, 0), {})
    return path


@pytest.fixture(scope="module", autouse=True)
def compilation_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """For the processes that tests start."""
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.mktemp("jax")))


def finetune(policy: Path, *options: str) -> tuple[str, ...]:
    return ("finetune", GRAPH, "--policy", str(policy), "--out", "run", *options)


def said(err: list[str]) -> list[str]:
    """What is on stderr beside progress."""
    return [line for line in err if not line.startswith(("the first step may compile", "step "))]


def test_finetune_to_the_end_and_once_more(cli: Cli, small_policy: Path, tmp_path: Path) -> None:
    command = finetune(small_policy, "--samples", "30", "--json")
    first = cli(*command)
    assert said(first.err) == []
    assert any(line.startswith("step 2/2  40 samples  reward ") for line in first.err)
    answer = first.json
    assert answer["folder"] == "run"
    assert (answer["steps"], answer["samples"], answer["complete"]) == (2, 40, True)
    assert answer["best_score"] is None
    assert 0 < answer["best_interval_s"] < 2 * answer["reference_interval_s"]
    assert answer["best_interval_s"] <= answer["searched_interval_s"]
    again = cli(*command)
    assert (again.json, again.err) == (answer, [])
    evaluated = cli("evaluate", GRAPH, "run/plan.json", "--json").json
    assert evaluated["interval_s"] == answer["best_interval_s"]
    assert cli("verify", GRAPH, "run/plan.json").code == 0
    table = cli(*command[:-1]).out
    assert table.startswith("complete: 2 of 2 steps, 40 samples\n")
    assert "x the greedy heuristic" in table
    assert "run/policy.safetensors" in table
    lines = (tmp_path / "run" / "metrics.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 1]
    assert list((tmp_path / "run" / "tensorboard").iterdir())


def test_the_simulator_as_environment(cli: Cli, small_policy: Path) -> None:
    options = ("--samples", "1", "--environment", "simulated", "--lesson", "placement", "--json")
    answer = cli(*finetune(small_policy, *options)).json
    evaluated = cli("evaluate", GRAPH, "run/plan.json", "--fidelity", "simulated", "--json").json
    assert evaluated["interval_s"] == answer["best_interval_s"]


def test_pretrain_to_the_end(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    small = partial(training.pretrain, network=CONFIG, validation=[GRAPH])
    monkeypatch.setattr(training, "pretrain", small)
    run = cli(*PRETRAIN, "--out", "run", "--graphs-per-step", "1", "--json")
    assert said(run.err) == []
    answer = run.json
    assert (answer["steps"], answer["samples"], answer["complete"]) == (1, 20, True)
    assert answer["best_interval_s"] is None
    assert answer["best_score"] is not None
    table = cli(*PRETRAIN, "--out", "run", "--graphs-per-step", "1")
    assert "validation " in table.out
    cli(*PRETRAIN, "--out", "run", "--graphs-per-step", "1", "--seed", "1").is_refused("another run", "seed")


def test_a_signal_stops_after_the_step(user_env: dict[str, str], tmp_path: Path, small_policy: Path) -> None:
    steps = []
    for number in (signal.SIGINT, signal.SIGTERM):  # the second goes on from the first
        with start(user_env, tmp_path, *finetune(small_policy, "--samples", "1000000", "--json")) as process:
            assert process.stderr is not None
            next(line for line in process.stderr if line.startswith("step "))
            process.send_signal(number)
            out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 128 + number, err
        assert "Traceback" not in err
        answer = json.loads(out)
        assert not answer["complete"]
        assert f"go-opt: stopped after step {answer['steps']} of " in err
        assert "the same command goes on from there." in err
        assert (tmp_path / "run" / "policy.safetensors").is_file()
        steps.append(answer["steps"])
    assert steps[0] < steps[1]


REFUSED = {
    "graph": ((*PRETRAIN, "--graph", "zoo:resnet5", "--out", "run"), ("resnet5", "resnet50")),
    "file": ((*PRETRAIN, "--graph", "no.onnx", "--out", "run"), ("no.onnx",)),
    "target": ((*PRETRAIN[:4], "moon", *PRETRAIN[5:], "--out", "run"), ("moon",)),
    "samples": ((*PRETRAIN, "--samples", "0", "--out", "run"), ("samples is 0",)),
    "seed": ((*PRETRAIN, "--seed", "-1", "--out", "run"), ("seed",)),
    "lesson": ((*PRETRAIN, "--lesson", "greed", "--out", "run"), ("placement, order, joint",)),
    "workers": ((*PRETRAIN, "--workers", "0", "--out", "run"), ("workers is 0",)),
    "most ops": ((*PRETRAIN, "--most-ops", "9", "--out", "run"), ("most_ops is 9",)),
    "share": ((*PRETRAIN, "--generated-share", "2", "--out", "run"), ("generated_share is 2.0",)),
    "graphs per step": ((*PRETRAIN, "--graphs-per-step", "0", "--out", "run"), ("graphs_per_step is 0",)),
    "split": ((*PRETRAIN, "--split", "all", "--out", "run"), ("--split",)),
    "no folder": (PRETRAIN, ("--out",)),
    "folder": ((*PRETRAIN, "--out", "file.json/run"), ("file.json/run", "cannot be made")),
    "hosts": ((*PRETRAIN, "--out", "run", "--hosts", "2"), ("--coordinator, --hosts and --host",)),
    "host": (
        (*PRETRAIN, "--out", "run", "--coordinator", "a:1", "--hosts", "2", "--host", "2"),
        ("--host is 2, must be 0 to 1",),
    ),
    "policy": (("finetune", GRAPH, "--policy", "no.safetensors", "--out", "run"), ("no.safetensors",)),
    "not a policy": (("finetune", GRAPH, "--policy", "file.json", "--out", "run"), ("file.json",)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(cli: Cli, tmp_path: Path, case: str) -> None:
    graph_file(tmp_path / "file.json")
    args, words = REFUSED[case]
    cli(*args).is_refused(*words)


def test_a_graph_too_small_to_pretrain_on(cli: Cli, tmp_path: Path) -> None:
    graph_file(tmp_path / "m.json")
    command = ("pretrain", "--graph", "m.json", "--target", "mcm-2x2", "--out", "run")
    cli(*command).is_refused("graph 'chain' has 4 ops", "50 to 512")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o500)
    cli(*PRETRAIN, "--out", "run").is_refused("'run' cannot be written to")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (99.4, "99 s"), (100, "2 min"), (5940, "99 min"), (6300, "1 h 45 min")],
)
def test_time_left(seconds: float, text: str) -> None:
    assert format_time_left(seconds) == text


def test_lines_of_progress() -> None:
    progress = Progress(3, 7, 96, 0.4123, 100.4e-6, 0.41, 0.43, 85.12, 130.0, 2)
    assert progress_line(progress, of_one_graph=True) == (
        "step 3/7  96 samples  reward 0.412  best 100.4 us  85.1 samples/s  2 min left"
    )
    assert progress_line(progress, of_one_graph=False) == (
        "step 3/7  96 samples  reward 0.412  validation 0.410 (best 0.430)  85.1 samples/s  2 min left"
    )
