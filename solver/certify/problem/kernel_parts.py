"""Ops that never share a kernel under any fusion: parts of the graph, and chains within parts.

A kernel that holds u and v also holds every op on a path from u to v. So u and v are
*separated* if such an op, or u, fuses with nothing, has another trip count, or is a reduction.
*Parts* are the connected components after joining all pairs of ops that may share a kernel;
no kernel holds ops of two parts. In a *chain*, each op is separated from all before it, so a
kernel holds at most one of them, whether or not they are matrix ops or reductions.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, CodeArray, IntArray, LongArray
from go_opt.common.compiling import compiled, int64, uncounted_inner
from go_opt.env.kernels.fusion import ALONE, MATRIX_LOOP, REDUCTION, LoopRoles

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
