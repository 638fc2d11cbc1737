"""Batches of plans cost what each of their plans costs, at either fidelity."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.env import Target, evaluate_plan, evaluate_plans
from go_opt.env.model.metrics import Fidelity
from go_opt.errors import InvalidInputError
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from tests.env.simulator.replicas import random_replicated
from tests.strategies import (
    examples,
    make_plan,
    random_graph,
    random_plan,
    random_simulated_target,
    seeds,
    small_mcm,
    toy_graph,
)


@pytest.mark.parametrize("fidelity", ["analytical", "simulated"])
@settings(max_examples=examples(20))
@given(seed=seeds)
def test_a_batch_costs_what_its_plans_cost(fidelity: Fidelity, seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_simulated_target(rng)
    graph = random_graph(rng, int(rng.integers(2, 15)))
    plans = [random_plan(rng, graph, target, monotone=True) for _ in range(3)]
    check_batch(graph, target, plans, ("placement", "order", "fusion_group"), fidelity)


@pytest.mark.parametrize("fidelity", ["analytical", "simulated"])
@settings(max_examples=examples(20))
@given(seed=seeds)
def test_a_batch_of_replicated_stages(fidelity: Fidelity, seed: int) -> None:
    graph, target, plan = random_replicated(np.random.default_rng(seed))
    bare = replace(plan, relays=(), clones=())
    plans = [bare, replace(bare, replication=np.ones_like(bare.replication))]
    check_batch(graph, target, plans, ("placement", "order", "fusion_group", "replication"), fidelity)


def check_batch(
    graph: Graph, target: Target, plans: list[Plan], columns: tuple[str, ...], fidelity: Fidelity
) -> None:
    rows = (np.array([getattr(plan, name) for plan in plans]) for name in columns)
    costs = evaluate_plans(graph, target, *rows, fidelity=fidelity)
    metrics = [evaluate_plan(graph, target, plan, fidelity=fidelity) for plan in plans]
    np.testing.assert_array_equal(costs.interval_s, [each.interval_s for each in metrics])
    np.testing.assert_array_equal(costs.valid, [each.valid for each in metrics])


def test_a_fidelity_there_is_not() -> None:
    graph, target = toy_graph(), small_mcm(2)
    plan = make_plan(graph, target, [0] * 6)
    with pytest.raises(InvalidInputError, match="fidelity must be one of analytical, simulated, not 'exact'"):
        evaluate_plan(graph, target, plan, fidelity="exact")  # type: ignore[arg-type]
    rows = plan.placement[None], plan.order[None], plan.fusion_group[None]
    with pytest.raises(InvalidInputError, match="fidelity must be one of"):
        evaluate_plans(graph, target, *rows, fidelity="exact")  # type: ignore[arg-type]
