"""SLICE for the general case: tensors are relayed, memory is tight, or chips differ.

:func:`go_opt.solver.slicing.fewest_fitting.fewest_fitting_chips` checks a candidate interval, and
bisection finds the least one, as in :mod:`go_opt.solver.slicing.cuts`. Where tensors are relayed, the
slicing with free relays gives a lower bound. If its segments relay nothing, it is also the answer.

Which segments fit in memory does not depend on the candidate
(:mod:`go_opt.solver.slicing.segments.fitting_starts`), so one table serves all candidates up to a limit.
The first limit is close to the lower bound, because segments within it are short. Larger limits follow,
or the largest at once if that takes little more work.

These tables take nearly all the time. Their work is bounded in steps, not in time: ``MOST_STEPS / M``
for one end, which covers all its starts below 6,000 kernels. After ``MOST_STEPS`` in total, no
further limit is tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from go_opt.common.arrays import LongArray
from go_opt.solver.slicing.cuts import (
    NO_SLICING,
    RELATIVE_TOLERANCE,
    cheapest_cuts,
    least_interval,
    walk_back,
)
from go_opt.solver.slicing.fewest_fitting import fewest_fitting_chips
from go_opt.solver.slicing.segments.fitting_starts import fitting_starts
from go_opt.solver.slicing.segments.memory import SegmentMemory, least_needed_bytes
from go_opt.solver.slicing.segments.problem import SliceProblem, no_tensors_alive, slicing_cost_s
from go_opt.solver.slicing.segments.starts import FittingStarts, all_starts

FIRST_STEP: Final = 0.05  # from a lower bound to the first limit
MOST_STEPS: Final = 100_000_000  # about a second
FEW_STEPS: Final = 1_000_000  # for the largest limit, tried at once,
LITTLE_MORE: Final = 2  # or this multiple of the steps so far, whichever is more


def cheapest_cuts_alike(
    problem: SliceProblem, max_chips: int, at_most_s: float = math.inf
) -> LongArray | None:
    """Returns the cuts of the cheapest slicing on at most ``max_chips`` identical chips, memory ignored.

    Returns ``None`` if the slicing takes more than ``at_most_s``.
    """
    without_relays = problem.without_relays
    cuts = cheapest_cuts(without_relays, max_chips, at_most_s)
    if cuts is None or len(problem.relay_home) == 0:
        return cuts
    cost_s = partial(slicing_cost_s, problem)
    lower_s, upper_s = slicing_cost_s(without_relays, cuts), cost_s(cuts)
    one_size = np.zeros(max_chips, dtype=np.int64)
    cuts_within = _candidate(problem, all_starts(problem.num_kernels), one_size, 1, is_fewest=True)
    if upper_s <= at_most_s:
        return least_interval(cost_s, cuts_within, lower_s, upper_s, cuts)
    return least_interval(cost_s, cuts_within, lower_s, at_most_s)


def cheapest_cuts_general(
    problem: SliceProblem,
    memory: SegmentMemory,
    max_chips: int,
    lower_s: float,
    upper_s: float,
    *,
    min_chips: int = 1,
) -> LongArray | None:
    """Returns the cuts of the cheapest slicing in [lower_s, upper_s] whose segments all fit, if any.

    No slicing may be cheaper than ``lower_s``; a tight bound saves most of the work. Returns ``None``
    also if the step limit ends the search before a slicing is found.
    """
    if lower_s > upper_s or min_chips > max_chips:
        return None
    sizes_bytes, size_of_chip = np.unique(memory.sram_bytes[:max_chips], return_inverse=True)
    if least_needed_bytes(memory).max() > sizes_bytes[-1]:
        return None
    is_fewest = min_chips <= 1 and len(sizes_bytes) == 1 and problem.chips_are_alike
    cost_s = partial(slicing_cost_s, problem)

    def fitting(up_to_s: float, most_steps: int) -> FittingStarts:
        most = (most_steps, max(1, MOST_STEPS // problem.num_kernels))
        return fitting_starts(problem, memory, sizes_bytes, up_to_s, most)

    def least(fits: FittingStarts, from_s: float, up_to_s: float) -> LongArray | None:
        cuts_within = _candidate(problem, fits, size_of_chip, min_chips, is_fewest=is_fewest)
        cuts, _ = cuts_within(up_to_s)
        return None if cuts is None else least_interval(cost_s, cuts_within, from_s, up_to_s, cuts)

    largest_s = upper_s * (1.0 + RELATIVE_TOLERANCE)
    limit_s, step, steps = lower_s, FIRST_STEP, 0
    while steps <= MOST_STEPS:
        lower_s, limit_s = limit_s, min(limit_s * (1.0 + step), largest_s) if limit_s > 0 else largest_s
        fits = fitting(limit_s, 2 * MOST_STEPS)
        cuts = least(fits, lower_s, limit_s)
        if cuts is not None or limit_s >= largest_s:
            return cuts
        steps += fits.steps
        fits = fitting(largest_s, min(max(FEW_STEPS, LITTLE_MORE * steps), MOST_STEPS))
        if fits.is_complete:
            return least(fits, limit_s, largest_s)
        steps += fits.steps
        step *= 2.0
    return None


def _candidate(
    problem: SliceProblem,
    fits: FittingStarts,
    size_of_chip: LongArray,
    min_chips: int,
    *,
    is_fewest: bool,
) -> Callable[[float], tuple[LongArray | None, float]]:
    """Returns the function ``cuts_within`` that :func:`least_interval` calls."""
    alive = no_tensors_alive(problem)
    previous = np.empty((len(size_of_chip) + 1, problem.num_kernels + 1), dtype=np.int32)

    def cuts_within(interval_s: float) -> tuple[LongArray | None, float]:
        chips, next_s = fewest_fitting_chips(
            problem, fits, size_of_chip, min_chips, is_fewest, interval_s, alive, previous
        )
        return (None if chips == NO_SLICING else walk_back(previous, chips)), next_s

    return cuts_within
