"""SLICE where memory is tight or chips differ: segment by segment.

Every segment that may end at a cut is tried, nearest start first, so the cost is
O(M W) for windows of W kernels (O(D M W) where chips are not alike). It is the slow
twin of ``slicing._fewest_chips`` where both apply.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from go_opt.solver.segment_memory import SegmentMemory, grow_segment, segment_usage
from go_opt.solver.slicing import NO_SLICING, SliceProblem, _segment_cost_s, least_interval


def cheapest_cuts_general(
    problem: SliceProblem,
    memory: SegmentMemory,
    max_chips: int,
    lower_s: float,
    upper_s: float,
    *,
    min_chips: int = 1,
) -> NDArray[np.int64] | None:
    """Cuts of the cheapest slicing in [lower_s, upper_s] whose segments all fit, if any.

    No slicing may be cheaper than ``lower_s``; a tight one saves most of the work.
    """
    usage = segment_usage(memory)
    # Alike chips are told apart only where a number of them must be used.
    in_one_pass = problem.chips_are_alike and min_chips == 1
    levels = 2 if in_one_pass else max_chips + 1

    def cuts_within(interval_s: float) -> NDArray[np.int64] | None:
        previous = np.full((levels, problem.num_kernels + 1), -1, dtype=np.int64)
        if in_one_pass:
            chips = _fewest_by_segment(problem, memory, max_chips, interval_s, previous[1], usage)
            return None if chips == NO_SLICING else _walk_back(np.tile(previous[1], (chips + 1, 1)))
        chips = _reach_levels(problem, memory, min_chips, interval_s, previous, usage)
        return None if chips == NO_SLICING else _walk_back(previous[: chips + 1])

    return least_interval(problem, lower_s, upper_s, cuts_within)


@njit(cache=True, nogil=True)
def _fewest_by_segment(problem, memory, max_chips, interval_s, previous, usage):
    """Fewest alike chips that cover all kernels, or NO_SLICING; ``previous[j]`` is the cut before j."""
    num_kernels = len(previous) - 1
    slack_s = interval_s * (1.0 + 1e-13)
    sram_bytes = memory.sram_bytes[0]
    reach = problem.reach
    fewest = np.full(num_kernels + 1, max_chips + 1, np.int64)
    fewest[0] = 0
    usage.seen[:] = -1
    first = 0
    for j in range(1, num_kernels + 1):
        first = _first_start(problem, 0, first, j, slack_s)
        usage.total[:] = 0
        for i in range(j - 1, first - 1, -1):
            needed = grow_segment(memory, i, j, usage)
            if usage.total[2] > sram_bytes:
                break
            if fewest[i] + 1 >= fewest[j] or reach[i] > j or needed > sram_bytes:
                continue
            if _segment_cost_s(problem, min(fewest[i], 1), i, j) <= slack_s:
                fewest[j] = fewest[i] + 1
                previous[j] = i
    return fewest[num_kernels] if fewest[num_kernels] <= max_chips else NO_SLICING


@njit(cache=True, nogil=True)
def _reach_levels(problem, memory, min_chips, interval_s, previous, usage):
    """The same for chips that differ: ``previous[d, j]`` is a cut before j reached by d chips."""
    num_levels = len(previous)
    num_kernels = previous.shape[1] - 1
    slack_s = interval_s * (1.0 + 1e-13)
    previous[0, 0] = 0
    for d in range(num_levels - 1):
        usage.seen[:] = -1
        first = 0
        for j in range(1, num_kernels + 1):
            first = _first_start(problem, d, first, j, slack_s)
            usage.total[:] = 0
            for i in range(j - 1, first - 1, -1):
                needed = grow_segment(memory, i, j, usage)
                if usage.total[2] > memory.sram_bytes[d]:
                    break
                if previous[d, i] < 0 or problem.reach[i] > j or needed > memory.sram_bytes[d]:
                    continue
                if _segment_cost_s(problem, d, i, j) <= slack_s:
                    previous[d + 1, j] = i
                    break
        if d + 1 >= min_chips and previous[d + 1, num_kernels] >= 0:
            return d + 1
    return NO_SLICING


@njit(cache=True, nogil=True)
def _first_start(problem, chip, first, end, slack_s):
    """The first start, from ``first`` on, of a segment ending at ``end`` that may run in time."""
    kind = problem.chip_kind[chip]
    saved_s = 0.0 if problem.overlap else problem.again_s.sum()
    prefix_s, blocked = problem.prefix_s[kind], problem.blocked[kind]
    while first < end and (
        prefix_s[end] - prefix_s[first] > slack_s + saved_s or blocked[end] > blocked[first]
    ):
        first += 1
    return first


def _walk_back(previous: NDArray[np.int64]) -> NDArray[np.int64]:
    """Cuts from row d holding the cut before each cut reached by d chips."""
    chips = len(previous) - 1
    cuts = np.empty(chips + 1, dtype=np.int64)
    cuts[chips] = previous.shape[1] - 1
    for d in range(chips, 0, -1):
        cuts[d - 1] = previous[d, cuts[d]]
    return cuts
