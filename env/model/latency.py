"""Latency of one sample: the longest path through placed, ordered kernels and transfers."""

from __future__ import annotations

from math import gcd
from typing import Final

from go_opt.common.arrays import FloatArray, IntArray
from go_opt.common.compiling import int64, uncounted_inner
from go_opt.env.cost.routes import transfer_s
from go_opt.env.cost.tables import CostTables
from go_opt.env.model.traffic import NONE, Traffic
from go_opt.env.model.turns import round_of, turns_of

MOST_SEQUENCES: Final = 1 << 10  # whose paths are looked at


@uncounted_inner
def latency_s(
    tables: CostTables,
    kernel_of: IntArray,
    kernel_chip: IntArray,
    kernel_s: FloatArray,
    num_kernels: int,
    traffic: Traffic,
    end_s: FloatArray,
    chip_free_s: FloatArray,
) -> float:
    """Seconds of one sample; of the sequence that takes longest, if replicas keep sequences.

    Which links a sequence crosses depends on its replicas. ``end_s`` [N] and ``chip_free_s`` [D] are scratch.
    """
    paths = int64(1)
    for d in range(len(traffic.stage_size) if tables.sequences > 0 else 0):
        paths = min(paths * (traffic.stage_size[d] // gcd(paths, traffic.stage_size[d])), MOST_SEQUENCES)
    longest_s = 0.0
    for turn in range(min(paths, max(tables.sequences, 1))):
        seconds = _sample_latency_s(
            tables, kernel_of, kernel_chip, kernel_s, num_kernels, traffic, turn, end_s, chip_free_s
        )
        longest_s = max(longest_s, seconds)
    return longest_s


@uncounted_inner
def _sample_latency_s(
    tables: CostTables,
    kernel_of: IntArray,
    kernel_chip: IntArray,
    kernel_s: FloatArray,
    num_kernels: int,
    traffic: Traffic,
    turn: int,
    end_s: FloatArray,
    chip_free_s: FloatArray,
) -> float:
    """Streamed weights are prefetched and not on the path."""
    for d in range(len(chip_free_s)):
        chip_free_s[d] = 0.0
    for kernel in range(num_kernels):
        end_s[kernel] = 0.0
    latest_s = 0.0
    for kernel in range(num_kernels):
        chip = kernel_chip[kernel]
        start_s = chip_free_s[chip]
        read = traffic.last_read[kernel]
        while read != NONE:
            home = traffic.read_from[read]
            if home == NONE:
                size = tables.tensor_bytes[tables.reader_tensor[read]]
                start_s = max(start_s, size * tables.host_in_s_per_byte)
            elif kernel_chip[home] == chip:
                start_s = max(start_s, end_s[home])
            else:
                source, there = int64(kernel_chip[home]), int64(chip)
                if turn > 0:
                    source += turn % traffic.stage_size[source]
                    there += turn % traffic.stage_size[there]
                size = tables.tensor_bytes[tables.reader_tensor[read]]
                start_s = max(start_s, end_s[home] + transfer_s(tables, source, there, size))
            read = traffic.read_before[read]
        seconds, size = kernel_s[kernel], tables.stage_chips[chip]
        if size > 1:  # the tables have the share of its busiest chip
            seconds *= round_of(size, tables.sequences) / turns_of(int64(0), size, tables.sequences)
        end_s[kernel] = chip_free_s[chip] = start_s + seconds
        latest_s = max(latest_s, end_s[kernel])
    for k in range(len(tables.tensor_kind)):
        if tables.tensor_is_output[k]:
            sent_s = tables.tensor_bytes[k] * tables.host_out_s_per_byte
            latest_s = max(latest_s, end_s[kernel_of[tables.tensor_producer[k]]] + sent_s)
    return latest_s
