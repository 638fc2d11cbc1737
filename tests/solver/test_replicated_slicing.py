"""Slicing into replicated stages against all of them, and the fast slicer against the general one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.common.arrays import BoolArray, IntArray
from go_opt.env import BatchMetrics, CostTables, cost_tables, evaluate_batch
from go_opt.env.copies.expanded_tables import Copies, expanded_tables
from go_opt.env.copies.stages import size_by_chip
from go_opt.env.kernels.numbering import number_kernels
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import WEIGHT
from go_opt.solver.copies.relays import needed_relays
from go_opt.solver.problem.passing import Passing
from go_opt.solver.problem.segment_rules import SegmentRules
from go_opt.solver.problem.sequence import kernel_sequence
from go_opt.solver.problem.streamed_bytes import least_streamed_bytes
from go_opt.solver.slicing.along import Slicing
from go_opt.solver.slicing.replicated.cuts import cheapest_replicated_cuts, replicated_cost_s
from go_opt.solver.slicing.replicated.general import replicated_cuts_general
from go_opt.solver.slicing.replicated.slice import free_reads, slice_order_replicated
from go_opt.solver.slicing.segments.fitting_starts import fitting_starts
from go_opt.solver.slicing.segments.memory import segment_memory
from go_opt.solver.slicing.segments.problem import least_s, one_chip_s, slice_problem
from go_opt.solver.slicing.segments.relay_terms import relay_terms
from tests.solver.brute_force import plenty_of_memory
from tests.solver.test_relay_slicing import random_rules
from tests.solver.test_slicing import Case
from tests.strategies import examples, random_graph, random_order, random_target, seeds, small_mcm, toy_graph

PASSINGS: tuple[Passing, ...] = ("relayed", "adjacent", "free")


class Stagings:
    """Every slicing of a random short sequence into stages of every size, costed by the environment."""

    def __init__(self, seed: int, **fields: object) -> None:
        rng = np.random.default_rng(seed)
        self.case = Case(seed, max_ops=7, **fields)
        self.target = random_target(rng, topology="ring", num_chips=self.case.target.num_chips, **fields)
        self.tables = cost_tables(self.case.graph, self.target)
        self.passing = PASSINGS[int(rng.integers(3))]
        self.rules = random_rules(rng, self.case) if rng.random() < 0.4 else SegmentRules()
        self.stages = list(self._all())
        self.chips = np.array([int(sizes.sum()) for _, sizes in self.stages])
        self.terms = [self._evaluate(*stages) for stages in self.stages]

    def slice(self, **limits: object) -> Slicing | None:
        case = self.case
        return slice_order_replicated(
            self.tables, case.order, case.group, passing=self.passing, **limits, **self.rules
        )

    def best_s(self, min_chips: int = 1, max_chips: int = 99, weights_may_stream: bool = False) -> float:
        max_chips = min(max_chips, self.target.num_chips)
        free = () if weights_may_stream else set(free_reads(self.tables, self.lower_s(max_chips)).tolist())
        found = [np.inf]
        for (stage, sizes), chips, terms in zip(self.stages, self.chips, self.terms, strict=True):
            needed = terms.peak_bytes[0].copy()
            first = np.cumsum(sizes) - sizes
            for s, size in enumerate(sizes):
                held = 0 if weights_may_stream else held_bytes(self.tables, stage == s, free)
                needed[first[s] : first[s] + size] += held
            if min_chips <= chips <= max_chips and (needed <= self.tables.sram_bytes).all():
                found.append(float(terms.interval_s[0]))
        return min(found)

    def lower_s(self, max_chips: int) -> float:
        case, tables = self.case, self.tables
        sequence = kernel_sequence(tables, case.order, case.group, adjacent=False)
        host_s = (sequence.input_bytes + least_streamed_bytes(tables)) * tables.host_in_s_per_byte
        work_s = least_s(slice_problem(tables, sequence), max_chips)
        return max(work_s, host_s) if tables.overlap else work_s

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
                if (self.passing == "adjacent" and (spans > 1).any()) or not self._keep_rules(stage):
                    continue
                for sizes in itertools.product(range(1, tables.num_chips + 1), repeat=used):
                    if sum(sizes) <= tables.num_chips and self._may_run(stage, np.array(sizes)):
                        yield stage, np.array(sizes, dtype=np.int32)

    def _keep_rules(self, stage: IntArray) -> bool:
        rising = self.rules.get("rising")
        if rising is not None and not (stage[rising[1]] > stage[rising[0]]).all():
            return False
        return all((stage[ops] == stage[ops[0]]).all() for ops in self.rules.get("colocated", ()))

    def _may_run(self, stage: IntArray, sizes: IntArray) -> bool:
        """Whether the chips of each stage are of one kind, and all of them may run its ops."""
        tables, allowed = self.tables, self.rules.get("allowed")
        may_run = tables.can_run[tables.chip_kind]
        may_run = may_run if allowed is None else may_run & allowed
        ends = np.cumsum(sizes)
        for s, (end, size) in enumerate(zip(ends, sizes, strict=True)):
            chips = np.arange(end - size, end)
            if len(set(tables.chip_kind[chips])) > 1 or not may_run[np.ix_(chips, stage == s)].all():
                return False
        return True

    def _evaluate(self, stage: IntArray, sizes: IntArray) -> BatchMetrics:
        """With memory for everything, so that nothing streams."""
        tables = plenty_of_memory(self.tables)
        first = (np.cumsum(sizes) - sizes).astype(np.int32)
        replication = size_by_chip(first[stage], sizes[stage], tables.num_chips)
        plan = [first[stage], self.case.order, self.case.group]
        if self.passing == "relayed":
            nothing = np.zeros(0, np.int32)
            tensor, on_stage = needed_relays(tables, stage, "adjacent")
            tables, *plan = expanded_tables(tables, *plan, Copies(tensor, first[on_stage], nothing, nothing))
        return evaluate_batch(tables, *(row[None] for row in plan), replication[plan[0]][None])


def held_bytes(tables: CostTables, is_here: BoolArray, free: set[int] | tuple[()]) -> int:
    """Weights that the ops of a stage hold, each once: no chip can hold some, and some stream for free."""
    held = set()
    for read, (op, k) in enumerate(zip(tables.reader_op, tables.reader_tensor, strict=True)):
        if tables.tensor_kind[k] == WEIGHT and is_here[op] and read not in free:
            held.add(int(k))
    return sum(int(tables.tensor_bytes[k]) for k in held if tables.tensor_bytes[k] <= tables.sram_bytes.max())


def reached(slicing: Slicing | None) -> float:
    return np.inf if slicing is None else slicing.interval_s


@settings(max_examples=examples(150), deadline=None)
@given(seed=seeds)
def test_the_slicing_is_the_least_of_all_stagings(seed: int) -> None:
    all_of, at_most = Stagings(seed), np.random.default_rng(seed).uniform(0.9, 1.1)
    best_s = all_of.best_s()
    got = all_of.slice()
    assert reached(got) == pytest.approx(best_s, rel=1e-9, abs=0)
    free_s = all_of.best_s(weights_may_stream=True)
    assert reached(all_of.slice(weights_may_stream=True)) == pytest.approx(free_s, rel=1e-9, abs=0)
    if got is not None and best_s > 0:
        # None is faster than the host's link, which carries weights that no memory holds.
        is_open = at_most >= 1.0 and best_s * at_most >= all_of.lower_s(all_of.target.num_chips)
        assert (all_of.slice(at_most_s=best_s * at_most) is not None) == is_open
        stage = np.searchsorted(np.cumsum(got.sizes), got.placement, side="right")
        same = [(stage == s).all() and (sizes == got.sizes).all() for s, sizes in like(all_of, got)]
        assert any(same)
        assert np.array_equal(got.replication, got.sizes[stage])


def like(all_of: Stagings, got: Slicing) -> Iterator[tuple[IntArray, IntArray]]:
    return ((stage, sizes) for stage, sizes in all_of.stages if len(sizes) == len(got.sizes))


@settings(max_examples=examples(60), deadline=None)
@given(seed=seeds)
def test_fewer_and_more_chips_may_be_asked_for(seed: int) -> None:
    all_of = Stagings(seed)
    for bound in range(1, all_of.target.num_chips + 1):
        few, many = all_of.slice(max_chips=bound), all_of.slice(min_chips=bound)
        assert reached(few) == pytest.approx(all_of.best_s(max_chips=bound), rel=1e-9, abs=0)
        assert reached(many) == pytest.approx(all_of.best_s(min_chips=bound), rel=1e-9, abs=0)
        assert many is None or many.sizes.sum() >= bound


@settings(max_examples=examples(60), deadline=None)
@given(seed=seeds)
def test_the_fast_slicer_agrees_with_the_general_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_kernels = int(rng.integers(1, 81 if examples(20) == 20 else 21))
    target = random_target(
        rng, topology="ring", num_chips=int(rng.integers(1, 13)), num_kinds=1, overlap=True
    )
    graph = random_graph(rng, num_kernels)
    tables, order = cost_tables(graph, target), random_order(rng, graph)
    passing, may_stream = PASSINGS[int(rng.integers(3))], bool(rng.random() < 0.3)
    sequence = kernel_sequence(tables, order, order, adjacent=passing == "adjacent")
    relays = relay_terms(tables, sequence.kernel_of, num_kernels) if passing == "relayed" else None
    problem = slice_problem(tables, sequence, relays=relays)
    memory = segment_memory(tables, sequence, weights_may_stream=may_stream, relayed=passing == "relayed")
    limits = (problem.floor_s, one_chip_s(problem))
    without_end = (10**18, 10**18)
    fits = fitting_starts(problem, memory, memory.sram_bytes[:1], np.inf, without_end)
    fast = cheapest_replicated_cuts(problem, fits, target.num_chips, *limits)
    general = replicated_cuts_general(problem, memory, target.num_chips, 1, *limits)
    assert (fast is None) == (general is None)
    if fast is not None and general is not None:
        fast_s = replicated_cost_s(problem, fast, target.num_chips)
        assert fast_s == pytest.approx(general[2], rel=1e-9, abs=0)


# Kernels of the toy graph take 3.4, 9, 6, 5, 6 and 14 us, 43.4 in all. Links ten times as fast as
# elsewhere bind nowhere, and out leaves within 10 us. All ops on four chips take 10.85 us; on three 14.5.
@pytest.mark.parametrize(("num_chips", "sizes", "interval_us"), [(1, [1], 43.4), (4, [4], 10.85)])
def test_toy_by_hand(num_chips: int, sizes: list[int], interval_us: float) -> None:
    target = small_mcm(num_chips, link_bytes_per_s=1e9)
    tables, order = cost_tables(toy_graph(), target), np.arange(6, dtype=np.int32)
    slicing = slice_order_replicated(tables, order, order, passing="relayed")
    assert slicing is not None
    assert slicing.sizes.tolist() == sizes
    assert slicing.replication.tolist() == sizes * 6
    assert slicing.interval_s == pytest.approx(interval_us * 1e-6)


def measured_chain(microseconds: list[float], weight_bytes: list[int]):
    """Ops one behind the other, each with a weight of its own."""
    b = GraphBuilder("chain")
    b.add_tensor("x", 100, "int8", "input")
    before = "x"
    for i, (us, size) in enumerate(zip(microseconds, weight_bytes, strict=True)):
        b.add_tensor(f"w{i}", size, "int8", "weight")
        b.add_op(
            f"op{i}", "MatMul", "matrix", flops=0, dtype="int8", reads=[(before, None), (f"w{i}", None)],
            writes=[(f"t{i}", 100, "int8")], measured_s={"chip": us * 1e-6},
        )  # fmt: skip
        before = f"t{i}"
    b.mark_output(before)
    return b.build()


def sliced_chain(microseconds: list[float], weight_bytes: list[int], num_chips: int, **changes: object):
    """On chips of 1000 bytes; the host's link takes 5 us for 100 of them."""
    graph = measured_chain(microseconds, weight_bytes)
    rates = {"host_in_bytes_per_s": 2e7} | changes
    tables = cost_tables(graph, small_mcm(num_chips, sram_bytes=1000, **rates))
    order = np.arange(graph.num_ops, dtype=np.int32)
    return slice_order_replicated(tables, order, order, passing="relayed")


