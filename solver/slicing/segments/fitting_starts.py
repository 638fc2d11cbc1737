"""For each end, the starts of the segments of a kernel sequence that fit in memory.

For a given end, few summands of a segment's steady memory change as the end moves on
(:mod:`go_opt.solver.slicing.segments.memory`), so whole blocks of starts that surely fit are skipped at
once. The peak of live tensors is computed only where memory may not suffice, while a segment grows
towards its start.
"""

from __future__ import annotations

import numpy as np

from go_opt.common.arrays import BoolArray, IntArray, LongArray
from go_opt.common.compiling import compiled, int64, uncounted_inner
from go_opt.solver.slicing.segments.memory import (
    BLOCK,
    SegmentBytes,
    SegmentMemory,
    grow_peak,
    move_end,
    no_segment,
)
from go_opt.solver.slicing.segments.problem import SliceProblem, least_hop_s_per_byte
from go_opt.solver.slicing.segments.starts import FittingStarts, first_start, with_room

ZERO = int64(0)  # numba compiles anew for every literal


@compiled
def fitting_starts(
    problem: SliceProblem,
    memory: SegmentMemory,
    sizes_bytes: LongArray,
    interval_s: float,
    most_steps: tuple[int, int],
) -> FittingStarts:
    """Returns the starts of segments that fit in memory and may be within ``interval_s``, for each end.

    Omits most starts that no chain of such segments reaches from the first kernel.

    Args:
      sizes_bytes: [S] memory sizes, ascending.
      most_steps: limits for all ends (then the search stops) and for one end (then the next begins).
    """
    num_kernels = len(memory.entering_bytes)
    run_ptr, runs = np.zeros(num_kernels + 2, np.int64), np.empty((3, num_kernels + 1), np.int32)
    num_runs, steps = ZERO, 0
    held = no_segment(memory)
    is_reached = np.zeros(num_kernels + 1, np.bool_)
    is_reached[0] = True
    last_reached = np.zeros(num_kernels + 2, np.int64)  # the last reached cut before each cut
    most_saved_s = problem.again_s.sum()
    least_hop = least_hop_s_per_byte(problem, len(problem.hop_s_per_byte))
    slack_s = interval_s * (1.0 + 1e-13)
    first, usable = ZERO, 0
    for j in range(1, num_kernels + 1):
        move_end(memory, held, j - 1)
        first = first_start(problem, first, j, slack_s + most_saved_s)
        while first < j and not is_reached[first]:
            first += 1
        while usable < j and problem.reach[usable] <= j:
            usable += 1
        run_ptr[j + 1], last_reached[j + 1] = num_runs, last_reached[j]
        is_open = problem.may_cut[j] and (
            not problem.overlap or problem.crossing_bytes[j] * least_hop <= slack_s
        )
        if not is_open or usable <= first or last_reached[usable] < first:
            continue
        runs = with_room(runs, num_runs + j - first)
        num_runs, taken = _runs_of_end(
            memory, sizes_bytes, held, is_reached, first, usable, j, runs, num_runs, most_steps[1]
        )
        steps += taken
        if steps > most_steps[0]:
            for end in range(j + 1, num_kernels + 2):
                run_ptr[end] = num_runs  # later ends have no runs
            break
        if num_runs > run_ptr[j]:
            is_reached[j] = True
            last_reached[j + 1] = j
        run_ptr[j + 1] = num_runs
    runs = runs[:, :num_runs]
    return FittingStarts(run_ptr, runs[0], runs[1], runs[2], steps, steps <= most_steps[0])


@uncounted_inner
def _runs_of_end(
    memory: SegmentMemory,
    sizes_bytes: LongArray,
    held: SegmentBytes,
    is_reached: BoolArray,
    first: int,
    usable: int,
    end: int,
    runs: IntArray,
    num_runs: int,
    most_steps: int,
) -> tuple[int, int]:
    """Appends the runs of starts from ``first`` on to ``runs``; returns the number of runs and the steps."""
    steady, entering, most_alive, entered = held.steady, held.entering, held.most_alive, memory.entering_bytes
    smallest, largest, num_sizes = sizes_bytes[0], sizes_bytes[-1], len(sizes_bytes)
    steady_bytes, entering_bytes = int64(0), int64(0)
    at_most_bytes = int64(0)  # bound on the bytes alive at any kernel
    alive_bytes, peak_bytes, grown = int64(0), int64(0), end  # at ``grown``; peak from there on
    size = int64(num_sizes)  # memory size of the current run
    steps = 0
    i = fitting = end
    while i > first and steps < most_steps:
        steps += 1
        if i % BLOCK == 0 and i - BLOCK >= first:
            block = i // BLOCK - 1
            if not held.is_fresh[block]:
                _freshen(held, entered, block)
                steps += BLOCK // 4
            most_bytes = steady_bytes + entering_bytes + held.most_held[block]
            if most_bytes + max(at_most_bytes, held.most_alive_in[block]) <= smallest:
                num_runs = _go_on(runs, num_runs, size, num_sizes, fitting, ZERO, i)
                size = ZERO
                i -= BLOCK
                fitting = i
                steady_bytes += held.total[0, block]
                entering_bytes += held.total[1, block]
                at_most_bytes = max(at_most_bytes, held.most_alive_in[block])
                continue
        i -= 1
        steady_bytes += steady[i]
        entering_bytes += entering[i]
        at_most_bytes = max(at_most_bytes, most_alive[i])
        held_bytes = steady_bytes + entering_bytes + entered[i]
        if held_bytes + at_most_bytes > smallest and steady_bytes + peak_bytes <= largest:
            while grown > i and steps < most_steps:
                grown -= 1
                steps += 1
                alive_bytes, peak_bytes = grow_peak(memory, held.kept, grown, end, alive_bytes, peak_bytes)
            if grown > i:
                break
        if steady_bytes + peak_bytes > largest:
            break
        if i >= usable or not is_reached[i]:
            continue
        enough = ZERO
        while enough < num_sizes and held_bytes + peak_bytes > sizes_bytes[enough]:
            enough += 1
        num_runs = _go_on(runs, num_runs, size, num_sizes, fitting, enough, i + 1)
        size = enough
        fitting = i
    return _go_on(runs, num_runs, size, num_sizes, fitting, num_sizes, ZERO), steps


@uncounted_inner
def _go_on(
    runs: IntArray, num_runs: int, size: int, num_sizes: int, start: int, next_size: int, stop: int
) -> int:
    """Extends the run of memory size ``size``, now down to ``start``, if the next start needs the same size.

    Otherwise closes it and opens a run of ``next_size`` that stops before ``stop``. ``num_sizes``
    means that no size is enough, so there is no run. Returns the number of closed runs.
    """
    if next_size == size:
        return num_runs
    if size < num_sizes:
        runs[0, num_runs] = start
        num_runs += 1
    if next_size < num_sizes:
        runs[1, num_runs] = stop
        runs[2, num_runs] = next_size
    return num_runs


@uncounted_inner
def _freshen(held: SegmentBytes, entered: LongArray, block: int) -> None:
    steady, entering, most = int64(0), int64(0), int64(0)
    for i in range((block + 1) * BLOCK - 1, block * BLOCK - 1, -1):
        steady += held.steady[i]
        entering += held.entering[i]
        most = max(most, steady + entering + entered[i])
    held.total[0, block], held.total[1, block], held.most_held[block] = steady, entering, most
    held.is_fresh[block] = True
