"""SLICE where chips differ or activations are tight: level by level, segment by segment.

``reached[j]`` says that cut j can be reached with exactly d chips; level d + 1 follows
from level d by trying every segment that ends at j, shortest first. O(D M W) for
windows of W kernels, and the slow twin of ``slicing._fewest_chips`` where both apply.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from go_opt.env.cost import CostTables
from go_opt.graph import NO_PRODUCER, WEIGHT
from go_opt.solver.sequence import KernelSequence
from go_opt.solver.slicing import NO_SLICING, SliceProblem, _segment_cost_s, bisect_interval


class SegmentMemory(NamedTuple):
    """Tensors by kernel, to weigh the activations of a segment. Axes: ``M`` kernels, ``K`` tensors."""

    write_ptr: NDArray[np.int64]  # [M + 1]
    write: NDArray[np.int32]  # [...] activations each kernel stores
    read_ptr: NDArray[np.int64]  # [M + 1]
    read: NDArray[np.int32]  # [...] activations and inputs each kernel reads from another
    size_bytes: NDArray[np.int64]  # [K]
    home: NDArray[np.int64]  # [K] kernel that produces the tensor, -1 for inputs
    last: NDArray[np.int64]  # [K] last kernel that reads it from another, -1: none
    is_output: NDArray[np.bool_]  # [K]
    sram_bytes: NDArray[np.int64]  # [D]
    ample: bool  # no segment of this sequence can be too large for any chip


def segment_memory(tables: CostTables, sequence: KernelSequence) -> SegmentMemory:
    """What the memory of segments of ``sequence`` depends on."""
    kernel_of, num_kernels = sequence.kernel_of, sequence.num_kernels
    producer = tables.tensor_producer
    home = np.where(producer == NO_PRODUCER, -1, kernel_of[producer]).astype(np.int64)
    tensor, reader = tables.reader_tensor, kernel_of[tables.reader_op].astype(np.int64)
    is_activation = (tables.tensor_kind[tensor] != WEIGHT) & (reader != home[tensor])
    pairs = np.unique(np.stack([reader[is_activation], tensor[is_activation]], axis=1), axis=0)
    last = np.full(len(home), -1, dtype=np.int64)
    np.maximum.at(last, pairs[:, 1], pairs[:, 0])
    stored = np.flatnonzero((home >= 0) & ((last >= 0) | tables.tensor_is_output))
    stored = stored[np.argsort(home[stored], kind="stable")]
    border = 4 * int(sequence.crossing_bytes.max()) + 2 * sequence.input_bytes
    border += 2 * int(sequence.host_out_bytes.sum())
    return SegmentMemory(
        _row_pointers(home[stored], num_kernels),
        stored.astype(np.int32),
        _row_pointers(pairs[:, 0], num_kernels),
        pairs[:, 1].astype(np.int32),
        tables.tensor_bytes,
        home,
        last,
        tables.tensor_is_output,
        tables.sram_bytes,
        ample=sequence.peak_live_bytes + border <= int(tables.sram_bytes.min()),
    )


def cheapest_cuts_general(
    problem: SliceProblem, memory: SegmentMemory, max_chips: int
) -> NDArray[np.int64] | None:
    """Cuts of the cheapest slicing whose segments all fit; ``None`` where there is none."""
    shape = (max_chips + 1, problem.num_kernels + 1)

    def cuts_within(interval_s: float) -> NDArray[np.int64] | None:
        previous = np.full(shape, -1, dtype=np.int64)
        chips = _reach_levels(problem, memory, interval_s, problem.chips_are_alike, previous)
        return None if chips == NO_SLICING else _walk_back(previous, chips)

    return bisect_interval(problem, max_chips, cuts_within)


def segments_fit(memory: SegmentMemory, cuts: NDArray[np.int64]) -> bool:
    """Whether the activations of every segment fit its chip."""
    if memory.ample:
        return True
    return all(
        segment_peak_bytes(memory, cuts[d], cuts[d + 1]) <= memory.sram_bytes[d] for d in range(len(cuts) - 1)
    )


@njit(cache=True, nogil=True)
def segment_peak_bytes(memory, start, end):
    """Activations of segment [start, end) at their peak (design section 5, Memory)."""
    held = np.int64(0)
    change = np.zeros(end - start + 1, np.int64)
    seen = set([np.int64(-1)])
    for kernel in range(start, end):
        for i in range(memory.write_ptr[kernel], memory.write_ptr[kernel + 1]):
            tensor = memory.write[i]
            if memory.is_output[tensor] or memory.last[tensor] >= end:
                held += 2 * memory.size_bytes[tensor]
            else:
                change[kernel - start] += memory.size_bytes[tensor]
                change[memory.last[tensor] + 1 - start] -= memory.size_bytes[tensor]
        for i in range(memory.read_ptr[kernel], memory.read_ptr[kernel + 1]):
            tensor = np.int64(memory.read[i])
            if memory.home[tensor] < start and tensor not in seen:
                seen.add(tensor)
                held += 2 * memory.size_bytes[tensor]
    peak = held
    for i in range(end - start):
        held += change[i]
        peak = max(peak, held)
    return peak


@njit(cache=True, nogil=True)
def _reach_levels(problem, memory, interval_s, alike, previous):
    """Fewest chips that cover all kernels, or NO_SLICING; ``previous[d, j]`` is a cut before j."""
    levels = previous.shape[0]
    num_kernels = previous.shape[1] - 1
    slack_s = interval_s * (1.0 + 1e-13)
    reached_before = np.zeros(num_kernels + 1, np.bool_)
    previous[0, 0] = 0
    for d in range(levels - 1):
        kind = problem.chip_kind[d]
        reached_before |= previous[d] >= 0
        if not (previous[d] >= 0).any():
            return NO_SLICING
        for j in range(1, num_kernels + 1):
            # Where chips are alike, reaching a cut with more of them never helps.
            if alike and reached_before[j]:
                continue
            for i in range(j - 1, -1, -1):
                span_s = problem.prefix_s[kind, j] - problem.prefix_s[kind, i]
                if span_s > slack_s + _most_saved_s(problem):
                    break
                if problem.blocked[kind, j] > problem.blocked[kind, i]:
                    break
                if previous[d, i] < 0 or problem.reach[i] > j:
                    continue
                if _segment_cost_s(problem, d, i, j) > slack_s:
                    continue
                if memory.ample or segment_peak_bytes(memory, i, j) <= memory.sram_bytes[d]:
                    previous[d + 1, j] = i
                    break
        if previous[d + 1, num_kernels] >= 0:
            return d + 1
    return NO_SLICING


@njit(cache=True, nogil=True)
def _most_saved_s(problem):
    return 0.0 if problem.overlap else problem.again_s.sum()


def _walk_back(previous: NDArray[np.int64], chips: int) -> NDArray[np.int64]:
    cuts = np.empty(chips + 1, dtype=np.int64)
    cuts[chips] = previous.shape[1] - 1
    for d in range(chips, 0, -1):
        cuts[d - 1] = previous[d, cuts[d]]
    return cuts


def _row_pointers(rows: NDArray, num_rows: int) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=num_rows))]).astype(np.int64)
