"""Domains of the adjacent core: bounds, their propagation, visiting, drawing.

Under ``f(u) + r <= f(v) <= f(u) + 1`` (r = 1 at a cut point, else 0) bounds propagation is
complete: with every domain an interval at its fixpoint, any value of any domain extends to
a placement (difference constraints). So a unit is fixed once and for all; there is no
trail and no backtrack.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from go_opt.common.arrays import BoolArray, FloatArray, IntArray, LongArray
from go_opt.common.compiling import compiled, compiled_inner, int32, int64
from go_opt.solver.problem.problem import PlacementProblem

NO_UNIT: Final = -1


class Domains(NamedTuple):
    """Domains of one sample, with the working space of propagation and visiting."""

    lower: IntArray  # [U] first chip left
    upper: IntArray  # [U] last chip left
    neighbour_ptr: LongArray  # [U + 1]
    neighbour: IntArray  # [2 E] readers of a unit, and what it reads
    least: IntArray  # [2 E] from bounds [l, h] of a unit this neighbour is at l + least or above
    most: IntArray  # [2 E] … and at h + most or below
    queue: IntArray  # [U] ring of units whose bounds changed
    is_queued: BoolArray  # [U]
    pairs: IntArray  # [U] stack of units left with two chips; [0] where nobody asks
    marks: LongArray  # [2] units on that stack; place in the visiting order


def longest_stretches(open_chips: BoolArray) -> tuple[IntArray, IntArray]:
    """[U] first and last of the most consecutive chips that are open, of ``open_chips`` [U, D]."""
    num_units, num_chips = open_chips.shape
    first, last = np.zeros((2, num_units), np.int32)
    run, longest = np.zeros((2, num_units), np.int32)
    for chip in range(num_chips):
        run = np.where(open_chips[:, chip], run + 1, 0)
        is_longer = run > longest
        longest = np.where(is_longer, run, longest)
        first = np.where(is_longer, chip + 1 - run, first)
        last = np.where(is_longer, chip, last)
    return first.astype(np.int32), last.astype(np.int32)


def start_domains(
    problem: PlacementProblem, first_chip: ArrayLike | None, last_chip: ArrayLike | None
) -> Domains | None:
    """Domains before any unit is visited; ``None`` where the bounds contradict each other."""
    num_units = problem.num_units
    first, last = chip_runs(problem)
    units = np.arange(num_units)
    rows = (
        np.repeat(units, np.diff(problem.successor_ptr)),
        np.repeat(units, np.diff(problem.predecessor_ptr)),
    )
    by_unit = np.argsort(np.concatenate(rows), kind="stable")
    rise, rise_to = problem.rise, problem.rise[np.argsort(problem.successor, kind="stable")]
    start = Domains(
        lower=(first if first_chip is None else np.maximum(first, first_chip)).astype(np.int32),
        upper=(last if last_chip is None else np.minimum(last, last_chip)).astype(np.int32),
        neighbour_ptr=problem.successor_ptr + problem.predecessor_ptr,
        neighbour=np.concatenate([problem.successor, problem.predecessor])[by_unit],
        least=np.concatenate([rise, np.full_like(rise, -1)])[by_unit].astype(np.int32),
        most=np.concatenate([np.ones_like(rise), -rise_to])[by_unit].astype(np.int32),
        queue=np.zeros(num_units, dtype=np.int32),
        is_queued=np.zeros(num_units, dtype=np.bool_),
        pairs=np.zeros(0, dtype=np.int32),
        marks=np.zeros(2, dtype=np.int64),
    )
    return start if _propagate_all(start) else None


def working_domains(start: Domains, *, smallest_first: bool) -> Domains:
    """Space for the domains of a sample; ``smallest_first`` to find pairs (:func:`next_open`)."""
    return start._replace(
        lower=start.lower.copy(),
        upper=start.upper.copy(),
        pairs=np.zeros(len(start.lower) if smallest_first else 0, dtype=np.int32),
    )


def chip_runs(problem: PlacementProblem) -> tuple[IntArray, IntArray]:
    """[U] first and last of the most consecutive chips that may run each unit; first > last: none may.

    The core knows intervals only. Where a unit's chips have gaps it uses one stretch of
    them: valid, but some placements are out of reach.
    """
    first = np.zeros(problem.num_units, dtype=np.int32)
    last = np.full(problem.num_units, problem.num_chips - 1, dtype=np.int32)
    if problem.can_run.all():
        return first, last
    last[:] = -1
    run = np.zeros(problem.num_units, dtype=np.int32)
    for chip, kind in enumerate(problem.chip_kind):
        run = np.where(problem.can_run[kind], run + 1, 0).astype(np.int32)
        is_longer = run > last - first + 1
        first[is_longer] = chip + 1 - run[is_longer]
        last[is_longer] = chip
    return first, last


@compiled
def _propagate_all(domains: Domains) -> bool:
    """Bounds at their fixpoint from whatever they are; False if some domain is empty."""
    num_units = len(domains.lower)
    for unit in range(num_units):
        if domains.lower[unit] > domains.upper[unit]:
            return False
        domains.queue[unit] = unit
        domains.is_queued[unit] = True
    return _drain(domains, num_units)


@compiled_inner
def fix(domains: Domains, unit: int, chip: int) -> None:
    """Give ``unit`` a chip of its domain and propagate; nothing can become empty."""
    domains.lower[unit] = chip
    domains.upper[unit] = chip
    domains.queue[0] = unit
    domains.is_queued[unit] = True
    _drain(domains, 1)


@compiled_inner
def _drain(domains: Domains, waiting: int) -> bool:
    """Propagate from ``queue[:waiting]`` to the fixpoint; False if a domain is empty."""
    # Fields of a tuple are counted references: as locals they are counted once a call.
    neighbour_ptr, neighbour = domains.neighbour_ptr, domains.neighbour
    least, most = domains.least, domains.most
    lower, upper, queue, is_queued = domains.lower, domains.upper, domains.queue, domains.is_queued
    pairs, marks = domains.pairs, domains.marks
    smallest_first = len(pairs) > 0
    first = 0
    while waiting > 0:
        unit = queue[first]
        is_queued[unit] = False
        first = first + 1 if first + 1 < len(queue) else 0
        waiting -= 1
        low = lower[unit]
        high = upper[unit]
        for i in range(neighbour_ptr[unit], neighbour_ptr[unit + 1]):
            other = neighbour[i]
            lowest = low + least[i]
            highest = high + most[i]
            if lowest <= lower[other] and highest >= upper[other]:
                continue
            lower[other] = max(lowest, lower[other])
            upper[other] = min(highest, upper[other])
            if lower[other] > upper[other]:
                return False
            if smallest_first and upper[other] - lower[other] == 1:
                pairs[marks[0]] = other
                marks[0] += 1
            if not is_queued[other]:
                is_queued[other] = True
                last = first + waiting
                queue[last if last < len(queue) else last - len(queue)] = other
                waiting += 1
    return True


@compiled_inner
def reset(domains: Domains, start: Domains) -> None:
    """Domains as at the start, with nothing visited."""
    domains.marks[0] = 0
    domains.marks[1] = 0
    for unit in range(len(domains.lower)):
        domains.lower[unit] = start.lower[unit]
        domains.upper[unit] = start.upper[unit]
        if len(domains.pairs) > 0 and start.upper[unit] - start.lower[unit] == 1:
            domains.pairs[domains.marks[0]] = unit
            domains.marks[0] += 1


@compiled_inner
def next_open(lower: IntArray, upper: IntArray, pairs: IntArray, marks: LongArray, order: IntArray) -> int:
    """A unit with a choice left: the last left with two chips, else the next of ``order``; or NO_UNIT.

    A unit beside a fixed one has at most two chips. So where ``order`` begins with the
    smallest domains and ``pairs`` are kept, no open unit ever has a smaller domain.
    """
    while marks[0] > 0:
        marks[0] -= 1
        unit = pairs[marks[0]]
        if lower[unit] < upper[unit]:
            return unit
    while marks[1] < len(order):
        unit = order[marks[1]]
        marks[1] += 1
        if lower[unit] < upper[unit]:
            return unit
    return int32(NO_UNIT)


@compiled_inner
def draw_chip(row: FloatArray, lower: int, upper: int, uniform: float) -> tuple[int, float]:
    """A chip of [lower, upper] drawn by ``row`` (log-probabilities, any scale), and its log-probability.

    Where the row has no mass there, every chip is as likely.
    """
    top = -np.inf
    for chip in range(lower, upper + 1):
        top = max(top, row[chip])
    if top == -np.inf:
        size = upper - lower + 1
        return min(lower + int64(uniform * size), upper), -np.log(np.float64(size))
    total = 0.0
    for chip in range(lower, upper + 1):
        total += np.exp(row[chip] - top)
    left = uniform * total
    drawn = lower
    for chip in range(lower, upper + 1):
        weight = np.exp(row[chip] - top)
        if weight > 0.0:
            drawn = chip
            left -= weight
            if left < 0.0:
                break
    return drawn, row[drawn] - top - np.log(total)
