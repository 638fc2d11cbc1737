"""Domains of the adjacent core: bounds, their propagation, drawing.

Under ``f(u) + r <= f(v) <= f(u) + 1`` (r = 1 at a cut point, else 0) bounds propagation is
complete: once all domains are intervals at the fixpoint, any value of any domain extends to
a placement (difference constraints). So each unit is fixed once, without trail and backtracking.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from go_opt.common.arrays import BoolArray, CodeArray, FloatArray, IntArray, LongArray
from go_opt.common.compiling import int64, uncounted, uncounted_inner
from go_opt.solver.problem.problem import PlacementProblem

NO_UNIT: Final = -1


class Domains(NamedTuple):
    """Domains of one sample, with scratch for propagation."""

    lower: IntArray  # [U] first chip of the domain
    upper: IntArray  # [U] last chip of the domain
    neighbour_ptr: LongArray  # [U + 1]
    neighbour: IntArray  # [2 E] readers and producers of each unit
    least: CodeArray  # [2 E] for bounds [l, h] of the unit, the neighbour is at l + least or above
    most: CodeArray  # [2 E] … and at h + most or below
    queue: IntArray  # [U] ring of units whose bounds changed
    is_queued: BoolArray  # [U]


def longest_stretches(open_chips: BoolArray) -> tuple[IntArray, IntArray]:
    """First and last chip [U] of the longest run of the open chips [U, D]; first > last: none is open.

    The core supports only intervals. If a unit's chips have gaps, it uses only one run of
    them: the result is valid, but some placements are never drawn.
    """
    num_units, num_chips = open_chips.shape
    first, run, longest = np.zeros((3, num_units), np.int32)
    last = np.full(num_units, -1, np.int32)
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
    """Returns the domains before any unit is visited; ``None`` if the bounds contradict each other."""
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
        least=np.concatenate([rise, np.full_like(rise, -1)])[by_unit].astype(np.int8),
        most=np.concatenate([np.ones_like(rise), -rise_to])[by_unit].astype(np.int8),
        queue=np.zeros(num_units, dtype=np.int32),
        is_queued=np.zeros(num_units, dtype=np.bool_),
    )
    return start if _propagate_all(start) else None


def working_domains(start: Domains) -> Domains:
    """Returns scratch for the domains of a sample."""
    return start._replace(lower=start.lower.copy(), upper=start.upper.copy())


def chip_runs(problem: PlacementProblem) -> tuple[IntArray, IntArray]:
    """The longest run of chips that may run each unit, as :func:`longest_stretches` gives it."""
    return longest_stretches(problem.can_run[problem.chip_kind].T)


@uncounted
def _propagate_all(domains: Domains) -> bool:
    """Propagates all bounds to the fixpoint; returns False if some domain is empty."""
    num_units = len(domains.lower)
    for unit in range(num_units):
        if domains.lower[unit] > domains.upper[unit]:
            return False
        domains.queue[unit] = unit
        domains.is_queued[unit] = True
    return _drain(domains, num_units)


@uncounted_inner
def fix(domains: Domains, unit: int, chip: int) -> None:
    """Fixes ``unit`` to a chip of its domain and propagates; no domain can become empty."""
    domains.lower[unit] = chip
    domains.upper[unit] = chip
    domains.queue[0] = unit
    domains.is_queued[unit] = True
    _drain(domains, 1)


@uncounted_inner
def _drain(domains: Domains, waiting: int) -> bool:
    """Propagates from ``queue[:waiting]`` to the fixpoint; returns False if a domain is empty."""
    # Tuple fields are reference-counted on each access: as locals, only once per call.
    neighbour_ptr, neighbour = domains.neighbour_ptr, domains.neighbour
    least, most = domains.least, domains.most
    lower, upper, queue, is_queued = domains.lower, domains.upper, domains.queue, domains.is_queued
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
            first_chip, last_chip = lower[other], upper[other]
            if lowest <= first_chip and highest >= last_chip:
                continue
            first_chip, last_chip = max(lowest, first_chip), min(highest, last_chip)
            lower[other] = first_chip
            upper[other] = last_chip
            if first_chip > last_chip:
                return False
            if not is_queued[other]:
                is_queued[other] = True
                last = first + waiting
                queue[last if last < len(queue) else last - len(queue)] = other
                waiting += 1
    return True


@uncounted_inner
def reset(domains: Domains, start: Domains) -> None:
    """Resets domains to ``start``, with no unit visited."""
    for unit in range(len(domains.lower)):
        domains.lower[unit] = start.lower[unit]
        domains.upper[unit] = start.upper[unit]


@uncounted_inner
def draw_chip(row: FloatArray, lower: int, upper: int, uniform: float) -> int:
    """Draws a chip in [lower, upper] from ``row`` [D].

    ``row`` holds log-probabilities on any scale. If the row has no mass there, the draw is uniform.
    """
    top = -np.inf
    for chip in range(lower, upper + 1):
        top = max(top, row[chip])
    if top == -np.inf:
        return min(lower + int64(uniform * (upper - lower + 1)), upper)
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
    return drawn
