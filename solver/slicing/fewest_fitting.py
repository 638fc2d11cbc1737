"""Fewest chips for the segments of a kernel sequence, each within an interval and its chip's memory.

Cut j is reached with d + 1 chips if a cut i is reached with d chips, segment ``[i, j)`` fits on chip d
(:mod:`go_opt.solver.slicing.segments.fitting_starts`) and costs no more than the interval. The longest
segments are tried first. If a segment costs too much by s seconds, so does each shorter one whose work
is less than s seconds smaller: a shorter segment relays more tensors and saves fewer repeated reads.
"""

from __future__ import annotations

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray
from go_opt.common.compiling import compiled, compiled_inline, int64
from go_opt.solver.slicing.cuts import NO_SLICING
from go_opt.solver.slicing.segments.problem import (
    Alive,
    SliceProblem,
    least_hop_s_per_byte,
    segment_cost_s,
    start_over,
)
from go_opt.solver.slicing.segments.starts import FittingStarts, first_start, least_work_s


@compiled
def fewest_fitting_chips(
    problem: SliceProblem,
    fits: FittingStarts,
    size_of_chip: LongArray,
    min_chips: int,
    is_fewest: bool,
    interval_s: float,
    alive: Alive,
    previous: IntArray,
) -> tuple[int, float]:
    """Returns the fewest chips, at least ``min_chips``, or NO_SLICING; and ``next_s``.

    ``next_s`` is a lower bound on the cost of everything rejected: every candidate interval below it
    gives the same answer.

    Args:
      fits: starts that fit, at least those of segments within ``interval_s``.
      size_of_chip: [D] index of each chip's memory size in ``fits``.
      is_fewest: whether to keep only the slicings on the fewest chips for each cut. This requires
        identical chips.
      alive: scratch.
      previous: [D + 1, M + 1] to be filled with the cut before each, by the number of chips.
    """
    max_chips, num_kernels = len(previous) - 1, previous.shape[1] - 1
    slack_s = interval_s * (1.0 + 1e-13)
    cuts = np.empty((max_chips + 1, num_kernels + 1), np.int32)  # reached, by number of chips
    number = np.zeros(max_chips + 1, np.int64)  # of cuts in each row
    cuts[0, 0], number[0] = 0, 1
    oldest = np.zeros(max_chips, np.int64)  # index of the first cut where a segment may still start
    may_start = np.zeros(max_chips, np.int64)  # the first cut where a segment of each chip may start
    has_blocked = False
    for d in range(len(problem.blocked)):
        has_blocked = has_blocked or problem.blocked[d, num_kernels] > 0
    start_over(problem, alive)
    passing = np.zeros(2, np.int64)  # bytes and number of the tensors that pass [first, j)
    saved_s = np.zeros(num_kernels)  # by a segment from each start to the current end
    most_saved_s, least_hop = problem.again_s.sum(), least_hop_s_per_byte(problem, max_chips)
    first, again = int64(0), 0
    fewest = 0  # chips of any start that remains
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
        if has_blocked:
            for d in range(max_chips):
                if problem.blocked[d, j] > problem.blocked[d, j - 1]:
                    may_start[d] = j
        if not problem.may_cut[j]:
            continue
        out_s = problem.crossing_bytes[j] * least_hop
        if problem.overlap and out_s > slack_s:
            next_s = min(next_s, out_s)
            continue
        for d in range(fewest, max_chips):
            if number[d] == 0:
                break
            start = max(first, may_start[d])
            while oldest[d] < number[d] and cuts[d, oldest[d]] < start:
                oldest[d] += 1
            if oldest[d] == number[d]:
                continue
            i, refused_s = _longest_segment(
                problem, fits, size_of_chip[d], alive, passing, saved_s, d, first, j,
                cuts[d, oldest[d] : number[d]], slack_s,
            )  # fmt: skip
            next_s = min(next_s, refused_s)
            if i >= 0:
                previous[d + 1, j] = i
                cuts[d + 1, number[d + 1]] = j
                number[d + 1] += 1
                if is_fewest:
                    break
    for chips in range(max(min_chips, 1), max_chips + 1):
        if number[chips] > 0 and cuts[chips, number[chips] - 1] == num_kernels:
            return chips, next_s
    return NO_SLICING, next_s


@compiled_inline
def _longest_segment(
    problem: SliceProblem,
    fits: FittingStarts,
    size: int,
    alive: Alive,
    passing: LongArray,
    saved_s: FloatArray,
    chip: int,
    first: int,
    end: int,
    cuts: IntArray,
    slack_s: float,
) -> tuple[int, float]:
    """Returns the first of ``cuts`` whose segment fits and takes at most ``slack_s``, or -1.

    Also returns a lower bound on the costs of all rejected segments.
    """
    kind, is_relayed = problem.chip_kind[chip], len(problem.relay_home) > 0
    pays_in = not problem.overlap and chip > 0 and problem.pays_transfers[kind]
    prefix_s, refused_s = problem.prefix_s[kind], np.inf
    relayed_bytes, relays = passing[0], passing[1]
    for run in range(fits.run_ptr[end + 1] - 1, fits.run_ptr[end] - 1, -1):
        if fits.size[run] > size or fits.stop[run] <= cuts[0]:
            continue
        at, beyond = int64(0), int64(0 if fits.start[run] <= cuts[0] else len(cuts))
        while at < beyond:  # find the first cut in the run
            middle = (at + beyond) // 2
            if cuts[middle] < fits.start[run]:
                at = middle + 1
            else:
                beyond = middle
        while at < len(cuts) and cuts[at] < fits.stop[run] and problem.reach[cuts[at]] <= end:
            i = int64(cuts[at])
            while first < i and is_relayed:
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
