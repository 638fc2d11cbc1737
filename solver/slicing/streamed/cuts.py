"""SLICE that counts streamed weights: weights for all chips share the host's link with the inputs.

For a candidate interval T let ``g[b, d]`` be the fewest bytes streamed by any d chips that
cover the kernels before candidate cut b, each within T:

    g[b, d + k] = min over a of g[a, d] + streamed(a, b)

with k = 1, or ceil(work(a, b) / T) chips where stages may be replicated: each inference streams
to one chip of the stage only. Where replicas keep sequences, a stage of more chips has fewer states on
each, and may stream less: all numbers k of chips are tried on which the segment takes at most T. T is
feasible if for some d the host's link carries the inputs and ``g[M, d]`` within T: O(A W D) for windows
of W candidates. The answer for any T is a slicing, and a larger T never streams more. So the time of the
host's link bounds the interval from above if T is infeasible, and from below if T is feasible. Without
overlap, the weights that a chip streams add to the cost of its own segment only.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from go_opt.common.arrays import FloatArray, LongArray
from go_opt.common.compiling import compiled, int64, uncounted, uncounted_inner
from go_opt.solver.slicing.cuts import GALLOP_STEP, RELATIVE_TOLERANCE
from go_opt.solver.slicing.streamed.segment_table import SegmentTable

Cuts = tuple[LongArray, LongArray, float]  # cuts [S + 1], chips [S], seconds with streamed weights


class StreamedProblem(NamedTuple):
    """Segments of a table on a target's chips in their order. Axes: ``A`` cuts, ``D`` chips."""

    table: SegmentTable
    class_of_chip: LongArray  # [D]; unused if classes are numbers of chips
    stage_chips: LongArray  # [C] chips of a stage of each class, ascending, on chips alike; or zeros
    blocked: LongArray  # [D, A] kernels before a cut that the chip cannot or may not run
    are_alike: bool  # one class of chips, which may run everything
    replicates: bool
    cut_s: FloatArray  # [A] of the link at a cut; 0 where the segment costs contain it
    host_s: float  # of the busier host link, without streamed weights
    input_s: float  # of the host's input link, for inputs
    stream_s_per_byte: float  # of the host's input link, for streamed weights

    def host_link_s(self, streamed: float) -> float:
        """Returns the seconds of the busier host link if ``streamed`` bytes of weights are streamed."""
        if streamed == math.inf:
            return math.inf
        return max(self.host_s, self.input_s + streamed * self.stream_s_per_byte)


def cheapest_streamed_cuts(
    problem: StreamedProblem, lower_s: float, upper_s: float, *, min_chips: int = 1
) -> Cuts | None:
    """Returns the cheapest slicing between cuts of the table that takes less than ``upper_s``, if any.

    No slicing may be cheaper than ``lower_s``. Both limits are finite; tight limits save work.
    """
    if min_chips > len(problem.class_of_chip):
        return None
    best: Cuts | None = None
    least_bytes = np.empty((len(problem.table.cut), len(problem.class_of_chip) + 1))
    interval_s, step = lower_s * (1.0 + RELATIVE_TOLERANCE), GALLOP_STEP
    while upper_s - lower_s > RELATIVE_TOLERANCE * upper_s:
        most_bytes = math.inf
        if problem.stream_s_per_byte > 0.0:
            most_bytes = (upper_s - problem.input_s) / problem.stream_s_per_byte
        next_s = least_streamed(problem, interval_s, most_bytes, least_bytes)
        chips = min_chips + int(np.argmin(least_bytes[-1, min_chips:]))
        link_s = problem.host_link_s(float(least_bytes[-1, chips]))
        is_reached = link_s <= interval_s * (1.0 + RELATIVE_TOLERANCE)
        if link_s < upper_s:
            found = _walk_back(problem, interval_s, least_bytes, chips)
            if found[2] < upper_s:
                best, upper_s = found, found[2]
        if is_reached:
            lower_s = max(lower_s, link_s)
        else:
            lower_s = max(interval_s, min(next_s, link_s))
            step *= 2.0
        interval_s = 0.5 * (lower_s + upper_s)
        if link_s == upper_s:
            # The host's link is the bottleneck: check whether a smaller interval streams less.
            interval_s = upper_s * (1.0 - RELATIVE_TOLERANCE)
        elif 0.0 < lower_s * (1.0 + step) < interval_s:
            interval_s = lower_s * (1.0 + step)
    return best


