"""The analytical model of one plan in steady state (design section 5), compiled.

One inference enters per interval. If each of S sequences waits for its last inference, the interval is at
least the latency / S. The latency is the longest path through placed, ordered kernels and transfers. A plan
takes O(N + K + R) on a ring with ample memory; other topologies add the lengths of routes, and tight memory
adds sorting and buffer placement. The slow, obvious twin is ``tests/env/numpy_twin.py``.
"""

from __future__ import annotations

from math import gcd
from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray, IntArray, LongArray
from go_opt.common.compiling import compiled, compiled_inner, int32, int64, uncounted_inner
from go_opt.env.cost.tables import CostTables, read_only, transfer_s
from go_opt.env.model.memory import FITS, fit_chips, holdings_on, peaks_alive
from go_opt.env.model.traffic import (
    NONE,
    Traffic,
    clear_chips,
    clear_kernel,
    count_tensors,
    new_traffic,
    number_stages,
    round_of,
    share_stream,
    turns_before,
    turns_of,
)

# A kernel without an op of modelled cost so far.
NOTHING_YET = -1.0


class BatchMetrics(NamedTuple):
    """Terms of a batch of plans. Axes: ``B`` plans, ``D`` chips, ``L`` links and the host's two."""

    interval_s: FloatArray  # [B]
    latency_s: FloatArray  # [B]
    compute_s: FloatArray  # [B, D]
    link_s: FloatArray  # [B, L]
    bottleneck: LongArray  # [B] chip, or D + link; behind them: sequences that wait for their last inference
    stream_bytes: LongArray  # [B, D] per inference that the chip runs
    peak_bytes: LongArray  # [B, D]
    weight_bytes: LongArray  # [B, D] resident
    fits: BoolArray  # [B] True if every chip's activations, and its stream buffer if any, fit


def evaluate_batch(
    tables: CostTables,
    placement: IntArray,  # [B, N]
    order: IntArray,  # [B, N]
    fusion_group: IntArray,  # [B, N]
    replication: IntArray | None = None,  # [B, N]; by default none is replicated
) -> BatchMetrics:
    """Evaluate a batch of plans; illegal plans are costed too, never refused."""
    num_plans = len(placement)
    num_chips, num_links = tables.num_chips, len(tables.link_s_per_byte) + 2
    out = BatchMetrics(
        interval_s=np.zeros(num_plans),
        latency_s=np.zeros(num_plans),
        compute_s=np.zeros((num_plans, num_chips)),
        link_s=np.zeros((num_plans, num_links)),
        bottleneck=np.zeros(num_plans, dtype=np.int64),
        stream_bytes=np.zeros((num_plans, num_chips), dtype=np.int64),
        peak_bytes=np.zeros((num_plans, num_chips), dtype=np.int64),
        weight_bytes=np.zeros((num_plans, num_chips), dtype=np.int64),
        fits=np.zeros(num_plans, dtype=np.bool_),
    )
    if replication is None:
        replication = np.empty((0, 0), np.int32)
    placement, order, group = read_only(placement), read_only(order), read_only(fusion_group)
    _evaluate_batch(tables, placement, order, group, read_only(replication.astype(np.int32)), out)
    return out


def has_evaluated() -> bool:
    """Whether this process has the kernels of an evaluation."""
    return bool(_evaluate_batch.signatures)


