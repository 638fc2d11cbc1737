"""Execution orders: list scheduling of kernels by priority, and the levels priorities come from."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from go_opt.env.kernels.heap import heap_pop, heap_push
from go_opt.model.csr import row_pointers
from go_opt.model.graph import Graph


def list_schedule(
    graph: Graph, fusion_group: NDArray[np.int32], priority: NDArray[np.float64]
) -> NDArray[np.int32]:
    """[N] a topological order in which, of all ready kernels, the one of highest priority is next.

    Args:
      fusion_group: [N] kernel of each op, numbered 0 … M - 1; contracting must leave the
        graph acyclic.
      priority: [M]; ties go to the lower kernel number. Ops of a kernel keep their
        order of storage.
    """
    num_kernels = int(fusion_group.max()) + 1
    member_ptr = row_pointers(fusion_group, num_kernels)
    members = np.argsort(fusion_group, kind="stable").astype(np.int32)
    successor_ptr, successor = graph.successors
    return _list_schedule(successor_ptr, successor, fusion_group, member_ptr, members, priority)


def depth(graph: Graph) -> NDArray[np.float64]:
    """[N] number of ops on the longest path that ends before the op."""
    return _longest_before(*graph.predecessors, np.arange(graph.num_ops, dtype=np.int32))


def height(graph: Graph) -> NDArray[np.float64]:
    """[N] number of ops on the longest path that starts after the op."""
    return _longest_before(*graph.successors, np.arange(graph.num_ops, dtype=np.int32)[::-1].copy())


@njit(cache=True, nogil=True)
def _longest_before(ptr, neighbour, visiting_order):
    longest = np.zeros(len(visiting_order))
    for op in visiting_order:
        for i in range(ptr[op], ptr[op + 1]):
            longest[op] = max(longest[op], longest[neighbour[i]] + 1.0)
    return longest


@njit(cache=True, nogil=True)
def _list_schedule(successor_ptr, successor, group, member_ptr, members, priority):
    num_ops = len(group)
    num_kernels = len(priority)
    waits_for = np.zeros(num_kernels, np.int64)
    for op in range(num_ops):
        for i in range(successor_ptr[op], successor_ptr[op + 1]):
            if group[successor[i]] != group[op]:
                waits_for[group[successor[i]]] += 1
    heap = np.empty(num_kernels, np.int64)
    size = np.int64(0)
    for kernel in range(num_kernels):
        if waits_for[kernel] == 0:
            size = heap_push(heap, size, kernel, priority)
    order = np.empty(num_ops, np.int32)
    placed = 0
    while size > 0:
        kernel = heap[0]
        size = heap_pop(heap, size, priority)
        for m in range(member_ptr[kernel], member_ptr[kernel + 1]):
            op = members[m]
            order[placed] = op
            placed += 1
            for i in range(successor_ptr[op], successor_ptr[op + 1]):
                reader = np.int64(group[successor[i]])
                if reader != kernel:
                    waits_for[reader] -= 1
                    if waits_for[reader] == 0:
                        size = heap_push(heap, size, reader, priority)
    return order[:placed]
