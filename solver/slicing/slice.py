"""The entry point of slicing: takes an order and its kernels, returns a placement."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar, Unpack

import numpy as np

from go_opt.common.arrays import IntArray, LongArray
from go_opt.env.cost import CostTables
from go_opt.model.plan import Candidate
from go_opt.solver.problem.forwarding_mode import ForwardingMode
from go_opt.solver.problem.segment_rules import SegmentRules
from go_opt.solver.problem.sequence import KernelSequence
from go_opt.solver.slicing.along import problem_along, slicing_of
from go_opt.solver.slicing.general import cheapest_cuts_alike, cheapest_cuts_general
from go_opt.solver.slicing.greedy import greedy_cuts
from go_opt.solver.slicing.segments.memory import SegmentMemory, segment_memory, shortage_bytes
from go_opt.solver.slicing.segments.problem import (
    SliceProblem,
    is_allowed,
    least_s,
    one_chip_s,
    slicing_cost_s,
)

TRIES: Final = 4  # with less memory each time
_Found = TypeVar("_Found")


def slice_order(
    tables: CostTables,
    order: IntArray,
    fusion_group: IntArray,
    *,
    passing: ForwardingMode,
    min_chips: int = 1,
    max_chips: int | None = None,
    at_most_s: float = math.inf,
    **rules: Unpack[SegmentRules],
) -> Candidate | None:
    """Returns the cheapest slicing of ``order`` whose activations fit; ``None`` if there is none.

    Args:
      order, fusion_group, passing, rules: see :func:`~go_opt.solver.slicing.along.problem_along`;
        the buffers of relays also take memory.
      min_chips: use no fewer chips than this.
      max_chips: use no more chips than this; all by default.
      at_most_s: ignore slicings slower than this.
    """
    sequence, problem = problem_along(tables, order, fusion_group, passing, **rules)
    memory = partial(segment_memory, tables, sequence, relayed=passing == "relayed")
    chips = most_chips(tables, sequence, max_chips)
    cuts = _cheapest_that_fits(problem, memory, min_chips, chips, at_most_s)
    return None if cuts is None else slicing_of(sequence, cuts, slicing_cost_s(problem, cuts))


def greedy_slicing(
    tables: CostTables, order: IntArray, fusion_group: IntArray, *, adjacent: bool
) -> Candidate:
    """Returns the slicing of the greedy compiler heuristic along ``order``.

    With ``adjacent``, cuts move so that the slicing keeps the adjacent rule.
    """
    passing: ForwardingMode = "adjacent" if adjacent else "free"
    sequence, problem = problem_along(tables, order, fusion_group, passing)
    cuts = greedy_cuts(problem, tables.num_chips)
    return slicing_of(sequence, cuts, slicing_cost_s(problem, cuts))


def _cheapest_that_fits(
    problem: SliceProblem,
    memory: Callable[[], SegmentMemory],
    min_chips: int,
    max_chips: int,
    at_most_s: float,
) -> LongArray | None:
    """Returns the cuts of the cheapest slicing whose activations fit.

    Without memory limits and forbidden chips, the problem is a relaxation. Its optimum is a lower
    bound, and the answer if it happens to satisfy both.
    """
    if not problem.kinds_are_alike:
        lower_s, cuts = least_s(problem, max_chips), None
    else:
        cuts = cheapest_cuts_alike(problem, max_chips, at_most_s)
        if cuts is None:
            return None
        lower_s = slicing_cost_s(problem, cuts)
    held = memory()
    if cuts is not None and (len(cuts) <= min_chips or not is_allowed(problem, cuts)):
        cuts = None
    upper_s = min(at_most_s, one_chip_s(problem))

    def general(held: SegmentMemory) -> LongArray | None:
        return cheapest_cuts_general(problem, held, max_chips, lower_s, upper_s, min_chips=min_chips)

    return with_addresses(held, cuts, general)


def with_addresses(
    memory: SegmentMemory,
    found: _Found | None,
    cheapest: Callable[[SegmentMemory], _Found | None],
    cuts_of: Callable[[_Found], LongArray] = np.asarray,
    kept_of: Callable[[_Found], LongArray | None] = lambda found: None,
) -> _Found | None:
    """Returns a slicing whose segments fit once their activations have addresses; tries ``found`` first.

    ``cheapest`` ignores the holes between activations. If a segment does not fit because of them,
    ``cheapest`` runs again with less memory, by the shortage. ``cuts_of`` returns the cuts of
    what it finds, ``kept_of`` the bytes of states on each stage if ``memory`` has none.
    """
    if found is not None and shortage_bytes(memory, cuts_of(found), kept_of(found)) <= 0:
        return found
    less = memory
    for _ in range(TRIES):
        found = cheapest(less)
        shortage = 0 if found is None else shortage_bytes(memory, cuts_of(found), kept_of(found))
        if shortage <= 0:
            return found
        less = less._replace(sram_bytes=less.sram_bytes - shortage)
    return None


def most_chips(tables: CostTables, sequence: KernelSequence, max_chips: int | None) -> int:
    """Returns the number of chips a slicing may use, at most the number of kernels."""
    return min(max_chips or tables.num_chips, tables.num_chips, sequence.num_kernels)
