"""Decoding: defaults where neutral, valid in every mode, exact log-probabilities."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.agents.decoding.decode import (
    DRAWING,
    MODES,
    Decisions,
    Mode,
    decode,
    sliceable_logits,
)
from go_opt.common.arrays import IntArray
from go_opt.env import evaluate_batch
from go_opt.env.kernels.numbering import number_kernels
from go_opt.errors import InvalidInputError
from go_opt.model.builder import GraphBuilder
from go_opt.solver import slice_order, verify
from go_opt.solver.orders.instance import Instance, instance
from go_opt.solver.orders.orders import schedule
from go_opt.solver.propagation.propagators.domains import unpack_chips
from tests.strategies import examples, make_plan, random_graph, random_target, seeds, small_mcm, toy_graph


def random_case(seed: int, num_ops: int = 20) -> tuple[Instance, Decisions]:
    rng = np.random.default_rng(seed)
    target = random_target(rng, topology="ring", num_kinds=1, sram_bytes=10**7)
    case = instance(random_graph(rng, int(rng.integers(1, num_ops))), target)
    return case, random_decisions(rng, case)


def random_decisions(rng: np.random.Generator, case: Instance, rows: int = 1) -> Decisions:
    num_ops, num_chips = case.graph.num_ops, case.target.num_chips
    return Decisions(
        schedule_priority=rng.standard_normal((rows, num_ops)),
        fusion_priority=2.0 * rng.standard_normal((rows, num_ops)),
        placement_logits=rng.standard_normal((num_ops, num_chips)),
        cut_score=rng.standard_normal(num_ops),
    )


def neutral_decisions(instance: Instance) -> Decisions:
    """Decisions of an untrained policy: the default order and kernels, no chip preferred."""
    num_ops = instance.graph.num_ops
    return Decisions(
        schedule_priority=np.zeros((1, num_ops)),
        fusion_priority=np.zeros((1, num_ops)),
        placement_logits=np.zeros((num_ops, instance.target.num_chips)),
        cut_score=np.zeros(num_ops),
    )


def test_neutral_decisions_give_the_defaults() -> None:
    case = instance(toy_graph(), small_mcm(3))
    decoded = decode(case, neutral_decisions(case), "slice_cheapest")
    assert decoded.order.tolist() == [[0, 1, 2, 3, 4, 5]]
    assert decoded.fusion_group.tolist() == [[0, 1, 1, 2, 2, 3]]
    sliced = slice_order(case.tables, case.order, case.fusion_group, passing="adjacent")
    assert sliced is not None
    np.testing.assert_array_equal(decoded.placement[0], sliced.placement)


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
    decoded = decode(case, decisions, mode, seed=seed, draws=2 if mode in DRAWING else 1)
    for s in range(len(decoded.placement)):
        order, group = decoded.order[s], decoded.fusion_group[s]
        assert number_kernels(order, group).max() + 1 == len(np.unique(group))
        plan = make_plan(case.graph, case.target, decoded.placement[s], order=order, fusion_group=group)
        assert [v for v in verify(case.graph, case.target, plan) if v.constraint != "memory"] == []


@pytest.mark.parametrize("mode", MODES)
def test_same_seed_same_plans_and_rows_in_order(mode: Mode) -> None:
    case, _ = random_case(3, 40)
    decisions = random_decisions(np.random.default_rng(0), case, rows=3)
    first, again = (decode(case, decisions, mode, seed=5) for _ in range(2))
    for name in ("placement", "order", "fusion_group", "log_prob", "drawn", "open_chips"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
    for r in range(3):
        group, order = schedule(case, decisions.schedule_priority[r], decisions.fusion_priority[r])
        np.testing.assert_array_equal(first.order[r], order)
        np.testing.assert_array_equal(first.fusion_group[r], group)


def test_modes_that_draw_nothing_draw_once() -> None:
    case, decisions = random_case(0)
    with pytest.raises(InvalidInputError, match="draws"):
        decode(case, decisions, "slice_cheapest", draws=2)
    with pytest.raises(InvalidInputError, match="mode"):
        decode(case, decisions, "guess")  # type: ignore[arg-type]


@settings(max_examples=examples(60))
@given(seed=seeds)
def test_log_probability_of_cuts_is_exact(seed: int) -> None:
    case, decisions = random_case(seed, 8)
    decoded = decode(case, decisions, "slice_sampled", seed=seed, draws=8)
    kernel_of = number_kernels(decoded.order[0], decoded.fusion_group[0])
    weights = {cuts: weight(decisions, kernel_of, cuts) for cuts in slicings(case, kernel_of)}
    log_total = math.log(sum(math.exp(value) for value in weights.values()))
    for placement, log_prob in zip(decoded.placement, decoded.log_prob, strict=True):
        chips = tuple(placement[kernel_of == m][0] for m in range(kernel_of.max() + 1))
        assert log_prob == pytest.approx(weights[chips] - log_total, abs=1e-9)
    likeliest = decode(case, decisions, "slice_likeliest")
    assert likeliest.log_prob[0] == pytest.approx(max(weights.values()) - log_total, abs=1e-9)


def slicings(case: Instance, kernel_of: IntArray) -> list[tuple[int, ...]]:
    """Chips of the kernels along the order: 0, 1, … without gaps, no edge past a chip."""
    edges = {
        (kernel_of[u], kernel_of[v]) for u, v in zip(case.graph.edge_src, case.graph.edge_dst, strict=True)
    }
    found = []
    for steps in itertools.product((0, 1), repeat=int(kernel_of.max())):
        chips = tuple(np.cumsum([0, *steps]).tolist())
        if chips[-1] < case.target.num_chips and all(chips[v] - chips[u] <= 1 for u, v in edges):
            found.append(chips)
    return found


def weight(decisions: Decisions, kernel_of: IntArray, chips: tuple[int, ...]) -> float:
    """Logits of every op on its kernel's chip, and the score of the first kernel of each chip but 0."""
    total = sum(decisions.placement_logits[op, chips[m]] for op, m in enumerate(kernel_of))
    for m in range(1, len(chips)):
        if chips[m] > chips[m - 1]:
            total += decisions.cut_score[kernel_of == m].max()
    return float(total)


