"""Loops in place of NumPy calls in compiled kernels: numba compiles them in a tenth of the time."""

from __future__ import annotations

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray
from go_opt.common.compiling import compiled_inner, int64

_RUN = 16  # length of the runs that insertion sorts


@compiled_inner
def largest(values: IntArray | LongArray | FloatArray) -> int | float:
    """The largest of ``values``, which are not empty."""
    most = values[0]
    for value in values:
        most = max(most, value)
    return most


@compiled_inner
def stable_order(keys: FloatArray) -> LongArray:
    """[n] the indices of ``keys`` [n] in ascending order of keys, by a stable merge sort."""
    size = len(keys)
    order, merged = np.empty(size, np.int64), np.empty(size, np.int64)
    for i in range(size):
        at = i
        while at % _RUN > 0 and keys[order[at - 1]] > keys[i]:
            order[at] = order[at - 1]
            at -= 1
        order[at] = i
    width = int64(_RUN)
    while width < size:
        for begin in range(0, size, 2 * width):
            middle, end = min(begin + width, size), min(begin + 2 * width, size)
            left, right = begin, middle
            is_sorted = middle >= end or keys[order[middle - 1]] <= keys[order[middle]]
            for at in range(begin, end):
                if right >= end or (left < middle and (is_sorted or keys[order[left]] <= keys[order[right]])):
                    merged[at] = order[left]
                    left += 1
                else:
                    merged[at] = order[right]
                    right += 1
        order, merged = merged, order
        width *= 2
    return order
