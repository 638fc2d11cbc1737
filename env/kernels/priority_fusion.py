"""Fusion by priorities: the default kernels, joined and split as priorities say.

The priority of an op says how strongly it should share a kernel with its producers. The edge
from u to v scores ``priority[v] + 1`` if the default fusion has u and v in one kernel, and
``priority[v] - 1`` otherwise. Edges of positive score are visited by falling score (then by
reader, then the nearest producer first). The kernels of both ends are joined if
that is legal: they are one loop nest (:mod:`go_opt.env.kernels.fusion`), and the contraction of all
kernels stays acyclic. So priorities between -1 and 1 give exactly the default fusion. A
priority above 1 also joins kernels that are not adjacent in the default order; one below -1
takes the op off the kernel before it.
"""

from __future__ import annotations

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray
from go_opt.common.compiling import compiled, compiled_inner, uncounted_inner
from go_opt.env.kernels.fusion import ALONE, MATRIX_LOOP, MAX_GROUP_OPS, REDUCTION, LoopRoles
from go_opt.model.graph import Graph

EMPTY = -1


def priority_fusion(
    graph: Graph, roles: LoopRoles, default_group: IntArray, priority: FloatArray
) -> IntArray:
    """[N] kernel of each op, numbered 0 … M - 1 along a topological order of the kernels.

    Args:
      default_group: [N] of :func:`go_opt.env.kernels.fusion.greedy_fusion` in storage order.
      priority: [N] finite; all between -1 and 1 gives ``default_group``.
    """
    source, reader = graph.edge_src, graph.edge_dst
    is_default = default_group[source] == default_group[reader]
    score = priority[reader] + np.where(is_default, 1.0, -1.0)
    by_score = np.lexsort((-source, reader, -score))
    visited = by_score[score[by_score] > 0.0]
    return _priority_fusion(roles, source[visited], reader[visited])


@compiled
def _priority_fusion(roles: LoopRoles, source: IntArray, reader: IntArray) -> IntArray:
    num_ops = len(roles.role)
    kernel_of = np.empty(num_ops, np.int32)  # a kernel's number is one of its ops
    following = np.empty(num_ops, np.int32)  # the members of a kernel as a cycle
    size = np.empty(num_ops, np.int32)
    last = np.empty(num_ops, np.int32)  # member, in storage order
    matrix_ops = np.empty(num_ops, np.int32)
    reductions = np.empty(num_ops, np.int32)
    # Kernels in a topological order of the contraction; EMPTY at places freed by joins.
    sequence = np.empty(num_ops, np.int32)
    place = np.empty(num_ops, np.int32)
    behind = np.empty(num_ops, np.int64)  # last edge from whose source a path leads to the kernel
    for op in range(num_ops):
        kernel_of[op] = op
        following[op] = op
        size[op] = 1
        last[op] = op
        matrix_ops[op] = roles.role[op] == MATRIX_LOOP
        reductions[op] = roles.role[op] == REDUCTION
        sequence[op] = op
        place[op] = op
        behind[op] = -1
    for e in range(len(source)):
        first = kernel_of[source[e]]
        second = kernel_of[reader[e]]
        joined_last = max(last[first], last[second])
        if (
            first == second
            or roles.role[first] == ALONE
            or roles.role[second] == ALONE
            or roles.loop_elements[first] != roles.loop_elements[second]
            or size[first] + size[second] > MAX_GROUP_OPS
            or matrix_ops[first] + matrix_ops[second] > 1
            or reductions[first] + reductions[second] > 1
            # A reduction ends its kernel, and members run in storage order.
            or (reductions[first] + reductions[second] == 1 and roles.role[joined_last] != REDUCTION)
            or _is_bypassed(roles, kernel_of, following, sequence, place, first, second, e, behind)
        ):
            continue
        _close_up(sequence, place, first, second, e, behind)
        size[first] += size[second]
        last[first] = joined_last
        matrix_ops[first] += matrix_ops[second]
        reductions[first] += reductions[second]
        member = second
        for _ in range(size[second]):
            kernel_of[member] = first
            member = following[member]
        following[first], following[second] = following[second], following[first]
    return _numbered(kernel_of, sequence)


@uncounted_inner
def _is_bypassed(
    roles: LoopRoles,
    kernel_of: IntArray,
    following: IntArray,
    sequence: IntArray,
    place: IntArray,
    first: int,
    second: int,
    e: int,
    behind: LongArray,
) -> bool:
    """Whether a path leads from ``first`` to ``second`` through another kernel.

    Such a path lies between their places. ``behind`` becomes ``e`` for ``first`` and kernels it leads to.
    """
    behind[first] = e
    for i in range(place[first] + 1, place[second]):
        kernel = sequence[i]
        if kernel != EMPTY and _reads_behind(roles, kernel_of, following, kernel, EMPTY, e, behind):
            behind[kernel] = e
    return _reads_behind(roles, kernel_of, following, second, first, e, behind)


@uncounted_inner
def _reads_behind(
    roles: LoopRoles,
    kernel_of: IntArray,
    following: IntArray,
    kernel: int,
    excepted: int,
    e: int,
    behind: LongArray,
) -> bool:
    op = kernel
    while True:
        for i in range(roles.read_ptr[op], roles.read_ptr[op + 1]):
            read = kernel_of[roles.read_producer[i]]
            if behind[read] == e and read != excepted:
                return True
        op = following[op]
        if op == kernel:
            return False


@compiled_inner
def _close_up(
    sequence: IntArray, place: IntArray, first: int, second: int, e: int, behind: LongArray
) -> None:
    """Put both kernels in one place; of those between, the ones that depend on ``first`` go behind it."""
    begin, end = place[first], place[second]
    waiting = np.empty(end - begin, np.int32)
    num_waiting = 0
    free = begin
    for i in range(begin + 1, end):
        kernel = sequence[i]
        if kernel == EMPTY:
            continue
        if behind[kernel] == e:
            waiting[num_waiting] = kernel
            num_waiting += 1
        else:
            sequence[free] = kernel
            place[kernel] = free
            free += 1
    sequence[free] = first
    place[first] = free
    for w in range(num_waiting):
        free += 1
        sequence[free] = waiting[w]
        place[waiting[w]] = free
    for i in range(free + 1, end + 1):
        sequence[i] = EMPTY


@compiled_inner
def _numbered(kernel_of: IntArray, sequence: IntArray) -> IntArray:
    number = np.empty(len(sequence), np.int32)
    count = 0
    for kernel in sequence:
        if kernel != EMPTY:
            number[kernel] = count
            count += 1
    group = np.empty(len(kernel_of), np.int32)
    for op in range(len(kernel_of)):
        group[op] = number[kernel_of[op]]
    return group