@compiled
def _evaluate_batch(
    tables: CostTables,
    placement: IntArray,
    order: IntArray,
    group: IntArray,
    replication: IntArray,
    out: BatchMetrics,
) -> None:
    num_ops = tables.op_s.shape[1]
    num_chips = len(tables.chip_kind)
    kernel_of = np.empty(num_ops, np.int32)
    kernel_chip = np.empty(num_ops, np.int32)
    kernel_s = np.empty(num_ops, np.float64)
    measured_s = np.empty(num_ops, np.float64)
    end_s, chip_s = np.empty(num_ops, np.float64), np.empty(num_chips, np.float64)
    share = np.ones(num_chips, np.float64)  # of the inferences of its stage that a chip runs
    alive_bytes, peak_bytes = np.empty(num_chips, np.int64), np.empty(num_chips, np.int64)
    is_tight = np.empty(num_chips, np.bool_)
    traffic = new_traffic(tables, np.ones(num_chips, np.int64))
    stage_size = traffic.stage_size
    for b in range(len(placement)):
        if len(replication) > 0:
            number_stages(
                placement[b], replication[b], tables.sequences, stage_size, share, traffic.stage_bytes
            )
        num_kernels = _number_kernels(
            tables, placement[b], order[b], group[b], kernel_of, kernel_chip, kernel_s, measured_s, traffic
        )
        clear_chips(traffic)
        count_tensors(tables, kernel_of, kernel_chip, b * len(tables.tensor_kind), traffic)
        _finish_kernels(tables, num_kernels, kernel_chip, measured_s, kernel_s, traffic, out.compute_s[b])
        peaks_alive(traffic, kernel_chip, num_kernels, alive_bytes, peak_bytes)
        out.fits[b] = True
        any_tight = False
        for d in range(num_chips):
            out.weight_bytes[b, d] = traffic.resident_bytes[d]
            out.peak_bytes[b, d] = traffic.border_bytes[d] + peak_bytes[d]
            most = traffic.inner_bytes[d] if tables.places_buffers else peak_bytes[d]
            is_tight[d] = traffic.border_bytes[d] + most + traffic.resident_bytes[d] > tables.sram_bytes[d]
            any_tight |= is_tight[d]
        if any_tight:
            _fit(tables, kernel_of, kernel_chip[:num_kernels], traffic, peak_bytes, is_tight, out, b)
        for d in range(num_chips):
            if stage_size[d] > 1:
                _replicate(d, stage_size[d], share, out, b, traffic)
        _interval(tables, b, share, traffic, chip_s, out)
        out.latency_s[b] = latency_s(
            tables, kernel_of, kernel_chip, kernel_s, num_kernels, traffic, end_s, chip_s
        )
        if tables.loops > 0 and out.latency_s[b] > tables.loops * out.interval_s[b]:
            out.interval_s[b] = out.latency_s[b] / tables.loops
            out.bottleneck[b] = num_chips + len(tables.link_s_per_byte) + 2


@compiled_inner
def _fit(
    tables: CostTables,
    kernel_of: IntArray,
    kernel_chip: IntArray,
    traffic: Traffic,
    peak_bytes: LongArray,
    is_tight: BoolArray,
    out: BatchMetrics,
    b: int,
) -> None:
    """Place buffers and stream weights on the chips ``is_tight``; on the others there is room for all."""
    held = holdings_on(tables, kernel_of, kernel_chip, traffic, peak_bytes, is_tight, True)
    fit = fit_chips(tables, held)
    out.fits[b] = fit.outcome == FITS
    for d in range(len(is_tight)):
        if not is_tight[d]:
            continue
        out.peak_bytes[b, d], out.weight_bytes[b, d] = fit.peak_bytes[d], fit.weight_bytes[d]
        out.stream_bytes[b, d] = fit.stream_bytes[d]
        traffic.host_bytes[0] += fit.stream_bytes[d] - fit.forwarded_bytes[d]
        traffic.chip_host_in[d] += fit.stream_bytes[d]
        if fit.forwarded_bytes[d] > 0:
            size, bytes_a_turn = traffic.stage_size[d], fit.forwarded_bytes[d] / tables.stream_sharers[d]
            share_stream(d, size, bytes_a_turn, traffic.turn_bytes)


@uncounted_inner
def _replicate(
    first: int,
    size: int,
    share: FloatArray,
    out: BatchMetrics,
    b: int,
    traffic: Traffic,
) -> None:
    """Give every chip of a stage the memory of its first chip, the busiest, and its share of the work."""
    compute_s = out.compute_s[b, first]
    out.compute_s[b, first] *= share[first]
    for replica in range(first + 1, first + size):
        out.compute_s[b, replica] += compute_s * share[replica]
        out.peak_bytes[b, replica] += out.peak_bytes[b, first]
        out.weight_bytes[b, replica] += out.weight_bytes[b, first]
        out.stream_bytes[b, replica] += out.stream_bytes[b, first]
        traffic.chip_host_in[replica] += traffic.chip_host_in[first]
        traffic.chip_host_out[replica] += traffic.chip_host_out[first]


