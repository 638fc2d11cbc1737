"""SLICE with replicated stages, on identical chips that overlap transfers (design section 8).

A segment takes ``C(i, j) = P[j] - P[i] + R(i, j)`` seconds of compute, including its relays ``R``.
It meets a candidate interval ``T`` on ``max(1, ceil(C(i, j) / T))`` chips. Let ``f`` be the fewest
chips that cover the kernels before a cut. ``idle[i] = f[i] T - P[i]`` is the time those chips leave
unused. As ``f`` is an integer,

    f[j] = min_i ceil((idle[i] + P[j] + R(i, j)) / T)

over the starts; memory and streamed weights are ignored (:mod:`go_opt.solver.slicing.streamed` counts both).
Without relays the start with the least idle time is the best. Segments may be long, but few starts
matter: a start is dropped once a later start is at least as good at every end. The others are tried
from first to last, as long as any can save a chip. One candidate takes close to O(M).
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from go_opt.common.arrays import FloatArray, LongArray
from go_opt.common.compiling import compiled, int64, uncounted_inner
from go_opt.solver.problem.replica_allocation import allocate_chips, allocated_chips
from go_opt.solver.slicing.cuts import NO_SLICING, least_interval, walk_back
from go_opt.solver.slicing.problem import (
    ROUNDING,
    Alive,
    SliceProblem,
    no_tensors_alive,
    relay_s,
    relays_of_segments,
    start_over,
)

# Limit on starts tried in one search, over all its candidates: about a second. Then the best so far stays.
MOST_STEPS: Final = 100_000_000


def cheapest_replicated_cuts(
    problem: SliceProblem, max_chips: int, lower_s: float, at_most_s: float
) -> LongArray | None:
    """Returns the cuts of the cheapest slicing into replicated stages on up to ``max_chips`` identical chips.

    Returns ``None`` if it takes more than ``at_most_s``. ``lower_s`` is a bound on all slicings.
    """
    made = no_tensors_alive(problem)
    start_over(problem, made)
    previous, steps = np.zeros(problem.num_kernels + 1, np.int64), np.zeros(1, np.int64)

    def cuts_within(interval_s: float) -> tuple[LongArray | None, float]:
        stages, next_s = fewest_replicated(problem, max_chips, interval_s, made, previous, steps)
        return (None if stages == NO_SLICING else walk_back(previous, stages)), next_s

    def cost_s(cuts: LongArray) -> float:
        return replicated_cost_s(problem, cuts, max_chips)

    return least_interval(cost_s, cuts_within, lower_s, at_most_s)


def replicated_cost_s(problem: SliceProblem, cuts: LongArray, chips: int) -> float:
    """Returns the interval of the stages between ``cuts`` on ``chips`` chips, without streamed weights."""
    work_s = segment_work_s(problem, cuts)
    return max(_floor_s(problem, cuts), float((work_s / allocate_chips(work_s, chips)).max()))


def stage_sizes(problem: SliceProblem, cuts: LongArray, max_chips: int) -> LongArray:
    """Returns the fewest chips [S] of each stage that reach the interval of ``max_chips``."""
    return allocated_chips(segment_work_s(problem, cuts), max_chips, _floor_s(problem, cuts))


def _floor_s(problem: SliceProblem, cuts: LongArray) -> float:
    """Returns the seconds of the busiest link, including the host's links."""
    crossing_bytes = int(problem.crossing_bytes[cuts].max())
    return max(problem.floor_s, crossing_bytes * float(problem.hop_s_per_byte[0]))


@compiled
def segment_work_s(problem: SliceProblem, cuts: LongArray) -> FloatArray:
    """Returns the compute seconds [S] of each segment on one chip of the first kind, with its relays."""
    kind = problem.chip_kind[0]
    passes = relays_of_segments(problem, cuts)
    work_s = np.empty(len(cuts) - 1)
    for s in range(len(work_s)):
        work_s[s] = problem.prefix_s[kind, cuts[s + 1]] - problem.prefix_s[kind, cuts[s]]
        work_s[s] += relay_s(problem, kind, passes[s, 0], passes[s, 1])
    return work_s


