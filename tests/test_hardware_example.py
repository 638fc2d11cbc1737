"""The example of docs/hardware.md as it stands: served in a process of its own, finetuned against."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import go_opt
from go_opt.agents.networks import PolicyConfig
from go_opt.agents.policy.network import untrained
from go_opt.agents.training.problems.environment import open_session
from go_opt.env import Target
from go_opt.errors import EnvironmentFailedError, InvalidInputError, ServiceError
from go_opt.hardware import HardwareEnvironment, serve_environment
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from tests.strategies import make_plan, small_mcm, toy_graph

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "docs" / "examples" / "serve_hardware.py"
CONFIG = PolicyConfig(width=16, graphsage_layers=1, attention_layers=1, num_heads=2, segment_ops=16, rounds=1)


@pytest.fixture
def address() -> Iterator[str]:
    """Of the example; it ends with 0 when it is told to."""
    command = [sys.executable, str(EXAMPLE), "--address", "127.0.0.1:0", "--noise", "0.02"]
    environment = {**os.environ, "PYTHONPATH": str(Path(go_opt.__file__).parents[1])}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            line = process.stderr.readline()
            assert line.startswith("listening on "), line + process.stderr.read()
            yield line.removeprefix("listening on ").strip()
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()


def test_finetuning_against_it(address: str, tmp_path: Path) -> None:
    result = go_opt.finetune(
        "zoo:din",
        tmp_path,
        target="mcm-2x2",
        policy=untrained(CONFIG, 0),
        samples=32,
        environment=address,
        lessons=["placement"],
    )
    assert result.is_complete
    assert result.samples == 40
    assert result.plan is not None
    model_s = go_opt.evaluate(go_opt.load("zoo:din"), "mcm-2x2", result.plan).interval_s
    assert result.best_interval_s == pytest.approx(model_s, rel=0.2)  # measured, with noise
    assert result.best_interval_s != model_s


def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match=r"^no environment answers at 127\.0\.0\.1:1 \(waited 4 s\)\.$"):
        go_opt.finetune("zoo:din", tmp_path, environment="127.0.0.1:1")


@pytest.mark.parametrize("name", ["measured", "hardware", ""])
def test_no_such_environment(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInputError, match="environment must be analytical, simulated or HOST:PORT"):
        go_opt.finetune("zoo:din", tmp_path, environment=name)


class Scripted:
    """Answers what it was given, one after the other."""

    def __init__(self, *seconds: float | Exception | None) -> None:
        self._seconds = iter(seconds)
        self.plans: list[Plan] = []

    def evaluate(self, graph: Graph, target: Target, plan: Plan) -> float | None:
        self.plans.append(plan)
        seconds = next(self._seconds)
        if isinstance(seconds, Exception):
            raise seconds
        return seconds


def measured(hardware: Scripted, num_plans: int, repeats: int = 1) -> list[float]:
    graph, target = toy_graph(), small_mcm()
    plan = make_plan(graph, target, [0, 0, 0, 1, 1, 1])
    arrays = [
        array[None].repeat(num_plans, axis=0) for array in (plan.placement, plan.order, plan.fusion_group)
    ]
    with open_session(HardwareEnvironment(hardware, repeats), graph, target) as session:
        answer = session.evaluate(*arrays)
    assert all(each.placement.tolist() == plan.placement.tolist() for each in hardware.plans)
    assert all(each.target_fingerprint == target.fingerprint for each in hardware.plans)
    return answer.objective_s.tolist()


def test_the_median_counts() -> None:
    assert measured(Scripted(3.0, 1.0, 9.0, 2.0, 2.0, 4), 2, repeats=3) == [3.0, 2.0]


def test_a_plan_that_does_not_run_is_not_measured_again() -> None:
    hardware = Scripted(1.0, None, 2.0, 2.0, 2.0)
    assert measured(hardware, 2, repeats=3) == [float("inf"), 2.0]
    assert len(hardware.plans) == 5


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_nonsense_is_refused(seconds: float) -> None:
    sentence = rf"failed at batch 1: a plan was measured to take {seconds} s\.$"
    with pytest.raises(EnvironmentFailedError, match=sentence):
        measured(Scripted(seconds), 1)


def test_hardware_that_fails() -> None:
    with pytest.raises(EnvironmentFailedError, match=r"failed at batch 1: OSError: no power\.$"):
        measured(Scripted(OSError("no power")), 1)


@pytest.mark.parametrize("field", ["repeats", "at_once"])
def test_arguments_are_checked(field: str) -> None:
    with pytest.raises(InvalidInputError, match=f"{field} is 0, must be at least 1"):
        serve_environment(Scripted(), "127.0.0.1:0", **{field: 0})  # type: ignore[arg-type]


def test_an_address_for_all_needs_a_word() -> None:
    with pytest.raises(InvalidInputError, match="can be reached from other machines"):
        serve_environment(Scripted(), "0.0.0.0:0")
