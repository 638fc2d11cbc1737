"""Batches of plans take as long alone as each of their plans; fidelities there are not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.env import cost_tables, evaluate_batch, evaluate_plan
from go_opt.env.evaluation import makespans_s
from go_opt.errors import InvalidInputError
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


@settings(max_examples=examples(20))
@given(seed=seeds)
def test_makespans_of_a_batch(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_simulated_target(rng)
    graph = random_graph(rng, int(rng.integers(2, 15)))
    plans = [random_plan(rng, graph, target, monotone=True) for _ in range(3)]
    columns = ("placement", "order", "fusion_group")
    rows = [np.array([getattr(plan, name) for plan in plans]) for name in columns]
    tables = cost_tables(graph, target)
    seconds = makespans_s(tables, evaluate_batch(tables, *rows), *rows)
    metrics = [evaluate_plan(graph, target, plan) for plan in plans]
    np.testing.assert_array_equal(seconds, [one.makespan_s if one.valid else np.inf for one in metrics])


def test_a_fidelity_there_is_not() -> None:
    graph, target = toy_graph(), small_mcm(2)
    plan = make_plan(graph, target, [0] * 6)
    with pytest.raises(InvalidInputError, match="fidelity must be one of analytical, simulated, not 'exact'"):
        evaluate_plan(graph, target, plan, fidelity="exact")  # type: ignore[arg-type]
