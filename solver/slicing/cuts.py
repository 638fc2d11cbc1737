"""SLICE: the cheapest valid cut sequence of a kernel sequence.

A slicing is a chain of cuts ``0 = c_0 < c_1 < … < c_n = M``; segment d runs on chip d.
It is valid under the acyclic, no-skip and adjacent rules if every segment ends at or
after the reach of its start (:mod:`go_opt.solver.problem.sequence`). Let ``P`` be the prefix sums
of kernel seconds and ``x`` the seconds that the traffic of a cut takes. A segment costs

* overlapped: ``max(P[j] - P[i], x[i], x[j])``,
* summed: ``P[j] - P[i] + x[i] + x[j]`` + its inputs (each once) and outputs,

and its relays add to ``P[j] - P[i]`` (:mod:`go_opt.solver.slicing.problem`).
The interval is the largest cost of a segment. Where transfers overlap, it is at least the time of
the host's traffic. For a candidate interval ``T`` a dynamic program over cuts finds the fewest
chips (:func:`fewest_chips`); bisection finds the least ``T``. This module ignores memory and
streamed weights, and chips are alike. :mod:`go_opt.solver.slicing.streamed` handles all of these.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray
from go_opt.common.compiling import compiled, compiled_inline, int64, uncounted_inner
from go_opt.solver.slicing.problem import (
    Alive,
    SliceProblem,
    first_start,
    least_s,
    least_work_s,
    segment_cost_s,
    slicing_cost_s,
    start_over,
)

RELATIVE_TOLERANCE: Final = 1e-10
GALLOP_STEP: Final = 0.1
LAST_DOUBT: Final = 1e-3
NO_SLICING: Final = -1


def cheapest_cuts(problem: SliceProblem, max_chips: int, at_most_s: float = math.inf) -> LongArray | None:
    """Returns the cuts ``[c_0, …, c_n]`` of the cheapest slicing on at most ``max_chips`` identical chips.

    Assumes that activations fit. Returns ``None`` only if the slicing takes more than ``at_most_s``. Where
    tensors are relayed, the slicing with free relays gives a lower bound. If its segments relay nothing, it
    is also the answer.
    """
    is_relayed = len(problem.relay_home) > 0
    fewest = fewest_relaying_chips if is_relayed else fewest_chips
    previous = np.zeros(problem.num_kernels + 1, dtype=np.int64)
    cost_s = partial(slicing_cost_s, problem)

    def cuts_within(interval_s: float) -> tuple[LongArray | None, float]:
        chips, next_s = fewest(problem, max_chips, interval_s, previous)
        return (None if chips == NO_SLICING else walk_back(previous, chips)), next_s

    lower_s, known = least_s(problem, max_chips), None
    if is_relayed:
        known = cheapest_cuts(problem.without_relays, max_chips, at_most_s)
        if known is None:
            return None
        lower_s = slicing_cost_s(problem.without_relays, known)
    elif at_most_s == math.inf:
        known = np.array([0, problem.num_kernels], dtype=np.int64)
    if known is not None and cost_s(known) > at_most_s:
        known = None
    return least_interval(cost_s, cuts_within, lower_s, at_most_s, known)


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


def walk_back(previous: LongArray, chips: int) -> LongArray:
    """Returns [chips + 1] cuts; ``previous`` [M + 1] is the cut before each."""
    cuts = np.empty(chips + 1, dtype=np.int64)
    cuts[chips] = len(previous) - 1
    for d in range(chips, 0, -1):
        cuts[d - 1] = previous[cuts[d]]
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


@compiled
def fewest_relaying_chips(
    problem: SliceProblem, max_chips: int, interval_s: float, previous: LongArray
) -> tuple[int, float]:
    """Returns what :func:`fewest_chips` does, where tensors are relayed.

    Cut j is reached with d + 1 chips if a cut i is reached with d chips and segment [i, j) costs no more than
    the interval. The longest segments are tried first. If a segment costs too much by s seconds, so does each
    shorter one whose work is less than s seconds smaller: a shorter segment relays more tensors and saves
    fewer repeated reads.
    """
    num_kernels = problem.prefix_s.shape[1] - 1
    slack_s = interval_s * (1.0 + 1e-13)
    cuts = np.empty((max_chips + 1, num_kernels + 1), np.int32)  # reached, by fewest chips
    number = np.zeros(max_chips + 1, np.int64)  # of cuts in each row
    cuts[0, 0], number[0] = 0, 1
    oldest = np.zeros(max_chips, np.int64)  # index of the first cut where a segment may still start
    alive = Alive(np.zeros(num_kernels, np.int64), np.zeros(num_kernels, np.int64), np.zeros(2, np.int64))
    start_over(problem, alive)
    passing = np.zeros(2, np.int64)  # bytes and number of the tensors that pass [first, j)
    saved_s = np.zeros(num_kernels)  # by a segment from each start to the current end
    most_saved_s = problem.again_s.sum()
    first, again = int64(0), 0
    fewest, rows = 0, 1  # chips of any start that remains; rows that are not empty
    next_s = np.inf
    for j in range(1, num_kernels + 1):
        for t in range(problem.relay_ptr[j - 1], problem.relay_ptr[j]):
            home, size_bytes = problem.relay_home[t], problem.relay_bytes[t]
            alive.size_bytes[home] -= size_bytes
            alive.number[home] -= 1
            if home < first:
                passing[0] -= size_bytes
                passing[1] -= 1
        while not problem.overlap and again < len(problem.again_kernel) and problem.again_kernel[again] < j:
            for i in range(first, problem.again_before[again] + 1):
                saved_s[i] += problem.again_s[again]
            again += 1
        before = first
        first = first_start(problem, first, j, slack_s + most_saved_s)
        if first > before:
            passing[0] += alive.size_bytes[before:first].sum()
            passing[1] += alive.number[before:first].sum()
            next_s = min(next_s, least_work_s(problem, first - 1, j) - most_saved_s)
            while cuts[fewest, number[fewest] - 1] < first:
                fewest += 1
                if fewest == max_chips or number[fewest] == 0:
                    return NO_SLICING, next_s
        if not problem.may_cut[j]:
            continue
        out_s = problem.crossing_bytes[j] * problem.hop_s_per_byte[0]
        if problem.overlap and out_s > slack_s:
            next_s = min(next_s, out_s)
            continue
        for d in range(fewest, min(rows, max_chips)):
            while oldest[d] < number[d] and cuts[d, oldest[d]] < first:
                oldest[d] += 1
            starts = cuts[d, oldest[d] : number[d]]
            i, refused_s = _longest_segment(problem, alive, passing, saved_s, d, first, j, starts, slack_s)
            next_s = min(next_s, refused_s)
            if i >= 0:
                previous[j] = i
                cuts[d + 1, number[d + 1]] = j
                number[d + 1] += 1
                rows = max(rows, d + 2)
                if j == num_kernels:
                    return d + 1, next_s
                break
    return NO_SLICING, next_s


@compiled_inline
def _longest_segment(
    problem: SliceProblem,
    alive: Alive,
    passing: LongArray,
    saved_s: FloatArray,
    chip: int,
    first: int,
    end: int,
    cuts: IntArray,
    slack_s: float,
) -> tuple[int, float]:
    """Returns the first of ``cuts`` whose segment takes at most ``slack_s``, or -1.

    Also returns a lower bound on the costs of all rejected segments.
    """
    kind = problem.chip_kind[chip]
    pays_in = not problem.overlap and chip > 0 and problem.pays_transfers[kind]
    prefix_s, refused_s = problem.prefix_s[kind], np.inf
    relayed_bytes, relays = passing[0], passing[1]
    at = int64(0)
    while at < len(cuts):
        i = int64(cuts[at])
        while first < i:
            relayed_bytes += alive.size_bytes[first]
            relays += alive.number[first]
            first += 1
        cost_s = segment_cost_s(problem, chip, i, end, relayed_bytes, relays, saved_s[i])
        if cost_s <= slack_s:
            return i, refused_s
        refused_s = min(refused_s, cost_s)
        if pays_in:  # the next start may have less incoming traffic
            cost_s -= problem.crossing_bytes[i] * problem.hop_s_per_byte[chip - 1]
        # Skip the cuts that remove too little work.
        saves_s = prefix_s[i] + (cost_s - slack_s)
        at += 1
        last = len(cuts)
        if at < last and prefix_s[cuts[at]] < saves_s:
            while last - at > 1:
                middle = (at + last) // 2
                if prefix_s[cuts[middle]] < saves_s:
                    at = middle
                else:
                    last = middle
            refused_s = min(refused_s, cost_s - (prefix_s[cuts[at]] - prefix_s[i]))
            at += 1
    return int64(-1), refused_s
