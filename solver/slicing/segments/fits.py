"""Which segments of a kernel sequence fit a chip, asked of any two cuts in any order.

Growing a segment kernel by kernel (:mod:`go_opt.solver.slicing.segments.memory`) costs its length, and
segments may be as long as memory holds their weights. So what a segment needs is bounded first,
in constant time: by what crosses its cuts, by the most that lives at once anywhere in it, and
by its weights. All that are read before its end and from its start on are its weights, but
for those read on both sides alone: none where it is longer than any gap between two reads.
That settles most segments. Of the ends of the others all segments are grown, once, and their
answers kept.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from go_opt.solver.problem.sequence import KernelSequence
from go_opt.solver.slicing.segments.memory import SegmentMemory, SegmentUsage, grow_segment, segment_usage

# Kernels by which segments are grown in all, a second's work; past it what is not sure to fit does not.
MOST_GROWTH: Final = 5_000_000
# Weights that more kernels pass without reading them are rare: a table that the last op reads again.
LONG_GAP: Final = 64
WORD_BITS: Final = 64
FITS_NOT, UNSURE, FITS = range(3)


class SegmentFits(NamedTuple):
    """Bounds of what segments need, and the answers kept. Axes: ``M`` kernels.

    Sums are over kernels before a cut.
    """

    first: NDArray[np.int64]  # [M + 1] segments that start before it need too much, and to any later end
    lowest: NDArray[np.int64]  # [M + 1] segments that start before it do not fit
    weight_sum_bytes: NDArray[np.int64]  # [M + 1] of the weights of every kernel
    first_read_bytes: NDArray[np.int64]  # [M + 1] of the weights, each at the first kernel that reads it
    last_read_bytes: NDArray[np.int64]  # [M + 1] each at the last
    long_gap_bytes: int  # of weights that long segments may pass without reading them
    border_sum_bytes: NDArray[np.int64]  # [M + 1] inputs read and outputs written, twice
    crossing_bytes: NDArray[np.int64]  # [M + 1]
    enters_whole: bool  # whether all that crosses a segment's start is held in it
    most_alive_bytes: NDArray[np.int64]  # [levels, M] of 2 ** level kernels from each on
    all_fit: bool  # there is memory for everything at once
    sram_bytes: int
    memory: SegmentMemory
    usage: SegmentUsage
    row_start: NDArray[np.int64]  # [M + 1] first start of each row, from where on the weights fit
    row_ptr: NDArray[np.int64]  # [M + 2] words of each row
    row: NDArray[np.uint64]  # [...] bits: segments that fit, where their end is known
    is_known: NDArray[np.bool_]  # [M + 1] ends whose segments have been grown
    growth: NDArray[np.int64]  # [1] kernels so far


def segment_fits(
    sequence: KernelSequence, memory: SegmentMemory, sram_bytes: int, *, enters_whole: bool
) -> SegmentFits:
    """The segments of ``sequence`` that fit ``sram_bytes``; nothing is grown yet.

    Args:
      enters_whole: whether a segment holds all that crosses its start: tensors that pass
        it are relayed, or none may pass it.
    """
    num_kernels = sequence.num_kernels
    weight_sum = _sums(memory.weight_bytes)[memory.weight_ptr]
    read_again = np.zeros(num_kernels + 1, dtype=np.int64)
    np.add.at(read_again, memory.weight_next, memory.weight_bytes)
    first_read = weight_sum - _sums(read_again[:-1])
    is_last = memory.weight_next == num_kernels
    last_read = _sums(np.where(is_last, memory.weight_bytes, 0))[memory.weight_ptr]
    reader = np.repeat(np.arange(num_kernels), np.diff(memory.weight_ptr))
    has_gap = ~is_last & (memory.weight_next - reader > LONG_GAP)
    long_gap_bytes = int(memory.weight_bytes[has_gap].sum())
    by_next = np.argsort(memory.weight_next, kind="stable")
    first = _first_starts(memory, reader, by_next, sram_bytes)
    border_sum = 2 * _sums(_host_bytes(memory))
    most_alive = _range_maxima(_alive_bytes(memory))
    crossing = memory.crossing_bytes
    most = int(last_read[-1] + border_sum[-1] + most_alive.max() + 4 * crossing.max())
    words = -(-(np.arange(num_kernels + 1) - first) // WORD_BITS)
    row_ptr = _sums(words)
    return SegmentFits(
        first,
        first.copy(),
        weight_sum,
        first_read,
        last_read,
        long_gap_bytes,
        border_sum,
        crossing,
        enters_whole,
        most_alive,
        most <= sram_bytes,
        sram_bytes,
        memory,
        segment_usage(memory),
        first.copy(),
        row_ptr,
        np.zeros(int(row_ptr[-1]), dtype=np.uint64),
        np.zeros(num_kernels + 1, dtype=np.bool_),
        np.zeros(1, dtype=np.int64),
    )


@njit(cache=True, nogil=True)
def fits(of, start, end, passing_bytes):
    """Whether segment [start, end), which so many bytes pass, fits."""
    verdict = fits_at_a_glance(of, start, end, passing_bytes)
    return grown_fits(of, start, end) if verdict == UNSURE else verdict == FITS


@njit(cache=True, nogil=True, inline="always")
def fits_at_a_glance(of, start, end, passing_bytes):
    """FITS, FITS_NOT or UNSURE, in constant time."""
    if of.all_fit:
        return FITS
    if start < of.lowest[end]:
        return FITS_NOT
    if of.is_known[end]:
        return FITS if _is_noted(of, start, end) else FITS_NOT
    crossing = 2 * (of.crossing_bytes[start] + of.crossing_bytes[end] - passing_bytes)
    in_use = of.first_read_bytes[end] - of.last_read_bytes[start]
    weights = max(
        of.first_read_bytes[end] - of.first_read_bytes[start],
        of.last_read_bytes[end] - of.last_read_bytes[start],
        in_use - of.long_gap_bytes if end - start >= LONG_GAP else 0,
    )
    if weights + (crossing if of.enters_whole else 0) > of.sram_bytes:
        return FITS_NOT
    level = 0
    while 2 << level <= end - start:
        level += 1
    alive = max(of.most_alive_bytes[level, start], of.most_alive_bytes[level, end - (1 << level)])
    # Tensors that pass the segment are alive all along it, and have their buffers beside.
    alive -= passing_bytes
    border = of.border_sum_bytes[end] - of.border_sum_bytes[start]
    weights = min(in_use, of.weight_sum_bytes[end] - of.weight_sum_bytes[start])
    return FITS if crossing + alive + border + weights <= of.sram_bytes else UNSURE


@njit(cache=True, nogil=True)
def grown_fits(of, start, end):
    """Whether segment [start, end) fits, exactly: all that end there are grown if they have not been yet."""
    if not of.is_known[end]:
        if of.growth[0] > MOST_GROWTH:
            return False
        _grow_all(of, end)
    return start >= of.lowest[end] and _is_noted(of, start, end)


@njit(cache=True, nogil=True)
def needs_no_more(of, start, later):
    """Whether a segment from cut ``later`` surely fits where one from ``start`` to the same end does.

    It may hold more of what enters it, and does hold fewer weights.
    """
    more = of.crossing_bytes[later] - (of.crossing_bytes[start] if of.enters_whole else 0)
    return of.all_fit or 2 * more <= of.last_read_bytes[later] - of.last_read_bytes[start]


@njit(cache=True, nogil=True)
def _is_noted(of, start, end):
    bit = start - of.row_start[end]
    word = of.row[of.row_ptr[end] + bit // WORD_BITS]
    return (word >> np.uint64(bit % WORD_BITS)) & np.uint64(1) == np.uint64(1)


@njit(cache=True, nogil=True)
def _grow_all(of, end):
    of.is_known[end] = True
    of.usage.total[:] = 0
    of.lowest[end] = end
    for start in range(end - 1, of.row_start[end] - 1, -1):
        of.growth[0] += 1
        needed = grow_segment(of.memory, start, end, of.usage)
        # These two never fall while a segment grows, at either end.
        if of.usage.total[1] + of.usage.total[2] > of.sram_bytes:
            of.first[end] = start + 1
            break
        if needed <= of.sram_bytes:
            of.lowest[end] = start
            bit = start - of.row_start[end]
            of.row[of.row_ptr[end] + bit // WORD_BITS] |= np.uint64(1) << np.uint64(bit % WORD_BITS)


@njit(cache=True, nogil=True)
def _first_starts(memory, reader, by_next, sram_bytes):
    """[M + 1] the least start before each cut of a segment whose weights, each once, fit."""
    num_kernels = len(memory.weight_ptr) - 1
    first = np.zeros(num_kernels + 1, np.int64)
    start, again, held = 0, 0, np.int64(0)
    for end in range(1, num_kernels + 1):
        for i in range(memory.weight_ptr[end - 1], memory.weight_ptr[end]):
            held += memory.weight_bytes[i]
        # Weights that this kernel reads as well have been counted where they were read before.
        while again < len(by_next) and memory.weight_next[by_next[again]] < end:
            i = by_next[again]
            again += 1
            held -= memory.weight_bytes[i] if reader[i] >= start else 0
        while held > sram_bytes:
            for i in range(memory.weight_ptr[start], memory.weight_ptr[start + 1]):
                held -= memory.weight_bytes[i] if memory.weight_next[i] >= end else 0
            start += 1
        first[end] = start
    return first


@njit(cache=True, nogil=True)
def _alive_bytes(memory):
    """[M] bytes of all tensors stored from their producer's to their last reader's kernel."""
    num_kernels = len(memory.write_ptr) - 1
    alive = np.zeros(num_kernels + 1, np.int64)
    for kernel in range(num_kernels):
        for i in range(memory.write_ptr[kernel], memory.write_ptr[kernel + 1]):
            tensor = memory.write[i]
            alive[kernel] += memory.size_bytes[tensor]
            alive[max(memory.last[tensor], kernel) + 1] -= memory.size_bytes[tensor]
    for kernel in range(1, num_kernels):
        alive[kernel] += alive[kernel - 1]
    return alive[:num_kernels]


@njit(cache=True, nogil=True)
def _host_bytes(memory):
    """[M] inputs that each kernel reads, and outputs that it produces."""
    num_kernels = len(memory.write_ptr) - 1
    host = np.zeros(num_kernels, np.int64)
    for kernel in range(num_kernels):
        for i in range(memory.read_ptr[kernel], memory.read_ptr[kernel + 1]):
            host[kernel] += memory.size_bytes[memory.read[i]] if memory.home[memory.read[i]] < 0 else 0
        for i in range(memory.write_ptr[kernel], memory.write_ptr[kernel + 1]):
            host[kernel] += memory.size_bytes[memory.write[i]] if memory.is_output[memory.write[i]] else 0
    return host


def _range_maxima(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """[levels, M] the most of 2 ** level values from each on, or of as many as there are."""
    rows = [values]
    while 2 ** len(rows) <= len(values):
        before, half = rows[-1], 2 ** (len(rows) - 1)
        rows.append(before.copy())
        np.maximum(before[:-half], before[half:], out=rows[-1][:-half])
    return np.array(rows)


def _sums(values: NDArray[np.integer]) -> NDArray[np.int64]:
    """[n + 1] of the values before each, and of all."""
    return np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
