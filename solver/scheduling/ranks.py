"""Upward ranks: the longest path from the start of a kernel to the end of the graph.

Topcuoglu et al., "Performance-effective and low-complexity task scheduling for heterogeneous computing",
TPDS 2002, equation 8: the seconds of the kernel plus the largest sum of a transfer and its reader's rank.
"""

from __future__ import annotations

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray
from go_opt.common.compiling import compiled
from go_opt.env.cost.tables import CostTables
from go_opt.env.kernels.numbering import kernel_seconds
from go_opt.model.graph import NO_PRODUCER


def upward_ranks(tables: CostTables, order: IntArray, kernel_of: IntArray, weight: float) -> FloatArray:
    """[M] upward ranks in seconds, averaged over the kinds of chips.

    Args:
      order: [N] ops along a topological order of the kernels.
      kernel_of: [N] kernels numbered along it.
      weight: factor on transfers, whose cost is averaged over the kinds of chips and the links.
    """
    setup_s = 0.0
    if tables.num_chips > 1:
        of_chips_s = tables.dma_setup_s.mean() + tables.dependency_s.mean()
        setup_s = float(of_chips_s + tables.link_latency_s.mean())
    s_per_byte = float(tables.link_s_per_byte.mean()) if tables.num_chips > 1 else 0.0
    return _upward_ranks(
        tables,
        order,
        kernel_of,
        kernel_seconds(tables, kernel_of).mean(axis=0),
        weight * setup_s,
        weight * s_per_byte,
    )


@compiled
def _upward_ranks(
    tables: CostTables,
    order: IntArray,
    kernel_of: IntArray,
    kernel_s: FloatArray,
    setup_s: float,
    s_per_byte: float,
) -> FloatArray:
    rank = np.zeros(len(kernel_s))
    for i in range(len(order) - 1, -1, -1):
        op = order[i]
        kernel = kernel_of[op]
        if i + 1 == len(order) or kernel_of[order[i + 1]] != kernel:
            rank[kernel] += kernel_s[kernel]  # all its readers have been visited
        for j in range(tables.op_read_ptr[op], tables.op_read_ptr[op + 1]):
            tensor = tables.reader_tensor[tables.op_read[j]]
            producer = tables.tensor_producer[tensor]
            if producer == NO_PRODUCER or kernel_of[producer] == kernel:
                continue
            behind_s = rank[kernel] + setup_s + tables.tensor_bytes[tensor] * s_per_byte
            rank[kernel_of[producer]] = max(rank[kernel_of[producer]], behind_s)
    return rank
