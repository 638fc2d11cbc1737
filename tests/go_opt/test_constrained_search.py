"""The portfolio under constraints: every plan keeps them; where there is none, the reason is real."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings

import go_opt
from go_opt.errors import InfeasibleError
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.solver.problem.problem import placement_problem
from go_opt.solver.verify.rule_check import NONE, broken_rules
from tests.solver.user_constraints import draw_constraint, obeys
from tests.strategies import examples, random_graph, seeds, small_mcm, toy_graph

FEW = {"max_evaluations": 6, "policy": None}


def chain(op_type: str, op_class: str, flops: list[int]) -> Graph:
    b = GraphBuilder("chain")
    b.add_tensor("t0", 100, "int8", "input")
    for i, work in enumerate(flops):
        b.add_op(
            f"op{i}", op_type, op_class, flops=work, dtype="int8",
            reads=[(f"t{i}", None)], writes=[(f"t{i + 1}", 100, "int8")],
        )  # fmt: skip
    b.mark_output(f"t{len(flops)}")
    return b.build()


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


def test_a_limit_of_kernels_is_met_by_fusion_or_refused() -> None:
    graph, target = chain("Relu", "vector", [100] * 70), small_mcm(2)
    for decide, fewest in (("all", 3), ("placement", 70)):
        pins = go_opt.Pin("op.*", 0)
        enough, too_few = (go_opt.ChipLimit(0, at_most_kernels=most) for most in (fewest, fewest - 1))
        result = go_opt.optimize(graph, target, constraints=[pins, enough], decide=decide, **FEW)
        assert go_opt.verify(graph, target, result.plan, [pins, enough]) == []
        assert len(set(result.plan.fusion_group.tolist())) == fewest
        with pytest.raises(InfeasibleError, match=f"are {fewest} kernels at least"):
            go_opt.optimize(graph, target, constraints=[pins, too_few], decide=decide, **FEW)


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
        reasons = r"no placement obeys|no chip of small-mcm|can only run there|there are only|no plan has"
        with pytest.raises(InfeasibleError, match=reasons):
            go_opt.optimize(graph, target, constraints=constraints, **fixed)


@pytest.mark.parametrize("objective", ["throughput", "latency"])
@pytest.mark.parametrize("topology", ["ring", "all_to_all"])
@given(seed=seeds)
@settings(max_examples=examples(4))
def test_a_number_of_stages_is_kept_wherever_some_plan_has_it(topology: str, objective, seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_ops, num_chips = int(rng.integers(2, 8)), int(rng.integers(2, 5))
    graph = random_graph(rng, num_ops)
    target = small_mcm(num_chips, topology=topology, sram_bytes=10**9)
    options = {"relays": bool(rng.integers(2)), "decide": ("all", "placement")[int(rng.integers(2))]}
    every = np.array(list(itertools.product(range(num_chips), repeat=num_ops)), np.int32)
    every = every[broken_rules(placement_problem(graph, target), every) == NONE]
    possible = {len(set(row)) for row in every.tolist()}
    for count in range(1, num_chips + 2):
        asked = {"constraints": [go_opt.Stages(count)], "objective": objective, **options, **FEW}
        if count in possible:
            result = go_opt.optimize(graph, target, **asked)
            assert len(np.unique(result.plan.placement)) == count
            assert go_opt.verify(graph, target, result.plan, [go_opt.Stages(count)]) == []
            (broken,) = go_opt.verify(graph, target, result.plan, [go_opt.Stages(count + 1)])
            assert broken.message == f"exactly {count + 1} stages: the plan has {count}."
            assert result.lower_bound_s <= result.objective_s * (1 + 1e-9)
        elif count > min(num_chips, num_ops):
            with pytest.raises(InfeasibleError, match="there are only") as caught:
                go_opt.optimize(graph, target, **asked)
            assert caught.value.is_proven


@pytest.mark.parametrize("topology", ["ring", "all_to_all"])
def test_stages_take_the_chips_they_need(topology: str) -> None:
    graph = chain("Conv", "matrix", [9_000_000, 1_000_000, 1_000_000, 1_000_000])
    target = small_mcm(4, topology=topology, sram_bytes=10**9)
    result = go_opt.optimize(graph, target, constraints=[go_opt.Stages(2)], **FEW)
    assert result.plan.placement.tolist() == [0, 3, 3, 3]
    assert result.plan.replication.tolist() == [3, 1, 1, 1]


def test_two_numbers_of_stages_contradict_each_other() -> None:
    asked = [go_opt.Stages(1), go_opt.Stages(2)]
    with pytest.raises(InfeasibleError, match="no plan has exactly 1 stage and exactly 2 stages") as caught:
        go_opt.optimize(toy_graph(), small_mcm(3), constraints=asked, **FEW)
    assert caught.value.is_proven


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
