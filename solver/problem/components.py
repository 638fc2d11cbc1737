"""Disjoint sets of ops or kernels that are joined one by one."""

from __future__ import annotations

from go_opt.common.arrays import LongArray
from go_opt.common.compiling import compiled_inner


@compiled_inner
def root_of(root: LongArray, member: int) -> int:
    """What stands for the component of ``member``; halves the way there (Tarjan and van Leeuwen 1984)."""
    while root[member] != member:
        root[member] = root[root[member]]
        member = root[member]
    return member
