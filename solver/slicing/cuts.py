"""SLICE: the cheapest valid cut sequence of a kernel sequence.

A slicing is a chain of cuts ``0 = c_0 < c_1 < … < c_n = M``; segment d runs on chip d.
It is valid under the acyclic, no-skip and adjacent rules if every segment ends at or
after the reach of its start (:mod:`go_opt.solver.problem.sequence`). Let ``P`` be the prefix sums
of kernel seconds and ``x`` the seconds that the traffic of a cut takes. A segment costs

* overlapped: ``max(P[j] - P[i], x[i], x[j])``,
* summed: ``P[j] - P[i] + x[i] + x[j]`` + its inputs (each once) and outputs,

and its relays add to ``P[j] - P[i]`` (:mod:`go_opt.solver.slicing.segments.problem`).
The interval is the largest cost of a segment. Where transfers overlap, it is at least the time of
the host's traffic. For a candidate interval ``T`` a dynamic program over cuts finds the fewest
chips (:func:`fewest_chips`); bisection finds the least ``T``. This module ignores memory and
streamed weights. :mod:`go_opt.solver.slicing.general` excludes segments whose activations do not
fit, and handles chips that differ; :mod:`go_opt.solver.slicing.streamed.slice` counts streamed
weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import FloatArray, LongArray
from go_opt.common.compiling import compiled, int64, uncounted_inner
from go_opt.solver.slicing.segments.problem import SliceProblem, least_s, slicing_cost_s

RELATIVE_TOLERANCE: Final = 1e-10
GALLOP_STEP: Final = 0.1
LAST_DOUBT: Final = 1e-3
NO_SLICING: Final = -1


def cheapest_cuts(problem: SliceProblem, max_chips: int, at_most_s: float = math.inf) -> LongArray | None:
    """Returns the cuts ``[c_0, …, c_n]`` of the cheapest slicing on at most ``max_chips`` identical chips.

    Assumes that activations fit. Returns ``None`` only if the slicing takes more than ``at_most_s``.
    """
    previous = np.zeros(problem.num_kernels + 1, dtype=np.int64)

    def cuts_within(interval_s: float) -> tuple[LongArray | None, float]:
        chips, next_s = fewest_chips(problem, max_chips, interval_s, previous)
        return (None if chips == NO_SLICING else walk_back(previous, chips)), next_s

    lower_s, on_one_chip = least_s(problem, max_chips), None
    if at_most_s == math.inf:
        on_one_chip = np.array([0, problem.num_kernels], dtype=np.int64)
    return least_interval(partial(slicing_cost_s, problem), cuts_within, lower_s, at_most_s, on_one_chip)


def least_interval(
    cost_s: Callable[[LongArray], float],
    cuts_within: Callable[[float], tuple[LongArray | None, float]],
    lower_s: float,
    upper_s: float,
    best: LongArray | None = None,
) -> LongArray | None:
    """Returns the cuts of the least interval in [lower_s, upper_s] for which ``cuts_within`` finds any.

    ``cuts_within`` returns cuts for a candidate interval, or ``None``, and the interval up to which
    this answer stays the same. The search first takes growing steps up from ``lower_s``, because
    segments within small intervals are short, then bisects. Each slicing found lowers the upper end
    to its exact cost ``cost_s``. ``best`` holds known cuts within ``upper_s``. Without them, the first
    candidate is ``upper_s``, which rejects most orders once a better order is known.
    """
    if best is None:
        if lower_s > upper_s * (1.0 + RELATIVE_TOLERANCE):
            return None
        best, _ = cuts_within(upper_s * (1.0 + RELATIVE_TOLERANCE))
        if best is None:
            return None
    upper_s = cost_s(best)
    step, is_last_doubt = GALLOP_STEP, False
    while upper_s - lower_s > RELATIVE_TOLERANCE * upper_s:
        middle_s = 0.5 * (lower_s + upper_s)
        # Near the end, the best cuts are often optimal: a candidate just below their cost ends the search.
        is_last_doubt = not is_last_doubt and upper_s - lower_s < LAST_DOUBT * upper_s
        if is_last_doubt:
            middle_s = upper_s * (1.0 - 0.5 * RELATIVE_TOLERANCE)
        elif 0.0 < lower_s < middle_s / (1.0 + step):
            middle_s = lower_s * (1.0 + step)
        cuts, next_s = cuts_within(middle_s)
        if cuts is None:
            lower_s = max(middle_s, next_s)
            step *= 2.0
        else:
            best, upper_s = cuts, min(middle_s, cost_s(cuts))
    return best


def walk_back(previous: NDArray[np.integer], chips: int) -> LongArray:
    """Returns [chips + 1] cuts; ``previous`` [M + 1] or [D + 1, M + 1] (by chips) is the cut before each."""
    cuts = np.empty(chips + 1, dtype=np.int64)
    cuts[chips] = previous.shape[-1] - 1
    for d in range(chips, 0, -1):
        cuts[d - 1] = (previous if previous.ndim == 1 else previous[d])[cuts[d]]
    return cuts


@compiled
def fewest_chips(
    problem: SliceProblem, max_chips: int, interval_s: float, previous: LongArray
) -> tuple[int, float]:
    """Returns the fewest chips with every segment within ``interval_s``, or NO_SLICING; and ``next_s``.

    ``next_s`` is the least cost of any rejected segment or cut: every candidate interval below it
    gives the same answer. ``chips[j]`` is the fewest chips that cover the kernels before cut j.
    Segment [i, j) is cheap enough if ``start_s[i] + end_s(j) <= interval_s``. So for each number of
    chips q, the least ``start_s[i]`` of all i with ``chips[i] <= q`` is enough: O(M) in total. Inputs
    that are read again take longer, because a segment's saving depends on both its ends.
    """
    num_kernels = problem.prefix_s.shape[1] - 1
    prefix_s = problem.prefix_s[problem.chip_kind[0]]
    hop_s_per_byte = problem.hop_s_per_byte[0]
    slack_s = interval_s * (1.0 + 1e-13)
    chips = np.full(num_kernels + 1, max_chips + 1, np.int64)
    start_s = np.full(num_kernels + 1, np.inf)
    saved_s = np.zeros(num_kernels + 1)
    least_s = np.full(max_chips + 1, np.inf)
    least_at = np.zeros(max_chips + 1, np.int64)
    chips[0] = 0
    top = int64(-1)
    entering = 0
    again = 0
    fewest = int64(0)
    next_s = np.inf
    for j in range(1, num_kernels + 1):
        is_saving = False
        while again < len(problem.again_kernel) and problem.again_kernel[again] < j:
            for i in range(problem.again_before[again] + 1):
                saved_s[i] += problem.again_s[again]
            again += 1
            is_saving = not problem.overlap
        if is_saving:
            for number in range(len(least_s)):
                least_s[number] = np.inf
            top = int64(-1)
            for i in range(entering):
                if start_s[i] < np.inf:
                    top = _offer(least_s, least_at, top, chips[i], start_s[i] - saved_s[i], i)
        while entering < j and problem.reach[entering] <= j:
            i = entering
            entering += 1
            cut_s = problem.crossing_bytes[i] * hop_s_per_byte
            if chips[i] >= max_chips or (problem.overlap and cut_s > slack_s):
                continue
            start_s[i] = -prefix_s[i] + (0.0 if problem.overlap else cut_s)
            top = _offer(least_s, least_at, top, chips[i], start_s[i] - saved_s[i], i)
        cut_s = problem.crossing_bytes[j] * hop_s_per_byte
        if top < 0 or not problem.may_cut[j]:
            continue
        if problem.overlap and cut_s > slack_s:
            next_s = min(next_s, cut_s)
            continue
        end_s = prefix_s[j] + (0.0 if problem.overlap else cut_s)
        room_s = slack_s - end_s
        if least_s[top] > room_s:
            next_s = min(next_s, least_s[top] + end_s)
            continue
        if fewest > top:
            fewest = top
        while fewest > 0 and least_s[fewest - 1] <= room_s:
            fewest -= 1
        while least_s[fewest] > room_s:
            fewest += 1
        if fewest > 0:
            next_s = min(next_s, least_s[fewest - 1] + end_s)
        chips[j] = fewest + 1
        previous[j] = least_at[fewest]
    return (chips[num_kernels] if chips[num_kernels] <= max_chips else NO_SLICING), next_s


@uncounted_inner
def _offer(least_s: FloatArray, least_at: LongArray, top: int, chips: int, seconds: float, cut: int) -> int:
    """Lowers the least start of every chip count >= ``chips``; returns the highest count stored."""
    while top < chips:
        top += 1
        least_s[top] = least_s[top - 1] if top > 0 else np.inf
        least_at[top] = least_at[top - 1] if top > 0 else 0
    for q in range(chips, top + 1):
        if least_s[q] <= seconds:
            break
        least_s[q] = seconds
        least_at[q] = cut
    return top