@uncounted_inner
def _number_kernels(
    tables: CostTables,
    placement: IntArray,
    order: IntArray,
    group: IntArray,
    kernel_of: IntArray,
    kernel_chip: IntArray,
    kernel_s: FloatArray,
    measured_s: FloatArray,
    traffic: Traffic,
) -> int:
    """Number the kernels along the order and sum their compute; measured seconds are separate."""
    kernel, previous = -1, int32(-1)
    seconds, separate_s, is_modelled = 0.0, 0.0, False
    for op in order:
        chip = placement[op]
        if kernel < 0 or group[op] != previous:
            kernel += 1
            previous = group[op]
            kernel_chip[kernel] = chip
            clear_kernel(traffic, kernel)
            seconds, separate_s, is_modelled = 0.0, 0.0, False
        kernel_of[op] = kernel
        kind = tables.chip_kind[chip]
        if np.isnan(tables.measured_s[kind, op]):
            seconds += tables.op_s[kind, op]
            is_modelled = True
        else:
            separate_s += tables.measured_s[kind, op]
        kernel_s[kernel] = seconds if is_modelled else NOTHING_YET
        measured_s[kernel] = separate_s
    return kernel + 1


@uncounted_inner
def _finish_kernels(
    tables: CostTables,
    num_kernels: int,
    kernel_chip: IntArray,
    measured_s: FloatArray,
    kernel_s: FloatArray,
    traffic: Traffic,
    compute_s: FloatArray,
) -> None:
    """Fill in kernel seconds: the slower of compute and memory, plus overhead; measured ops add their own."""
    for kernel in range(num_kernels):
        chip = kernel_chip[kernel]
        kind = tables.chip_kind[chip]
        seconds = measured_s[kernel]
        if kernel_s[kernel] != NOTHING_YET:
            moved_s = traffic.kernel_bytes[kernel] * tables.sram_s_per_byte[kind]
            seconds += max(kernel_s[kernel], moved_s) + tables.kernel_overhead_s[kind]
        kernel_s[kernel] = seconds
        compute_s[chip] += seconds


@uncounted_inner
def _interval(
    tables: CostTables,
    b: int,
    share: FloatArray,
    traffic: Traffic,
    total_s: FloatArray,
    out: BatchMetrics,
) -> None:
    num_chips = len(tables.chip_kind)
    num_links = len(tables.link_s_per_byte)
    link_s = out.link_s[b]
    for link in range(num_links):
        link_s[link] = (traffic.link_bytes[link] + traffic.turn_bytes[link]) * tables.link_s_per_byte[link]
    for first in range(num_chips):
        size = traffic.stage_size[first]
        for behind in range(1, size):
            # Inputs go on to the chips after this link; results come from the `behind` chips before it.
            inferences = round_of(size, tables.sequences)
            done = turns_before(behind, size, tables.sequences)
            shared = (inferences - done) * traffic.stage_bytes[0, first] + done * traffic.stage_bytes[
                1, first
            ]
            link = first + behind - 1
            link_s[link] += shared / inferences * tables.link_s_per_byte[link]
    link_s[num_links] = (traffic.host_bytes[0] + traffic.turn_bytes[num_links]) * tables.host_in_s_per_byte
    link_s[num_links + 1] = traffic.host_bytes[1] * tables.host_out_s_per_byte
    for chip in range(num_chips):
        total_s[chip] = out.compute_s[b, chip]
    if not tables.overlap:
        for link in range(num_links):
            for chip in (tables.link_from[link], tables.link_to[link]):
                if chip >= 0 and tables.pays_transfers[tables.chip_kind[chip]]:
                    total_s[chip] += link_s[link]
        for chip in range(num_chips):
            if tables.pays_transfers[tables.chip_kind[chip]]:
                total_s[chip] += traffic.chip_host_in[chip] * tables.host_in_s_per_byte * share[chip]
                total_s[chip] += traffic.chip_host_out[chip] * tables.host_out_s_per_byte * share[chip]
    worst_s = -1.0
    for chip in range(num_chips):
        if total_s[chip] > worst_s:
            worst_s = total_s[chip]
            out.bottleneck[b] = chip
    for link in range(num_links + 2 if tables.overlap else 0):
        if link_s[link] > worst_s:
            worst_s = link_s[link]
            out.bottleneck[b] = num_chips + link
    out.interval_s[b] = worst_s


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
