"""SLICE with replicated stages where chips differ, in kind or in what they may hold, or pay for transfers.

    T[d + r][j] = min over i, r of max(T[d][i], cost(d, r, i, j))

is the least interval that covers the kernels before cut j with the first d + r chips, with the
cost of a stage of r chips from d on: all of one kind, and all of them may hold the segment.
Overlapped it is ``max(C / r, in, out)``. Summed, chip q of the stage (1 to r) also has on its two
links ``((2r - 2q + 1) in + (2q - 1) out) / r``, most on the first or the last. A pass looks
within a candidate interval, as in :mod:`go_opt.solver.slicing.general`: O(M W D²) for windows of W
kernels. It is the slow twin of :mod:`go_opt.solver.slicing.replicated.cuts` where that applies.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray
from go_opt.common.compiling import compiled, compiled_inner, int64
from go_opt.env.kernels.plain_loops import largest
from go_opt.solver.slicing.cuts import RELATIVE_TOLERANCE
from go_opt.solver.slicing.segments.memory import SegmentMemory, SegmentUsage, grow_segment, segment_usage
from go_opt.solver.slicing.segments.problem import SliceProblem
from go_opt.solver.slicing.segments.relay_terms import (
    Alive,
    end_moves_on,
    no_tensors_alive,
    relay_s,
    start_over,
)
from go_opt.solver.slicing.segments.starts import first_start

FIRST_STEP: Final = 0.05  # from a lower bound to the first candidate
# Stages looked at in all passes together, some seconds' work; past it there is no answer.
MOST_STEPS: Final = 1_000_000_000

StageCuts = tuple[LongArray, LongArray, float]


def replicated_cuts_general(
    problem: SliceProblem,
    memory: SegmentMemory,
    max_chips: int,
    min_chips: int,
    lower_s: float,
    upper_s: float,
) -> StageCuts | None:
    """Cuts [S + 1], sizes [S] and interval of the cheapest slicing into stages whose segments all fit.

    ``None`` where none lies in [lower_s, upper_s]; none may be cheaper than ``lower_s``.
    """
    if lower_s > upper_s * (1.0 + RELATIVE_TOLERANCE) or min_chips > max_chips:
        return None
    usage, alive = segment_usage(memory), no_tensors_alive(problem.relays)
    previous = np.empty((2, problem.num_kernels + 1, max_chips + 1), dtype=np.int32)
    steps = np.zeros(1, np.int64)
    limit_s = upper_s * (1.0 + RELATIVE_TOLERANCE)
    interval_s, step = lower_s, FIRST_STEP
    while steps[0] <= MOST_STEPS:
        interval_s = min(interval_s * (1.0 + step), limit_s) if interval_s > 0 else limit_s
        least_s = _least_by_chips(problem, memory, interval_s, previous, usage, alive, steps)
        chips = min_chips + int(np.argmin(least_s[min_chips:]))
        if least_s[chips] < np.inf:
            return *_walk_back(previous, chips), max(problem.floor_s, float(least_s[chips]))
        if interval_s >= limit_s:
            return None
        step *= 2.0
    return None


@compiled
def _least_by_chips(
    problem: SliceProblem,
    memory: SegmentMemory,
    interval_s: float,
    previous: IntArray,
    usage: SegmentUsage,
    alive: Alive,
    steps: LongArray,
) -> FloatArray:
    """[D + 1] least interval up to ``interval_s`` by the chips used; infinite where there is none.

    ``previous[:, j, d]`` are the cut before j of the least that d chips reach, and the size of
    the stage between them.
    """
    num_kernels, max_chips = previous.shape[1] - 1, previous.shape[2] - 1
    least_s = np.full((num_kernels + 1, max_chips + 1), np.inf)
    least_s[0, 0] = 0.0
    saved_s = np.zeros(num_kernels)  # by a segment from here to the end at hand
    most_saved_s, most_bytes = problem.again_s.sum(), largest(memory.sram_bytes[:max_chips])
    for tensor in range(len(usage.seen)):
        usage.seen[tensor] = -1
    start_over(problem.relays, alive)
    first, again = int64(0), 0
    for j in range(1, num_kernels + 1):
        if steps[0] > MOST_STEPS:
            return np.full(max_chips + 1, np.inf)
        while again < len(problem.again_kernel) and problem.again_kernel[again] < j:
            for i in range(first, problem.again_before[again] + 1):
                saved_s[i] += problem.again_s[again]
            again += 1
        first = first_start(problem, first, j, interval_s * max_chips + most_saved_s)
        end_moves_on(problem.relays, alive, j)
        if not problem.may_cut[j]:
            continue
        relayed_bytes, relays = alive.total[0], alive.total[1]
        usage.total[:] = 0
        for i in range(j - 1, first - 1, -1):
            relayed_bytes -= alive.size_bytes[i]
            relays -= alive.number[i]
            needed = grow_segment(memory, i, j, usage)
            # These two never fall while a segment grows.
            if usage.total[1] + usage.total[2] > most_bytes:
                break
            if problem.reach[i] > j or needed > most_bytes or not problem.may_cut[i]:
                continue
            for d in range(max_chips):
                steps[0] += 1
                if least_s[i, d] > interval_s or needed > memory.sram_bytes[d]:
                    continue
                kind = problem.chip_kind[d]
                work_s = problem.prefix_s[kind, j] - problem.prefix_s[kind, i]
                work_s += relay_s(problem.relays, kind, relayed_bytes, relays)
                for size in range(1, max_chips - d + 1):
                    chip = d + size - 1
                    if problem.chip_kind[chip] != kind or problem.blocked[chip, j] > problem.blocked[chip, i]:
                        break
                    steps[0] += 1
                    cost_s = stage_cost_s(problem, d, size, i, j, work_s, saved_s[i])
                    if cost_s <= interval_s and max(cost_s, least_s[i, d]) < least_s[j, d + size]:
                        least_s[j, d + size] = max(cost_s, least_s[i, d])
                        previous[0, j, d + size] = i
                        previous[1, j, d + size] = size
    return least_s[num_kernels]


@compiled_inner
def stage_cost_s(
    problem: SliceProblem, chip: int, size: int, start: int, end: int, work_s: float, saved_s: float
) -> float:
    """Cost of segment [start, end), ``work_s`` on one chip, on ``size`` chips from ``chip`` on.

    What inputs are read again in it saves ``saved_s``.
    """
    kind = problem.chip_kind[chip]
    in_s = problem.crossing_bytes[start] * problem.hop_s_per_byte[chip - 1] if chip > 0 else 0.0
    out_s = problem.crossing_bytes[end] * problem.hop_s_per_byte[chip + size - 1]
    if problem.overlap:
        return max(work_s / size, in_s, out_s)
    if not problem.pays_transfers[kind]:
        return work_s / size
    most_s, least_s = max(in_s, out_s), min(in_s, out_s)
    return (work_s - saved_s + (2 * size - 1) * most_s + least_s) / size


def _walk_back(previous: IntArray, chips: int) -> tuple[LongArray, LongArray]:
    cuts, sizes = [previous.shape[1] - 1], []
    while cuts[-1] > 0:
        start, size = (int(value) for value in previous[:, cuts[-1], chips])
        cuts.append(start)
        sizes.append(size)
        chips -= size
    return np.array(cuts[::-1], dtype=np.int64), np.array(sizes[::-1], dtype=np.int64)
