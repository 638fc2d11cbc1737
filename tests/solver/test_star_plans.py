"""Placements around a host: by hand, and against every placement that keeps the constraints."""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray

from go_opt.env import CostTables, Target, cost_tables, evaluate_plan
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.solver import ChipLimit, Colocate, Forbid, Pin, verify
from go_opt.solver.exact.down_sets import down_set_optimum
from go_opt.solver.exact.star_plans import StarPlan, serves_star, star_plan, star_problem
from go_opt.solver.problem.op_constraints import op_constraints
from go_opt.solver.problem.user_constraints import UserConstraint
from tests.solver.brute_force import all_placements, evaluate_placements, held_weight_bytes
from tests.strategies import (
    chip_kind,
    examples,
    kind_names,
    make_plan,
    random_graph,
    random_target,
    seeds,
    small_mcm,
)

PLENTY = 2**60


def chain(fast_s: Sequence[float], slow_s: Sequence[float], sizes: Sequence[int]) -> Graph:
    """Ops in a row with seconds on either kind; ``sizes`` are bytes between them and of each weight."""
    b = GraphBuilder("chain")
    for op, size in enumerate(sizes):
        b.add_tensor(f"w{op}", size, "int8", "weight")
        reads = [(f"t{op - 1}", None)] if op else []
        b.add_op(
            f"op{op}", "Add", "vector", flops=0, dtype="int8", reads=[*reads, (f"w{op}", None)],
            writes=[(f"t{op}", size, "int8")], measured_s={"fast": fast_s[op], "slow": slow_s[op]},
        )  # fmt: skip
    return b.build()


def star(*, overlap: bool = False, acyclic: bool = True, fast: int = 2) -> Target:
    """Fast chips, which pay for transfers (1 s for 1e8 bytes), and a slow one that does not."""
    kinds = [
        chip_kind("fast", fast, sram_bytes=PLENTY),
        chip_kind("slow", 1, pays_transfers=False, sram_bytes=PLENTY),
    ]
    return small_mcm(topology="host_star", overlap=overlap, acyclic=acyclic, kinds=kinds)


def planned(
    graph: Graph, target: Target, constraints: Sequence[UserConstraint] = (), **limits: int
) -> StarPlan | None:
    asked = op_constraints(graph, target, constraints)
    assert serves_star(asked)
    return star_plan(asked, np.arange(graph.num_ops, dtype=np.int32), **limits)


def legal_placements(
    graph: Graph, target: Target, constraints: Sequence[UserConstraint], tables: CostTables
) -> NDArray[np.int32]:
    """Every placement that keeps the constraints, from their definitions."""
    kept = []
    for placement in all_placements(graph, tables):
        held = held_weight_bytes(tables, placement)
        is_legal = True
        for constraint in constraints:
            if isinstance(constraint, ChipLimit):
                assert constraint.at_most_bytes is not None
                is_legal &= held[constraint.chip] <= constraint.at_most_bytes
                continue
            chips = placement[[graph.op_index[name] for name in constraint.ops]]
            if isinstance(constraint, Pin):
                is_legal &= bool((chips == constraint.chip).all())
            elif isinstance(constraint, Forbid):
                is_legal &= not np.isin(chips, constraint.chips).any()
            else:
                is_legal &= len(np.unique(chips)) == 1
        depends = nx.DiGraph(
            (placement[a], placement[b]) for a, b in zip(graph.edge_src, graph.edge_dst, strict=True)
        )
        depends.remove_edges_from(list(nx.selfloop_edges(depends)))
        if is_legal and (nx.is_directed_acyclic_graph(depends) or not target.constraints.acyclic):
            kept.append(placement)
    return np.array(kept, np.int32).reshape(-1, graph.num_ops)


def test_kinds_in_any_order_by_hand() -> None:
    # On fast chips 4, 1 and 4 s, on the slow one 5 s for the op between; 1 s a transfer.
    graph, target = chain([4, 1, 4], [40, 5, 40], [10**8] * 3), star()
    plan = planned(graph, target)
    # {op0} 4 + 1 s out, {op1} 5 s, {op2} 1 s in + 4: the slow chip comes second.
    assert list(plan.placement) == [0, 2, 1]
    assert plan.objective_s == plan.lower_bound_s == pytest.approx(5.0)
    # Where transfers run beside compute, {op0, op1} takes 5 s, and the slow chip as long.
    assert planned(graph, star(overlap=True)).objective_s == pytest.approx(5.0)
    # Two on one fast chip: 4 + 1 + 1 s.
    assert planned(graph, target, [Forbid(["op1"], [2])]).objective_s == pytest.approx(6.0)


