"""Segments that fit in memory against the memory of each, and the general slicer against a plain table."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from numba import njit

from go_opt.common.arrays import LongArray
from go_opt.env import CostTables, cost_tables
from go_opt.solver.problem.sequence import KernelSequence, kernel_sequence
from go_opt.solver.slicing import general
from go_opt.solver.slicing.general import cheapest_cuts_general
from go_opt.solver.slicing.segments.fitting_starts import fitting_starts
from go_opt.solver.slicing.segments.memory import (
    BLOCK,
    SegmentMemory,
    least_needed_bytes,
    segment_memory,
    segment_peaks_bytes,
)
from go_opt.solver.slicing.segments.problem import (
    SliceProblem,
    one_chip_s,
    relays_of_segments,
    segment_cost_s,
    slice_problem,
    slicing_cost_s,
)
from go_opt.solver.slicing.segments.starts import FittingStarts, all_starts, sure_starts
from tests.solver.test_slicing import with_shared_input
from tests.strategies import examples, kind_names, random_graph, random_order, random_target, seeds

WITHOUT_END = 10**18


class Long:
    """A random sequence of more kernels than a block holds, relayed or not, and its memory."""

    def __init__(self, seed: int, num_kernels: int, **fields: object) -> None:
        self.rng = rng = np.random.default_rng(seed)
        target = random_target(rng, topology="ring", num_chips=int(rng.integers(1, 9)), **fields)
        graph = random_graph(rng, num_kernels, kinds=kind_names(target))
        graph = with_shared_input(graph, rng) if rng.random() < 0.3 else graph
        order, relayed = random_order(rng, graph), bool(rng.random() < 0.4)
        adjacent = bool(rng.random() < 0.5) and not relayed
        self.tables: CostTables = cost_tables(graph, target)
        self.sequence: KernelSequence = kernel_sequence(self.tables, order, order, adjacent=adjacent)
        self.problem: SliceProblem = slice_problem(self.tables, self.sequence, relayed=relayed)
        self.memory: SegmentMemory = segment_memory(self.tables, self.sequence, relayed=relayed)

        self.needed_bytes = all_needed_bytes(self.memory)

    def with_sizes(self, *quantiles: float) -> LongArray:
        """Memory sizes at which so many of all segments fit; each chip gets one of them."""
        needed = self.needed_bytes[self.needed_bytes >= 0]
        sizes = np.unique(np.quantile(needed, quantiles).astype(np.int64))
        of_chip = self.rng.integers(0, len(sizes), len(self.memory.sram_bytes))
        self.memory = self.memory._replace(sram_bytes=sizes[of_chip])
        return sizes


@njit
def all_needed_bytes(memory):
    """[M + 1, M + 1] bytes that each segment needs, by start and end, from the definition; -1: none."""
    num_kernels = len(memory.entering_bytes)
    needed = np.full((num_kernels + 1, num_kernels + 1), -1, np.int64)
    entered = np.full(len(memory.home), -1, np.int64)
    segment = 0
    for end in range(1, num_kernels + 1):
        for start in range(end):
            segment += 1
            held, buffer, alive = memory.entering_bytes[start], 0, np.zeros(num_kernels, np.int64)
            for kernel in range(start, end):
                buffer = max(buffer, memory.buffer_bytes[kernel])
                for tensor in memory.write[memory.write_ptr[kernel] : memory.write_ptr[kernel + 1]]:
                    if memory.is_output[tensor] or memory.last[tensor] >= end:
                        held += 2 * memory.size_bytes[tensor]
                    else:
                        alive[kernel : memory.last[tensor] + 1] += memory.size_bytes[tensor]
                for tensor in memory.read[memory.read_ptr[kernel] : memory.read_ptr[kernel + 1]]:
                    if memory.home[tensor] < start and entered[tensor] != segment:
                        entered[tensor] = segment
                        held += 2 * memory.size_bytes[tensor]
            needed[start, end] = held + buffer + alive.max()
    return needed


@settings(max_examples=examples(25), deadline=None)
@given(seed=seeds)
def test_segments_that_grow_need_what_each_needs(seed: int) -> None:
    case = Long(seed, int(np.random.default_rng(seed).integers(1, 3 * BLOCK)))
    num_kernels = case.problem.num_kernels
    for _ in range(20):
        inner = case.rng.choice(num_kernels + 1, case.rng.integers(num_kernels + 1), replace=False)
        cuts = np.union1d([0, num_kernels], inner)
        assert (segment_peaks_bytes(case.memory, cuts) == case.needed_bytes[cuts[:-1], cuts[1:]]).all()


def sizes_of(fits: FittingStarts, num_kernels: int) -> LongArray:
    """[M + 1, M + 1] the least size that is enough for each segment in a run, by start and end; -1: none."""
    sizes = np.full((num_kernels + 1, num_kernels + 1), -1)
    for end in range(1, num_kernels + 1):
        for run in range(fits.run_ptr[end], fits.run_ptr[end + 1]):
            assert (sizes[fits.start[run] : fits.stop[run], end] == -1).all()
            sizes[fits.start[run] : fits.stop[run], end] = fits.size[run]
    return sizes


@settings(max_examples=examples(25), deadline=None)
@given(seed=seeds)
def test_runs_hold_what_fits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = Long(seed, int(rng.integers(1, 4 * BLOCK)))
    sizes, num_kernels = case.with_sizes(*1.0 - rng.random(2) ** 2), case.problem.num_kernels
    # Every start is reached, whatever it takes.
    problem = case.problem._replace(reach=np.arange(1, num_kernels + 2), overlap=False)
    problem = problem._replace(may_cut=np.ones(num_kernels + 1, dtype=np.bool_))
    free = fitting_starts(problem, case.memory, sizes, np.inf, (WITHOUT_END, WITHOUT_END))
    needed = case.needed_bytes
    enough = np.where(needed <= sizes[-1], np.searchsorted(sizes, needed), -1)
    is_reached = np.zeros(num_kernels + 1, dtype=np.bool_)
    is_reached[0] = True
    for end in range(1, num_kernels + 1):
        is_reached[end] = (is_reached & (needed[:, end] >= 0) & (enough[:, end] >= 0)).any()
    looked_at = (needed >= 0) & is_reached[:, None]
    least = least_needed_bytes(case.memory)
    for kernel in range(num_kernels):
        assert least[kernel] <= needed[: kernel + 1, kernel + 1 :].min()
    assert free.is_complete
    assert (sizes_of(free, num_kernels) == enough)[looked_at].all()


@settings(max_examples=examples(25), deadline=None)
@given(seed=seeds)
def test_sure_starts_fit_wherever_one_before_them_does(seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = Long(seed, int(rng.integers(1, 2 * BLOCK)))
    sizes, num_kernels = case.with_sizes(1.0 - rng.random() ** 2), case.problem.num_kernels
    fits = fitting_starts(case.problem, case.memory, sizes, np.inf, (WITHOUT_END, WITHOUT_END))
    is_fitting = sizes_of(fits, num_kernels) >= 0
    is_sure, first = sure_starts(fits, case.problem.reach)
    for end in range(1, num_kernels + 1):
        assert not is_fitting[: first[end], end:].any()
        starts = np.flatnonzero(is_fitting[:, end])
        usable = is_sure[:-1] & (case.problem.reach[:-1] <= end)
        assert is_fitting[:-1, end][usable & (np.arange(num_kernels) > starts.min(initial=num_kernels))].all()
    whole = all_starts(num_kernels)
    assert (sizes_of(whole, num_kernels) == 0).sum() == num_kernels * (num_kernels + 1) // 2
    assert sure_starts(whole, case.problem.reach)[0].all()


@settings(max_examples=examples(20), deadline=None)
@given(seed=seeds)
def test_the_general_slicer_agrees_with_a_plain_table(seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = Long(seed, int(rng.integers(1, BLOCK + 30)))
    case.with_sizes(*rng.random(2))
    chips = min(len(case.memory.sram_bytes), case.problem.num_kernels)
    fewest = int(rng.integers(1, chips + 1)) if rng.random() < 0.3 else 1
    least = plain_least_s(case, chips, fewest)
    ends = (case.problem.floor_s, one_chip_s(case.problem))
    cuts = cheapest_cuts_general(case.problem, case.memory, chips, *ends, min_chips=fewest)
    assert (cuts is None) == (least == np.inf)
    if cuts is not None:
        assert fewest <= len(cuts) - 1 <= chips
        assert slicing_cost_s(case.problem, cuts) == pytest.approx(least, rel=1e-9, abs=0)


def plain_least_s(case: Long, max_chips: int, min_chips: int) -> float:
    """``T[d + 1][j] = min_i max(T[d][i], cost(d, i, j))`` over the segments that fit."""
    problem, num_kernels = case.problem, case.problem.num_kernels
    needed = case.needed_bytes
    least = np.full((max_chips + 1, num_kernels + 1), np.inf)
    least[0, 0] = problem.floor_s
    for end in range(1, num_kernels + 1):
        for start in range(end):
            if problem.reach[start] > end or not problem.may_cut[[start, end]].all():
                continue
            passes = relays_of_segments(problem, np.array([0, start, end, num_kernels]))[1]
            is_inside = (problem.again_before >= start) & (problem.again_kernel < end)
            saved_s = problem.again_s[is_inside].sum()
            for chip in range(max_chips):
                if problem.blocked[chip, end] > problem.blocked[chip, start]:
                    continue
                if needed[start, end] <= case.memory.sram_bytes[chip]:
                    cost_s = segment_cost_s(problem, chip, start, end, passes[0], passes[1], saved_s)
                    after = max(least[chip, start], cost_s)
                    least[chip + 1, end] = min(least[chip + 1, end], after)
    return float(least[min_chips:, num_kernels].min())


def test_work_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    # Where no more than one start is looked at for each end, segments are single kernels.
    case = Long(3, 40, num_kinds=1)
    case.memory = case.memory._replace(sram_bytes=np.full(60, 10**9))
    problem = case.problem._replace(
        blocked=np.zeros((60, 41), np.int64), chip_kind=np.zeros(60, np.int32),
        hop_s_per_byte=np.full(60, case.problem.hop_s_per_byte[0]),
    )  # fmt: skip
    ends = (problem.floor_s, one_chip_s(problem))
    least = cheapest_cuts_general(problem, case.memory, 60, *ends)
    monkeypatch.setattr(general, "MOST_STEPS", 40)
    single = cheapest_cuts_general(problem, case.memory, 60, *ends)
    assert least is not None
    assert single is None or single.tolist() == list(range(41))
    assert cheapest_cuts_general(problem, case.memory, 39, *ends) is None


def test_more_steps_than_asked_for_are_not_taken() -> None:
    case = Long(5, 100, num_kinds=1)
    args = (case.problem, case.memory, np.array([10**9]), np.inf)
    whole = fitting_starts(*args, (WITHOUT_END, WITHOUT_END))
    assert whole.is_complete
    assert whole.steps < 100 * BLOCK  # blocks of starts that fit are passed over at once
    assert not fitting_starts(*args, (whole.steps - 1, WITHOUT_END)).is_complete
