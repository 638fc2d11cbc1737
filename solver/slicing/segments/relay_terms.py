"""The cost of relays in the segments of a kernel sequence (design section 8).

A tensor produced before segment ``[i, j)`` and read at or after ``j`` passes the segment. Its chip
copies the tensor in a separate kernel: ``2 * bytes * sram_s_per_byte + kernel_overhead_s``.
Tensors are sorted by last reader, so that passing bytes can be updated while segments grow.
A tensor is ``alive`` if it is read at or after the current end.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from go_opt.common.arrays import FloatArray, LongArray, csr
from go_opt.common.compiling import compiled, uncounted, uncounted_inner
from go_opt.env.cost import CostTables
from go_opt.solver.problem.sequence import KernelSequence


class RelayTerms(NamedTuple):
    """Tensors that cross cuts, by their last reader. Axes: ``M`` kernels, ``C`` tensors, ``Q`` kinds.

    Empty where tensors pass at no cost, or never pass.
    """

    last_ptr: LongArray  # [M + 1]
    home: LongArray  # [C] kernel that produces the tensor
    size_bytes: LongArray  # [C]
    copy_s_per_byte: FloatArray  # [Q] to read and write a relayed tensor
    copy_s: FloatArray  # [Q] fixed cost of a relay


class Alive(NamedTuple):
    """Tensors produced before the current end and read at or after it."""

    size_bytes: LongArray  # [M] by producer; kernels from the end on count all they produce
    number: LongArray  # [M]
    total: LongArray  # [2] bytes and number over all kernels before the end


def no_relays(tables: CostTables, num_kernels: int) -> RelayTerms:
    """Returns the terms of slicings in which nothing is relayed."""
    nothing = np.zeros(0, np.int64)
    last_ptr = np.zeros(num_kernels + 1, np.int64)
    return RelayTerms(last_ptr, nothing, nothing, *_copy_costs(tables))


def relay_terms(tables: CostTables, sequence: KernelSequence) -> RelayTerms:
    """Returns the terms of slicings in which every tensor that passes a chip is relayed there."""
    home, last = sequence.home, sequence.last
    crosses = np.flatnonzero((home >= 0) & (last > home))
    last_ptr, by_last = csr(last[crosses], sequence.num_kernels)
    crosses = crosses[by_last]
    return RelayTerms(last_ptr, home[crosses], tables.tensor_bytes[crosses], *_copy_costs(tables))


def no_tensors_alive(terms: RelayTerms) -> Alive:
    """Returns scratch for :func:`start_over` and :func:`end_moves_on`."""
    num_kernels = len(terms.last_ptr) - 1
    counts = np.zeros((2, num_kernels), np.int64)
    return Alive(counts[0], counts[1], np.zeros(2, np.int64))


@uncounted
def start_over(terms: RelayTerms, alive: Alive) -> None:
    """Sets the end before the first kernel."""
    for kernel in range(len(alive.number)):
        alive.size_bytes[kernel] = 0
        alive.number[kernel] = 0
    for t in range(len(terms.home)):
        alive.size_bytes[terms.home[t]] += terms.size_bytes[t]
        alive.number[terms.home[t]] += 1
    alive.total[0] = 0
    alive.total[1] = 0


@uncounted_inner
def end_moves_on(terms: RelayTerms, alive: Alive, end: int) -> None:
    """Moves the end from ``end - 1`` to ``end``, after kernel ``end - 1`` has read and produced."""
    for t in range(terms.last_ptr[end - 1], terms.last_ptr[end]):
        alive.size_bytes[terms.home[t]] -= terms.size_bytes[t]
        alive.number[terms.home[t]] -= 1
        alive.total[0] -= terms.size_bytes[t]
        alive.total[1] -= 1
    alive.total[0] += alive.size_bytes[end - 1]
    alive.total[1] += alive.number[end - 1]


@uncounted_inner
def relay_s(terms: RelayTerms, kind: int, size_bytes: int, count: int) -> float:
    """Returns the seconds of ``count`` relays of ``size_bytes`` in total on a chip of ``kind``."""
    return size_bytes * terms.copy_s_per_byte[kind] + count * terms.copy_s[kind]


@compiled
def relays_of_segments(terms: RelayTerms, cuts: LongArray) -> LongArray:
    """Returns the bytes and number [S, 2] of the tensors that pass each segment between two cuts."""
    num_segments = len(cuts) - 1
    passes = np.zeros((num_segments + 1, 2), np.int64)
    segment_of = np.empty(cuts[num_segments], np.int64)
    for d in range(num_segments):
        for kernel in range(cuts[d], cuts[d + 1]):
            segment_of[kernel] = d
    for last in range(cuts[num_segments]):
        for t in range(terms.last_ptr[last], terms.last_ptr[last + 1]):
            first, end = segment_of[terms.home[t]] + 1, segment_of[last]
            if first < end:
                passes[first, 0] += terms.size_bytes[t]
                passes[end, 0] -= terms.size_bytes[t]
                passes[first, 1] += 1
                passes[end, 1] -= 1
    for d in range(1, num_segments):
        passes[d, 0] += passes[d - 1, 0]
        passes[d, 1] += passes[d - 1, 1]
    return passes[:num_segments]


def _copy_costs(tables: CostTables) -> tuple[FloatArray, FloatArray]:
    return 2.0 * tables.sram_s_per_byte, tables.kernel_overhead_s
