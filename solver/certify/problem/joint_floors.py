"""Seconds of each op that no legal fusion can save, additive over the ops of a kernel.

A kernel takes ``max(F, M) + overhead``, with ``F`` the seconds of its flops and ``M`` the seconds
of the bytes it moves. No kernel holds ops of two parts (:mod:`go_opt.solver.certify.problem.kernel_parts`),
so each part may use its own floors. Each of these choices gives valid floors per op:

* flops: ``F`` is a sum over ops;
* bytes: ``M`` is at least the bytes that move under any fusion: weights and inputs;
  activations between ops that never share a kernel; outputs;
* ``max(F, M)`` of matrix ops and zero for others: a kernel holds at most one matrix op.

The overhead is assigned to matrix ops, to reductions or to a chain (a kernel holds at most one of
each), or 1 / MAX_GROUP_OPS of it to every op. Each part takes the choices with the largest sums.
An op that cannot fuse keeps its own cost.

Two ops never share a kernel if the fusion rule (:mod:`go_opt.env.kernels.fusion`) forbids the pair,
or forbids an op on a path between them, because that op would have to be in the kernel too.
"""

from __future__ import annotations

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray, LongArray
from go_opt.common.compiling import compiled
from go_opt.env.cost import CostTables
from go_opt.env.kernels.fusion import ALONE, MATRIX_LOOP, MAX_GROUP_OPS, REDUCTION, LoopRoles
from go_opt.model.graph import ACTIVATION, NO_PRODUCER, Graph
from go_opt.solver.certify.problem.build import problem_of_units
from go_opt.solver.certify.problem.kernel_parts import KernelParts, kernel_parts
from go_opt.solver.certify.problem.problem import RefinementProblem


def joint_refinement_problem(
    graph: Graph,
    tables: CostTables,
    roles: LoopRoles,
    *,
    replicates: bool = False,
    tight: bool = True,
) -> RefinementProblem:
    """Returns a relaxation of joint placement, ordering and fusion; its bound holds for all of them.

    Args:
      replicates: whether stages may take several chips.
      tight: whether memory counts.
    """
    return problem_of_units(
        graph,
        tables,
        np.arange(graph.num_ops, dtype=np.int32),
        joint_floor_s(tables, roles),
        "free",
        apart=_never_together(tables, roles),
        replicates=replicates,
        tight=tight,
    )


def joint_floor_s(tables: CostTables, roles: LoopRoles) -> FloatArray:
    """Returns seconds [N]; their sum over ops on a chip is a lower bound for the kernels of these ops."""
    alone_s = np.where(tables.can_run, tables.kernel_floor_s(), np.inf).min(axis=0)
    flops_s = np.where(tables.can_run, tables.own_s(), np.inf).min(axis=0)
    parts = kernel_parts(roles)
    bytes_s = _unavoidable_bytes(tables, roles, parts) * float(tables.sram_s_per_byte.min())
    overhead_s = float(tables.kernel_overhead_s.min())
    is_matrix, is_reduction = roles.role == MATRIX_LOOP, roles.role == REDUCTION
    work = np.stack([flops_s, bytes_s, np.where(is_matrix, np.maximum(flops_s, bytes_s), 0.0)])
    some = np.full(len(is_matrix), 1.0 / MAX_GROUP_OPS)
    share = np.stack([is_matrix, is_reduction, parts.is_on_chain, some])
    fused_s = _best_choice(work, parts.part) + overhead_s * _best_choice(share, parts.part)
    fused_s = np.where(tables.is_measured(), flops_s, fused_s)
    return np.where(roles.role == ALONE, alone_s, fused_s)


def _best_choice(choices: FloatArray, part: LongArray) -> FloatArray:
    """Returns [N], for each part the values of the row of ``choices`` [C, N] with the largest sum."""
    sums = np.stack([np.bincount(part, weights=row) for row in choices])
    picked: FloatArray = np.take_along_axis(choices, np.argmax(sums, axis=0)[part][None], axis=0)[0]
    return picked


