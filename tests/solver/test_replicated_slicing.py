"""Slicing into replicated stages against all of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.common.arrays import IntArray
from go_opt.env import BatchMetrics, cost_tables, evaluate_batch
from go_opt.env.copies.relays import Relays, expanded_tables
from go_opt.env.copies.stages import size_by_chip
from go_opt.env.kernels.numbering import number_kernels
from go_opt.model.builder import GraphBuilder
from go_opt.model.plan import Candidate
from go_opt.solver.copies.relays import needed_relays
from go_opt.solver.problem.forwarding_mode import ForwardingMode
from go_opt.solver.problem.segment_rules import SegmentRules
from go_opt.solver.problem.sequence import kernel_sequence
from go_opt.solver.problem.streamed_bytes import least_streamed_bytes
from go_opt.solver.slicing.problem import least_s, slice_problem
from go_opt.solver.slicing.slice import slice_order_replicated
from tests.solver.brute_force import plenty_of_memory, segments_of
from tests.solver.test_relay_slicing import random_rules
from tests.solver.test_slicing import Case
from tests.strategies import examples, seeds, small_mcm, toy_graph

FORWARDING_MODES: tuple[ForwardingMode, ...] = ("relayed", "adjacent", "free")


class Stagings:
    """Every slicing of a random short sequence into stages of every size, costed by the environment.

    On chips that are alike; for others see ``test_streamed_slicing.py``.
    """

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.case = Case(seed, max_ops=7, num_kinds=1, overlap=True)
        self.tables = self.case.tables
        self.forwarding = FORWARDING_MODES[int(rng.integers(3))]
        self.rules = random_rules(rng, self.case) if rng.random() < 0.4 else SegmentRules()
        self.rules.pop("allowed", None)
        self.stages = list(self._all())
        self.terms = [self._evaluate(*stages) for stages in self.stages]

    def slice(self, **limits: object) -> Candidate | None:
        case = self.case
        return slice_order_replicated(
            self.tables, case.order, case.group, forwarding=self.forwarding, **limits, **self.rules
        )

    def best_s(self) -> float:
        fits = [(terms.peak_bytes[0] <= self.tables.sram_bytes).all() for terms in self.terms]
        found = [float(terms.interval_s[0]) for terms, fit in zip(self.terms, fits, strict=True) if fit]
        return min(found, default=np.inf)

    def lower_s(self) -> float:
        case, tables = self.case, self.tables
        sequence = kernel_sequence(tables, case.order, case.group, adjacent=False)
        host_s = (sequence.input_bytes + least_streamed_bytes(tables)) * tables.host_in_s_per_byte
        return max(least_s(slice_problem(tables, sequence), tables.num_chips), host_s)

    def _all(self) -> Iterator[tuple[IntArray, IntArray]]:
        """[N] the stage of each op, and [S] chips of each stage."""
        graph, tables = self.case.graph, self.tables
        kernel_of = number_kernels(self.case.order, self.case.group)
        num_kernels = int(kernel_of.max()) + 1
        for used in range(1, min(tables.num_chips, num_kernels) + 1):
            for inner in itertools.combinations(range(1, num_kernels), used - 1):
                lengths = np.diff([0, *inner, num_kernels])
                stage = np.repeat(np.arange(used, dtype=np.int32), lengths)[kernel_of]
                spans = stage[graph.edge_dst] - stage[graph.edge_src]
                if (self.forwarding == "adjacent" and (spans > 1).any()) or not self._keep_rules(stage):
                    continue
                for sizes in itertools.product(range(1, tables.num_chips + 1), repeat=used):
                    if sum(sizes) <= tables.num_chips:
                        yield stage, np.array(sizes, dtype=np.int32)

    def _keep_rules(self, stage: IntArray) -> bool:
        rising = self.rules.get("rising")
        if rising is not None and not (stage[rising[1]] > stage[rising[0]]).all():
            return False
        return all((stage[ops] == stage[ops[0]]).all() for ops in self.rules.get("colocated", ()))

    def _evaluate(self, stage: IntArray, sizes: IntArray) -> BatchMetrics:
        """With memory for everything, so that nothing streams."""
        tables = plenty_of_memory(self.tables)
        first = (np.cumsum(sizes) - sizes).astype(np.int32)
        replication = size_by_chip(first[stage], sizes[stage], tables.num_chips)
        plan = [first[stage], self.case.order, self.case.group]
        if self.forwarding == "relayed":
            tensor, on_stage = needed_relays(tables, stage, "adjacent")
            tables, *plan = expanded_tables(tables, *plan, Relays(tensor, first[on_stage]))
        return evaluate_batch(tables, *(row[None] for row in plan), replication[plan[0]][None])


def reached(slicing: Candidate | None) -> float:
    return np.inf if slicing is None else slicing.expected_s


@settings(max_examples=examples(150), deadline=None)
@given(seed=seeds)
def test_the_slicing_is_the_least_of_all_stagings(seed: int) -> None:
    all_of, at_most = Stagings(seed), np.random.default_rng(seed).uniform(0.9, 1.1)
    best_s = all_of.best_s()
    got = all_of.slice()
    assert reached(got) == pytest.approx(best_s, rel=1e-9, abs=0)
    if got is not None and best_s > 0:
        # None is faster than the host's link, which carries weights that no memory holds.
        is_open = at_most >= 1.0 and best_s * at_most >= all_of.lower_s()
        assert (all_of.slice(at_most_s=best_s * at_most) is not None) == is_open
        _, sizes = segments_of(got)
        stage = np.searchsorted(np.cumsum(sizes), got.placement, side="right")
        of_as_many = ((s, chips) for s, chips in all_of.stages if len(chips) == len(sizes))
        same = [(stage == s).all() and (chips == sizes).all() for s, chips in of_as_many]
        assert any(same)
        assert np.array_equal(got.replication, sizes[stage])


# Kernels of the toy graph take 3.4, 9, 6, 5, 6 and 14 us, 43.4 in all. Links ten times as fast as
# elsewhere bind nowhere, and out leaves within 10 us. All ops on four chips take 10.85 us; on three 14.5.
@pytest.mark.parametrize(("num_chips", "sizes", "interval_us"), [(1, [1], 43.4), (4, [4], 10.85)])
def test_toy_by_hand(num_chips: int, sizes: list[int], interval_us: float) -> None:
    target = small_mcm(num_chips, link_bytes_per_s=1e9)
    tables, order = cost_tables(toy_graph(), target), np.arange(6, dtype=np.int32)
    slicing = slice_order_replicated(tables, order, order, forwarding="relayed")
    assert slicing is not None
    assert segments_of(slicing)[1].tolist() == sizes
    assert slicing.replication.tolist() == sizes * 6
    assert slicing.expected_s == pytest.approx(interval_us * 1e-6)


def measured_chain(microseconds: list[float]):
    """Ops one behind the other."""
    b = GraphBuilder("chain")
    b.add_tensor("x", 100, "int8", "input")
    before = "x"
    for i, us in enumerate(microseconds):
        b.add_op(
            f"op{i}", "MatMul", "matrix", flops=0, dtype="int8", reads=[(before, None)],
            writes=[(f"t{i}", 100, "int8")], measured_s={"chip": us * 1e-6},
        )  # fmt: skip
        before = f"t{i}"
    b.mark_output(before)
    return b.build()


def sliced_chain(microseconds: list[float], num_chips: int, **changes: object):
    """On chips of 1000 bytes; the host's link takes 5 us for 100 of them."""
    graph = measured_chain(microseconds)
    fields = {"host_in_bytes_per_s": 2e7, "sram_bytes": 1000} | changes
    tables = cost_tables(graph, small_mcm(num_chips, **fields))
    order = np.arange(graph.num_ops, dtype=np.int32)
    return slice_order_replicated(tables, order, order, forwarding="relayed")


