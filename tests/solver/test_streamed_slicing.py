"""Slicing that charges streamed weights against all slicings as the environment costs them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.common.arrays import BoolArray, IntArray, LongArray
from go_opt.env import CostTables, cost_tables, evaluate_batch
from go_opt.env.copies.relays import Relays, expanded_tables
from go_opt.env.copies.stages import size_by_chip
from go_opt.env.kernels.numbering import number_kernels
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import WEIGHT, with_sequences
from go_opt.solver.copies.relays import needed_relays
from go_opt.solver.problem.forwarding_mode import ForwardingMode
from go_opt.solver.problem.op_constraints import op_constraints
from go_opt.solver.problem.segment_rules import SegmentRules
from go_opt.solver.problem.sequence import kernel_sequence
from go_opt.solver.slicing import table
from go_opt.solver.slicing.memory import (
    drop_weights,
    hold_weights,
    no_weights_held,
    streamed_bytes,
    weight_reads,
)
from go_opt.solver.slicing.slice import slice_order_streamed
from tests.env.test_states import decoder
from tests.solver.brute_force import segments_of
from tests.solver.test_relay_slicing import random_rules
from tests.solver.test_slicing import Case, reached
from tests.strategies import examples, random_order, random_target, seeds, small_mcm, with_random_states

FORWARDING_MODES: tuple[ForwardingMode, ...] = ("relayed", "adjacent", "free")


class Stagings:
    """Every slicing of a random short sequence into stages that keeps the rules, costed exactly.

    With ``states``, sequences have states that replicas keep; chips are alike, and latencies do not count.
    """

    def __init__(
        self, seed: int, *, max_ops: int = 9, replicates: bool = False, states: bool = False
    ) -> None:
        rng = np.random.default_rng(seed)
        tight = {
            "sram_bytes": int(10 ** rng.uniform(3.6, 5)),
            "host_in_bytes_per_s": 10 ** rng.uniform(7, 9),
        }
        self.case = case = Case(seed, max_ops=max_ops, **tight, **({"num_kinds": 1} if states else {}))
        if states:
            stateful = with_random_states(rng, case.graph, scopes=("sequence",))
            if stateful.states:
                case.graph = with_sequences(stateful, int(rng.integers(2, 9)))
                case.order = random_order(rng, case.graph)
                case.group = np.argsort(case.order).astype(np.int32)
                # A chip has room for the activations, and for some of the states or of the weights.
                tables = cost_tables(case.graph, case.target)
                kept = tables.stored_bytes[tables.tensor_kind == WEIGHT].sum()
                room = 2 * tables.stored_bytes[tables.tensor_kind != WEIGHT].sum()
                tight["sram_bytes"] = int(room * rng.uniform(0.5, 1.2) + kept * rng.uniform(0.1, 0.8)) + 1
        if replicates:
            num_chips, kinds = case.target.num_chips, len(case.target.kinds)
            fields = {"topology": "ring", "num_kinds": kinds, "overlap": True, **tight}
            case.target = random_target(rng, num_chips=num_chips, **fields)
            case.tables = cost_tables(case.graph, case.target)
        self.forwarding = FORWARDING_MODES[int(rng.integers(3))]
        self.rules = random_rules(rng, self.case) if rng.random() < 0.4 else SegmentRules()
        if states:
            self.rules = SegmentRules(colocated=op_constraints(case.graph, case.target, ()).colocated)
        graph, kernel_of = case.graph, number_kernels(case.order, case.group)
        num_kernels, num_chips = int(kernel_of.max()) + 1, case.target.num_chips
        self.best_by_chips_s = np.full(num_chips + 1, np.inf)
        for used in range(1, min(num_chips, num_kernels) + 1):
            for inner in itertools.combinations(range(1, num_kernels), used - 1):
                stage = np.repeat(np.arange(used), np.diff([0, *inner, num_kernels]))[kernel_of]
                spans = stage[graph.edge_dst] - stage[graph.edge_src]
                if (self.forwarding == "adjacent" and (spans > 1).any()) or not self._keeps_rules(stage):
                    continue
                most = num_chips + 1 - used if replicates else 1
                most = min(most, case.tables.sequences or most)
                for sizes in itertools.product(range(1, most + 1), repeat=used):
                    if sum(sizes) <= num_chips and self._may_run(stage, np.array(sizes)):
                        best_s = min(self.best_by_chips_s[sum(sizes)], self.cost_s(stage, np.array(sizes)))
                        self.best_by_chips_s[sum(sizes)] = best_s
        self.best_s = float(self.best_by_chips_s.min())

    def cost_s(self, stage: IntArray, sizes: LongArray) -> float:
        """By the environment; infinite where activations do not fit."""
        terms = evaluate_batch(*self.placed(stage, sizes)[:-1])
        interval_s = float(terms.interval_s[0])
        if self.case.graph.states:
            interval_s = max(float(terms.compute_s.max()), float(terms.link_s.max()))
        return interval_s if terms.fits[0] else np.inf

    def placed(
        self, stage: IntArray, sizes: LongArray
    ) -> tuple[CostTables, IntArray, IntArray, IntArray, IntArray, IntArray]:
        """Tables, placement, order, kernels and chips of each op [1, N], with relays; chips by first chip."""
        tables, first = self.case.tables, (np.cumsum(sizes) - sizes).astype(np.int32)
        size = size_by_chip(first[stage], sizes[stage].astype(np.int32), tables.num_chips)
        plan = [first[stage], self.case.order, self.case.group]
        if self.forwarding == "relayed":
            tensor, on_stage = needed_relays(tables, stage.astype(np.int32), "adjacent")
            tables, *plan = expanded_tables(tables, *plan, Relays(tensor, first[on_stage]))
        placement, order, group = (row[None] for row in plan)
        return tables, placement, order, group, size[placement], size

    def _keeps_rules(self, stage: IntArray) -> bool:
        rising = self.rules.get("rising")
        if rising is not None and not (stage[rising[1]] > stage[rising[0]]).all():
            return False
        return all((stage[ops] == stage[ops[0]]).all() for ops in self.rules.get("colocated", ()))

    def _may_run(self, stage: IntArray, sizes: LongArray) -> bool:
        tables, allowed = self.case.tables, self.rules.get("allowed")
        may_run = tables.can_run[tables.chip_kind]
        may_run = may_run if allowed is None else may_run & allowed
        stage_of_chip = np.repeat(np.arange(len(sizes)), sizes)
        kinds = tables.chip_kind[: len(stage_of_chip)]
        if (np.diff(kinds)[np.diff(stage_of_chip) == 0] != 0).any():
            return False
        return all(may_run[chip, stage == s].all() for chip, s in enumerate(stage_of_chip))


@settings(max_examples=examples(250), deadline=None)
@given(seed=seeds)
def test_the_slicing_is_the_least_of_all_slicings(seed: int) -> None:
    all_of, at_most = Stagings(seed), np.random.default_rng(seed).uniform(0.8, 1.2)
    case, asked = all_of.case, {"forwarding": all_of.forwarding, **all_of.rules}
    got = slice_order_streamed(case.tables, case.order, case.group, **asked)
    assert reached(got) == pytest.approx(all_of.best_s, rel=1e-9, abs=0)
    if got is not None:
        assert all_of.cost_s(got.placement, np.ones(case.target.num_chips, np.int64)) == pytest.approx(
            got.expected_s, rel=1e-9, abs=0
        )
    if got is not None and all_of.best_s > 0:
        limits = {"at_least_s": all_of.best_s * min(at_most, 1.0), "at_most_s": all_of.best_s * at_most}
        within = slice_order_streamed(case.tables, case.order, case.group, **asked, **limits)
        assert reached(within) == pytest.approx(all_of.best_s if at_most > 1.0 else np.inf, rel=1e-9, abs=0)


@settings(max_examples=examples(50), deadline=None)
@given(seed=seeds)
def test_more_chips_may_be_asked_for(seed: int) -> None:
    all_of = Stagings(seed, max_ops=6)
    case, asked = all_of.case, {"forwarding": all_of.forwarding, **all_of.rules}
    for min_chips in range(1, case.target.num_chips + 1):
        got = slice_order_streamed(case.tables, case.order, case.group, min_chips=min_chips, **asked)
        best_s = float(all_of.best_by_chips_s[min_chips:].min())
        assert reached(got) == pytest.approx(best_s, rel=1e-9, abs=0)


@settings(max_examples=examples(100), deadline=None)
@given(seed=seeds)
def test_the_slicing_is_the_least_of_all_stagings(seed: int) -> None:
    check_stagings(Stagings(seed, max_ops=6, replicates=True))


@settings(max_examples=examples(200), deadline=None)
@given(seed=seeds)
def test_the_slicing_is_the_least_of_all_stagings_that_keep_sequences(seed: int) -> None:
    """More chips have less of the states each: stages may be of more chips than their work needs."""
    check_stagings(Stagings(seed, max_ops=6, replicates=True, states=True))


def check_stagings(all_of: Stagings) -> None:
    case, asked = all_of.case, {"forwarding": all_of.forwarding, **all_of.rules}
    got = slice_order_streamed(case.tables, case.order, case.group, replicates=True, **asked)
    assert (np.inf if got is None else got.expected_s) == pytest.approx(all_of.best_s, rel=1e-9, abs=0)
    if got is not None:
        _, sizes = segments_of(got)
        stage = np.searchsorted(np.cumsum(sizes), got.placement, side="right")
        assert all_of.cost_s(stage, sizes) == pytest.approx(got.expected_s, rel=1e-9, abs=0)
        assert np.array_equal(got.replication, sizes[stage])


def test_more_replicas_than_the_work_needs_make_room_for_states() -> None:
    """The host's link takes 20 us for the token, and one chip would do all work in 15.8.

    But 8,800 bytes of states leave one chip no room for the weight of 4,000, and its stream takes long.
    """
    target = small_mcm(3, sram_bytes=12_000, host_in_bytes_per_s=1e7)
    graph = with_sequences(decoder(), 4)
    tables, order = cost_tables(graph, target), np.arange(4, dtype=np.int32)
    rules = SegmentRules(colocated=[*op_constraints(graph, target, ()).colocated, np.array([0, 1])])
    one = slice_order_streamed(tables, order, order, forwarding="relayed", **rules)
    two = slice_order_streamed(tables, order, order, forwarding="relayed", replicates=True, **rules)
    assert one is not None
    assert two is not None
    assert (segments_of(two)[1].tolist(), two.expected_s) == ([2], pytest.approx(20e-6))
    assert one.expected_s > 100e-6


@settings(max_examples=examples(60), deadline=None)
@given(seed=seeds)
def test_few_candidate_cuts_make_slicings_of_the_cost_they_say(seed: int) -> None:
    most_steps = table.MOST_STEPS
    table.MOST_STEPS = int(np.random.default_rng(seed).integers(1, 30))
    try:
        all_of = Stagings(seed)
        case = all_of.case
        got = slice_order_streamed(
            case.tables, case.order, case.group, forwarding=all_of.forwarding, **all_of.rules
        )
    finally:
        table.MOST_STEPS = most_steps
    if got is not None:
        cost_s = all_of.cost_s(got.placement, np.ones(case.target.num_chips, np.int64))
        assert got.expected_s == pytest.approx(cost_s, rel=1e-9, abs=0)
        assert got.expected_s >= all_of.best_s * (1.0 - 1e-9)


@settings(max_examples=examples(100), deadline=None)
@given(seed=seeds)
def test_segments_stream_what_chips_do(seed: int) -> None:
    case, rng = Case(seed, max_ops=20), np.random.default_rng(seed)
    sequence = kernel_sequence(case.tables, case.order, case.group, adjacent=False)
    reads = weight_reads(case.tables, sequence)
    held = no_weights_held(reads)
    for _ in range(5):
        start, end = np.sort(rng.integers(0, sequence.num_kernels + 1, 2))
        drop_weights(held)
        for kernel in range(end - 1, start - 1, -1):
            hold_weights(reads, held, kernel)
        is_here = (sequence.kernel_of >= start) & (sequence.kernel_of < end)
        stored, expected = streamed_slowly(case.tables, is_here)
        assert held.total_bytes[0] == stored
        for room in (0, stored // 3, max(stored - 1, 0), stored, stored + 1):
            assert streamed_bytes(reads, held, room, 0) == expected(room)


def streamed_slowly(tables: CostTables, is_here: BoolArray):
    """Bytes of the weights of some ops, and what streams of them where there is so much room."""
    weights = []
    for k in np.flatnonzero((tables.tensor_kind == WEIGHT) & (tables.tensor_bytes > 0)):
        reads = (tables.reader_tensor == k) & is_here[tables.reader_op]
        if reads.any():
            size, touched = int(tables.tensor_bytes[k]), int(tables.read_bytes[reads].max())
            weights.append((touched / size, -size, k, touched))
    stored = sum(-size for _, size, _, _ in weights)

    def streamed(room: int) -> int:
        kept, total = stored, 0
        for _, size, _, touched in sorted(weights):
            if kept <= room:
                break
            leaves = min(-size, kept - room) if touched == -size else -size
            kept, total = kept - leaves, total + min(leaves, touched)
        return total

    return stored, streamed


def sliced_chain(
    weight_bytes: list[int], num_chips: int, host_bytes_per_s: float, *, replicates: bool, **rates: object
):
    """Ops of 10 us one behind the other that pass on 100 bytes, on chips of 1000 bytes."""
    b = GraphBuilder("chain")
    b.add_tensor("x", 100, "int8", "input")
    before = "x"
    for i, size in enumerate(weight_bytes):
        b.add_tensor(f"w{i}", size, "int8", "weight")
        b.add_op(
            f"op{i}", "MatMul", "matrix", flops=0, dtype="int8", reads=[(before, None), (f"w{i}", None)],
            writes=[(f"t{i}", 100, "int8")], measured_s={"chip": 10e-6},
        )  # fmt: skip
        before = f"t{i}"
    b.mark_output(before)
    target = small_mcm(num_chips, sram_bytes=1000, host_in_bytes_per_s=host_bytes_per_s, **rates)
    order = np.arange(len(weight_bytes), dtype=np.int32)
    tables = cost_tables(b.build(), target)
    return slice_order_streamed(tables, order, order, forwarding="relayed", replicates=replicates)


# Ops 0 and 1 share a chip with 800 bytes of weights and 500 of activations: of the larger weight, 300
# bytes stream. Ops 1 and 2 would stream 400, all three 1000; alone each fits.
@pytest.mark.parametrize(
    ("num_chips", "host_bytes_per_us", "cuts", "interval_us"),
    [
        (1, 20.0, [0, 3], 55.0),  # 1000 bytes and 100 of x
        (1, 200.0, [0, 3], 30.0),
        (2, 20.0, [0, 2, 3], 20.0),  # 300 bytes and 100 of x
        (2, 200.0, None, 20.0),
        (3, 20.0, [0, 1, 2, 3], 10.0),  # nothing streams
    ],
)
def test_three_weights_by_hand(
    num_chips: int, host_bytes_per_us: float, cuts: list[int] | None, interval_us: float
) -> None:
    slicing = sliced_chain([500, 300, 600], num_chips, host_bytes_per_us * 1e6, replicates=False)
    assert slicing is not None
    assert slicing.expected_s == pytest.approx(interval_us * 1e-6)
    assert cuts is None or segments_of(slicing)[0].tolist() == cuts


def test_a_replicated_stage_streams_once_by_hand() -> None:
    # All three on four chips take 7.5 us, and 1000 bytes and x 5.5 us of the host's link, whichever
    # chip it is that reads them. At a tenth of its rate stages of their own are better.
    for host_bytes_per_us, sizes, interval_us in ((200.0, [4], 7.5), (20.0, [1, 1, 1], 10.0)):
        slicing = sliced_chain([500, 300, 600], 4, host_bytes_per_us * 1e6, replicates=True)
        assert slicing is not None
        assert segments_of(slicing)[1].tolist() == sizes
        assert slicing.expected_s == pytest.approx(interval_us * 1e-6)


def test_rings_that_do_not_overlap_have_no_replicated_stages() -> None:
    assert sliced_chain([500, 300, 600], 3, 20e6, replicates=True, overlap=False) is None