@compiled
def least_streamed(
    problem: StreamedProblem, interval_s: float, most_bytes: float, least_bytes: FloatArray
) -> float:
    """Fills ``least_bytes`` [A, D + 1], the fewest bytes streamed before each cut, by number of chips.

    Returns a bound: every candidate interval below it gives the same answer. Slicings that
    stream more than ``most_bytes`` are ignored.
    """
    table, max_chips = problem.table, least_bytes.shape[1] - 1
    slack_s = interval_s * (1.0 + 1e-13)
    next_s = np.inf
    fewest_chips = np.full(len(table.cut), max_chips + 1, np.int64)
    fewest_bytes = np.full(len(table.cut), np.inf)
    least_bytes[:] = np.inf
    least_bytes[0, 0] = 0.0
    fewest_chips[0] = 0
    fewest_bytes[0] = 0.0
    for b in range(1, len(table.cut)):
        if problem.cut_s[b] > slack_s:
            next_s = min(next_s, problem.cut_s[b])
            continue
        for a in range(table.first[b], b):
            place = table.offset[b] + a
            if fewest_chips[a] >= max_chips:
                continue
            if problem.stage_chips[0] > 0:
                refused_s = _reach_by_size(problem, a, b, slack_s, most_bytes, fewest_chips[a], least_bytes)
                next_s = min(next_s, refused_s)
                continue
            if not problem.are_alike:
                refused_s = _reach_on_each(problem, a, b, slack_s, most_bytes, least_bytes)
                next_s = min(next_s, refused_s)
                continue
            cost_s, streamed = table.cost_s[0, place], table.streamed_bytes[0, place]
            if fewest_bytes[a] + streamed > most_bytes:
                continue
            size = _chips_for(problem, cost_s, slack_s, max_chips)
            next_s = min(next_s, _refused_s(problem, cost_s, size))
            fewest = fewest_chips[a]
            # This loop takes most of the time: one pass over chips, without branches.
            before, after = least_bytes[a, fewest:], least_bytes[b, fewest + size :]
            for d in range(max_chips + 1 - fewest - size):
                reached = before[d] + streamed
                after[d] = reached if reached < after[d] else after[d]
        for d in range(max_chips, 0, -1):
            fewest_bytes[b] = min(fewest_bytes[b], least_bytes[b, d])
            if least_bytes[b, d] < np.inf:
                fewest_chips[b] = d
    return next_s


@uncounted_inner
def _reach_by_size(
    problem: StreamedProblem,
    a: int,
    b: int,
    interval_s: float,
    most_bytes: float,
    fewest_chips: int,
    least_bytes: FloatArray,
) -> float:
    """Updates cut b from cut a where classes are numbers of chips; returns the least rejected cost."""
    table, max_chips = problem.table, least_bytes.shape[1] - 1
    place, next_s = table.offset[b] + a, np.inf
    for c in range(len(problem.stage_chips)):
        cost_s, size = table.cost_s[c, place], problem.stage_chips[c]
        if cost_s > interval_s:
            next_s = min(next_s, cost_s)
            continue
        streamed = table.streamed_bytes[c, place]
        for d in range(fewest_chips, max_chips + 1 - size):
            reached = least_bytes[a, d] + streamed
            if reached <= most_bytes and reached < least_bytes[b, d + size]:
                least_bytes[b, d + size] = reached
        if streamed == 0:
            break  # more chips are of no use
    return next_s


