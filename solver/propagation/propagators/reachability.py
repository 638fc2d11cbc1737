"""Ancestors and descendants of units as bitsets, to count the units unrelated to or between edge ends.

One bit per pair of units: O(E U / 64) time and U^2 / 4 bytes, once per problem. Above
``MAX_COUNTED_UNITS`` units (32 MiB per bitset) nothing is counted: with that many units
per chip the bound would seldom be tight.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from go_opt.common.arrays import LongArray, WordArray
from go_opt.common.compiling import compiled, uncounted, uncounted_inner
from go_opt.solver.propagation.propagators.domains import NO_BITS, ONE_BIT, WORD_BITS, chip_bit, lowest_bit

MAX_COUNTED_UNITS: Final = 16_384
MAX_BETWEEN: Final = 100_000


def count_spans(
    succ_ptr: LongArray,
    succ: LongArray,
    pred_ptr: LongArray,
    pred: LongArray,
    topological: LongArray,
    *,
    between_counts: bool,
) -> tuple[LongArray, LongArray, LongArray, LongArray, LongArray]:
    """Returns what holds before any unit is decided.

    These are the span of each edge along ``succ`` [E], 1 + |Q|; the units that may lie below and above each
    unit's chip [U]; and a CSR [E + 1], [T] of the units on a path from one end of an edge to the other, empty
    if it would exceed ``MAX_BETWEEN`` entries.

    ``between_counts``: a unit between the ends of an edge may lie between their chips. Then the CSR is also
    empty.
    """
    ancestors = _closure(pred_ptr, pred, topological)
    descendants = _closure(succ_ptr, succ, topological[::-1].copy())
    num_units = len(succ_ptr) - 1
    spans, num_between = _spans(succ_ptr, succ, ancestors, descendants, between_counts)
    between_ptr = np.concatenate([[0], np.cumsum(num_between)]).astype(np.int64)
    if between_counts or between_ptr[-1] > MAX_BETWEEN:
        between_ptr = np.zeros_like(between_ptr)
    between = np.zeros(between_ptr[-1], np.int64)
    if len(between):
        _list_between(succ_ptr, succ, ancestors, descendants, between_ptr, between)
    return (
        spans,
        num_units - 1 - np.bitwise_count(descendants).sum(axis=1, dtype=np.int64),
        num_units - 1 - np.bitwise_count(ancestors).sum(axis=1, dtype=np.int64),
        between_ptr,
        between,
    )


@compiled
def _closure(ptr: LongArray, neighbours: LongArray, order: LongArray) -> WordArray:
    """Returns all units that each unit reaches, [U, ceil(U / 64)]; neighbours come first in ``order``."""
    num_units = len(ptr) - 1
    reached = np.zeros((num_units, (num_units + WORD_BITS - 1) // WORD_BITS), np.uint64)
    for unit in order:
        for j in range(ptr[unit], ptr[unit + 1]):
            other = neighbours[j]
            reached[unit, other // WORD_BITS] |= chip_bit(other)
            for word in range(reached.shape[1]):
                reached[unit, word] |= reached[other, word]
    return reached


@compiled
def _spans(
    succ_ptr: LongArray, succ: LongArray, ancestors: WordArray, descendants: WordArray, between_counts: bool
) -> tuple[LongArray, LongArray]:
    num_units = len(succ_ptr) - 1
    spans = np.zeros(len(succ), np.int64)
    num_between = np.zeros(len(succ), np.int64)
    for unit in range(num_units):
        for i in range(succ_ptr[unit], succ_ptr[unit + 1]):
            excluded = 0
            for word in range(ancestors.shape[1]):
                bits = ancestors[unit, word] | descendants[succ[i], word]
                between = descendants[unit, word] & ancestors[succ[i], word]
                excluded += _count_bits(bits)
                num_between[i] += _count_bits(between)
            if not between_counts:
                excluded += num_between[i]
            # Nor do u and v themselves lie between their chips.
            spans[i] = 1 + num_units - excluded - 2
    return spans, num_between


@uncounted
def _list_between(
    succ_ptr: LongArray,
    succ: LongArray,
    ancestors: WordArray,
    descendants: WordArray,
    between_ptr: LongArray,
    between: LongArray,
) -> None:
    for unit in range(len(succ_ptr) - 1):
        for i in range(succ_ptr[unit], succ_ptr[unit + 1]):
            at = between_ptr[i]
            for word in range(ancestors.shape[1]):
                bits = descendants[unit, word] & ancestors[succ[i], word]
                while bits != NO_BITS:
                    between[at] = word * WORD_BITS + lowest_bit(bits)
                    bits &= bits - ONE_BIT
                    at += 1


@uncounted_inner
def _count_bits(bits: int) -> int:
    count = 0
    while bits != NO_BITS:
        bits &= bits - ONE_BIT
        count += 1
    return count
