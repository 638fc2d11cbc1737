"""Polishing keeps every op where it is and never makes a plan worse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings

from go_opt.env import cost_tables, evaluate_batch, evaluate_plan, greedy_fusion, loop_roles
from go_opt.model.builder import GraphBuilder
from go_opt.solver import (
    AnnealingProblem,
    anneal,
    needed_relays,
    placement_problem,
    relays_of_arrays,
    verify,
)
from go_opt.solver.annealing.polish import fused_within_chips, polish
from tests.strategies import examples, make_plan, random_graph, random_target, seeds, small_mcm


@settings(max_examples=examples(40))
@given(seed=seeds)
def test_polished_plans_are_valid_and_never_slower(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, int(rng.integers(2, 25)))
    target = random_target(rng, topology="chain", num_kinds=1, triangle="adjacent")
    tables, order = cost_tables(graph, target), np.arange(graph.num_ops, dtype=np.int32)
    group = greedy_fusion(loop_roles(graph), order)
    problem = placement_problem(graph, target, group)
    start = np.zeros(graph.num_ops, np.int32)
    annealed = AnnealingProblem(tables, problem, order, group, "relayed")
    placement = anneal(annealed, start, moves=200, seed=seed, hot=1.0).placement
    relays = relays_of_arrays(graph, *needed_relays(tables, placement, "adjacent"))
    polished = polish(graph, target, tables, placement, order, group, evaluations=20)
    assert polished.evaluations <= 20
    reached_s = []
    for plan_order, plan_group in ((order, group), (polished.order, polished.fusion_group)):
        made = make_plan(graph, target, placement, order=plan_order, fusion_group=plan_group)
        plan = replace(made, relays=relays)
        metrics = evaluate_plan(graph, target, plan)
        assert {violation.constraint for violation in verify(graph, target, plan)} <= {"memory"}
        reached_s.append(metrics.interval_s if metrics.valid else np.inf)
    assert reached_s[1] == polished.interval_s <= reached_s[0]


def test_ops_apart_in_the_order_fuse_once_their_chip_is_their_own() -> None:
    # Two branches run by turns; on chips of their own each is one kernel, not three.
    b = GraphBuilder("two branches")
    b.add_tensor("in", 500, "float32", "input")
    for step in range(3):
        for branch in ("a", "b"):
            read = "in" if step == 0 else f"{branch}{step - 1}"
            writes = [(f"{branch}{step}", 500, "float32")]
            b.add_op(
                f"{branch}.{step}",
                "Relu",
                "vector",
                flops=100,
                dtype="float32",
                reads=[(read, None)],
                writes=writes,
            )
    b.mark_output("a2")
    b.mark_output("b2")
    graph, target = b.build(), small_mcm(2, host_out_bytes_per_s=1e9)
    tables, order = cost_tables(graph, target), np.arange(6, dtype=np.int32)
    placement = np.array([0, 1] * 3, np.int32)
    polished = polish(graph, target, tables, placement, order, order)
    assert polished.fusion_group[polished.order].tolist() == [0, 0, 0, 1, 1, 1]
    before = evaluate_batch(tables, placement[None], order[None], order[None])
    after = evaluate_batch(tables, placement[None], polished.order[None], polished.fusion_group[None])
    # 1 us of flops an op, 2 us to read and write 1000 bytes, and 1 us of overhead a kernel.
    np.testing.assert_allclose(before.compute_s[0], [9e-6, 9e-6])
    np.testing.assert_allclose(after.compute_s[0], [4e-6, 4e-6])


def test_kernels_end_where_chips_meet() -> None:
    rng = np.random.default_rng(3)
    graph = random_graph(rng, 30)
    order, placement = np.arange(30, dtype=np.int32), np.sort(rng.integers(0, 3, 30)).astype(np.int32)
    group = fused_within_chips(graph, order, placement)
    for kernel in np.unique(group):
        assert len(np.unique(placement[group == kernel])) == 1
