"""This machine as an environment: what runs is measured, what does not is said to be invalid."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import go_opt
from go_opt.errors import EnvironmentFailedError
from go_opt.hardware import HardwareEnvironment
from go_opt.model.plan import Candidate
from go_opt.run.profiling.measured_machine import MeasuredMachine
from tests.exports import info, model, node, plan_of, saved, weight


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two products."""
    nodes = [node("MatMul", "x w", "a", "small"), node("MatMul", "a v", "y", "large")]
    weights = [weight("w", 256, 256), weight("v", 256, 16384)]
    return saved(model(nodes, [info("x", [64, 256])], [info("y", [64, 16384])], weights), tmp_path)


def test_plans_are_measured(path: Path) -> None:
    graph, on = go_opt.load(path), go_opt.target("gpu-8")
    session = HardwareEnvironment(MeasuredMachine(path)).open(graph, on)
    ran = session.evaluate_plans([plan_of(path, [0, 1]), plan_of(path, [0, 0])])
    assert ran.valid.all()
    assert (ran.objective_s > 0).all()


def test_plans_that_do_not_run(path: Path) -> None:
    graph = go_opt.load(path)
    backwards = plan_of(path, [1, 0], "mcm-2x2")
    session = HardwareEnvironment(MeasuredMachine(path)).open(graph, go_opt.target("mcm-2x2"))
    ran = session.evaluate_plans([backwards])
    assert not ran.valid.any()


def test_costs_of_the_client_do_not_matter(path: Path) -> None:
    graph, on = go_opt.load(path), go_opt.target("gpu-8")
    costed = go_opt.with_measured_costs(graph, {"small": {"*": 1.0}}, on)
    each = np.arange(2)
    plan = Candidate("test", each, each, each).plan(costed, on)
    measured = MeasuredMachine(path).evaluate(costed, on, plan)
    assert measured is not None
    assert 0 < min(measured.chip_s[:2]) < max(measured.chip_s[:2]) == measured.seconds < 0.5


def test_graphs_of_other_models_are_refused(path: Path) -> None:
    other = go_opt.load("zoo:din")
    with pytest.raises(EnvironmentFailedError, match="has other ops than"):
        MeasuredMachine(path).evaluate(other, go_opt.target("gpu-8"), plan_of(path, [0, 1]))
