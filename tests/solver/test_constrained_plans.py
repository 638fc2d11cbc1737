"""Starts under constraints: every one keeps them, and where there is none there is a reason."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.env import cost_tables, greedy_fusion, loop_roles
from go_opt.env.kernels.numbering import kernel_seconds
from go_opt.solver import slice_order
from go_opt.solver.constraints.plans import constrained_fusion, constrained_starts, constrained_tables
from go_opt.solver.copies.relays import needed_relays, relays_of_arrays
from go_opt.solver.problem.op_constraints import op_constraints
from go_opt.solver.problem.problem import placement_problem
from go_opt.solver.problem.user_constraints import ChipLimit, Colocate, CutAfter, Forbid, Pin
from go_opt.solver.verify.rule_check import NONE, broken_rules
from go_opt.solver.verify.verifier import verify
from tests.solver.brute_force import all_fusions, all_orders
from tests.solver.constraint_filter import ConstraintFilter
from tests.solver.user_constraints import draw_constraint
from tests.strategies import JIT_IS_ON, examples, random_graph, seeds, small_mcm, toy_graph

FORWARDING_MODES = ("adjacent", "relayed", "free")


def starts_of(graph, target, constraints, forwarding="adjacent", **options):
    asked = op_constraints(graph, target, constraints)
    order = np.arange(graph.num_ops, dtype=np.int32)
    group = constrained_fusion(asked, order, greedy_fusion(loop_roles(graph), order))
    return constrained_starts(asked, order, group, forwarding=forwarding, **options)


def plans_of(starts, forwarding):
    graph, target = starts.requested.graph, starts.requested.target
    for start in starts.starts:
        plan = start.plan(graph, target)
        if forwarding == "relayed":
            pairs = needed_relays(cost_tables(graph, target), start.placement, target.constraints.triangle)
            plan = replace(plan, relays=relays_of_arrays(graph, *pairs))
        yield plan


def placements_of(starts):
    return np.stack([start.placement for start in starts.starts])


@pytest.mark.parametrize("forwarding", FORWARDING_MODES)
@given(seed=seeds)
@settings(max_examples=examples(20))
def test_a_start_is_valid_and_a_conflict_is_real(forwarding, seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_ops, num_chips = int(rng.integers(2, 6)), int(rng.integers(2, 4))
    triangle = "off" if forwarding == "free" else "longest_path"
    graph, target = random_graph(rng, num_ops), small_mcm(num_chips, triangle=triangle, sram_bytes=10**9)
    constraints = [draw_constraint(rng, graph, target) for _ in range(int(rng.integers(1, 4)))]
    starts = starts_of(graph, target, constraints, forwarding, seed=seed)
    for plan in plans_of(starts, forwarding):
        assert verify(graph, target, plan, constraints) == []
    if starts.conflict is not None:
        assert not starts.starts
        assert not valid_plans(graph, target, starts.conflict, forwarding)
        assert set(starts.conflict) <= set(constraints)


def valid_plans(graph, target, constraints, forwarding) -> bool:
    """Whether any placement with any kernels along any order keeps rules and constraints."""
    asked = op_constraints(graph, target, constraints)
    problem = placement_problem(graph, target)
    if forwarding == "relayed":
        problem = problem._replace(triangle=0)
    every = np.array(list(itertools.product(range(target.num_chips), repeat=graph.num_ops)), np.int32)
    every = every[broken_rules(problem, every) == NONE]
    fusions = {tuple(group) for order in all_orders(graph) for group in all_fusions(graph, order)}
    for fusion in fusions:
        group = np.array(fusion, np.int32)
        _, first, kernel = np.unique(group, return_index=True, return_inverse=True)
        together = every[(every == every[:, first[kernel]]).all(axis=1)]
        if len(together) and ConstraintFilter(asked, group, forwarding).are_kept(together).any():
            return True
    return False


def test_starts_stay_close_to_what_is_wanted() -> None:
    graph = random_graph(np.random.default_rng(5), 40)
    target = small_mcm(6, sram_bytes=10**9)
    order = np.arange(40, dtype=np.int32)
    group = greedy_fusion(loop_roles(graph), order)
    wanted = slice_order(cost_tables(graph, target), order, group, forwarding="adjacent").placement
    kept = starts_of(graph, target, [], guides=[wanted])
    assert (placements_of(kept) == wanted).all(axis=1).any()
    op = int(np.flatnonzero(wanted == wanted.max())[0])
    moved = starts_of(graph, target, [Forbid(graph.op_names[op], [int(wanted[op])])], guides=[wanted])
    assert (placements_of(moved) == wanted).mean(axis=1).max() > 0.5
    assert (placements_of(moved)[:, op] != wanted[op]).all()


def test_relays_make_possible_what_the_strict_rule_forbids() -> None:
    # embed is on chip 0, where all begins, and chip 1 may not stay empty: x, which add reads,
    # would go past it.
    constraints = [Pin("relu", 1), Pin("add", 2)]
    strict = starts_of(toy_graph(), small_mcm(3), constraints)
    assert strict.conflict == (Pin("add", 2),)
    sentence = "no placement obeys pin 'add' to chip 2, beside the rules of small-mcm."
    assert strict.why_none() == sentence
    relayed = starts_of(toy_graph(), small_mcm(3), constraints, "relayed")
    assert (placements_of(relayed)[:, [0, 2, 4]] == [0, 1, 2]).all()
    for plan in plans_of(relayed, "relayed"):
        assert verify(toy_graph(), small_mcm(3), plan, constraints) == []


def test_kernels_give_way_to_constraints() -> None:
    # By kernels, mix and add lie on one chip; dense and relu too.
    constraints = [Pin("dense", 0), Pin("mix", 1), Pin("add", 1), Colocate(["relu", "mix"])]
    starts = starts_of(toy_graph(), small_mcm(2), constraints)
    assert starts.starts
    for plan in plans_of(starts, "adjacent"):
        assert plan.placement[[1, 2, 3, 4]].tolist() == [0, 1, 1, 1]
        assert verify(toy_graph(), small_mcm(2), plan, constraints) == []


def test_limits_that_only_larger_kernels_keep() -> None:
    # Fused, mix and add take 5 + 6 - 1 (overhead) us and less for bytes; apart they take 11.
    graph, target = toy_graph(), small_mcm(1)
    all_s = kernel_seconds(cost_tables(graph, target), np.arange(6, dtype=np.int32)).sum()
    limit = ChipLimit(0, at_most_s=all_s - 1e-6)
    assert starts_of(graph, target, [limit]).starts
    order = np.arange(6, dtype=np.int32)
    fixed = constrained_starts(
        op_constraints(graph, target, [limit]), order, order, forwarding="adjacent", fusion_is_open=False
    )
    assert fixed.conflict == (limit,)


def test_lower_limits_that_relays_and_replicas_may_keep() -> None:
    # embed and logits read the table of 10000 bytes, dense and mix 2000 each: not every chip gets 12001.
    limits = [ChipLimit(chip, at_least_bytes=12_001) for chip in range(2)]
    for forwarding in ("adjacent", "relayed"):
        assert starts_of(toy_graph(), small_mcm(2), limits, forwarding).conflict == tuple(limits)
    assert starts_of(toy_graph(), small_mcm(2), limits, "adjacent", replicates=True).conflict is None
    # A relay has no weights, but takes seconds.
    limit = ChipLimit(1, at_least_s=1.0)
    assert starts_of(toy_graph(), small_mcm(3), [limit], "adjacent").conflict == (limit,)
    assert starts_of(toy_graph(), small_mcm(3), [limit], "relayed").conflict is None


def test_what_only_replicas_keep() -> None:
    # Two replicas take half of its seconds each.
    graph, target = random_graph(np.random.default_rng(0), 1), small_mcm(2)
    most_s = 0.6 * float(cost_tables(graph, target).own_s()[0, 0])
    limits = [ChipLimit(chip, at_most_s=most_s) for chip in range(2)]
    assert starts_of(graph, target, limits).conflict is not None
    assert starts_of(graph, target, limits, replicates=True).conflict is None
    # Stages of two chips each are neighbours, though their first chips are not.
    target = small_mcm(5, triangle="adjacent")
    pinned = [Pin("embed", 0), Forbid("dense", (0, 1, 4)), Pin("logits", 4)]
    assert starts_of(toy_graph(), target, pinned).conflict is not None
    assert starts_of(toy_graph(), target, pinned, replicates=True).conflict is None


@pytest.mark.skipif(not JIT_IS_ON, reason="a long search")
def test_the_limit_is_reported() -> None:
    graph = random_graph(np.random.default_rng(3), 250)
    half_s = kernel_seconds(cost_tables(graph, small_mcm(3)), np.arange(250, dtype=np.int32)).sum() / 2
    limits = [ChipLimit(chip, at_least_s=half_s * 0.66, at_most_s=half_s * 0.660001) for chip in range(3)]
    starts = starts_of(graph, small_mcm(3), limits)
    assert starts.limit_reached
    assert "no placement that keeps the 3 constraints was found on small-mcm within" in starts.why_none()


def test_tables_of_allowed_chips_make_slices_that_keep_pins() -> None:
    graph, target = toy_graph(), small_mcm(3)
    asked = op_constraints(graph, target, [Pin("mix", 1), Forbid("relu", [0])])
    order = np.arange(6, dtype=np.int32)
    group = constrained_fusion(asked, order, greedy_fusion(loop_roles(graph), order))
    slicing = slice_order(constrained_tables(asked), order, group, forwarding="adjacent")
    assert slicing.placement[3] == 1
    assert slicing.placement[2] == 1
    assert ConstraintFilter(asked, group, "adjacent").are_kept(slicing.placement[None]).all()


def test_same_seed_same_starts() -> None:
    graph, target = random_graph(np.random.default_rng(2), 30), small_mcm(5)
    constraints = [CutAfter("op7"), Pin("op20", 3)]
    first, second = (placements_of(starts_of(graph, target, constraints, seed=9)) for _ in range(2))
    np.testing.assert_array_equal(first, second)
