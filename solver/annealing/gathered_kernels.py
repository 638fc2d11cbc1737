"""Orders and kernels of a placement made together: each kernel takes in all that may join it.

Kernels along a given order hold what stands together and reads one another. Here an op that is
ready waits until a kernel of its trip count is open, so that branches side by side, equal but
for what they read, share one: its overhead is paid once, and what several ops read is read once.
More results wait for their readers, so it does not always fit.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from go_opt.common.arrays import BoolArray, IntArray
from go_opt.common.compiling import compiled, compiled_inner
from go_opt.env.kernels.fusion import ALONE, MATRIX_LOOP, MAX_GROUP_OPS, REDUCTION, LoopRoles

MOST_AHEAD: Final = 1024  # ops of a chip that are looked at behind the first still to run


def gathered_kernels(roles: LoopRoles, order: IntArray, placement: IntArray) -> tuple[IntArray, IntArray]:
    """[N] an order, chip after chip, and [N] the kernel of each op, legal by construction.

    Args:
      order: [N] topological; where there is a choice it decides.
    """
    by_chip = order[np.argsort(placement[order], kind="stable")]
    return _gather(roles, by_chip, placement)


@compiled
def _gather(roles: LoopRoles, by_chip: IntArray, placement: IntArray) -> tuple[IntArray, IntArray]:
    num_ops = len(by_chip)
    found = np.empty(num_ops, np.int32)
    group = np.empty(num_ops, np.int32)
    is_done = np.zeros(num_ops, np.bool_)
    size = 0
    kernel = -1
    begin = 0
    while begin < num_ops:
        end = begin
        while end < num_ops and placement[by_chip[end]] == placement[by_chip[begin]]:
            end += 1
        first = begin  # all before it on the chip are done
        while size < end:
            ahead = min(end, first + MOST_AHEAD)
            seed = _seed(roles, by_chip, first, ahead, is_done)
            kernel += 1
            size = _fill(roles, by_chip, first, ahead, seed, is_done, found, group, size, kernel)
            while first < end and is_done[by_chip[first]]:
                first += 1
        begin = end
    return found, group


@compiled_inner
def _is_ready(roles: LoopRoles, op: int, is_done: BoolArray) -> bool:
    for i in range(roles.read_ptr[op], roles.read_ptr[op + 1]):  # noqa: SIM110 - compiled to a loop of its own
        if not is_done[roles.read_producer[i]]:
            return False
    return True


@compiled_inner
def _seed(roles: LoopRoles, by_chip: IntArray, first: int, end: int, is_done: BoolArray) -> int:
    """What fuses with nothing goes first, since others wait for it; then the first that is ready."""
    seed = -1
    for i in range(first, end):
        op = by_chip[i]
        if not is_done[op] and (seed < 0 or roles.role[op] == ALONE) and _is_ready(roles, op, is_done):
            if roles.role[op] == ALONE:
                return op
            seed = op
    return seed


@compiled_inner
def _fill(
    roles: LoopRoles,
    by_chip: IntArray,
    first: int,
    end: int,
    seed: int,
    is_done: BoolArray,
    found: IntArray,
    group: IntArray,
    size: int,
    kernel: int,
) -> int:
    """Run ``seed`` and whatever may join its kernel, a reduction last; returns how many ops have run."""
    found[size] = seed
    group[seed] = kernel
    is_done[seed] = True
    size += 1
    if roles.role[seed] == ALONE or roles.role[seed] == REDUCTION:
        return size
    has_matrix = roles.role[seed] == MATRIX_LOOP
    members = 1
    reduction = -1
    i = first
    while i < end and members < MAX_GROUP_OPS:
        op = by_chip[i]
        i += 1
        role = roles.role[op]
        if (
            is_done[op]
            or role == ALONE
            or roles.loop_elements[op] != roles.loop_elements[seed]
            or (role == MATRIX_LOOP and has_matrix)
            or not _is_ready(roles, op, is_done)
        ):
            continue
        if role == REDUCTION:
            reduction = op if reduction < 0 else reduction
            continue
        found[size] = op
        group[op] = kernel
        is_done[op] = True
        has_matrix |= role == MATRIX_LOOP
        size += 1
        members += 1
    if reduction >= 0 and members < MAX_GROUP_OPS:
        found[size] = reduction
        group[reduction] = kernel
        is_done[reduction] = True
        size += 1
    return size
