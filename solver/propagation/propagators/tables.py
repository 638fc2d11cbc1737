"""Input of the propagators: the graph of units, the rules as numbers, the initial domains.

Axes: ``U`` units, ``E`` edges, ``D`` chips, ``W`` words, ``C`` limits, ``I`` shared items.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray, LongArray, WordArray, csr
from go_opt.solver.problem.problem import (
    NO_SKIP_ALL,
    NO_SKIP_OFF,
    TRIANGLE_ADJACENT,
    TRIANGLE_LONGEST_PATH,
    TRIANGLE_OFF,
    TRIANGLE_THREE_CHIP,
    PlacementProblem,
)
from go_opt.solver.propagation.propagators.domains import pack_chips
from go_opt.solver.propagation.propagators.reachability import MAX_COUNTED_UNITS, count_spans

# ``detours`` takes O(units x edges) per placement: 30 ms at 1,000 units, but seconds at 3,000.
MAX_FAR_UNITS: Final = 2048


class Limits(NamedTuple):
    """Upper and lower limits on the load of chips."""

    chip: LongArray  # [C]
    at_most: FloatArray  # [C] bytes, seconds or ops; infinite if there is no such limit
    at_least: FloatArray  # [C]
    amount: FloatArray  # [C, U] the unit's own amount
    shares: BoolArray  # [C] True if the shared items below also count
    item_ptr: LongArray  # [U + 1]
    item: LongArray  # [...] items the unit needs, each once per chip
    item_amount: FloatArray  # [I]


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
    limits: Limits

    @property
    def num_units(self) -> int:
        return len(self.succ_ptr) - 1

    def edges(self) -> tuple[LongArray, LongArray]:
        """Returns the source and the reader [E] of each edge, in the order of ``succ``."""
        return self.succ_source, self.succ


def no_limits(num_units: int) -> Limits:
    none, ptr = np.zeros(0, np.int64), np.zeros(num_units + 1, np.int64)
    nothing = np.zeros(0)
    return Limits(none, nothing, nothing, np.zeros((0, num_units)), none != 0, ptr, none, nothing)


def rule_tables(
    problem: PlacementProblem,
    *,
    allowed: BoolArray | None = None,
    limits: Limits | None = None,
) -> RuleTables:
    """Returns the tables of ``problem``.

    Args:
      allowed: [U, D] True where a unit may be; chips of unsuitable kinds are removed here.
      limits: limits on bytes or seconds on chips.
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
        limits=no_limits(problem.num_units) if limits is None else limits,
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
