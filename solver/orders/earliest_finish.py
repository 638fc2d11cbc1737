"""Earliest-finish-time placement (the HEFT rule) for targets without static constraints.

Kernels in their order go, one by one, to the chip on which they finish first, given
when their operands arrive there; links are taken to be free.
Topcuoglu et al., "Performance-effective and low-complexity task scheduling for
heterogeneous computing", TPDS 2002.
"""

from __future__ import annotations

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray
from go_opt.common.compiling import compiled, int64
from go_opt.env.cost import CostTables
from go_opt.env.cost.routes import transfer_s
from go_opt.env.kernels.numbering import kernel_seconds, number_kernels
from go_opt.model.graph import NO_PRODUCER


def earliest_finish_placement(
    tables: CostTables, order: IntArray, fusion_group: IntArray, max_chips: int
) -> IntArray:
    """[N] chip of each op by the rule above, on the first ``max_chips`` chips."""
    kernel_of = number_kernels(order, fusion_group)
    kernel_s = kernel_seconds(tables, kernel_of)
    kind, op = np.nonzero(~tables.can_run)
    kernel_s[kind, kernel_of[op]] = np.inf
    kernel_chip = _place(tables, order, kernel_of, kernel_s, max_chips)
    return kernel_chip[kernel_of]


@compiled
def _place(
    tables: CostTables, order: IntArray, kernel_of: IntArray, kernel_s: FloatArray, max_chips: int
) -> IntArray:
    num_kernels = kernel_s.shape[1]
    kernel_chip = np.zeros(num_kernels, np.int32)
    end_s = np.zeros(num_kernels)
    free_s = np.zeros(max_chips)
    arrival_s = np.zeros(max_chips)
    for i in range(len(order)):
        op = order[i]
        kernel = kernel_of[op]
        for j in range(tables.op_read_ptr[op], tables.op_read_ptr[op + 1]):
            tensor = tables.reader_tensor[tables.op_read[j]]
            producer = tables.tensor_producer[tensor]
            if producer == NO_PRODUCER or kernel_of[producer] == kernel:
                continue
            home = kernel_of[producer]
            for chip in range(max_chips):
                sent_s = transfer_s(
                    tables, int64(kernel_chip[home]), int64(chip), tables.tensor_bytes[tensor]
                )
                arrival_s[chip] = max(arrival_s[chip], end_s[home] + sent_s)
        if i + 1 < len(order) and kernel_of[order[i + 1]] == kernel:
            continue
        best = 0
        best_s = np.inf
        for chip in range(max_chips):
            finish_s = max(arrival_s[chip], free_s[chip]) + kernel_s[tables.chip_kind[chip], kernel]
            if finish_s < best_s:
                best = chip
                best_s = finish_s
        kernel_chip[kernel] = best
        end_s[kernel] = best_s
        free_s[best] = best_s
        arrival_s[:] = 0.0
    return kernel_chip
