"""List scheduling of kernels by priority, and levels of ops (depth, height) to derive priorities from."""

from __future__ import annotations

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray, csr
from go_opt.common.compiling import compiled, int64
from go_opt.env.kernels.plain_loops import heap_pop, heap_push
from go_opt.model.graph import Graph


def list_schedule(graph: Graph, fusion_group: IntArray, priority: FloatArray) -> IntArray:
    """[N] a topological order in which, of all ready kernels, the one of highest priority is next.

    Ops of a kernel stay in storage order. Kernels on a cycle or behind one are left out.

    Args:
      fusion_group: [N] kernel of each op, numbered 0 … M - 1.
      priority: [M]; ties go to the lower kernel number.
    """
    source, reader = fusion_group[graph.edge_src], fusion_group[graph.edge_dst]
    is_between = source != reader
    source, reader = source[is_between], reader[is_between]
    num_kernels = len(priority)
    place = np.full(num_kernels, -1)
    pointers, by_source = csr(source, num_kernels)
    num_read = np.bincount(reader, minlength=num_kernels)
    schedule_kernels(pointers, reader[by_source], num_read, priority, place)
    place_of_op = place[fusion_group]
    return np.argsort(place_of_op, kind="stable")[(place_of_op < 0).sum() :].astype(np.int32)


def depth(graph: Graph) -> FloatArray:
    """[N] number of ops on the longest path that ends before the op."""
    return _longest_before(*graph.predecessors, np.arange(graph.num_ops, dtype=np.int32))


def height(graph: Graph) -> FloatArray:
    """[N] number of ops on the longest path that starts after the op."""
    return _longest_before(*graph.successors, np.arange(graph.num_ops, dtype=np.int32)[::-1].copy())


@compiled
def _longest_before(ptr: LongArray, neighbour: IntArray, visiting_order: IntArray) -> FloatArray:
    longest = np.zeros(len(visiting_order))
    for op in visiting_order:
        for i in range(ptr[op], ptr[op + 1]):
            longest[op] = max(longest[op], longest[neighbour[i]] + 1.0)
    return longest


@compiled
def schedule_kernels(
    successor_ptr: LongArray, successor: IntArray, num_read: LongArray, priority: FloatArray, place: LongArray
) -> None:
    """Fill in the place [M] of each kernel: of all ready kernels, the one of highest priority is next.

    Args:
      successor_ptr, successor: [M + 1] and CSR of the kernels that read from each kernel, which may
        repeat.
      num_read: [M] how often each kernel occurs in ``successor``.
    """
    waits_for = num_read.copy()
    heap = np.empty(len(place), np.int64)
    size = int64(0)
    for kernel in range(len(place)):
        if waits_for[kernel] == 0:
            size = heap_push(heap, size, kernel, priority)
    at = 0
    while size > 0:
        kernel = heap[0]
        size = heap_pop(heap, size, priority)
        place[kernel] = at
        at += 1
        for i in range(successor_ptr[kernel], successor_ptr[kernel + 1]):
            reader = int64(successor[i])
            waits_for[reader] -= 1
            if waits_for[reader] == 0:
                size = heap_push(heap, size, reader, priority)