def test_cut_scores_by_hand() -> None:
    # Three kernels of one op, scores 5, 7, 11 before them. On chips 0, 1, 2: cuts before kernels
    # 1 and 2, 7 + 11; on 0, 0, 1: 11; on 0, 1, 1: 7.
    weights = sliceable_logits(np.zeros((3, 3)), np.array([5.0, 7.0, 11.0]), np.arange(3, dtype=np.int32))
    for chips, score in (((0, 1, 2), 18.0), ((0, 0, 1), 11.0), ((0, 1, 1), 7.0), ((0, 0, 0), 0.0)):
        assert sum(weights[op, chip] for op, chip in enumerate(chips)) == score


@pytest.mark.parametrize("mode", ["sample", "sample_adjacent"])
@settings(max_examples=examples(40))
@given(seed=seeds)
def test_log_probability_of_samples_is_masked_by_domains(mode: Mode, seed: int) -> None:
    case, decisions = random_case(seed)
    decoded = decode(case, decisions, mode, seed=seed, draws=3)
    for s in range(3):
        expected = 0.0
        for kernel in np.unique(decoded.fusion_group[s]):
            ops = np.flatnonzero(decoded.fusion_group[s] == kernel)
            logits = decisions.placement_logits[ops].sum(axis=0)
            is_open = unpack_chips(decoded.open_chips[s, ops[:1]], case.target.num_chips)[0]
            drawn = decoded.drawn[s, ops[0]]
            expected += logits[drawn] - np.log(np.exp(logits[is_open]).sum())
            assert is_open[drawn]
        assert decoded.log_prob[s] == pytest.approx(expected, abs=1e-6)
        if not decoded.backtracked[s] and mode == "sample":
            np.testing.assert_array_equal(decoded.drawn[s], decoded.placement[s])


@pytest.mark.parametrize("mode", ["fix", "fix_adjacent"])
@settings(max_examples=examples(30))
@given(seed=seeds)
def test_fix_keeps_what_is_valid(mode: Mode, seed: int) -> None:
    case, decisions = random_case(seed)
    wanted = decode(case, decisions, "sample_adjacent", seed=seed)
    peaked = np.full(decisions.placement_logits.shape, -50.0)
    peaked[np.arange(case.graph.num_ops), wanted.placement[0]] = 0.0
    fixed = decode(case, replace(decisions, placement_logits=peaked), mode, seed=seed)
    np.testing.assert_array_equal(fixed.placement, wanted.placement)
    assert fixed.log_prob[0] == pytest.approx(0.0, abs=1e-9)


def test_cheapest_does_not_fit() -> None:
    # Six ops of 1000-byte activations on chips of 900 bytes.
    case = instance(toy_graph(), small_mcm(3, sram_bytes=900))
    decoded = decode(case, neutral_decisions(case), "slice_cheapest")
    assert decoded.fell_back.all()
    assert not evaluate_batch(case.tables, decoded.placement, decoded.order, decoded.fusion_group).fits[0]