def test_limits_and_pins_by_hand() -> None:
    graph, target = chain([4, 1, 4], [40, 50, 40], [10**8] * 3), star()
    assert planned(graph, target).objective_s == pytest.approx(6.0)
    limits = [ChipLimit(chip, at_most_bytes=1.5e8) for chip in (0, 1)]
    assert planned(graph, target, limits).objective_s == pytest.approx(40.0)
    assert planned(graph, target, [*limits, Pin(["op1"], 2)]).objective_s == pytest.approx(50.0)
    limits = [ChipLimit(chip, at_most_bytes=1) for chip in (0, 1, 2)]
    assert planned(graph, target, limits) is None
    # Ops between colocated ones are on their chip too.
    assert planned(graph, target, [Colocate(["op0", "op2"])]).objective_s == pytest.approx(9.0)


def test_circles_of_chips_are_legal_where_dataflow_need_not_be_acyclic() -> None:
    # op0 and op2 on a chip, op1 on the slow one: a circle, which costs no transfer of 100 s.
    graph = chain([1, 9, 1], [40, 2, 40], [10**8] * 3)
    assert planned(graph, star(fast=1)).objective_s == pytest.approx(11.0)
    plan = planned(graph, star(fast=1, acyclic=False), moves=1000)
    # 1 + 1 s of compute, op0's result out and op1's in.
    assert list(plan.placement) == [0, 1, 0]
    assert plan.objective_s == pytest.approx(4.0)
    assert plan.lower_bound_s == 0.0


@settings(max_examples=examples(20))
@given(seed=seeds)
def test_too_many_down_sets_leave_slicing_and_annealing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, int(rng.integers(2, 25)), kinds=("fast", "slow"))
    target = star(overlap=bool(rng.integers(2)))
    exact, other = planned(graph, target), planned(graph, target, max_down_sets=2, moves=2000)
    assert other.lower_bound_s == 0.0
    assert other.objective_s >= exact.objective_s * (1 - 1e-9)
    again = planned(graph, target, max_down_sets=2, moves=2000)
    assert np.array_equal(again.placement, other.placement)
    plan = make_plan(graph, target, other.placement)
    assert verify(graph, target, plan) == []
    assert evaluate_plan(graph, target, plan).interval_s == pytest.approx(other.objective_s, rel=1e-9)


def test_too_many_pairs_prove_nothing() -> None:
    graph, target = chain([4, 1, 4], [40, 5, 40], [10**8] * 3), star()
    problem = star_problem(op_constraints(graph, target, []), np.arange(3, dtype=np.int32))
    assert down_set_optimum(problem, max_ideals=100).is_complete
    assert not down_set_optimum(problem, max_ideals=100, max_pairs=0).is_complete


def test_what_is_not_served() -> None:
    graph, target = chain([4, 1, 4], [40, 5, 40], [10**8] * 3), star()
    for constraint in (ChipLimit(0, at_least_bytes=1), ChipLimit(0, at_most_s=1)):
        assert not serves_star(op_constraints(graph, target, [constraint]))
    assert not serves_star(op_constraints(graph, small_mcm(), []))


@settings(max_examples=examples(150))
@given(seed=seeds)
def test_against_every_placement(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_target(
        rng, topology="host_star", num_chips=int(rng.integers(1, 4)), overlap=bool(rng.integers(2)),
        sram_bytes=PLENTY, acyclic=bool(rng.integers(2)), num_kinds=int(rng.integers(1, 3)),
    )  # fmt: skip
    graph = random_graph(rng, int(rng.integers(1, 6)), kinds=kind_names(target))
    constraints = random_constraints(rng, graph, target)
    tables = cost_tables(graph, target)
    legal = legal_placements(graph, target, constraints, tables)
    plan = planned(graph, target, constraints, moves=2000)
    if plan is None:
        assert not len(legal) or not target.constraints.acyclic
        return
    assert (legal == plan.placement).all(axis=1).any()
    ops = np.arange(graph.num_ops, dtype=np.int32)
    truth = evaluate_placements(tables, legal, ops, ops).interval_s.min()
    cost = evaluate_placements(tables, plan.placement[None], ops, ops).interval_s[0]
    assert plan.objective_s == pytest.approx(cost, rel=1e-9)
    if target.constraints.acyclic:
        assert plan.objective_s == plan.lower_bound_s == pytest.approx(truth, rel=1e-9)


def random_constraints(rng: np.random.Generator, graph: Graph, target: Target) -> list[UserConstraint]:
    def some(count: int) -> list[str]:
        return [graph.op_names[i] for i in rng.integers(0, graph.num_ops, count)]

    chip = int(rng.integers(target.num_chips))
    drawn: list[UserConstraint] = [
        Pin(some(1), chip),
        Forbid(some(2), [chip]),
        Colocate(some(2)),
        ChipLimit(chip, at_most_bytes=float(rng.integers(0, 30_000))),
    ]
    return [constraint for constraint in drawn if rng.random() < 0.3]
