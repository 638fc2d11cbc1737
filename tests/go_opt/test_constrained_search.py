"""The portfolio under constraints: every plan keeps them; where there is none, the reason is real."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings

import go_opt
from go_opt.errors import InfeasibleError
from go_opt.solver.problem.problem import placement_problem
from go_opt.solver.verify.rule_check import NONE, broken_rules
from tests.solver.user_constraints import draw_constraint, obeys
from tests.strategies import examples, random_graph, seeds, small_mcm, toy_graph

FEW = {"max_evaluations": 6, "policy": None}


@pytest.mark.parametrize("objective", ["throughput", "latency"])
@pytest.mark.parametrize("topology", ["ring", "all_to_all"])
@given(seed=seeds)
@settings(max_examples=examples(6))
def test_plans_keep_constraints(topology: str, objective, seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, int(rng.integers(2, 30)))
    target = small_mcm(int(rng.integers(2, 6)), topology=topology, sram_bytes=10**9)
    constraints = [draw_constraint(rng, graph, target) for _ in range(int(rng.integers(1, 4)))]
    options = {"relays": bool(rng.integers(2)), "decide": ("all", "placement")[int(rng.integers(2))]}
    try:
        result = go_opt.optimize(
            graph, target, constraints=constraints, objective=objective, seed=seed, **options, **FEW
        )
    except InfeasibleError:
        return
    assert go_opt.verify(graph, target, result.plan, constraints) == []
    assert go_opt.evaluate(graph, target, result.plan, constraints=constraints).valid


@given(seed=seeds)
@settings(max_examples=examples(30))
def test_placements_with_fixed_kernels_are_found_or_do_not_exist(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_ops, num_chips = int(rng.integers(2, 6)), int(rng.integers(2, 4))
    graph, target = random_graph(rng, num_ops), small_mcm(num_chips, sram_bytes=10**9)
    constraints = [draw_constraint(rng, graph, target) for _ in range(int(rng.integers(1, 4)))]
    every = np.array(list(itertools.product(range(num_chips), repeat=num_ops)), np.int32)
    every = every[broken_rules(placement_problem(graph, target), every) == NONE]
    exists = any(all(obeys(graph, target, row, asked) for asked in constraints) for row in every)
    fixed = {"decide": "placement", "relays": False, **FEW}
    if exists:
        result = go_opt.optimize(graph, target, constraints=constraints, **fixed)
        assert go_opt.verify(graph, target, result.plan, constraints) == []
    else:
        reasons = r"no placement obeys|no chip of small-mcm|can only run there"
        with pytest.raises(InfeasibleError, match=reasons):
            go_opt.optimize(graph, target, constraints=constraints, **fixed)


def test_a_bound_holds_with_constraints_too() -> None:
    free = go_opt.optimize(toy_graph(), small_mcm(3), **FEW)
    asked = [go_opt.Pin("add", 0), go_opt.ChipLimit(1, at_most_s=1.5e-5)]
    bound = go_opt.optimize(toy_graph(), small_mcm(3), constraints=asked, **FEW)
    assert bound.lower_bound_s >= free.lower_bound_s * (1 - 1e-12)
    assert bound.metrics.interval_s >= free.metrics.interval_s * (1 - 1e-12)
    assert bound.gap >= 0


def test_same_seed_same_answer() -> None:
    graph, target = random_graph(np.random.default_rng(1), 30), small_mcm(5, sram_bytes=10**9)
    asked = [go_opt.CutAfter("op7"), go_opt.Pin("op20", 3)]
    plans = [go_opt.optimize(graph, target, constraints=asked, seed=4, **FEW).plan for _ in range(2)]
    np.testing.assert_array_equal(plans[0].placement, plans[1].placement)
