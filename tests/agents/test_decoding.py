"""Decoding: defaults where neutral, valid in every mode, and the walks that were drawn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.agents.decoding.decode import MODES, Decisions, Mode, decode
from go_opt.env import evaluate_batch
from go_opt.env.kernels.numbering import number_kernels
from go_opt.errors import InvalidInputError
from go_opt.model.builder import GraphBuilder
from go_opt.solver import slice_order
from go_opt.solver.orders.instance import OrderProblem, instance
from go_opt.solver.orders.orders import schedule
from go_opt.solver.verify.verifier import verify
from go_opt.solver.walk.walk import NUM_FEATURES, score_walks
from tests.strategies import examples, random_graph, random_target, seeds, small_mcm, toy_graph


def random_case(seed: int, num_ops: int = 20) -> tuple[OrderProblem, Decisions]:
    rng = np.random.default_rng(seed)
    target = random_target(rng, topology="ring", num_kinds=1, sram_bytes=10**7)
    case = instance(random_graph(rng, int(rng.integers(1, num_ops))), target)
    return case, random_decisions(rng, case)


def random_decisions(rng: np.random.Generator, case: OrderProblem, rows: int = 1) -> Decisions:
    num_ops = case.graph.num_ops
    return Decisions(
        schedule_priority=rng.standard_normal((rows, num_ops)),
        fusion_priority=2.0 * rng.standard_normal((rows, num_ops)),
        walk_weights=rng.standard_normal(NUM_FEATURES),
        walk_head=rng.standard_normal(num_ops),
    )


def neutral_decisions(instance: OrderProblem) -> Decisions:
    """Decisions of an untrained policy: the default order and kernels."""
    num_ops = instance.graph.num_ops
    return Decisions(
        schedule_priority=np.zeros((1, num_ops)),
        fusion_priority=np.zeros((1, num_ops)),
        walk_weights=np.zeros(NUM_FEATURES),
        walk_head=np.zeros(num_ops),
    )


def test_neutral_decisions_give_the_defaults() -> None:
    case = instance(toy_graph(), small_mcm(3))
    ((plan, _, _),), _ = decode(case, neutral_decisions(case), "slice_cheapest")
    assert plan.order.tolist() == [0, 1, 2, 3, 4, 5]
    assert plan.fusion_group.tolist() == [0, 1, 1, 2, 2, 3]
    sliced = slice_order(case.tables, case.order, case.fusion_group, forwarding="adjacent")
    assert sliced is not None
    np.testing.assert_array_equal(plan.placement, sliced.placement)


def test_schedule_of_two_branches_by_hand() -> None:
    # stem -> (a1, a2), (b1, b2) -> join, all alone: the larger priority of a branch runs first.
    b = GraphBuilder("branches")
    names = ("stem", "a1", "a2", "b1", "b2", "join")
    sources = ((), ("stem",), ("a1",), ("stem",), ("b1",), ("a2", "b2"))
    for name, read in zip(names, sources, strict=True):
        reads, writes = [(source, None) for source in read], [(name, 10, "int8")]
        b.add_op(name, "Transpose", "data_movement", flops=0, dtype="int8", reads=reads, writes=writes)
    case = instance(b.build(), small_mcm())
    group, order = schedule(case, np.array([0.0, 1, 2, 3, 0.5, 0]), np.zeros(6))
    assert group.tolist() == [0, 1, 2, 3, 4, 5]
    assert [names[op] for op in order] == ["stem", "b1", "a1", "a2", "b2", "join"]


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=examples(40))
@given(seed=seeds)
def test_every_plan_keeps_every_static_rule(mode: Mode, seed: int) -> None:
    case, decisions = random_case(seed)
    draws = 2 if mode == "walk" else 1
    decoded, _ = decode(case, decisions, mode, seed=seed, draws=draws)
    assert len(decoded) == draws
    for candidate, _, _ in decoded:
        order, group = candidate.order, candidate.fusion_group
        assert number_kernels(order, group).max() + 1 == len(np.unique(group))
        plan = candidate.plan(case.graph, case.target)
        assert [v for v in verify(case.graph, case.target, plan) if v.constraint != "memory"] == []


@pytest.mark.parametrize("mode", MODES)
def test_same_seed_same_plans_and_rows_in_order(mode: Mode) -> None:
    case, _ = random_case(3, 40)
    decisions = random_decisions(np.random.default_rng(0), case, rows=3)
    (first, _), (again, _) = (decode(case, decisions, mode, seed=5) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert one.is_repaired == other.is_repaired
        for name in ("placement", "order", "fusion_group"):
            np.testing.assert_array_equal(getattr(one.plan, name), getattr(other.plan, name))
    for r in range(3):
        group, order = schedule(case, decisions.schedule_priority[r], decisions.fusion_priority[r])
        np.testing.assert_array_equal(first[r].plan.order, order)
        np.testing.assert_array_equal(first[r].plan.fusion_group, group)


def test_modes_that_draw_nothing_draw_once() -> None:
    case, decisions = random_case(0)
    with pytest.raises(InvalidInputError, match="draws"):
        decode(case, decisions, "slice_cheapest", draws=2)
    with pytest.raises(InvalidInputError, match="mode"):
        decode(case, decisions, "guess")  # type: ignore[arg-type]


@settings(max_examples=examples(30))
@given(seed=seeds)
def test_walks_are_what_was_drawn(seed: int) -> None:
    """A placement is the walk's own, unless FIX repaired it; a kernel's head is the mean of its ops'."""
    case, decisions = random_case(seed)
    decoded, _ = decode(case, decisions, "walk", seed=seed, draws=4)
    assert len(decoded) == 4
    for plan, is_repaired, walked in decoded:
        assert walked is not None
        walk, is_cut = walked
        kernel_of = number_kernels(plan.order, plan.fusion_group)
        own = np.cumsum(is_cut)[kernel_of]
        assert is_repaired == (own != plan.placement).any()
        head = [decisions.walk_head[kernel_of == m].mean() for m in range(len(is_cut))]
        expected = score_walks(walk.problem, decisions.walk_weights, np.array(head), is_cut[None])
        got = walk.gradient(decisions.walk_weights, decisions.walk_head, is_cut[None])
        np.testing.assert_allclose(got.log_prob, expected.log_prob)
        np.testing.assert_allclose(got.weights, expected.by_weights[0])
        for m in range(len(is_cut)):
            of_kernel = got.head[kernel_of == m]
            np.testing.assert_allclose(of_kernel, expected.by_head[0, m] / len(of_kernel), atol=1e-12)


def test_cheapest_does_not_fit() -> None:
    # Six ops of 1000-byte activations on chips of 900 bytes.
    case = instance(toy_graph(), small_mcm(3, sram_bytes=900))
    ((plan, is_repaired, _),), _ = decode(case, neutral_decisions(case), "slice_cheapest")
    assert is_repaired
    rows = (row[None] for row in (plan.placement, plan.order, plan.fusion_group))
    assert not evaluate_batch(case.tables, *rows).fits[0]
