"""The steady state that is found early is the one a long run ends in."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings

from go_opt.env import Target, cost_tables, greedy_fusion, load_target, load_zoo, loop_roles
from go_opt.env.simulator.engine import run, step_s
from go_opt.env.simulator.simulate import NEVER, VALID, SimulatedBatch, simulate_batch
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.solver import slice_order
from tests.env.simulator.replicas import random_replicated
from tests.env.simulator.test_twin import assembled
from tests.strategies import (
    JIT_IS_ON,
    examples,
    make_plan,
    random_graph,
    random_plan,
    random_simulated_target,
    seeds,
)

LONG_RUN = 640  # inferences
STEP = 240  # of the last, a multiple of most periods; parts may repeat later than the whole


def simulated(graph: Graph, target: Target, plan: Plan) -> SimulatedBatch:
    rows = (plan.placement, plan.order, plan.fusion_group, plan.replication)
    return simulate_batch(graph, target, *(row[None] for row in rows))


def long_interval_s(graph: Graph, target: Target, plan: Plan, period: int) -> float:
    package = assembled(graph, target, plan, LONG_RUN).package
    run(package, LONG_RUN, NEVER)
    last = LONG_RUN - 1 - int(package.shared["window"][0])
    return step_s(package, last, max(STEP // period, 1) * period, True)


def assert_steady(graph: Graph, target: Target, plan: Plan) -> None:
    batch = simulated(graph, target, plan)
    if batch.outcome[0] != VALID or batch.period[0] == 0:
        return
    interval_s = batch.interval_s[0]
    assert interval_s == pytest.approx(long_interval_s(graph, target, plan, int(batch.period[0])), rel=1e-7)
    # A chip computes or waits; one that is ahead of the slowest does both in less than an interval.
    assert (batch.compute_s[0] + batch.stall_s[0].sum(axis=1) <= interval_s * (1 + 1e-7)).all()


@pytest.mark.skipif(not JIT_IS_ON, reason="long runs")
@given(seed=seeds)
@example(seed=1016)  # weights are ever further ahead on the host's link, until the window ends
@example(seed=1168)
@example(seed=3235)
@example(seed=7462)  # the same, with a chip that is never idle till an input waits behind weights
@example(seed=5299)  # tensors without credit run ahead, and a deadlock follows
@settings(max_examples=150)
def test_random_plans(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, int(rng.integers(1, 20)))
    target = random_simulated_target(rng)
    assert_steady(graph, target, random_plan(rng, graph, target, monotone=target.constraints.acyclic))


@given(seed=seeds)
@example(seed=719)  # two chips drift apart and meet on a link every 17 inferences
@settings(max_examples=examples(60))
def test_replicated_stages(seed: int) -> None:
    graph, target, plan = random_replicated(np.random.default_rng(seed), legal=True)
    assert_steady(graph, target, plan)


# Chips ahead of the slowest take longer than the runs below to fill their buffers in pythia and resnet152.
@pytest.mark.skipif(not JIT_IS_ON, reason="long runs")
@pytest.mark.parametrize("name", ["inception_v3", "resnet152", "pythia_410m", "tree_lstm"])
def test_best_slices(name: str) -> None:
    graph, target = load_zoo(name), load_target("mcm-6x6")
    order = np.arange(graph.num_ops, dtype=np.int32)
    group = greedy_fusion(loop_roles(graph), order)
    sliced = slice_order(cost_tables(graph, target), order, group, forwarding="adjacent")
    assert sliced is not None
    plan = make_plan(graph, target, sliced.placement, fusion_group=group)
    assert simulated(graph, target, plan).period[0] == 1
    assert_steady(graph, target, plan)
