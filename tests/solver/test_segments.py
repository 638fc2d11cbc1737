"""The memory of segments against that of each by definition, and the slicer against a plain table."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from numba import njit

from go_opt.env import CostTables, cost_tables
from go_opt.solver import ForwardingMode, slice_order
from go_opt.solver.problem.sequence import KernelSequence
from go_opt.solver.slicing.memory import (
    SegmentMemory,
    least_needed_bytes,
    segment_memory,
    segment_peaks_bytes,
)
from go_opt.solver.slicing.problem import (
    SliceProblem,
    problem_along,
    relays_of_segments,
    segment_cost_s,
)
from tests.solver.brute_force import segments_of
from tests.solver.test_slicing import with_shared_input
from tests.strategies import examples, kind_names, random_graph, random_order, random_target, seeds


class Long:
    """A random sequence of many kernels, relayed or not, and its memory."""

    def __init__(self, seed: int, num_kernels: int, **fields: object) -> None:
        self.rng = rng = np.random.default_rng(seed)
        target = random_target(rng, topology="ring", num_chips=int(rng.integers(1, 9)), **fields)
        graph = random_graph(rng, num_kernels, kinds=kind_names(target))
        graph = with_shared_input(graph, rng) if rng.random() < 0.3 else graph
        self.order = random_order(rng, graph)
        forwarding_modes: tuple[ForwardingMode, ...] = ("relayed", "adjacent", "free")
        self.forwarding: ForwardingMode = forwarding_modes[int(rng.integers(3))]
        self.use(cost_tables(graph, target))
        self.needed_bytes = all_needed_bytes(self.memory)

    def use(self, tables: CostTables) -> None:
        self.tables = tables
        self.sequence: KernelSequence
        self.problem: SliceProblem
        self.sequence, self.problem = problem_along(tables, self.order, self.order, self.forwarding)
        is_relayed = self.forwarding == "relayed"
        self.memory: SegmentMemory = segment_memory(tables, self.sequence, relayed=is_relayed)

    def with_sizes(self, *quantiles: float) -> None:
        """Memory sizes at which so many of all segments fit; each chip gets one of them."""
        needed = self.needed_bytes[self.needed_bytes >= 0]
        sizes = np.unique(np.quantile(needed, quantiles).astype(np.int64))
        of_chip = self.rng.integers(0, len(sizes), len(self.tables.sram_bytes))
        self.use(self.tables._replace(sram_bytes=sizes[of_chip]))


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
    case = Long(seed, int(np.random.default_rng(seed).integers(1, 192)))
    num_kernels, needed = case.problem.num_kernels, case.needed_bytes
    for _ in range(20):
        inner = case.rng.choice(num_kernels + 1, case.rng.integers(num_kernels + 1), replace=False)
        cuts = np.union1d([0, num_kernels], inner)
        assert (segment_peaks_bytes(case.memory, cuts) == needed[cuts[:-1], cuts[1:]]).all()
    least = least_needed_bytes(case.memory)
    for kernel in range(num_kernels):
        assert least[kernel] <= needed[: kernel + 1, kernel + 1 :].min()


@settings(max_examples=examples(20), deadline=None)
@given(seed=seeds)
def test_the_slicer_agrees_with_a_plain_table(seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = Long(seed, int(rng.integers(1, 94)))
    case.with_sizes(*rng.random(2))
    chips = min(len(case.memory.sram_bytes), case.problem.num_kernels)
    fewest = int(rng.integers(1, chips + 1)) if rng.random() < 0.3 else 1
    least = plain_least_s(case, chips, fewest)
    got = slice_order(case.tables, case.order, case.order, forwarding=case.forwarding, min_chips=fewest)
    assert (got is None) == (least == np.inf)
    if got is not None:
        assert fewest <= len(segments_of(got)[1]) <= chips
        assert got.expected_s == pytest.approx(least, rel=1e-9, abs=0)


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
