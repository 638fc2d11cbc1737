"""Which ops may share a kernel, the default greedy fusion, and fusion by priorities.

A fusion group is one loop nest (design section 5). The complete rule:

* at most one ``matrix`` op: its accumulators fill the registers;
* element-wise ``vector`` ops and the matrix op's result have the same number of
  elements, since they share the loop over them;
* a reduction only as the last op, over that number of elements: its result is known
  only after the loop;
* no ``data_movement`` op (views are not ops) and no other vector op (scans and sorts share no loop);
* ops of measured cost fuse only with each other: the cost of a mixed kernel is unknown;
* at most ``MAX_GROUP_OPS`` ops: the live values of a loop body must fit the registers;
* the ops are adjacent in the order, so contracting all groups leaves the graph acyclic.

The ops of a pattern that the target's runtime has as one kernel
(:mod:`go_opt.model.kernel_patterns`) share a loop of their own, whatever they are: all of
them, or some, may be one kernel, with no other op.

*Fusion by priorities* joins and splits the default kernels. The priority of an op says how strongly it
should share a kernel with its producers. The edge from u to v scores ``priority[v] + 1`` if the default
fusion has u and v in one kernel, and ``priority[v] - 1`` otherwise. Edges of positive score are visited by
falling score (then by reader, then the nearest producer first). The kernels of both ends are joined if that
is legal: they are one loop nest, and the contraction of all kernels stays acyclic. So priorities between -1
and 1 give exactly the default fusion. A priority above 1 also joins kernels that are not adjacent in the
default order; one below -1 takes the op off the kernel before it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, CodeArray, FloatArray, IntArray, LongArray
from go_opt.common.compiling import compiled, compiled_inner, int64, uncounted_inner
from go_opt.env.kernels.numbering import number_kernels
from go_opt.model.graph import ACTIVATION, DATA_MOVEMENT, MATRIX, NO_PRODUCER, Graph
from go_opt.model.kernel_patterns import pattern_kernels
from go_opt.model.op_costs import is_elementwise, is_reduction

MAX_GROUP_OPS: Final = 32
_PATTERN: Final = 1 << 61  # the trip count of a pattern's first match; those of loops are less
_MEASURED: Final = 1 << 62  # added to the trip counts of ops of measured cost
ALONE, MATRIX_LOOP, ELEMENTWISE, REDUCTION = range(4)


class LoopRoles(NamedTuple):
    """The properties of each op that the fusion rule uses. Axis: ``N`` ops."""

    role: CodeArray  # [N] ALONE, MATRIX_LOOP, ELEMENTWISE or REDUCTION
    loop_elements: LongArray  # [N] trip count of the op's loop: equal for ops that may share one
    read_ptr: LongArray  # [N + 1]
    read_producer: IntArray  # [...] producers each op reads from


@lru_cache(maxsize=16)
def loop_roles(graph: Graph, patterns: tuple[str, ...] = (), *, in_parts: bool = False) -> LoopRoles:
    """The role and trip count of each op of ``graph`` on a target with these ``kernel_patterns``.

    Args:
      in_parts: for bounds of plans that split ops, whose parts may also be in kernels of no pattern.
    """
    written = _largest_written(graph)
    read = _largest_read(graph)
    role = np.full(graph.num_ops, ALONE, dtype=np.int8)
    kinds = [~np.isnan(seconds) for seconds in graph.measured_s.values()] or [
        np.zeros(graph.num_ops, np.bool_)
    ]
    everywhere, somewhere = np.all(kinds, axis=0), np.any(kinds, axis=0)
    role[graph.has_type(is_elementwise) & (read <= written)] = ELEMENTWISE
    role[graph.has_type(is_reduction)] = REDUCTION
    role[graph.op_class == MATRIX] = MATRIX_LOOP
    role[(somewhere > everywhere) | (graph.op_class == DATA_MOVEMENT)] = ALONE
    read_ptr, read_producer = graph.predecessors
    loop_elements = np.where(role == REDUCTION, read, written) + _MEASURED * everywhere
    for match, ops in enumerate(pattern_kernels(graph, patterns)):
        if len(ops) <= MAX_GROUP_OPS and not somewhere[ops].any():
            role[ops], loop_elements[ops] = ELEMENTWISE, _PATTERN + match
            if not in_parts or graph.op_class[ops[-1]] == MATRIX:
                role[ops[-1]] = MATRIX_LOOP  # so that bounds count an overhead for each match
    return LoopRoles(role, loop_elements, read_ptr, read_producer)


def greedy_fusion(roles: LoopRoles, order: IntArray) -> IntArray:
    """[N] group of each op: along ``order``, an op joins the kernel before it if that is legal.

    The op must also read a result of that kernel: a kernel without data flow between its
    ops would only tie unrelated branches to one chip.
    """
    return _greedy_fusion(roles, order)


def fused_within_chips(roles: LoopRoles, order: IntArray, placement: IntArray) -> IntArray:
    """[N] greedy kernels along ``order`` [N], cut where the chip changes: each is on one chip."""
    return number_kernels(order, greedy_fusion(roles, order) * (placement.max() + 1) + placement)


def is_one_loop(roles: LoopRoles, ops: IntArray) -> bool:
    """Whether ``ops``, in execution order, may be one kernel."""
    if len(ops) == 1:
        return True
    kinds, elements = roles.role[ops], roles.loop_elements[ops]
    return bool(
        len(ops) <= MAX_GROUP_OPS
        and (kinds != ALONE).all()
        and (kinds == MATRIX_LOOP).sum() <= 1
        and (kinds[:-1] != REDUCTION).all()
        and (elements == elements[0]).all()
    )


def are_one_loop(roles: LoopRoles, order: IntArray, starts: LongArray) -> BoolArray:
    """[S] :func:`is_one_loop` of each run of ``order`` [N] between ``starts`` [S]; ``starts[0]`` is 0."""
    kinds, elements = roles.role[order], roles.loop_elements[order]
    sizes = np.diff(starts, append=len(order))
    is_last = np.zeros(len(order), dtype=np.bool_)
    is_last[starts + sizes - 1] = True
    is_wrong = (kinds == ALONE) | ((kinds == REDUCTION) & ~is_last)
    is_wrong |= elements != np.repeat(elements[starts], sizes)
    wrong, matrices = (
        np.add.reduceat(flags.astype(np.int64), starts) for flags in (is_wrong, kinds == MATRIX_LOOP)
    )
    legal: BoolArray = (sizes == 1) | ((sizes <= MAX_GROUP_OPS) & (wrong == 0) & (matrices <= 1))
    return legal


def may_share(roles: LoopRoles, before: IntArray, behind: IntArray) -> BoolArray:
    """[E] whether both ops of an edge may be in one kernel, regardless of its other ops."""
    role, elements = roles.role, roles.loop_elements
    may: BoolArray = (role[before] != ALONE) & (role[behind] != ALONE) & (role[before] != REDUCTION)
    may &= elements[before] == elements[behind]
    return may & ((role[before] != MATRIX_LOOP) | (role[behind] != MATRIX_LOOP))


@compiled
def _greedy_fusion(roles: LoopRoles, order: IntArray) -> IntArray:
    group = np.empty(len(order), np.int32)
    current = -1
    size = 0
    has_matrix = False
    closed = True
    elements = int64(0)
    for op in order:
        role = roles.role[op]
        reads_current = False
        for i in range(roles.read_ptr[op], roles.read_ptr[op + 1]):
            # Producers come before op in the order, so their groups are known.
            reads_current |= not closed and group[roles.read_producer[i]] == current
        if not (
            reads_current
            and role != ALONE
            and size < MAX_GROUP_OPS
            and not (role == MATRIX_LOOP and has_matrix)
            and roles.loop_elements[op] == elements
        ):
            current += 1
            size = 0
            has_matrix = False
            elements = roles.loop_elements[op]
        group[op] = current
        size += 1
        has_matrix |= role == MATRIX_LOOP
        closed = role in (ALONE, REDUCTION)
    return group


def _largest_written(graph: Graph) -> LongArray:
    largest = np.zeros(graph.num_ops, dtype=np.int64)
    produced = graph.tensor_producer != NO_PRODUCER
    np.maximum.at(largest, graph.tensor_producer[produced], graph.tensor_elements[produced])
    return largest


def _largest_read(graph: Graph) -> LongArray:
    largest = np.zeros(graph.num_ops, dtype=np.int64)
    is_activation = graph.tensor_kind[graph.reader_tensor] == ACTIVATION
    np.maximum.at(largest, graph.reader_op[is_activation], graph.reader_elements[is_activation])
    return largest


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
