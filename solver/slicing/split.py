"""Slicing into segments of several chips, one for each branch: strict beyond the adjacent rule.

Under the adjacent rule all that reads one tensor shares two chips. The longest-path form of the
triangle rule asks for less: chips that do not depend on each other may all read from one chip, and
be read by one. So a segment of an order may be split by its weak components, the parts no dependency
joins within it: no path between chips gets longer, and the segments obey the adjacent rule.

For a candidate interval T the fewest chips that cover the kernels before cut j are the least, over
the starts i whose reach is at most j, of those before i and those that the components of segment [i, j)
fill up to T each (first fit). Traffic is judged at cuts between segments alone; the placement is to
be evaluated.
"""

from __future__ import annotations

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray
from go_opt.common.compiling import compiled, compiled_inner
from go_opt.env.cost import CostTables
from go_opt.env.cost.routes import hop_seconds_per_byte
from go_opt.model.csr import row_pointers
from go_opt.model.graph import Graph
from go_opt.solver.problem.components import root_of
from go_opt.solver.problem.sequence import kernel_sequence, unique_pairs

MOST_KERNELS = 192  # of a segment
CANDIDATES = 16  # intervals tried, at most
KERNELS_TRIED = 2**15  # of all candidates together: one of a long order takes a tenth of a second


def slice_order_split(
    graph: Graph, tables: CostTables, order: IntArray, fusion_group: IntArray, *, at_most_s: float
) -> IntArray | None:
    """[N] the placement of the least candidate interval below ``at_most_s``, or ``None``.

    Args:
      order: [N] along which the kernels ``fusion_group`` [N] are contiguous.
    """
    sequence = kernel_sequence(tables, order, fusion_group, adjacent=True)
    kernel_s = sequence.kernel_s[tables.chip_kind[0]]
    reads = unique_pairs(sequence.kernel_of[graph.edge_dst], sequence.kernel_of[graph.edge_src])
    reads = reads[reads[:, 0] != reads[:, 1]]
    read_ptr, read = row_pointers(reads[:, 0], sequence.num_kernels), reads[:, 1].astype(np.int32)
    cut_s = sequence.crossing_bytes * float(hop_seconds_per_byte(tables).max(initial=0.0))
    problem = (kernel_s, cut_s, sequence.reach, read_ptr, read, tables.num_chips)
    best, upper_s = _chips_within(*problem, at_most_s), at_most_s
    if len(best) == 0:
        return None
    lower_s = max(float(kernel_s.max()), float(kernel_s.sum()) / tables.num_chips)
    for _ in range(min(CANDIDATES, KERNELS_TRIED // sequence.num_kernels)):
        middle_s = 0.5 * (lower_s + upper_s)
        chips = _chips_within(*problem, middle_s)
        if len(chips) == 0:
            lower_s = middle_s
        else:
            best, upper_s = chips, middle_s
    placement: IntArray = best[sequence.kernel_of]
    return placement


@compiled
def _chips_within(
    kernel_s: FloatArray,
    cut_s: FloatArray,
    reach: LongArray,
    read_ptr: LongArray,
    read: IntArray,
    num_chips: int,
    interval_s: float,
) -> IntArray:
    """[M] chip of each kernel, or nothing where ``interval_s`` is too little for so many chips."""
    num_kernels = len(kernel_s)
    fewest = np.full(num_kernels + 1, num_chips + 1, np.int64)
    previous = np.zeros(num_kernels + 1, np.int64)
    bins = np.empty(num_kernels, np.int32)
    root, work_s = np.empty(num_kernels, np.int64), np.empty(num_kernels)
    fewest[0] = 0
    for i in range(num_kernels):
        if fewest[i] >= num_chips or cut_s[i] > interval_s:
            continue
        last = min(num_kernels, i + MOST_KERNELS)
        _apart(root, work_s, kernel_s, i, last)
        for j in range(i + 1, last + 1):
            if not _join(root, work_s, read_ptr, read, i, j - 1, interval_s):
                break
            if j < reach[i] or cut_s[j] > interval_s:
                continue
            chips = fewest[i] + _fill(root, work_s, i, j, interval_s, bins)
            if chips < fewest[j]:
                fewest[j] = chips
                previous[j] = i
    if fewest[num_kernels] > num_chips:
        return np.empty(0, np.int32)
    chip = np.empty(num_kernels, np.int32)
    j = num_kernels
    while j > 0:
        i = previous[j]
        _apart(root, work_s, kernel_s, i, j)
        for m in range(i, j):
            _join(root, work_s, read_ptr, read, i, m, interval_s)
        _fill(root, work_s, i, j, interval_s, bins)
        for m in range(i, j):
            chip[m] = fewest[i] + bins[m]
        j = i
    return chip


@compiled_inner
def _apart(root: LongArray, work_s: FloatArray, kernel_s: FloatArray, begin: int, end: int) -> None:
    """Each kernel of the segment is a component of its own."""
    for m in range(begin, end):
        root[m] = m
        work_s[m] = kernel_s[m]


@compiled_inner
def _join(
    root: LongArray,
    work_s: FloatArray,
    read_ptr: LongArray,
    read: IntArray,
    begin: int,
    kernel: int,
    interval_s: float,
) -> bool:
    """Add ``kernel`` to the components of the segment from ``begin``; False where one takes too long."""
    for r in range(read_ptr[kernel], read_ptr[kernel + 1]):
        if read[r] < begin:
            continue
        one, other = root_of(root, kernel), root_of(root, read[r])
        if one != other:
            # The earliest kernel stands for its component.
            first, second = min(one, other), max(one, other)
            root[second] = first
            work_s[first] += work_s[second]
    return work_s[root_of(root, kernel)] <= interval_s


@compiled_inner
def _fill(
    root: LongArray, work_s: FloatArray, begin: int, end: int, interval_s: float, bins: IntArray
) -> int:
    """Chips that the components of [begin, end) take, first fit, and in ``bins`` which is whose."""
    load_s = np.zeros(end - begin)
    used = 0
    for m in range(begin, end):
        top = root_of(root, m)
        if top != m:
            bins[m] = bins[top]
            continue
        at = 0
        while at < used and load_s[at] + work_s[m] > interval_s:
            at += 1
        load_s[at] += work_s[m]
        bins[m] = at
        used = max(used, at + 1)
    return used