@compiled
def fewest_replicated(
    problem: SliceProblem,
    max_chips: int,
    interval_s: float,
    made: Alive,
    previous: LongArray,
    steps: LongArray,
) -> tuple[int, float]:
    """Returns the stages of the slicing within ``interval_s`` on fewest chips, or NO_SLICING; and ``next_s``.

    Every candidate interval below ``next_s`` gives the same answer. If a start needs one chip too many
    at j by ``over`` seconds, it saves that chip only when the interval grows by ``over`` divided by the
    number of chips. ``previous[j]`` is the cut before j. The starts that matter are the list ``start``
    from ``first`` to ``last``. ``least_idle_s[k]`` is the least idle time of start k and later starts.
    ``passing[:, k]`` counts the bytes and number of live tensors that were ``made`` between start k
    and the next start; ``passed_bytes`` and ``passed`` count those made before the first start.
    """
    kind, relay_ptr, relay_home = problem.chip_kind[0], problem.relay_ptr, problem.relay_home
    num_kernels = problem.prefix_s.shape[1] - 1
    prefix_s = problem.prefix_s[kind]
    slack_s = interval_s * (1.0 + 1e-13)
    most_idle_s = max_chips * slack_s - prefix_s[num_kernels]
    next_s = np.inf
    chips = np.full(num_kernels + 1, max_chips + 1, np.int64)
    stages = np.zeros(num_kernels + 1, np.int64)
    start = np.empty(num_kernels + 1, np.int64)
    idle_s = np.empty(num_kernels + 1)
    least_idle_s = np.empty(num_kernels + 1)
    passing = np.zeros((2, num_kernels + 1), np.int64)
    passed_bytes, passed = int64(0), int64(0)
    first, last = 0, -1
    entering = 0
    chips[0] = 0
    for j in range(1, num_kernels + 1):
        for t in range(relay_ptr[j - 1], relay_ptr[j]):
            # Find the last start at or before the tensor's producer.
            low, high = first - 1, last
            while low < high:
                middle = (low + high + 1) // 2
                if start[middle] <= relay_home[t]:
                    low = middle
                else:
                    high = middle - 1
            if low < first:
                passed_bytes -= problem.relay_bytes[t]
                passed -= 1
            else:
                passing[0, low] -= problem.relay_bytes[t]
                passing[1, low] -= 1
        while entering < j and problem.reach[entering] <= j:
            i = entering
            entering += 1
            if chips[i] > max_chips:
                continue
            idle = chips[i] * slack_s - prefix_s[i]
            if idle > most_idle_s:
                next_s = min(next_s, interval_s + (idle - most_idle_s) / max_chips)
                continue
            # Drop earlier starts that are no better at any end, even if the new start relays all
            # tensors made in between.
            size_bytes, number = int64(0), int64(0)
            while last >= first:
                relays_s = relay_s(problem, kind, size_bytes + passing[0, last], number + passing[1, last])
                if idle + relays_s > idle_s[last]:
                    break
                size_bytes += passing[0, last]
                number += passing[1, last]
                last -= 1
            if last >= first:
                passing[0, last] += size_bytes
                passing[1, last] += number
            else:
                passed_bytes += size_bytes
                passed += number
            k = last
            while k >= first and least_idle_s[k] > idle:
                least_idle_s[k] = idle
                k -= 1
            last += 1
            start[last] = i
            idle_s[last] = idle
            least_idle_s[last] = idle
            passing[0, last] = 0
            passing[1, last] = 0
        if last >= first:
            passing[0, last] += made.size_bytes[j - 1]
            passing[1, last] += made.number[j - 1]
        else:
            passed_bytes += made.size_bytes[j - 1]
            passed += made.number[j - 1]
        while first <= last and problem.latest[start[first]] < j:
            passed_bytes += passing[0, first]
            passed += passing[1, first]
            first += 1
        if not problem.may_cut[j]:
            continue
        cut_s = problem.crossing_bytes[j] * problem.hop_s_per_byte[0]
        if cut_s > slack_s:
            next_s = min(next_s, cut_s)
            continue
        least_end_s = np.inf  # idle time of the chips before, work and relays up to j
        size_bytes, number = passed_bytes, passed
        for k in range(first, last + 1):
            i = start[k]
            steps[0] += 1
            relays_s = relay_s(problem, kind, size_bytes, number)
            # Later starts relay at least as much.
            end_s = least_idle_s[k] + prefix_s[j] + relays_s
            if end_s > (chips[j] - 1) * slack_s * (1.0 + ROUNDING):
                least_end_s = min(least_end_s, end_s)
                break
            least_end_s = min(least_end_s, idle_s[k] + prefix_s[j] + relays_s)
            needed = chips_for(prefix_s[j] - prefix_s[i] + relays_s, slack_s, max_chips)
            if chips[i] + needed < chips[j]:
                chips[j] = chips[i] + needed
                stages[j] = stages[i] + 1
                previous[j] = i
            size_bytes += passing[0, k]
            number += passing[1, k]
        if chips[j] > 1:
            over_s = least_end_s - (chips[j] - 1) * slack_s
            next_s = min(next_s, interval_s + max(over_s, 0.0) / (chips[j] - 1))
        if steps[0] > MOST_STEPS:
            return NO_SLICING, interval_s
    return (stages[num_kernels] if chips[num_kernels] <= max_chips else NO_SLICING), next_s


@uncounted_inner
def chips_for(work_s: float, interval_s: float, max_chips: int) -> int:
    """Returns the chips a segment needs for an interval; ``max_chips + 1`` if ``max_chips`` are too few."""
    if work_s <= interval_s:
        return int64(1)
    if interval_s * max_chips < work_s:
        return int64(max_chips + 1)
    return int64(math.ceil(work_s / interval_s))
