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
    order, lower = np.empty(size, np.int64), np.empty(size, np.int64)
    for i in range(size):
        at = i
        while at % _RUN > 0 and keys[order[at - 1]] > keys[i]:
            order[at] = order[at - 1]
            at -= 1
        order[at] = i
    width = int64(_RUN)
    while width < size:
        for begin in range(0, size - width, 2 * width):
            middle, end = begin + width, min(begin + 2 * width, size)
            if keys[order[middle - 1]] <= keys[order[middle]]:
                continue
            for i in range(begin, middle):
                lower[i] = order[i]
            left, right, at = begin, middle, begin
            while left < middle:  # what is left of the other run is in its place then
                if right < end and keys[order[right]] < keys[lower[left]]:
                    order[at] = order[right]
                    right += 1
                else:
                    order[at] = lower[left]
                    left += 1
                at += 1
        width *= 2
    return order
