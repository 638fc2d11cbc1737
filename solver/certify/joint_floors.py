"""Seconds of each op that no legal fusion can save, additive over the ops of a kernel.

A kernel takes ``max(F, M) + overhead``, with ``F`` the seconds of its flops and ``M`` the seconds
of the bytes it moves. No kernel holds ops of two parts,
so each part may use its own floors. Each of these choices gives valid floors per op:

* flops: ``F`` is a sum over ops;
* bytes: ``M`` is at least the bytes that move under any fusion: weights and inputs;
  activations between ops that never share a kernel; outputs;
* ``max(F, M)`` of matrix ops and zero for others: a kernel holds at most one matrix op.

The overhead is assigned to matrix ops, to reductions or to a chain (a kernel holds at most one of
each), or 1 / MAX_GROUP_OPS of it to every op. Each part takes the choices with the largest sums.
An op that cannot fuse keeps its own cost.

Two ops never share a kernel if the fusion rule (:mod:`go_opt.env.kernels.fusion`) forbids the pair,
or forbids an op on a path between them, because that op would have to be in the kernel too. So u and v are
*separated* if such an op, or u, fuses with nothing, has another trip count, or is a reduction.
*Parts* are the connected components after joining all pairs of ops that may share a kernel;
no kernel holds ops of two parts. In a *chain*, each op is separated from all before it, so a
kernel holds at most one of them, whether or not they are matrix ops or reductions.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, CodeArray, FloatArray, IntArray, LongArray
from go_opt.common.compiling import compiled, int64, uncounted_inner
from go_opt.env.cost.tables import CostTables
from go_opt.env.kernels.fusion import ALONE, MATRIX_LOOP, MAX_GROUP_OPS, REDUCTION, LoopRoles
from go_opt.model.graph import ACTIVATION, NO_PRODUCER, Graph
from go_opt.solver.certify.build import problem_of_units
from go_opt.solver.certify.problem import RefinementProblem

MOST_OPS: Final = 8192  # larger graphs have one part per trip count: ancestor sets take N^2 bits


class KernelParts(NamedTuple):
    """Axis: ``N`` ops."""

    part: LongArray  # [N] no kernel holds ops of two parts
    is_on_chain: BoolArray  # [N] a kernel holds at most one of these


def kernel_parts(roles: LoopRoles) -> KernelParts:
    """Returns the parts, and the longest chain of each."""
    num_ops = len(roles.role)
    # Ops that fuse with nothing have negative trip counts of their own.
    loop = np.where(roles.role == ALONE, -1 - np.arange(num_ops), roles.loop_elements)
    _, loop = np.unique(loop, return_inverse=True)
    if num_ops > MOST_OPS:
        return KernelParts(loop.astype(np.int64), np.zeros(num_ops, np.bool_))
    words = (num_ops + 63) // 64
    separated = _separated(roles.role, loop, roles.read_ptr, roles.read_producer, words)
    by_loop = np.argsort(loop, kind="stable")
    part, is_on_chain = _parts(roles.role, loop, by_loop, separated)
    return KernelParts(part, is_on_chain)


@compiled
def _separated(
    role: CodeArray, loop: LongArray, read_ptr: LongArray, read_producer: IntArray, words: int
) -> LongArray:
    """Returns the sets [N, W] of ancestors separated from each op; an op is bit ``op % 64`` of a word."""
    num_ops = len(role)
    above = np.zeros((num_ops, words), np.int64)
    separated = np.zeros((num_ops, words), np.int64)
    for op in range(num_ops):
        for i in range(read_ptr[op], read_ptr[op + 1]):
            read = read_producer[i]
            may_join = role[read] != REDUCTION and loop[read] == loop[op]
            for word in range(words):
                above[op, word] |= above[read, word]
                separated[op, word] |= separated[read, word] if may_join else above[read, word]
            bit = int64(1) << (read & 63)
            above[op, read >> 6] |= bit
            if not may_join:
                separated[op, read >> 6] |= bit
    return separated


@compiled
def _parts(
    role: CodeArray, loop: LongArray, by_loop: LongArray, separated: LongArray
) -> tuple[LongArray, BoolArray]:
    num_ops = len(role)
    root = np.arange(num_ops)
    for j in range(num_ops):
        op = by_loop[j]
        i = j - 1
        while i >= 0 and loop[by_loop[i]] == loop[op]:
            before = by_loop[i]
            i -= 1
            if (separated[op, before >> 6] >> (before & 63)) & 1 or (
                role[op] == role[before] and (role[op] == MATRIX_LOOP or role[op] == REDUCTION)
            ):
                continue
            first, second = root_of(root, before), root_of(root, op)
            root[max(first, second)] = min(first, second)
    for op in range(num_ops):
        root[op] = root[root[op]]  # a root has the lowest number of its part
    length = np.ones(num_ops, np.int64)
    back = np.full(num_ops, -1, np.int64)
    last = root.copy()  # of the longest chain of each part
    for j in range(num_ops):
        op = by_loop[j]
        i = j - 1
        while i >= 0 and loop[by_loop[i]] == loop[op]:
            before = by_loop[i]
            i -= 1
            if (
                root[before] == root[op]
                and length[before] >= length[op]
                and (separated[op, before >> 6] >> (before & 63)) & 1
            ):
                length[op] = length[before] + 1
                back[op] = before
        if length[op] > length[last[root[op]]]:
            last[root[op]] = op
    is_on_chain = np.zeros(num_ops, np.bool_)
    for op in range(num_ops):
        if root[op] == op:
            at = last[op]
            while at >= 0:
                is_on_chain[at] = True
                at = back[at]
    return root, is_on_chain


@uncounted_inner
def root_of(root: LongArray, member: int) -> int:
    """Returns the root of the component of ``member``; halves the path (Tarjan and van Leeuwen 1984)."""
    while root[member] != member:
        root[member] = root[root[member]]
        member = root[member]
    return member


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
