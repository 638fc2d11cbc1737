"""Ops on other chips: by hand, and against plans moved op by op, evaluated and verified."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.env import Target, evaluate_plan, greedy_fusion, loop_roles
from go_opt.explanations.moves import Cost, Mover, plan_cost
from go_opt.explanations.terms import Place
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.solver import Forbid, Pin
from go_opt.solver.verify.verifier import verify
from tests.strategies import (
    examples,
    kind_names,
    make_plan,
    random_graph,
    random_plan,
    random_target,
    seeds,
    small_mcm,
    toy_graph,
)

EMBED, DENSE, RELU, MIX, ADD, LOGITS = range(6)


def toy_mover(target: Target, placement: list[int], **changes: object) -> Mover:
    graph = toy_graph()
    return Mover(graph, target, replace(make_plan(graph, target, placement), **changes))  # type: ignore[arg-type]


def cost_of(mover: Mover) -> Cost:
    return plan_cost(mover.graph, mover.target, mover.plan)[0]


def test_a_move_that_nothing_forbids() -> None:
    mover = toy_mover(small_mcm(2), [0, 0, 0, 0, 1, 1])
    assert cost_of(mover).interval_s == pytest.approx(23.4e-6)
    # mix on chip 1 too: 18.4 us and 25 us, and x and a cross.
    move = mover.move(MIX, 1)
    assert (move.ops_along, move.blocker, move.forbidden, move.relays) == (0, None, "", 0)
    assert move.cost == Cost(pytest.approx(25e-6), "chip 1 compute", 0)  # type: ignore[arg-type]


def test_readers_and_producers_move_along() -> None:
    mover = toy_mover(small_mcm(3), [0, 0, 1, 1, 2, 2])
    late = mover.move(DENSE, 2)
    assert late.ops_along == 2  # relu and mix
    assert late.blocker == Place("relu", 1)
    assert not late.reads_blocker
    assert late.forbidden == "chip 1 would run no op."
    # It is costed nevertheless: x, with 10 us, is all that still crosses; 40 us on chip 2.
    assert late.cost.interval_s == pytest.approx(40e-6)
    early = mover.move(ADD, 0)
    assert (early.ops_along, early.blocker, early.reads_blocker) == (2, Place("mix", 1), True)


def test_a_link_that_would_bind_is_told_with_its_bytes() -> None:
    mover = toy_mover(small_mcm(3, link_bytes_per_s=5e7), [0, 0, 0, 0, 1, 2])
    # y over link 1->2 takes 20 us, x and s over link 0->1 40 us.
    assert cost_of(mover) == Cost(pytest.approx(40e-6), "link 0->1", 2000)  # type: ignore[arg-type]


def test_relays_that_a_move_takes_are_part_of_its_cost() -> None:
    mover = toy_mover(small_mcm(3, triangle="adjacent"), [0, 0, 0, 0, 1, 2])
    move = mover.move(ADD, 2)
    assert move.forbidden == "chip 1 would run no op."
    mover = toy_mover(small_mcm(3, triangle="adjacent"), [0, 0, 1, 1, 1, 2])
    move = mover.move(ADD, 2)
    # x passes chip 1, where a copy of 2000 bytes takes 3 us beside relu and mix; x and h cross.
    assert (move.forbidden, move.relays) == ("", 1)
    assert move.cost.interval_s == pytest.approx(20e-6)
    moved = replace(mover.plan, placement=np.array([0, 0, 1, 1, 2, 2], np.int32))
    assert [v.constraint for v in verify(mover.graph, mover.target, moved)] == ["triangle"]


def test_constraints_of_the_user_forbid() -> None:
    graph, target = toy_graph(), small_mcm(3)
    plan = make_plan(graph, target, [0, 0, 0, 1, 1, 2])
    mover = Mover(graph, target, plan, (Pin("mix", 1), Forbid("add", [2])))
    assert "mix" in mover.move(MIX, 0).forbidden
    assert "add" in mover.move(ADD, 2).forbidden
    assert mover.move(RELU, 1).forbidden == ""


def test_memory_forbids_with_demand_and_limit() -> None:
    mover = toy_mover(small_mcm(2, sram_bytes=7000), [0, 0, 0, 0, 0, 1])
    forbidden = mover.move(LOGITS, 0).forbidden
    assert "chip 0" in forbidden
    assert "7800" in forbidden
    assert "7000" in forbidden


def test_the_neighbourhood_of_ops() -> None:
    mover = toy_mover(small_mcm(2), [0, 0, 0, 0, 1, 1])
    around = mover.around([MIX, ADD])
    assert (around.tried, around.legal, around.best_op) == (2, 2, "mix")
    assert around.best is not None
    assert around.best.cost.interval_s == pytest.approx(25e-6)


@settings(max_examples=examples(80))
@given(seeds)
def test_moves_against_plans_moved_by_hand(seed: int) -> None:
    rng = np.random.default_rng(seed)
    acyclic = bool(rng.random() < 0.7)
    fields = {"topology": str(rng.choice(["ring", "chain"])), "acyclic": True} if acyclic else {}
    target = random_target(rng, num_chips=int(rng.integers(2, 6)), **fields)
    acyclic = target.constraints.acyclic
    graph = random_graph(rng, int(rng.integers(2, 15)), kinds=kind_names(target))
    plan = random_plan(rng, graph, target, monotone=acyclic, fusion="legal")
    mover = Mover(graph, target, plan)
    assert cost_of(mover).interval_s == pytest.approx(evaluate_plan(graph, target, plan).interval_s)
    for op in rng.choice(graph.num_ops, 3).tolist():
        for chip in range(target.num_chips):
            if chip != plan.placement[op]:
                _check(graph, target, plan, mover, op, chip)


def _check(graph: Graph, target: Target, plan: Plan, mover: Mover, op: int, chip: int) -> None:
    move = mover.move(op, chip)
    placement = (
        _moved_by_hand(graph, plan, op, chip) if target.constraints.acyclic else _alone(plan, op, chip)
    )
    moved = replace(plan, placement=placement)
    mates = plan.fusion_group == plan.fusion_group[op]
    assert move.ops_along == int((placement != plan.placement)[~mates].sum())
    if move.relays == 0:
        assert move.cost.interval_s == pytest.approx(evaluate_plan(graph, target, moved).interval_s)
        assert (move.forbidden == "") == (verify(graph, target, moved) == [])
    assert (move.blocker is None) == (move.ops_along == 0)
    if move.blocker is not None:
        blocker = graph.op_index[move.blocker.op]
        ends = (blocker, None) if move.reads_blocker else (None, blocker)
        edges = zip(graph.edge_src.tolist(), graph.edge_dst.tolist(), strict=True)
        assert any(
            (ends[0] == a and mates[b]) if move.reads_blocker else (ends[1] == b and mates[a])
            for a, b in edges
        )


def _alone(plan: Plan, op: int, chip: int) -> np.ndarray:
    placement = plan.placement.copy()
    placement[plan.fusion_group == plan.fusion_group[op]] = chip
    return placement


def _moved_by_hand(graph: Graph, plan: Plan, op: int, chip: int) -> np.ndarray:
    """Until nothing changes: what an edge leads back to, or comes back from, moves to the chip too."""
    is_up = chip > plan.placement[op]
    placement = _alone(plan, op, chip)
    while True:
        before = placement.copy()
        for a, b in zip(graph.edge_src.tolist(), graph.edge_dst.tolist(), strict=True):
            if placement[a] > placement[b]:
                group = plan.fusion_group[b if is_up else a]
                placement[plan.fusion_group == group] = chip
        if (placement == before).all():
            return placement


def test_kernels_move_whole() -> None:
    graph, target = toy_graph(), small_mcm(2)
    group = greedy_fusion(loop_roles(graph), np.arange(6, dtype=np.int32))
    plan = make_plan(graph, target, [0, 0, 0, 0, 0, 1], fusion_group=group.tolist())
    mates = np.flatnonzero(group == group[MIX])
    assert len(mates) > 1
    assert Mover(graph, target, plan).move(MIX, 1).ops_along == 0