@uncounted_inner
def _reach_on_each(
    problem: StreamedProblem, a: int, b: int, interval_s: float, most_bytes: float, least_bytes: FloatArray
) -> float:
    """Updates cut b from cut a where chips differ or may not run all ops; returns the least rejected cost."""
    table, max_chips = problem.table, least_bytes.shape[1] - 1
    place = table.offset[b] + a
    next_s = np.inf
    for d in range(max_chips):
        c = problem.class_of_chip[d]
        cost_s, reached = table.cost_s[c, place], least_bytes[a, d] + table.streamed_bytes[c, place]
        if reached > most_bytes or reached == np.inf:
            continue
        fewest = _chips_for(problem, cost_s, interval_s, max_chips)
        next_s = min(next_s, _refused_s(problem, cost_s, fewest))
        # Extra chips may move the next stage to chips that are allowed to run it.
        most = max_chips - d if problem.replicates else fewest
        for size in range(fewest, most + 1):
            if not _may_run(problem, a, b, d, size):
                break
            least_bytes[b, d + size] = min(least_bytes[b, d + size], reached)
    return next_s


@uncounted_inner
def _chips_for(problem: StreamedProblem, cost_s: float, interval_s: float, max_chips: int) -> int:
    """Returns the chips a segment needs for an interval; ``max_chips + 1`` if it cannot meet the interval."""
    if cost_s <= interval_s:
        return int64(1)
    if not problem.replicates or cost_s > interval_s * max_chips:
        return int64(max_chips + 1)
    return int64(math.ceil(cost_s / interval_s))


@uncounted_inner
def _refused_s(problem: StreamedProblem, cost_s: float, size: int) -> float:
    """Returns the least interval for which the segment needs fewer chips."""
    if size == 1:
        return np.inf
    return cost_s / (size - 1) if problem.replicates else cost_s


@uncounted_inner
def _may_run(problem: StreamedProblem, a: int, b: int, chip: int, size: int) -> bool:
    """Returns whether ``size`` chips from ``chip`` on exist, are identical, and may run segment a to b."""
    if chip + size > len(problem.class_of_chip):
        return False
    for d in range(chip, chip + size):
        is_other = problem.class_of_chip[d] != problem.class_of_chip[chip]
        if is_other or problem.blocked[d, a] < problem.blocked[d, b]:
            return False
    return True


def _walk_back(problem: StreamedProblem, interval_s: float, least_bytes: FloatArray, chips: int) -> Cuts:
    """Returns the slicing on ``chips`` chips that ``least_bytes`` describes."""
    longest_s = problem.host_link_s(float(least_bytes[-1, chips]))
    cut, sizes = [len(problem.table.cut) - 1], []
    while cut[-1] > 0:
        start, size, cost_s = _last_stage(problem, interval_s, least_bytes, cut[-1], chips)
        longest_s = max(longest_s, cost_s, float(problem.cut_s[start]))
        cut.append(start)
        sizes.append(size)
        chips -= size
    return problem.table.cut[cut[::-1]], np.array(sizes[::-1]), longest_s


@uncounted
def _last_stage(
    problem: StreamedProblem, interval_s: float, least_bytes: FloatArray, b: int, chips: int
) -> tuple[int, int, float]:
    """Returns start, chips and seconds an inference of the last stage, up to cut b, on ``chips`` chips."""
    table, max_chips = problem.table, least_bytes.shape[1] - 1
    slack_s = interval_s * (1.0 + 1e-13)
    for a in range(table.first[b], b):
        place = table.offset[b] + a
        for c in range(len(problem.stage_chips) if problem.stage_chips[0] > 0 else 0):
            size, cost_s = problem.stage_chips[c], table.cost_s[c, place]
            if size > chips or cost_s > slack_s:
                continue
            if least_bytes[a, chips - size] + table.streamed_bytes[c, place] == least_bytes[b, chips]:
                return a, size, cost_s
        for d in range(chips if problem.stage_chips[0] == 0 else 0):
            c = problem.class_of_chip[d]
            # Sums of whole numbers are exact, so == is safe.
            if least_bytes[a, d] + table.streamed_bytes[c, place] != least_bytes[b, chips]:
                continue
            cost_s = table.cost_s[c, place]
            size = chips - d
            is_enough = size >= _chips_for(problem, cost_s, slack_s, max_chips)
            if is_enough and (size == 1 or problem.replicates) and _may_run(problem, a, b, d, size):
                return a, size, cost_s / size
    return -1, 1, np.inf
