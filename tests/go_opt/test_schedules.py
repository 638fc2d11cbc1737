"""The search for the makespan where placements are free: what it reaches, repeats and keeps."""

from __future__ import annotations

import math

import pytest

import go_opt
from go_opt.model.builder import GraphBuilder
from go_opt.result import OptimizeResult
from tests.strategies import small_mcm

GRAPH, TARGET = "zoo:inception_v1", "gpu-2"


def searched(**options: object) -> OptimizeResult:
    asked: dict[str, object] = {"objective": "latency", "max_evaluations": 120, "policy": None, "seed": 3}
    return go_opt.optimize(go_opt.load(GRAPH), TARGET, **(asked | options))


def test_both_methods_take_part_and_the_plan_is_valid() -> None:
    result = searched()
    methods = {step.method for step in result.history}
    assert {"annealing", "earliest finish: upward rank"} <= methods
    first_s = next(
        step.objective_s for step in result.history if step.method == "earliest finish: default order"
    )
    assert result.lower_bound_s <= result.metrics.makespan_s < first_s
    assert go_opt.verify(go_opt.load(GRAPH), TARGET, result.plan) == []


def test_same_seed_and_evaluations_same_plan() -> None:
    one, other = searched(), searched()
    assert one.metrics.makespan_s == other.metrics.makespan_s
    assert one.plan.placement.tolist() == other.plan.placement.tolist()
    assert one.plan.order.tolist() == other.plan.order.tolist()


@pytest.mark.parametrize("decide", ["all", "placement"])
def test_constraints_on_chips_are_kept(decide: str) -> None:
    names = go_opt.load(GRAPH).op_names
    constraints = (go_opt.Pin(names[5], 1), go_opt.Forbid(names[20], (0,)))
    result = searched(constraints=constraints, decide=decide)
    assert result.plan.placement[5] == 1
    assert result.plan.placement[20] == 1
    assert go_opt.verify(go_opt.load(GRAPH), TARGET, result.plan, constraints) == []


def test_ops_that_share_a_chip_are_annealed() -> None:
    names = go_opt.load(GRAPH).op_names
    constraints = (go_opt.Colocate((names[5], names[40])),)
    result = searched(constraints=constraints)
    assert go_opt.verify(go_opt.load(GRAPH), TARGET, result.plan, constraints) == []
    assert "annealing" in {step.method for step in result.history}


def test_limits_are_kept_without_annealing() -> None:
    constraints = (go_opt.ChipLimit(1, at_most_ops=100),)
    result = searched(constraints=constraints)
    assert go_opt.verify(go_opt.load(GRAPH), TARGET, result.plan, constraints) == []
    assert "annealing" not in {step.method for step in result.history}


def test_what_touches_a_state_is_scheduled_on_one_chip() -> None:
    """Alone, ``late`` would run behind ``other``, on another chip than ``early``, which touches its state."""
    b = GraphBuilder("side by side")
    b.add_tensor("past", 10, "bf16", "input")
    for name, read, us in (
        ("other", "", 40),
        ("early", "past", 10),
        ("far", "early", 40),
        ("late", "other", 10),
    ):
        reads = [(read, None)] * bool(read) + [("past", None)] * (name == "late")
        b.add_op(name, "X", "vector", flops=0, dtype="bf16", reads=reads, writes=[(name, 10, "bf16")],
                 measured_s={"chip": us * 1e-6})  # fmt: skip
    b.add_state("past", "late", "sequence")
    target = small_mcm(2, topology="all_to_all", acyclic=False, no_skip="off", triangle="off")
    result = go_opt.optimize(b.build(), target, objective="latency", max_evaluations=30, policy=None)
    schedules = [step for step in result.history if step.method.startswith("earliest finish")]
    assert {math.isfinite(step.objective_s) for step in schedules} == {True}
    assert result.metrics.makespan_s < 70e-6


def test_a_batch_is_divided_where_that_is_faster() -> None:
    graph, target = go_opt.load("zoo:inception_v3_b64"), go_opt.target("gpu-2")
    result = searched_of(graph, max_evaluations=120)
    whole = searched_of(graph, max_evaluations=60, splits=False)
    assert result.plan.splits
    assert {split.parts for split in result.plan.splits} == {2}
    assert result.lower_bound_s <= result.metrics.makespan_s < whole.metrics.makespan_s
    assert go_opt.verify(graph, target, result.plan) == []
    simulated = go_opt.evaluate(graph, target, result.plan, fidelity="simulated")
    assert simulated.makespan_s == pytest.approx(result.metrics.makespan_s, rel=0.01)


def searched_of(graph: go_opt.Graph, **options: object) -> OptimizeResult:
    return go_opt.optimize(graph, TARGET, objective="latency", policy=None, seed=3, **options)


def test_one_chip_has_no_partitions() -> None:
    """Nor links, whose mean rate they would need."""
    result = go_opt.optimize(go_opt.load(GRAPH), "h100-sxm-1", objective="latency", max_evaluations=60)
    assert result.plan.chips_used == 1
    assert not any(step.method.startswith("partition") for step in result.history)