def test_two_chips_replicate_one_op_by_hand() -> None:
    slicing = sliced_chain([20.0], [500], 2)
    assert slicing is not None
    assert (slicing.placement.tolist(), slicing.replication.tolist()) == ([0], [2])
    assert slicing.interval_s == pytest.approx(10e-6)


def test_three_stages_by_hand() -> None:
    # 500 bytes of weights each, and 400 of activations: no chip holds two of them. 10, 30 and 20 us.
    slicing = sliced_chain([10.0, 30.0, 20.0], [500, 500, 500], 6)
    assert slicing is not None
    assert slicing.sizes.tolist() == [1, 3, 2]
    assert slicing.placement.tolist() == [0, 1, 4]
    assert slicing.replication.tolist() == [1, 3, 2]
    assert slicing.interval_s == pytest.approx(10e-6)


def test_slow_links_merge_stages_by_hand() -> None:
    # 100 bytes take 20 us over a link, so all three share all six chips, which hold 300 bytes of weights.
    slicing = sliced_chain([10.0, 30.0, 20.0], [100, 100, 100], 6, link_bytes_per_s=5e6)
    assert slicing is not None
    assert slicing.sizes.tolist() == [6]
    assert slicing.interval_s == pytest.approx(10e-6)


def test_chips_beyond_those_needed_by_hand() -> None:
    # The link takes 50 us, which two chips suffice for; of more that are asked for each takes some work.
    graph = measured_chain([40.0, 45.0], [500, 500])
    tables = cost_tables(graph, small_mcm(6, sram_bytes=1000, link_bytes_per_s=2e6, host_in_bytes_per_s=2e7))
    order = np.arange(2, dtype=np.int32)
    for min_chips, sizes in ((1, [1, 1]), (3, [1, 2]), (6, [3, 3])):
        slicing = slice_order_replicated(tables, order, order, passing="relayed", min_chips=min_chips)
        assert slicing is not None
        assert slicing.sizes.tolist() == sizes
        assert slicing.interval_s == pytest.approx(50e-6)


def test_weights_that_stream_for_free_take_no_memory_by_hand() -> None:
    # All on two chips takes 20 us. At 50 bytes a us the inputs take 2 us and the larger weight 11 us of the
    # host's link, so it may stream; the other's 8 us are too many, but 400 bytes fit beside 500 of
    # activations. At 30 a us the larger takes 18.3 us beside 3.3 of inputs, and both stay, apart.
    for host_bytes_per_s, sizes, interval_us in ((5e7, [2], 20.0), (3e7, [1, 1], 30.0)):
        slicing = sliced_chain([10.0, 30.0], [400, 550], 2, host_in_bytes_per_s=host_bytes_per_s)
        assert slicing is not None
        assert slicing.sizes.tolist() == sizes
        assert slicing.interval_s == pytest.approx(interval_us * 1e-6)


def test_no_memory_leaves_no_slicing() -> None:
    assert sliced_chain([10.0, 30.0], [650, 650], 2) is None
    assert sliced_chain([10.0, 30.0], [600, 600], 1) is None
