"""Which ops never share a kernel, whatever is fused: parts of the graph, and chains within parts.

An op that lies on a way from u to v must be in a kernel that holds both. So u and v are
*separated* where one on a way cannot be: it fuses with nothing, has another trip count, or is
a reduction. *Parts* are what is left connected when each op is joined to all it may be with;
no kernel holds ops of two parts. In a *chain* each op is separated from all before it, so that a
kernel holds one of them at most; no matrix op or reduction is needed for that.

What an op that may be cloned makes need not come from the op itself: a clone of it may serve
what is between, on another chip, so it is separated from nothing.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, CodeArray, IntArray, LongArray
from go_opt.common.compiling import compiled, compiled_inner, int64
from go_opt.env.kernels.fusion import ALONE, MATRIX_LOOP, REDUCTION, LoopRoles

MOST_OPS: Final = 8192  # beyond, ops of one trip count are one part: sets of ancestors take N^2 bits


class KernelParts(NamedTuple):
    """Axis: ``N`` ops."""

    part: LongArray  # [N] no kernel holds ops of two
    is_on_chain: BoolArray  # [N] a kernel holds one of these of a part at most


def kernel_parts(roles: LoopRoles, may_clone: BoolArray) -> KernelParts:
    """Parts, and the longest chain of each."""
    num_ops = len(roles.role)
    # Ops that fuse with nothing have negative trip counts of their own.
    loop = np.where(roles.role == ALONE, -1 - np.arange(num_ops), roles.loop_elements)
    _, loop = np.unique(loop, return_inverse=True)
    if num_ops > MOST_OPS:
        return KernelParts(loop.astype(np.int64), np.zeros(num_ops, np.bool_))
    words = (num_ops + 63) // 64
    separated = _separated(roles.role, loop, roles.read_ptr, roles.read_producer, words)
    padded = np.zeros(64 * words, np.bool_)
    padded[:num_ops] = ~may_clone
    separated &= np.packbits(padded, bitorder="little").view(np.int64)
    by_loop = np.argsort(loop, kind="stable")
    part, is_on_chain = _parts(roles.role, loop, by_loop, separated)
    return KernelParts(part, is_on_chain)


@compiled
def _separated(
    role: CodeArray, loop: LongArray, read_ptr: LongArray, read_producer: IntArray, words: int
) -> LongArray:
    """[N, W] sets of ops before each that an op between keeps out of its kernel, or that are reductions."""
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
        root[op] = root[root[op]]  # roots come first
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


@compiled_inner
def root_of(root: LongArray, member: int) -> int:
    """What stands for the component of ``member``; halves the way there (Tarjan and van Leeuwen 1984)."""
    while root[member] != member:
        root[member] = root[root[member]]
        member = root[member]
    return member
