"""Cells of a kernel sequence: stretches of kernels with about as much to read of weights.

A segment from a cut inside cell u to one inside cell v holds at least the cells between them;
what it streams and works never falls as it grows, so those cells bound both from below. Cells end
with a kernel that reads weights, those with much to read have no other beside it: of what they
stream nothing is lost. Of activations only what single kernels need counts.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray, LongArray
from go_opt.common.compiling import compiled, compiled_inner, int64
from go_opt.solver.slicing.segments.problem import SliceProblem
from go_opt.solver.slicing.streamed.weight_streams import (
    HeldWeights,
    WeightReads,
    drop_weights,
    hold_weights,
    streamed_bytes,
)

MOST_READ_SHARE: Final = 8  # more than this part of a chip's memory counts as no more to read


class Cells(NamedTuple):
    """Stretches of kernels. Axis ``G`` cells. Nodes: 0 the first cut, 1 + u one in cell u, G + 1 the last."""

    start: LongArray  # [G + 1] first kernel of each
    covers_from: LongArray  # [G + 1] first cell whose weights a segment from each node surely holds
    works_from: LongArray  # [G + 1] the same for whole cells
    may_cut: BoolArray  # [G + 2] whether a cut may fall on the node
    reads: WeightReads  # of whole cells
    needed_bytes: LongArray  # [G] beside weights, of any segment that holds its weights
    work_s: FloatArray  # [G + 1] work of the cells before each, on the fastest kind each
    reach: LongArray  # [G + 1] node that a segment from each must reach at least


@compiled
def make_cells(
    problem: SliceProblem,
    reads: WeightReads,
    needed_bytes: LongArray,
    kernel_at: LongArray,
    room_bytes: int,
    num_cells: int,
) -> Cells:
    """The cells of the kernels ``kernel_at`` [M] by place.

    ``problem`` is by place; ``reads`` and ``needed_bytes`` [M] beside weights are by kernel.
    """
    num_kernels = len(kernel_at)
    start, reads_last = _cell_starts(reads, kernel_at, room_bytes, num_cells)
    number = len(start) - 1
    covers_from = np.zeros(number + 1, np.int64)
    works_from = np.zeros(number + 1, np.int64)
    may_cut = np.ones(number + 2, np.bool_)
    needed = np.zeros(number, np.int64)
    work_s = np.zeros(number + 1)
    reach = np.zeros(number + 1, np.int64)
    for u in range(number):
        covers_from[u + 1] = u if reads_last[u] else u + 1
        works_from[u + 1] = u if start[u + 1] == start[u] + 1 else u + 1
        may_cut[u + 1] = False
        for cut in range(max(start[u], 1), start[u + 1]):
            may_cut[u + 1] |= problem.may_cut[cut]
        # A segment from a cut inside holds the last kernel, if what reads is that alone.
        for m in range(start[u + 1] - 1 if reads_last[u] else start[u], start[u + 1]):
            needed[u] = max(needed[u], needed_bytes[kernel_at[m]])
        least_s = np.inf
        for kind in range(len(problem.prefix_s)):
            least_s = min(least_s, problem.prefix_s[kind, start[u + 1]] - problem.prefix_s[kind, start[u]])
        work_s[u + 1] = work_s[u] + least_s
    cell_of = np.empty(num_kernels + 1, np.int64)
    for u in range(number):
        cell_of[start[u] : start[u + 1]] = u
    cell_of[num_kernels] = number
    for u in range(number + 1):
        reach[u] = 1 + cell_of[problem.reach[start[max(u - 1, 0)]]]
    of_cells = _cell_reads(reads, kernel_at, start)
    return Cells(start, covers_from, works_from, may_cut, of_cells, needed, work_s, reach)


@compiled_inner
def _cell_starts(
    reads: WeightReads, kernel_at: LongArray, room_bytes: int, num_cells: int
) -> tuple[LongArray, BoolArray]:
    """[G + 1] first kernel of each cell, and [G] whether at most its last kernel reads weights."""
    num_kernels = len(kernel_at)
    to_read = np.zeros(num_kernels)
    for m in range(num_kernels):
        for r in range(reads.read_ptr[kernel_at[m]], reads.read_ptr[kernel_at[m] + 1]):
            to_read[m] += 1 + min(reads.stored_bytes[reads.place[r]], room_bytes // MOST_READ_SHARE)
    share = to_read.sum() / num_cells
    start = np.zeros(num_kernels + 1, np.int64)
    number, filled, last_read = 0, 0.0, -1
    for m in range(num_kernels):
        if to_read[m] == 0.0:
            continue
        if filled + to_read[m] >= share and last_read >= start[number]:
            number += 1
            start[number] = last_read + 1
            filled = 0.0
        filled += to_read[m]
        last_read = m
    for end in (last_read + 1, num_kernels):
        if end > start[number]:
            number += 1
            start[number] = end
    reads_last = np.ones(number, np.bool_)
    for u in range(number):
        for m in range(start[u], start[u + 1] - 1):
            reads_last[u] &= to_read[m] == 0.0
    return start[: number + 1].copy(), reads_last


@compiled_inner
def _cell_reads(reads: WeightReads, kernel_at: LongArray, start: LongArray) -> WeightReads:
    """Each weight once in each cell, at the most touched of it."""
    num_cells = len(start) - 1
    read_ptr = np.zeros(num_cells + 1, np.int64)
    weight = np.empty(len(reads.weight), np.int32)
    place = np.empty(len(reads.weight), np.int32)
    at = np.full(reads.num_weights, -1, np.int64)
    number = 0
    for u in range(num_cells):
        for m in range(start[u], start[u + 1]):
            for r in range(reads.read_ptr[kernel_at[m]], reads.read_ptr[kernel_at[m] + 1]):
                w = reads.weight[r]
                if at[w] < read_ptr[u]:
                    at[w] = number
                    weight[number] = w
                    place[number] = reads.place[r]
                    number += 1
                else:
                    place[at[w]] = max(place[at[w]], reads.place[r])
        read_ptr[u + 1] = number
    return WeightReads(
        read_ptr, weight[:number], place[:number], reads.stored_bytes, reads.touched_bytes, reads.num_weights
    )


@compiled
def cell_streams(cells: Cells, room_bytes: int, most_bytes: float, held: HeldWeights) -> FloatArray:
    """[G + 1, G + 1] bytes that cells from one to before another stream; infinite above ``most_bytes``."""
    num_cells = len(cells.start) - 1
    streamed = np.full((num_cells + 1, num_cells + 1), np.inf)
    for v in range(num_cells + 1):
        streamed[v, v] = 0.0
        drop_weights(held)
        needed = int64(0)
        for u in range(v - 1, -1, -1):
            hold_weights(cells.reads, held, u)
            needed = max(needed, cells.needed_bytes[u])
            if needed > room_bytes:
                break
            least = streamed_bytes(cells.reads, held, room_bytes - needed, int64(0))
            if least > most_bytes:
                break
            streamed[u, v] = least
    return streamed
