"""The segments of a kernel sequence that fit in memory, as runs of starts for each end."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, IntArray, LongArray
from go_opt.common.compiling import compiled_inline, compiled_inner
from go_opt.solver.slicing.segments.problem import SliceProblem


class FittingStarts(NamedTuple):
    """Runs of starts, the last ones first. Axes: ``M`` kernels, ``R`` runs."""

    run_ptr: LongArray  # [M + 2] runs of each end
    start: IntArray  # [R] starts from here …
    stop: IntArray  # [R] … and before here
    size: IntArray  # [R] index of the least memory size that is enough
    steps: int  # starts and blocks of starts visited, plus kernels added to segments
    is_complete: bool  # False: the step limit ended the search


def all_starts(num_kernels: int) -> FittingStarts:
    """Returns all starts, for problems without memory limits."""
    ends = np.arange(num_kernels + 2)
    none = np.zeros(num_kernels, dtype=np.int32)
    return FittingStarts(np.maximum(ends - 1, 0), none, ends[1:-1].astype(np.int32), none, 0, True)


def sure_starts(fits: FittingStarts, reach: LongArray) -> tuple[BoolArray, LongArray]:
    """Returns which starts fit to every end that an earlier start fits to, and the first start by end.

    Args:
      reach: [M + 1] the first end of each start.

    Returns:
      [M + 1] whether each start is sure in this sense; [M + 1] the first start that fits to this end or
      a later end.
    """
    num_kernels = len(reach) - 1
    usable = np.searchsorted(reach[:-1], np.arange(num_kernels + 1), side="right")
    runs = np.diff(fits.run_ptr)
    end = np.repeat(np.arange(num_kernels + 1), runs)
    is_first = np.arange(len(end)) == fits.run_ptr[end]
    # Starts between a run and the next run, or the last usable start, do not fit.
    behind = np.where(is_first, usable[end], np.roll(fits.start, 1))
    misses = np.zeros(num_kernels + 2, dtype=np.int64)
    np.add.at(misses, fits.stop, 1)
    np.add.at(misses, np.maximum(behind, fits.stop), -1)
    lowest = np.full(num_kernels + 1, num_kernels)
    lowest[runs > 0] = fits.start[fits.run_ptr[1:][runs > 0] - 1]
    return np.cumsum(misses[:-1]) == 0, np.minimum.accumulate(lowest[::-1])[::-1].copy()


@compiled_inline
def first_start(problem: SliceProblem, start: int, end: int, work_s: float) -> int:
    """Returns the first start >= ``start`` of a permitted segment to ``end`` of at most ``work_s``."""
    while start < end and (least_work_s(problem, start, end) > work_s or problem.latest[start] < end):
        start += 1
    return start


@compiled_inline
def least_work_s(problem: SliceProblem, start: int, end: int) -> float:
    """Returns the kernel seconds of segment [start, end) on its fastest kind."""
    least_s = np.inf
    for kind in range(len(problem.prefix_s)):
        least_s = min(least_s, problem.prefix_s[kind, end] - problem.prefix_s[kind, start])
    return least_s


@compiled_inner
def with_room(runs: IntArray, number: int) -> IntArray:
    """Returns ``runs`` with room for ``number`` runs."""
    if number <= runs.shape[1]:
        return runs
    larger = np.empty((3, 2 * number), np.int32)
    for row in range(3):
        for i in range(runs.shape[1]):
            larger[row, i] = runs[row, i]
    return larger
