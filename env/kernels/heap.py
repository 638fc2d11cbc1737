"""A binary heap of item numbers by priority, for compiled kernels; ties go to the lower number."""

from __future__ import annotations

from go_opt.common.arrays import FloatArray, LongArray
from go_opt.common.compiling import uncounted_inner


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
