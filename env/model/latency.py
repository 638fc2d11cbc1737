"""Latency of one sample: the longest path through placed, ordered kernels and transfers."""

from __future__ import annotations

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray
from go_opt.common.compiling import compiled_inner, int64
from go_opt.env.cost.routes import transfer_s
from go_opt.env.cost.tables import CostTables
from go_opt.model.graph import INPUT, NO_PRODUCER


@compiled_inner
def sample_latency_s(
    tables: CostTables,
    order: IntArray,
    kernel_of: IntArray,
    kernel_chip: IntArray,
    kernel_s: FloatArray,
    num_kernels: int,
) -> float:
    """Seconds of one sample; streamed weights are prefetched and not on the path."""
    chip_free_s = np.zeros(len(tables.chip_kind))
    end_s = np.zeros(num_kernels)
    start_s = 0.0
    for i in range(len(order)):
        op = order[i]
        kernel = kernel_of[op]
        chip = kernel_chip[kernel]
        for j in range(tables.op_read_ptr[op], tables.op_read_ptr[op + 1]):
            read = tables.op_read[j]
            tensor = tables.reader_tensor[read]
            size = tables.tensor_bytes[tensor]
            producer = tables.tensor_producer[tensor]
            if tables.tensor_kind[tensor] == INPUT:
                start_s = max(start_s, size * tables.host_in_s_per_byte)
            elif producer != NO_PRODUCER and kernel_of[producer] != kernel:
                home = kernel_of[producer]
                arrival_s = end_s[home] + transfer_s(tables, int64(kernel_chip[home]), int64(chip), size)
                start_s = max(start_s, arrival_s)
        if i + 1 == len(order) or kernel_of[order[i + 1]] != kernel:
            end_s[kernel] = max(start_s, chip_free_s[chip]) + kernel_s[kernel]
            chip_free_s[chip] = end_s[kernel]
            start_s = 0.0
    latest_s = 0.0
    for kernel in range(num_kernels):
        latest_s = max(latest_s, end_s[kernel])
    for k in range(len(tables.tensor_kind)):
        if tables.tensor_is_output[k]:
            sent_s = tables.tensor_bytes[k] * tables.host_out_s_per_byte
            latest_s = max(latest_s, end_s[kernel_of[tables.tensor_producer[k]]] + sent_s)
    return latest_s
