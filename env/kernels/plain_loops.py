"""Loops in place of NumPy calls in compiled kernels, which numba compiles in a tenth of the time; a heap."""

from __future__ import annotations

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray
from go_opt.common.compiling import compiled_inner, int64, uncounted_inner

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


@uncounted_inner
def _before(a: int, b: int, priority: FloatArray | LongArray) -> bool:
    return priority[a] > priority[b] or (priority[a] == priority[b] and a < b)


@uncounted_inner
def heap_push(heap: LongArray, size: int, item: int, priority: FloatArray | LongArray) -> int:
    """Add ``item`` to the first ``size`` items of ``heap``; returns the new size."""
    i = size
    while i > 0 and _before(item, heap[(i - 1) // 2], priority):
        heap[i] = heap[(i - 1) // 2]
        i = (i - 1) // 2
    heap[i] = item
    return size + 1


@uncounted_inner
def heap_pop(heap: LongArray, size: int, priority: FloatArray | LongArray) -> int:
    """Remove ``heap[0]``, the item of highest priority; returns the new size."""
    size -= 1
    item = heap[size]
    i = 0
    while 2 * i + 1 < size:
        child = 2 * i + 1
        if child + 1 < size and _before(heap[child + 1], heap[child], priority):
            child += 1
        if not _before(heap[child], item, priority):
            break
        heap[i] = heap[child]
        i = child
    heap[i] = item
    return size
