"""Which ops may share a kernel, and the default greedy fusion.

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
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, CodeArray, IntArray, LongArray
from go_opt.common.compiling import compiled, int64
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
