"""SLICE where memory is tight or chips differ, in kind or in what they may hold: segment by segment.

With ``cost(d, i, j)`` of segment ``[i, j)`` on chip d,

    T[d + 1][j] = min_i max(T[d][i], cost(d, i, j))

over the segments that fit is the least interval that covers the kernels before cut j with
d + 1 chips. Only segments within a candidate interval are tried, nearest start first, so that
memory is kept up to date while they grow: O(M W) segments for windows of W kernels, each for D
chips. A candidate that is too small finds nothing and the next is larger; one that is large
enough finds the optimum. It is the slow twin of ``slicing.fewest_chips`` and
``relay_slicing.fewest_chips_relayed`` where they apply.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

from go_opt.solver.relay_terms import end_moves_on, no_tensors_alive, start_over
from go_opt.solver.segment_memory import SegmentMemory, grow_segment, segment_usage
from go_opt.solver.slicing import RELATIVE_TOLERANCE
from go_opt.solver.slicing_problem import SliceProblem, segment_cost_s

FIRST_STEP: Final = 0.05  # from a lower bound to the first candidate


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
    if lower_s > upper_s:
        return None
    usage, alive = segment_usage(memory), no_tensors_alive(problem.relays)
    previous = np.empty((problem.num_kernels + 1, max_chips + 1), dtype=np.int32)
    limit_s = upper_s * (1.0 + RELATIVE_TOLERANCE)
    interval_s, step = lower_s, FIRST_STEP
    while True:
        interval_s = min(interval_s * (1.0 + step), limit_s) if interval_s > 0 else limit_s
        least_s = _least_by_segment(problem, memory, interval_s, previous, usage, alive)
        chips = min_chips + int(np.argmin(least_s[min_chips:])) if min_chips <= max_chips else 0
        if min_chips <= max_chips and least_s[chips] < np.inf:
            return _walk_back(previous, chips)
        if interval_s >= limit_s:
            return None
        step *= 2.0


@njit(cache=True, nogil=True)
def _least_by_segment(problem, memory, interval_s, previous, usage, alive):
    """[D + 1] least interval up to ``interval_s`` by the number of chips; infinite where there is none.

    ``previous[j, d]`` is the cut before j of the least that d chips reach.
    """
    num_kernels, max_chips = len(previous) - 1, previous.shape[1] - 1
    num_kinds = len(problem.prefix_s)
    least_s = np.full((num_kernels + 1, max_chips + 1), np.inf)
    least_s[0, 0] = 0.0
    saved_s = np.zeros(num_kernels)  # by a segment from here to the end at hand
    most_saved_s = 0.0
    for a in range(len(problem.again_s)):
        most_saved_s += problem.again_s[a]
    most_bytes = np.int64(0)
    for d in range(max_chips):
        most_bytes = max(most_bytes, memory.sram_bytes[d])
    for k in range(len(usage.seen)):
        usage.seen[k] = -1
    start_over(problem.relays, alive)
    first, again = 0, 0
    for j in range(1, num_kernels + 1):
        while again < len(problem.again_kernel) and problem.again_kernel[again] < j:
            for i in range(first, problem.again_before[again] + 1):
                saved_s[i] += problem.again_s[again]
            again += 1
        while first < j:
            work_s = np.inf
            for kind in range(num_kinds):
                work_s = min(work_s, problem.prefix_s[kind, j] - problem.prefix_s[kind, first])
            if work_s - most_saved_s <= interval_s and problem.latest[first] >= j:
                break
            first += 1
        end_moves_on(problem.relays, alive, j)
        if not problem.may_cut[j]:
            continue
        relayed_bytes, relays = alive.total[0], alive.total[1]
        usage.total[0] = 0
        usage.total[1] = 0
        usage.total[2] = 0
        for i in range(j - 1, first - 1, -1):
            relayed_bytes -= alive.size_bytes[i]
            relays -= alive.number[i]
            needed = grow_segment(memory, i, j, usage)
            # These two never fall while a segment grows.
            if usage.total[1] + usage.total[2] > most_bytes:
                break
            if problem.reach[i] > j or needed > most_bytes or not problem.may_cut[i]:
                continue
            may_run = False
            for d in range(max_chips):
                if problem.blocked[d, j] > problem.blocked[d, i]:
                    continue
                may_run = True
                if least_s[i, d] >= least_s[j, d + 1] or needed > memory.sram_bytes[d]:
                    continue
                cost_s = segment_cost_s(problem, d, i, j, relayed_bytes, relays, saved_s[i])
                if cost_s <= interval_s and max(cost_s, least_s[i, d]) < least_s[j, d + 1]:
                    least_s[j, d + 1] = max(cost_s, least_s[i, d])
                    previous[j, d + 1] = i
            if not may_run:
                break
    return least_s[num_kernels]


def _walk_back(previous: NDArray[np.int32], chips: int) -> NDArray[np.int64]:
    cuts = np.empty(chips + 1, dtype=np.int64)
    cuts[chips] = len(previous) - 1
    for d in range(chips, 0, -1):
        cuts[d - 1] = previous[cuts[d], d]
    return cuts