def _unavoidable_bytes(tables: CostTables, roles: LoopRoles, parts: KernelParts) -> FloatArray:
    """Returns the bytes [N] that each op's kernel must move for it; reads that may be shared are shared."""
    reader, tensor = tables.reader_op, tables.reader_tensor
    producer = tables.tensor_producer[tensor]
    is_internal = (producer != NO_PRODUCER) & (tables.tensor_kind[tensor] == ACTIVATION)
    apart = np.ones(len(reader), dtype=np.bool_)
    apart[is_internal] = _never_together(tables, roles)[is_internal]
    moved = np.zeros(tables.num_ops)
    np.add.at(moved, reader[apart], _shared_reads(tables, roles, parts, np.flatnonzero(apart)))
    must_write = tables.tensor_is_output.copy()
    must_write[tensor[is_internal & apart]] = True
    must_write &= tables.tensor_producer != NO_PRODUCER
    np.add.at(moved, tables.tensor_producer[must_write], tables.tensor_bytes[must_write])
    return moved


def _shared_reads(tables: CostTables, roles: LoopRoles, parts: KernelParts, reads: LongArray) -> FloatArray:
    """Returns the counted bytes of each of ``reads``; no reader is in the producer's kernel.

    Reads of one tensor by ops of one part may be one read, so together they count their mean.
    But a kernel holds at most one matrix op, one reduction and one op of a chain. So the reads
    of all ops of one such type count in full if that is more.
    """
    reader, size = tables.reader_op[reads], tables.read_bytes[reads].astype(np.float64)
    role = roles.role[reader]
    key = np.stack([tables.reader_tensor[reads], parts.part[reader]], axis=1)
    _, group, count = np.unique(key, axis=0, return_inverse=True, return_counts=True)
    group = group.reshape(-1)
    limited = role == MATRIX_LOOP, role == REDUCTION, parts.is_on_chain[reader]
    ways = np.stack([size / count[group], *(size * is_one for is_one in limited)])
    sums = np.stack([np.bincount(group, weights=way, minlength=len(count)) for way in ways])
    best: FloatArray = np.take_along_axis(ways, np.argmax(sums, axis=0)[group][None], axis=0)[0]
    return best


@compiled
def _never_together(tables: CostTables, roles: LoopRoles) -> BoolArray:
    """Returns [R] whether the reader and the tensor's producer are never in the same kernel."""
    role, elements, read_ptr, read_producer = roles
    reader, reader_ptr, tensor_producer = tables.reader_op, tables.reader_ptr, tables.tensor_producer
    apart = np.zeros(len(reader), np.bool_)
    ways = np.zeros(len(role), np.int8)
    for k in range(len(tensor_producer)):
        home = tensor_producer[k]
        if home < 0:
            continue
        last = home
        for r in range(reader_ptr[k], reader_ptr[k + 1]):
            op = reader[r]
            apart[r] = (
                role[home] == ALONE
                or role[home] == REDUCTION
                or role[op] == ALONE
                or elements[op] != elements[home]
                or (role[home] == MATRIX_LOOP and role[op] == MATRIX_LOOP)
            )
            if not apart[r]:
                last = max(last, op)
        # ways: 0 unreachable from home, 1 only through ops that may join, 2 through one that may not.
        ways[home] = 1
        for op in range(home + 1, last + 1):
            ways[op] = 0
            for i in range(read_ptr[op], read_ptr[op + 1]):
                if read_producer[i] >= home:
                    ways[op] = max(ways[op], ways[read_producer[i]])
            if ways[op] == 2:
                continue
            if ways[op] == 1 and (
                role[op] == ALONE or role[op] == REDUCTION or elements[op] != elements[home]
            ):
                ways[op] = 2
        for r in range(reader_ptr[k], reader_ptr[k + 1]):
            op = reader[r]
            if not apart[r]:
                for i in range(read_ptr[op], read_ptr[op + 1]):
                    if read_producer[i] >= home and ways[read_producer[i]] == 2:
                        apart[r] = True
    return apart
