"""One execution of a plan alone on its target: event driven, links as resources.

Each chip runs its kernels in the plan's order. A tensor leaves once its kernel has ended and all
links of its routes are free, and then occupies them. Tensors request links in order of time, then
of chip, then of op in the plan's order. Inputs and streamed weights cross the host's link one
after the other, in the order of their first use on a chip. With ``host_multicast`` an input crosses it once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray, RecordArray
from go_opt.common.compiling import uncounted
from go_opt.env.cost import CostTables
from go_opt.env.model.execution import execute
from go_opt.env.model.package import KERNEL, NONE, OP, Package, package_of


class Execution(NamedTuple):
    """The times of one execution. Axes: ``M`` kernels, ``K`` tensors."""

    makespan_s: float
    start_s: FloatArray  # [M]
    rank: LongArray  # [M] position of the kernel's end among all ends; tensors request links in this order
    sent_s: FloatArray  # [K] when a tensor leaves its chip; its kernel's end if it stays
    to_host_s: FloatArray  # [K] when an output begins to cross the host's link


def execution(
    tables: CostTables,
    order: IntArray,
    kernel_of: IntArray,
    kernel_chip: IntArray,
    kernel_s: FloatArray,
    stream_bytes: LongArray,
) -> Execution:
    """One execution from the first byte read from the host to the last byte written to it.

    Args:
      order: [N] the plan's order.
      kernel_of: [N] kernel of each op, numbered along the plan's order.
      kernel_chip: [M] chip of each kernel.
      kernel_s: [M] seconds of each kernel.
      stream_bytes: [D] weights streamed to each chip before its first kernel.
    """
    num_kernels = len(kernel_chip)
    kernels, ops = decisions(order, kernel_of)
    kernels["chip"][:num_kernels], kernels["seconds"][:num_kernels] = kernel_chip, kernel_s
    sequence = np.arange(num_kernels, dtype=np.int32)
    package = package_of(tables)
    seconds = _execute(package, kernels, ops, sequence, stream_bytes)
    run, sent = package.run[:num_kernels], package.sent
    return Execution(float(seconds), run["start_s"], run["rank"], sent["sent_s"], sent["to_host_s"])


def decisions(order: IntArray, kernel_of: IntArray) -> tuple[RecordArray, RecordArray]:
    """KERNEL and OP records, [N] each, of kernels whose ops are contiguous in ``order``; chips are 0."""
    kernels, ops = np.zeros(len(order), KERNEL), np.zeros(len(order), OP)
    kernels["first_op"] = ops["following"] = NONE
    kernel = kernel_of[order]
    is_first = np.concatenate([[True], kernel[1:] != kernel[:-1]])
    ops["kernel"] = kernel_of
    ops["following"][order[:-1][~is_first[1:]]] = order[1:][~is_first[1:]]
    kernels["first_op"][kernel[is_first]] = order[is_first]
    kernels["place"][kernel[is_first]] = np.arange(int(is_first.sum()))
    return kernels, ops


@uncounted
def _execute(
    package: Package, kernels: RecordArray, ops: RecordArray, sequence: IntArray, stream_bytes: LongArray
) -> float:
    return execute(package, kernels, ops, sequence, len(sequence), stream_bytes, math.inf)