def test_two_chips_replicate_one_op_by_hand() -> None:
    slicing = sliced_chain([20.0], 2)
    assert slicing is not None
    assert (slicing.placement.tolist(), slicing.replication.tolist()) == ([0], [2])
    assert slicing.expected_s == pytest.approx(10e-6)


def test_three_stages_by_hand() -> None:
    # 400 bytes of activations each, and 500 of two together, which no chip holds. 10, 30 and 20 us.
    slicing = sliced_chain([10.0, 30.0, 20.0], 6, sram_bytes=450)
    assert slicing is not None
    assert segments_of(slicing)[1].tolist() == [1, 3, 2]
    assert slicing.placement.tolist() == [0, 1, 4]
    assert slicing.replication.tolist() == [1, 3, 2]
    assert slicing.expected_s == pytest.approx(10e-6)


def test_slow_links_merge_stages_by_hand() -> None:
    # 100 bytes take 20 us over a link, so all three share all six chips.
    slicing = sliced_chain([10.0, 30.0, 20.0], 6, link_bytes_per_s=5e6)
    assert slicing is not None
    assert segments_of(slicing)[1].tolist() == [6]
    assert slicing.expected_s == pytest.approx(10e-6)


def test_no_memory_leaves_no_slicing() -> None:
    assert sliced_chain([10.0, 30.0], 2, sram_bytes=399) is None
