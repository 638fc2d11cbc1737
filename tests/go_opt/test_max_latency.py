"""A bound on the latency of a sample while throughput is optimised."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import go_opt
from go_opt.env import cost_tables, evaluate_plan, loop_roles
from go_opt.errors import InfeasibleError, InvalidInputError
from go_opt.solver.scheduling.bounds import latency_bound
from tests.strategies import (
    examples,
    kind_names,
    random_graph,
    random_plan,
    random_target,
    seeds,
    small_mcm,
    toy_graph,
)


def toy(limit_s: float | None, **options: Any) -> go_opt.OptimizeResult:
    asked = {"max_evaluations": 30, "replication": False, **options}
    return go_opt.optimize(toy_graph(), small_mcm(4), max_latency_s=limit_s, policy=None, **asked)


def test_the_best_plan_that_keeps_it() -> None:
    free = toy(None)
    alone = toy(toy(None, objective="latency").metrics.latency_s)
    assert alone.metrics.latency_s < free.metrics.latency_s
    assert alone.metrics.interval_s > free.metrics.interval_s
    assert alone.lower_bound_s <= free.metrics.interval_s
    # Kept to the last bit, and then nothing changes.
    kept = toy(free.metrics.latency_s)
    assert kept.metrics.interval_s == free.metrics.interval_s
    assert all(step.objective_s >= alone.metrics.interval_s for step in alone.history)


def test_more_chips_are_used_as_more_time_is_given() -> None:
    graph, target = random_graph(np.random.default_rng(1), 60), small_mcm(12, sram_bytes=10**7)

    def asked(limit_s: float | None) -> go_opt.OptimizeResult:
        return go_opt.optimize(graph, target, max_latency_s=limit_s, max_evaluations=60, policy=None)

    free = asked(None).metrics
    least = go_opt.optimize(graph, target, objective="latency", max_evaluations=60, policy=None).metrics
    between = asked((free.latency_s + least.latency_s) / 2).metrics
    assert between.latency_s <= (free.latency_s + least.latency_s) / 2
    assert free.interval_s <= between.interval_s < least.interval_s


@pytest.mark.parametrize("limits", [{"max_evaluations": 20}, {"budget_s": 0.02, "max_evaluations": None}])
def test_what_cannot_be_kept_is_told(limits: dict[str, Any]) -> None:
    # Far above what is proven, 172 us, and below what the search finds, 520 us.
    graph, target = random_graph(np.random.default_rng(1), 30), small_mcm(4, sram_bytes=10**7)
    with pytest.raises(InfeasibleError, match=r"at most [0-9.]+ us; the lowest is [0-9.]+ us\.") as caught:
        go_opt.optimize(graph, target, max_latency_s=300e-6, policy=None, **limits)
    assert "stopped after" in str(caught.value)
    assert (caught.value.is_proven, caught.value.exit_code) == (False, 5)


def test_what_no_plan_keeps_is_refused_at_once() -> None:
    graph, target = toy_graph(), small_mcm(4)
    steps: list[Any] = []
    with pytest.raises(InfeasibleError, match=r"at most 1 us: it is at least [0-9.]+ us, the") as caught:
        go_opt.optimize(graph, target, max_latency_s="1us", on_step=steps.append)
    assert (caught.value.is_proven, caught.value.exit_code, steps) == (True, 3, [])
    pin = go_opt.Pin("embed", 1)
    too_short, too_small = go_opt.ChipLimit(1, at_most_s=1e-9), go_opt.ChipLimit(1, at_most_bytes=9_999)
    with pytest.raises(InfeasibleError, match=r"op 'embed' can only run there and takes") as caught:
        go_opt.optimize(graph, target, decide="placement", constraints=(pin, too_short), on_step=steps.append)
    assert caught.value.conflict == ("limit chip 1 to at most s 1e-09", "pin 'embed' to chip 1")
    with pytest.raises(InfeasibleError, match=r"'embed' can only run there and reads 10 kB of weights"):
        go_opt.optimize(graph, target, constraints=(pin, too_small), on_step=steps.append)
    assert steps == []


@settings(max_examples=examples(100))
@given(seed=seeds, num_ops=st.integers(1, 25))
def test_no_plan_is_refused_that_exists(seed: int, num_ops: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_target(rng)
    graph = random_graph(rng, num_ops, kinds=kind_names(target))
    plan = random_plan(rng, graph, target, fusion="legal")
    assume(cost_tables(graph, target).can_run[target.chip_kind[plan.placement], np.arange(num_ops)].all())
    metrics = evaluate_plan(graph, target, plan)
    for is_open in (False, True):
        bound = latency_bound(
            graph, cost_tables(graph, target), loop_roles(graph), is_alone=False, fusion_is_open=is_open
        )
        if is_open or len(np.unique(plan.fusion_group)) == graph.num_ops:
            assert bound.seconds <= metrics.latency_s * (1 + 1e-9)


def test_a_limit_that_is_no_plans_fault_is_not_blamed() -> None:
    with pytest.raises(InfeasibleError, match="fits no chip"):
        go_opt.optimize(toy_graph(), small_mcm(2, sram_bytes=100), max_latency_s=1e-6, max_evaluations=9)


@pytest.mark.parametrize("limit_s", [0.0, -1.0, float("nan"), float("inf")])
def test_nonsense_is_refused(limit_s: float) -> None:
    with pytest.raises(InvalidInputError, match="max_latency_s must be above zero and finite"):
        toy(limit_s)


def test_latency_itself_needs_no_bound() -> None:
    with pytest.raises(InvalidInputError, match="max_latency_s bounds plans of objective throughput"):
        toy(1.0, objective="latency")


def test_more_chips_for_a_stage_take_no_latency() -> None:
    # The toy alone on a chip: 43.4 us, and 7.233 us an inference on six in turn.
    graph, target = toy_graph(), small_mcm(6, link_bytes_per_s=1e9, host_out_bytes_per_s=1e9)
    alone = go_opt.optimize(graph, target, objective="latency", max_evaluations=20, policy=None)
    result = go_opt.optimize(
        graph, target, max_latency_s=alone.metrics.latency_s, max_evaluations=40, policy=None
    )
    assert result.metrics.latency_s <= alone.metrics.latency_s
    assert result.plan.chips_used == 6
    assert result.metrics.interval_s < alone.metrics.interval_s / 3
