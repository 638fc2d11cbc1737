"""One execution of a plan alone on its target: event driven, links as resources.

Each chip runs its kernels in the plan's order. A tensor leaves once its kernel has ended and all
links of its routes are free, and then occupies them. Tensors request links in order of time, then
of chip, then of op in the plan's order. Inputs and streamed weights cross the host's link one
after the other, in the order of their first use on a chip. With ``host_multicast`` an input crosses it once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray, RecordArray
from go_opt.common.compiling import compiled, int64, uncounted
from go_opt.env.cost import CostTables
from go_opt.env.cost.tables import read_only
from go_opt.env.kernels.numbering import number_kernels, seconds_of_kernels
from go_opt.env.model.execution import execute
from go_opt.env.model.package import KERNEL, NONE, OP, Package, package_of


class Execution(NamedTuple):
    """One execution. Axes: ``N`` ops, ``M`` kernels, ``K`` tensors."""

    makespan_s: float
    kernel_of: IntArray  # [N] numbered along the plan's order
    chip: LongArray  # [M]
    kernel_s: FloatArray  # [M]
    start_s: FloatArray  # [M]
    rank: LongArray  # [M] position of the kernel's end among all ends; tensors request links in this order
    sent_s: FloatArray  # [K] when a tensor leaves its chip; its kernel's end if it stays
    to_host_s: FloatArray  # [K] when an output begins to cross the host's link


class _Buffers(NamedTuple):
    """What executions of plans of the same tables reuse."""

    package: Package
    kernels: RecordArray  # [N] KERNEL
    ops: RecordArray  # [N] OP
    sequence: IntArray  # [N] 0, 1, …


def executions(
    tables: CostTables,
    placement: IntArray,
    order: IntArray,
    fusion_group: IntArray,
    stream_bytes: LongArray,
) -> Iterator[Execution]:
    """Execute plans, each from the first byte read from the host to the last byte written to it.

    The arrays of an execution last until the next one.

    Args:
      placement, order, fusion_group: [B, N]
      stream_bytes: [B, D] weights streamed to each chip before its first kernel.
    """
    package, num_ops = package_of(tables), tables.num_ops
    kernels, ops = np.zeros(num_ops, KERNEL), np.zeros(num_ops, OP)
    buffers = _Buffers(package, kernels, ops, np.arange(num_ops, dtype=np.int32))
    for place, along, group, streamed in zip(
        read_only(placement), read_only(order), fusion_group, stream_bytes, strict=True
    ):
        kernel_of = number_kernels(along, group)
        size, seconds = _execute(tables, buffers, place, along, kernel_of, streamed)
        run, sent = package.run[:size], package.sent
        yield Execution(
            seconds,
            kernel_of,
            kernels["chip"][:size],
            kernels["seconds"][:size],
            run["start_s"],
            run["rank"],
            sent["sent_s"],
            sent["to_host_s"],
        )


def decisions(order: IntArray, kernel_of: IntArray) -> tuple[RecordArray, RecordArray]:
    """KERNEL and OP records, [N] each, of kernels whose ops are contiguous in ``order``; chips are 0."""
    kernels, ops = np.zeros(len(order), KERNEL), np.zeros(len(order), OP)
    _decide(kernels, ops, read_only(order), kernel_of)
    return kernels, ops


@uncounted
def _decide(kernels: RecordArray, ops: RecordArray, order: IntArray, kernel_of: IntArray) -> int:
    """Fill in the ops of kernels, and their places; returns the number of kernels."""
    for i in range(len(kernels)):
        kernels[i].first_op = NONE
    size, before = int64(0), int64(NONE)
    for i in range(len(order)):
        op = int64(order[i])
        kernel = kernel_of[op]
        if before != NONE and kernel_of[before] == kernel:
            ops[before].following = op
        else:
            kernels[kernel].first_op, kernels[kernel].place = op, size
            size += 1
        ops[op].kernel, ops[op].following = kernel, NONE
        before = op
    return size


@compiled
def _execute(
    tables: CostTables,
    buffers: _Buffers,
    placement: IntArray,
    order: IntArray,
    kernel_of: IntArray,
    stream_bytes: LongArray,
) -> tuple[int, float]:
    """Returns the number of kernels, and the makespan."""
    kernels = buffers.kernels
    size = _decide(kernels, buffers.ops, order, kernel_of)
    by_kind = seconds_of_kernels(tables, kernel_of, size)
    for kernel in range(size):
        chip = placement[kernels[kernel].first_op]
        kernels[kernel].chip, kernels[kernel].seconds = chip, by_kind[tables.chip_kind[chip], kernel]
    package, sequence = buffers.package, buffers.sequence
    return size, execute(package, kernels, buffers.ops, sequence, size, stream_bytes, math.inf)
