"""Slicing with relays, and with ops that chips may not hold, against all slicings and the evaluator."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.common.arrays import BoolArray, IntArray, LongArray
from go_opt.env import CostTables, cost_tables, evaluate_batch
from go_opt.env.copies.relays import Relays, expanded_tables
from go_opt.solver import ForwardingMode, slice_order, slice_order_streamed
from go_opt.solver.copies.relays import needed_relays
from go_opt.solver.problem.op_constraints import op_constraints
from go_opt.solver.problem.segment_rules import SegmentRules, segment_rules
from go_opt.solver.problem.sequence import kernel_sequence
from go_opt.solver.problem.user_constraints import Colocate, CutAfter, Pin
from go_opt.solver.slicing.memory import (
    SegmentMemory,
    segment_memory,
    segment_peaks_bytes,
)
from tests.solver.brute_force import plenty_of_memory
from tests.solver.test_slicing import Case, least, reached
from tests.strategies import examples, random_graph, random_order, random_target, seeds, small_mcm, toy_graph


class Slicings:
    """Every slicing of a random short sequence, with a relay of every tensor on every chip it passes."""

    def __init__(self, seed: int, **fields: object) -> None:
        self.case = Case(seed, **fields)
        self.case.forwarding = "free"
        self.placements = self.case.slicings()
        tables = self.case.tables
        plenty = [self._evaluate(plenty_of_memory(tables), row) for row in self.placements]
        self.interval_s = np.array([interval_s for interval_s, _ in plenty])
        self.peak_bytes = np.array([peak for _, peak in plenty]).reshape(-1, tables.num_chips)

    @property
    def fits(self) -> BoolArray:
        return (self.peak_bytes <= self.case.tables.sram_bytes).all(axis=1)

    def _evaluate(self, tables: CostTables, placement: IntArray) -> tuple[float, LongArray]:
        relays = Relays(*needed_relays(tables, placement, "adjacent"))
        expanded, *plan = expanded_tables(tables, placement, self.case.order, self.case.group, relays)
        terms = evaluate_batch(expanded, *(row[None] for row in plan))
        return float(terms.interval_s[0]), terms.peak_bytes[0]


@settings(max_examples=examples(120), deadline=None)
@given(seed=seeds)
def test_relayed_slicing_is_the_least_of_all_slicings(seed: int) -> None:
    all_of, at_most = Slicings(seed), np.random.default_rng(seed).uniform(0.9, 1.1)
    case, best_s = all_of.case, least(all_of.interval_s[all_of.fits])
    got = slice_order(case.tables, case.order, case.group, forwarding="relayed")
    assert reached(got) == pytest.approx(best_s, rel=1e-9, abs=0)
    if np.isfinite(best_s) and best_s > 0:
        within = slice_order(
            case.tables, case.order, case.group, forwarding="relayed", at_most_s=best_s * at_most
        )
        assert (within is not None) == (at_most >= 1.0)


@settings(max_examples=examples(150), deadline=None)
@given(seed=seeds)
def test_fewer_and_more_chips_may_be_asked_for(seed: int) -> None:
    all_of = Slicings(seed)
    case = all_of.case
    used = all_of.placements.max(axis=1, initial=0) + 1
    for bound in range(1, case.target.num_chips + 1):
        few = slice_order(case.tables, case.order, case.group, forwarding="relayed", max_chips=bound)
        many = slice_order(case.tables, case.order, case.group, forwarding="relayed", min_chips=bound)
        assert reached(few) == pytest.approx(
            least(all_of.interval_s[all_of.fits & (used <= bound)]), rel=1e-9, abs=0
        )
        assert reached(many) == pytest.approx(
            least(all_of.interval_s[all_of.fits & (used >= bound)]), rel=1e-9, abs=0
        )


@settings(max_examples=examples(150), deadline=None)
@given(seed=seeds)
def test_segments_keep_to_what_the_user_asks(seed: int) -> None:
    all_of = Slicings(seed)
    case, rng = all_of.case, np.random.default_rng(seed)
    asked = random_rules(rng, case)
    keeps = keep_rules(all_of.placements, asked)
    got = slice_order(case.tables, case.order, case.group, forwarding="relayed", **asked)
    assert reached(got) == pytest.approx(least(all_of.interval_s[keeps & all_of.fits]), rel=1e-9, abs=0)
    forwarding_modes: tuple[ForwardingMode, ...] = ("free", "adjacent")
    for forwarding in forwarding_modes:
        case.forwarding = forwarding
        placements = case.slicings()
        placements = placements[keep_rules(placements, asked)]
        fits = case.evaluate(case.tables, placements).fits
        seconds = case.evaluate(plenty_of_memory(case.tables), placements).interval_s
        got = slice_order(case.tables, case.order, case.group, forwarding=forwarding, **asked)
        assert reached(got) == pytest.approx(least(seconds[fits]), rel=1e-9, abs=0)


def random_rules(rng: np.random.Generator, case: Case) -> SegmentRules:
    """Chips that may not hold an op, ops that share a chip, and edges that may not."""
    num_ops, graph = case.graph.num_ops, case.graph
    rules = SegmentRules()
    if rng.random() < 0.6:
        rules["allowed"] = rng.random((case.target.num_chips, num_ops)) < 0.85
    if rng.random() < 0.5:
        rules["colocated"] = [rng.integers(0, num_ops, 2) for _ in range(2)]
    if rng.random() < 0.5 and graph.num_edges:
        edges = rng.integers(0, graph.num_edges, 2)
        rules["rising"] = np.stack([graph.edge_src[edges], graph.edge_dst[edges]])
    return rules


def keep_rules(placements: IntArray, rules: SegmentRules) -> BoolArray:
    """[B] True where a placement ([B, N]) keeps the rules."""
    kept = np.ones(len(placements), dtype=np.bool_)
    allowed, rising = rules.get("allowed"), rules.get("rising")
    if allowed is not None:
        kept &= allowed[placements, np.arange(placements.shape[1])].all(axis=1)
    if rising is not None:
        kept &= (placements[:, rising[1]] > placements[:, rising[0]]).all(axis=1)
    for ops in rules.get("colocated", ()):
        kept &= (placements[:, ops] == placements[:, ops[:1]]).all(axis=1)
    return kept


@settings(max_examples=40, deadline=None)  # interpreted as well: few cases meet all branches
@given(seed=seeds)
def test_the_fast_relayed_slicer_agrees_with_the_table_of_segments(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_kernels = int(rng.integers(1, 201 if examples(20) == 20 else 31))
    target = random_target(rng, topology="ring", num_chips=int(rng.integers(1, 40)), num_kinds=1)
    graph = random_graph(rng, num_kernels)
    tables = plenty_of_memory(cost_tables(graph, target))
    order = random_order(rng, graph)
    fast = slice_order(tables, order, order, forwarding="relayed")
    general = slice_order_streamed(tables, order, order, forwarding="relayed")
    assert fast is not None
    assert reached(fast) == pytest.approx(reached(general), rel=1e-9, abs=0)


# Kernels of the toy graph take 3.4, 9, 6, 5, 6 and 14 us, and links, ten times as fast as elsewhere,
# bind nowhere. Strict, embed, which writes x, and add, which reads it, lie at most one chip apart: relu,
# mix and add on one take 17 us. A relay of x takes 2 + 1 us: relu and mix take 14 us with it.
@pytest.mark.parametrize(("relayed", "interval_us"), [(False, 17.0), (True, 14.0)])
def test_toy_by_hand(relayed: bool, interval_us: float) -> None:
    target = small_mcm(4, link_bytes_per_s=1e9)
    tables, order = cost_tables(toy_graph(), target), np.arange(6, dtype=np.int32)
    if relayed:
        slicing = slice_order(tables, order, order, forwarding="relayed")
    else:
        slicing = slice_order(tables, order, order, forwarding="adjacent")
    assert reached(slicing) == pytest.approx(interval_us * 1e-6)


def test_a_relay_needs_its_buffer_by_hand() -> None:
    # Chip 1 runs relu: h and a twice, 4000 bytes, and x twice while it is relayed.
    target = small_mcm(4, link_bytes_per_s=1e9, sram_bytes=100_000)
    tables, order = cost_tables(toy_graph(), target), np.arange(6, dtype=np.int32)
    sequence = kernel_sequence(tables, order, order, adjacent=False)
    memory = segment_memory(tables, sequence, relayed=True)
    assert _segment_bytes(memory, 2, 3) == 6000
    free = segment_memory(tables, sequence)
    assert _segment_bytes(free, 2, 3) == 4000


def _segment_bytes(memory: SegmentMemory, start: int, end: int) -> int:
    cuts = np.array([0, start, end, 6], dtype=np.int64)
    return int(segment_peaks_bytes(memory, cuts)[1])


def test_no_chip_for_an_op_leaves_no_slicing() -> None:
    tables, order = cost_tables(toy_graph(), small_mcm(3)), np.arange(6, dtype=np.int32)
    allowed = np.ones((3, 6), dtype=np.bool_)
    allowed[:, 2] = False
    assert slice_order(tables, order, order, forwarding="relayed", allowed=allowed) is None
    assert slice_order(tables, order, order, forwarding="adjacent", allowed=allowed) is None


def test_rules_of_constraints_by_hand() -> None:
    # Cut after dense, so h and x cross; mix and add share a chip, and no cut falls between them.
    graph, target = toy_graph(), small_mcm(4, link_bytes_per_s=1e9)
    asked = op_constraints(graph, target, [CutAfter("dense"), Colocate(["mix", "add"]), Pin("logits", 2)])
    rules = segment_rules(asked)
    assert rules["rising"].tolist() == [[1], [2]]
    tables, order = cost_tables(graph, target), np.arange(6, dtype=np.int32)
    slicing = slice_order(tables, order, order, forwarding="relayed", **rules)
    assert slicing is not None
    # relu to add 17 us, logits 14 us, embed and dense 12.4 us: the only way with logits on chip 2.
    assert slicing.placement.tolist() == [0, 0, 1, 1, 1, 2]
    assert slicing.expected_s == pytest.approx(17e-6)
