"""For each end, the starts of the segments of a kernel sequence that fit in memory.

A segment needs its steady memory (double buffers of tensors that enter and leave it, stream buffer)
plus the peak of its live tensors (:mod:`go_opt.solver.slicing.segments.memory`).

* For a given end, steady memory is a sum over kernels whose summands do not depend on the start. An
  entering tensor counts at its last reader and is subtracted at its producer. A leaving tensor counts
  at its producer, the stream buffer at the last kernel that reads weights. Few summands change as
  the end moves on, so whole blocks of starts that surely fit are skipped at once.
* The peak of live tensors is computed only where memory may not suffice, while a segment grows
  towards its start. A new tensor is live from the first kernel on, so no kernel gains on the kernels
  before it. Only kernels fuller than all before them are kept.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, IntArray, LongArray
from go_opt.common.compiling import compiled, compiled_inner, int64, uncounted_inner
from go_opt.solver.slicing.segments.memory import SegmentMemory
from go_opt.solver.slicing.segments.problem import SliceProblem, least_hop_s_per_byte
from go_opt.solver.slicing.segments.starts import FittingStarts, first_start, with_room

BLOCK: Final = 64  # starts
ZERO, NONE = int64(0), int64(-1)  # numba compiles anew for every literal


class _Held(NamedTuple):
    """Steady memory of segments up to the current end. Axes: ``M`` kernels, ``K`` tensors, ``B`` blocks."""

    steady: LongArray  # [M] summands that are never negative
    entering: LongArray  # [M] summands that may be negative
    reader: LongArray  # [K] the tensor's last reader before the end, -1: none
    end_ptr: LongArray  # [M + 1]
    end: LongArray  # [...] tensors, without outputs, that each kernel is the last to read
    most_alive: LongArray  # [M] bound on the bytes alive at each kernel, in any segment
    is_fresh: BoolArray  # [B] whether ``total`` and ``most_held`` are up to date
    total: LongArray  # [2, B] sums of the summands
    most_held: LongArray  # [B] maximum over the starts in the block of the sum from there on
    most_alive_in: LongArray  # [B] maximum of ``most_alive``


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
    held = _nothing_held(memory)
    kept = np.empty((3, num_kernels), np.int64)
    is_reached = np.zeros(num_kernels + 1, np.bool_)
    is_reached[0] = True
    last_reached = np.zeros(num_kernels + 2, np.int64)  # the last reached cut before each cut
    most_saved_s = problem.again_s.sum()
    least_hop = least_hop_s_per_byte(problem, len(problem.hop_s_per_byte))
    slack_s = interval_s * (1.0 + 1e-13)
    first, usable = ZERO, 0
    for j in range(1, num_kernels + 1):
        _end_moves_on(memory, held, j - 1)
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
            memory, sizes_bytes, held, kept, is_reached, first, usable, j, runs, num_runs, most_steps[1]
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
    held: _Held,
    kept: LongArray,
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
                alive_bytes, peak_bytes = _grow(memory, grown, end, kept, alive_bytes, peak_bytes)
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
def _grow(
    memory: SegmentMemory, start: int, end: int, kept: LongArray, alive_bytes: int, peak_bytes: int
) -> tuple[int, int]:
    """Returns the bytes alive at ``start`` and the peak in [start, end), given those of [start + 1, end).

    ``upto`` is a forest: the root of a kernel is the last kept kernel at or before it.
    ``following`` is the next kept kernel, fuller by ``rise`` bytes, or -1.
    """
    upto, following, rise = kept[0], kept[1], kept[2]
    upto[start], following[start] = start, -1
    if start + 1 < end:
        if alive_bytes > 0:
            following[start], rise[start] = start + 1, alive_bytes
        else:  # nothing is alive at start + 1, so drop it
            upto[start + 1], following[start], rise[start] = start, following[start + 1], rise[start + 1]
    alive_bytes = int64(0)
    for w in range(memory.write_ptr[start], memory.write_ptr[start + 1]):
        tensor = memory.write[w]
        if memory.is_output[tensor] or memory.last[tensor] >= end:
            continue
        size = memory.size_bytes[tensor]
        alive_bytes += size
        kernel = memory.last[tensor]
        while upto[kernel] != kernel:
            upto[kernel] = upto[upto[kernel]]
            kernel = upto[kernel]
        if following[kernel] < 0:
            peak_bytes += size
            continue
        rise[kernel] -= size
        while following[kernel] >= 0 and rise[kernel] <= 0:
            after = following[kernel]
            upto[after] = kernel
            if following[after] < 0:
                peak_bytes -= rise[kernel]
            else:
                rise[kernel] += rise[after]
            following[kernel] = following[after]
    return alive_bytes, peak_bytes


@compiled_inner
def _nothing_held(memory: SegmentMemory) -> _Held:
    num_kernels = len(memory.entering_bytes)
    num_blocks = num_kernels // BLOCK + 1
    end_ptr, alive = np.zeros(num_kernels + 1, np.int64), np.zeros(num_kernels + 1, np.int64)
    for tensor in memory.write:
        if not memory.is_output[tensor]:
            end_ptr[memory.last[tensor] + 1] += 1
            alive[memory.home[tensor]] += memory.size_bytes[tensor]
            alive[memory.last[tensor] + 1] -= memory.size_bytes[tensor]
    for kernel in range(num_kernels):
        end_ptr[kernel + 1] += end_ptr[kernel]
        alive[kernel + 1] += alive[kernel]
    end, place = np.empty(end_ptr[num_kernels], np.int64), end_ptr.copy()
    for tensor in memory.write:
        if not memory.is_output[tensor]:
            end[place[memory.last[tensor]]] = tensor
            place[memory.last[tensor]] += 1
    most_alive_in = np.zeros(num_blocks, np.int64)
    for kernel in range(num_kernels):
        most_alive_in[kernel // BLOCK] = max(most_alive_in[kernel // BLOCK], alive[kernel])
    return _Held(
        np.zeros(num_kernels, np.int64),
        np.zeros(num_kernels, np.int64),
        np.full(len(memory.home), -1, np.int64),
        end_ptr,
        end,
        alive,
        np.zeros(num_blocks, np.bool_),
        np.zeros((2, num_blocks), np.int64),
        np.zeros(num_blocks, np.int64),
        most_alive_in,
    )


@uncounted_inner
def _end_moves_on(memory: SegmentMemory, held: _Held, kernel: int) -> None:
    """Moves the current end from before ``kernel`` to after it."""
    for w in range(memory.write_ptr[kernel], memory.write_ptr[kernel + 1]):
        _move(held, held.steady, NONE, kernel, 2 * memory.size_bytes[memory.write[w]])
    for e in range(held.end_ptr[kernel], held.end_ptr[kernel + 1]):
        tensor = held.end[e]
        _move(held, held.steady, memory.home[tensor], NONE, 2 * memory.size_bytes[tensor])
    for r in range(memory.read_ptr[kernel], memory.read_ptr[kernel + 1]):
        tensor = memory.read[r]
        home, before = memory.home[tensor], held.reader[tensor]
        summands = held.steady if home < 0 else held.entering
        _move(held, summands, before if before >= 0 else home, kernel, 2 * memory.size_bytes[tensor])
        held.reader[tensor] = kernel
    if memory.buffer_bytes[kernel] > 0:
        _move(held, held.steady, memory.buffer_before[kernel], kernel, memory.buffer_bytes[kernel])


@uncounted_inner
def _move(held: _Held, summands: LongArray, source: int, kernel: int, size: int) -> None:
    """Moves ``size`` bytes from the summand of ``source`` to that of ``kernel``; -1: no kernel."""
    if source >= 0:
        summands[source] -= size
        held.is_fresh[source // BLOCK] = False
    if kernel >= 0:
        summands[kernel] += size
        held.is_fresh[kernel // BLOCK] = False


@uncounted_inner
def _freshen(held: _Held, entered: LongArray, block: int) -> None:
    steady, entering, most = int64(0), int64(0), int64(0)
    for i in range((block + 1) * BLOCK - 1, block * BLOCK - 1, -1):
        steady += held.steady[i]
        entering += held.entering[i]
        most = max(most, steady + entering + entered[i])
    held.total[0, block], held.total[1, block], held.most_held[block] = steady, entering, most
    held.is_fresh[block] = True
