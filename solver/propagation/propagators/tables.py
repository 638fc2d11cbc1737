"""Input of the propagators: the graph of units, the rules as numbers, the initial domains.

The span of an edge ``(u, v)``, ``f(v) - f(u) <= 1 + |Q|``, follows from acyclic dataflow and no skipping.
Every chip strictly between the chips of u and v runs some unit. An ancestor of u is not above u's chip, a
descendant of v not below v's chip. Under the longest-path rule, a unit on a path from u to v is not strictly
between either: the direct dependency would have a detour. So ``Q`` is the set of units that are neither
ancestors of u nor descendants of v nor, under that rule, between u and v. Likewise chips below ``f(u)`` run
none of u's descendants, which bounds ``f(u)`` from above. If all chips are used, chips above ``f(u)`` run
none of u's ancestors, which bounds it from below. Ancestors and descendants are bitsets, one bit per pair of
units: O(E U / 64) time and U^2 / 4 bytes, once per problem.

Axes: ``U`` units, ``E`` edges, ``D`` chips, ``W`` words, ``C`` limits, ``I`` shared items.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray, LongArray, WordArray, csr
from go_opt.common.compiling import compiled, uncounted, uncounted_inner
from go_opt.solver.problem.problem import (
    NO_SKIP_ALL,
    NO_SKIP_OFF,
    TRIANGLE_ADJACENT,
    TRIANGLE_LONGEST_PATH,
    TRIANGLE_OFF,
    TRIANGLE_THREE_CHIP,
    PlacementProblem,
)
from go_opt.solver.propagation.propagators.domains import (
    NO_BITS,
    ONE_BIT,
    WORD_BITS,
    chip_bit,
    lowest_bit,
    pack_chips,
)

# The triangle rule at any distance takes O(units x edges) per placement: 30 ms at 1,000 units, but seconds at
# 3,000.
MAX_FAR_UNITS: Final = 2048
# Above this (32 MiB per bitset) nothing is counted: with that many units per chip the bound is seldom tight.
MAX_COUNTED_UNITS: Final = 16_384
MAX_BETWEEN: Final = 100_000


class RuleTables(NamedTuple):
    """A placement problem in the form the propagators need."""

    num_chips: int
    succ_ptr: LongArray  # [U + 1]
    succ: LongArray  # [E] readers of each unit
    succ_rise: LongArray  # [E] least f(v) - f(u), parallel to succ
    succ_span: LongArray  # [E] largest f(v) - f(u), parallel to succ
    pred_ptr: LongArray  # [U + 1]
    pred: LongArray  # [E] producers of each unit
    pred_rise: LongArray  # [E] parallel to pred
    pred_span: LongArray  # [E] parallel to pred
    succ_source: LongArray  # [E] source of each edge, parallel to succ
    pred_edge: LongArray  # [E] index of the edge in succ, parallel to pred
    between_ptr: LongArray  # [E + 1]
    between: LongArray  # [T] units on a path between the ends of each edge of succ
    around_ptr: LongArray  # [U + 1]
    around: LongArray  # [T] edges of succ between whose ends each unit lies
    topological: LongArray  # [U]
    allowed: WordArray  # [U, W] initial domains
    no_skip: int  # index into NO_SKIP_RULES
    triangle: int  # index into TRIANGLE_RULES
    looks_far: bool  # whether the triangle rule is propagated through ancestors and descendants
    limit_chip: LongArray  # [C] of limits on the load of chips
    limit_most: FloatArray  # [C] bytes, seconds or ops; infinite if there is no such limit
    limit_least: FloatArray  # [C]
    limit_amount: FloatArray  # [C, U] the unit's own amount
    limit_shares: BoolArray  # [C] True if the shared items below also count
    item_ptr: LongArray  # [U + 1]
    item: LongArray  # [...] items the unit needs, each once per chip
    item_amount: FloatArray  # [I]

    @property
    def num_units(self) -> int:
        return len(self.succ_ptr) - 1

    def edges(self) -> tuple[LongArray, LongArray]:
        """Returns the source and the reader [E] of each edge, in the order of ``succ``."""
        return self.succ_source, self.succ


def rule_tables(problem: PlacementProblem, *, allowed: BoolArray | None = None) -> RuleTables:
    """Returns the tables of ``problem``, without limits.

    Args:
      allowed: [U, D] True where a unit may be; chips of unsuitable kinds are removed here.
    """
    source = np.repeat(np.arange(problem.num_units), np.diff(problem.successor_ptr))
    by_reader = np.lexsort((source, problem.successor))
    open_chips = problem.can_run[problem.chip_kind].T
    if allowed is not None:
        open_chips = open_chips & allowed
    span, highest, lowest, between_ptr, between = _bounds(problem)
    around_ptr, by_unit = csr(between, problem.num_units)
    chips = np.arange(problem.num_chips)
    open_chips = open_chips & (chips <= highest[:, None]) & (chips >= lowest[:, None])
    rise = problem.rise if problem.acyclic else np.full(problem.num_edges, -problem.num_chips)
    triangle = int(problem.triangle) if problem.acyclic else TRIANGLE_OFF
    return RuleTables(
        num_chips=problem.num_chips,
        succ_ptr=problem.successor_ptr,
        succ=problem.successor.astype(np.int64),
        succ_rise=rise,
        succ_span=span,
        pred_ptr=problem.predecessor_ptr,
        pred=source[by_reader].astype(np.int64),
        pred_rise=rise[by_reader],
        pred_span=span[by_reader],
        succ_source=source.astype(np.int64),
        pred_edge=by_reader.astype(np.int64),
        between_ptr=between_ptr,
        between=between,
        around_ptr=around_ptr,
        around=np.repeat(np.arange(problem.num_edges), np.diff(between_ptr))[by_unit],
        topological=problem.topological.astype(np.int64),
        allowed=pack_chips(open_chips),
        no_skip=int(problem.no_skip),
        triangle=triangle,
        looks_far=triangle == TRIANGLE_LONGEST_PATH and problem.num_units <= MAX_FAR_UNITS,
        limit_chip=np.zeros(0, np.int64),
        limit_most=np.zeros(0),
        limit_least=np.zeros(0),
        limit_amount=np.zeros((0, problem.num_units)),
        limit_shares=np.zeros(0, np.bool_),
        item_ptr=np.zeros(problem.num_units + 1, np.int64),
        item=np.zeros(0, np.int64),
        item_amount=np.zeros(0),
    )


def _bounds(problem: PlacementProblem) -> tuple[LongArray, ...]:
    """Returns span of each edge [E], highest and lowest chip of each unit [U], units between ends (CSR)."""
    most = problem.num_chips - 1
    span = np.full(problem.num_edges, most, dtype=np.int64)
    highest = np.full(problem.num_units, most, dtype=np.int64)
    lowest = np.zeros(problem.num_units, dtype=np.int64)
    between_ptr, between = np.zeros(problem.num_edges + 1, np.int64), np.zeros(0, np.int64)
    if problem.acyclic and problem.triangle == TRIANGLE_ADJACENT:
        span = np.minimum(span, 1)
    if not problem.acyclic or problem.num_units > MAX_COUNTED_UNITS:
        return span, highest, lowest, between_ptr, between
    counted, below, above, *units_between = count_spans(
        problem.successor_ptr,
        problem.successor.astype(np.int64),
        problem.predecessor_ptr,
        problem.predecessor.astype(np.int64),
        problem.topological.astype(np.int64),
        between_counts=problem.triangle in (TRIANGLE_OFF, TRIANGLE_THREE_CHIP),
    )
    if problem.no_skip != NO_SKIP_OFF:
        span = np.minimum(span, counted)
        highest = np.minimum(highest, below)
    if problem.no_skip == NO_SKIP_ALL:
        lowest = np.maximum(lowest, most - above)
    if problem.triangle == TRIANGLE_LONGEST_PATH:
        between_ptr, between = units_between
    return span, highest, lowest, between_ptr, between


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
