"""Latency of one sample: the longest path through placed, ordered kernels and transfers."""

from __future__ import annotations

from math import gcd
from typing import Final

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray
from go_opt.common.compiling import compiled_inner, int64
from go_opt.env.cost.routes import transfer_s
from go_opt.env.cost.tables import CostTables
from go_opt.env.model.turns import round_of, turns_of
from go_opt.model.graph import INPUT, NO_PRODUCER

MOST_SEQUENCES: Final = 1 << 10  # whose paths are looked at


@compiled_inner
def latency_s(
    tables: CostTables,
    order: IntArray,
    kernel_of: IntArray,
    kernel_chip: IntArray,
    kernel_s: FloatArray,
    num_kernels: int,
    stage_size: LongArray,
) -> float:
    """Seconds of one sample; of the sequence that takes longest, if replicas keep sequences.

    Which links a sequence crosses depends on its replicas.
    """
    paths = int64(1)
    for d in range(len(stage_size) if tables.sequences > 0 else 0):
        paths = min(paths * (stage_size[d] // gcd(paths, stage_size[d])), MOST_SEQUENCES)
    longest_s = 0.0
    for turn in range(min(paths, max(tables.sequences, 1))):
        seconds = _sample_latency_s(
            tables, order, kernel_of, kernel_chip, kernel_s, num_kernels, stage_size, turn
        )
        longest_s = max(longest_s, seconds)
    return longest_s


@compiled_inner
def _sample_latency_s(
    tables: CostTables,
    order: IntArray,
    kernel_of: IntArray,
    kernel_chip: IntArray,
    kernel_s: FloatArray,
    num_kernels: int,
    stage_size: LongArray,
    turn: int,
) -> float:
    """Streamed weights are prefetched and not on the path."""
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
                if kernel_chip[home] == chip:
                    start_s = max(start_s, end_s[home])
                    continue
                source = kernel_chip[home] + turn % stage_size[kernel_chip[home]]
                there = chip + turn % stage_size[chip]
                start_s = max(start_s, end_s[home] + transfer_s(tables, int64(source), int64(there), size))
        if i + 1 == len(order) or kernel_of[order[i + 1]] != kernel:
            seconds, size = kernel_s[kernel], tables.stage_chips[chip]
            if size > 1:  # the tables have the share of its busiest chip
                seconds *= round_of(size, tables.sequences) / turns_of(int64(0), size, tables.sequences)
            end_s[kernel] = max(start_s, chip_free_s[chip]) + seconds
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
