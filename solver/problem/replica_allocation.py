"""Chips for stages whose ops are given: the replication that gives the least interval."""

from __future__ import annotations

from heapq import heapify, heapreplace
from typing import Final

import numpy as np

from go_opt.common.arrays import FloatArray, LongArray

_ROUNDING: Final = 1e-12


def allocated_chips(work_s: FloatArray, num_chips: int, floor_s: float = 0.0) -> LongArray:
    """Returns the fewest chips [S] of each stage that reach the least interval.

    Args:
      work_s: [S] seconds of each stage on one chip; ``num_chips`` must be at least S.
      floor_s: a lower bound on the interval, which more chips cannot improve.
    """
    size = allocate_chips(np.asarray(work_s, dtype=np.float64), num_chips)
    interval_s = max(float((work_s / size).max()), floor_s)
    if interval_s == 0.0:
        return np.ones_like(size)
    return np.maximum(1, np.ceil(work_s / interval_s * (1.0 - _ROUNDING))).astype(np.int64)


def allocate_chips(work_s: FloatArray, num_chips: int) -> LongArray:
    """Returns sizes [S] that divide ``num_chips`` among stages, at least one each, for the least interval."""
    size = np.ones(len(work_s), np.int64)
    longest = [(-seconds, s) for s, seconds in enumerate(work_s.tolist())]
    heapify(longest)
    for _ in range(num_chips - len(work_s)):
        s = longest[0][1]
        size[s] += 1
        heapreplace(longest, (-float(work_s[s]) / int(size[s]), s))
    return size
