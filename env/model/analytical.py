"""The analytical model of one plan in steady state (design section 5), compiled.

One inference enters per interval. If each of S sequences waits for its last inference, the interval is at
least the latency / S. A plan takes O(N + K + R) on a ring with ample memory; other
topologies add the lengths of routes, and tight memory adds sorting and buffer placement.
The slow, obvious twin is ``tests/env/numpy_twin.py``.
"""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray, IntArray, LongArray
from go_opt.common.compiling import compiled, compiled_inner, int64, uncounted_inner
from go_opt.env.cost import CostTables
from go_opt.env.cost.read_only import read_only
from go_opt.env.model.latency import latency_s
from go_opt.env.model.memory import FITS, fit_chips, holdings
from go_opt.env.model.turns import number_stages, round_of, share_stream, turns_before
from go_opt.model.graph import NO_PRODUCER, WEIGHT

# A kernel without an op of modelled cost so far.
NOTHING_YET = -1.0
# Most inferences over which link loads are averaged; only stages of over 40 chips in all can need more.
MOST_TURNS = 1 << 14


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
    num_links = len(tables.link_s_per_byte)
    kernel_of = np.empty(num_ops, np.int32)
    kernel_chip = np.empty(num_ops, np.int32)
    kernel_s = np.empty(num_ops, np.float64)
    measured_s = np.empty(num_ops, np.float64)
    kernel_bytes = np.empty(num_ops, np.int64)
    # Stamps say "already seen for this tensor of this plan" without clearing arrays.
    kernel_seen = np.zeros(num_ops, np.int64)
    kernel_read = np.zeros(num_ops, np.int64)
    chip_seen = np.zeros(num_chips, np.int64)
    link_seen = np.zeros(num_links + 1, np.int64)  # last: the number of stamps so far
    chip_host_in = np.empty(num_chips, np.int64)
    chip_host_out = np.empty(num_chips, np.int64)
    link_bytes = np.empty(num_chips + num_links + 1, np.int64)
    # Additional mean bytes of inferences that take turns; the host's link in comes last.
    turn_bytes = np.zeros(num_links + 1, np.float64)
    readers = np.empty(num_chips, np.int64)  # reader chips of a tensor, if routes are tables
    host_bytes = np.empty(2, np.int64)
    stage_size = np.ones(num_chips, np.int64)  # of the stage that starts at a chip
    share = np.ones(num_chips, np.float64)  # of the inferences of its stage that a chip runs
    border_bytes = np.zeros((2, num_chips), np.int64)  # into and out of the stage that starts at a chip
    for b in range(len(placement)):
        if len(replication) > 0:
            number_stages(placement[b], replication[b], tables.sequences, stage_size, share, border_bytes)
        num_kernels = _number_kernels(
            tables, placement[b], order[b], group[b], kernel_of, kernel_chip, kernel_s, measured_s
        )
        _clear(kernel_bytes, num_kernels)
        _clear(chip_host_in, num_chips)
        _clear(chip_host_out, num_chips)
        _clear(link_bytes, len(link_bytes))
        _clear(turn_bytes, num_links + 1)
        _clear(host_bytes, 2)
        _account_tensors(
            tables, b * len(tables.tensor_kind), kernel_of, kernel_chip,
            kernel_seen, kernel_read, kernel_bytes, chip_seen, chip_host_in, chip_host_out,
            link_seen, link_bytes, turn_bytes, readers, host_bytes, stage_size, border_bytes,
        )  # fmt: skip
        _finish_kernels(
            tables, num_kernels, kernel_chip, kernel_bytes, measured_s, kernel_s, out.compute_s[b]
        )
        held = holdings(tables, kernel_of, kernel_chip[:num_kernels], stage_size)
        fit = fit_chips(tables, held)
        out.fits[b] = fit.outcome == FITS
        for d in range(num_chips):
            out.peak_bytes[b, d], out.weight_bytes[b, d] = fit.peak_bytes[d], fit.weight_bytes[d]
            out.stream_bytes[b, d] = fit.stream_bytes[d]
            host_bytes[0] += fit.stream_bytes[d] - fit.forwarded_bytes[d]
            chip_host_in[d] += fit.stream_bytes[d]
            if fit.forwarded_bytes[d] > 0:
                share_stream(d, stage_size[d], fit.forwarded_bytes[d] / tables.stream_sharers[d], turn_bytes)
        for d in range(num_chips):
            if stage_size[d] > 1:
                _replicate(d, stage_size[d], share, out, b, chip_host_in, chip_host_out)
        _interval(
            tables, b, link_bytes, turn_bytes, host_bytes, chip_host_in, chip_host_out,
            stage_size, share, border_bytes, out,
        )  # fmt: skip
        out.latency_s[b] = latency_s(
            tables, order[b], kernel_of, kernel_chip, kernel_s, num_kernels, stage_size
        )
        if tables.loops > 0 and out.latency_s[b] > tables.loops * out.interval_s[b]:
            out.interval_s[b] = out.latency_s[b] / tables.loops
            out.bottleneck[b] = num_chips + num_links + 2


@uncounted_inner
def _clear(array: LongArray | FloatArray, size: int) -> None:
    # A plain loop: assigning to slices makes the kernels take seconds longer to compile.
    for i in range(size):
        array[i] = 0


@uncounted_inner
def _replicate(
    first: int,
    size: int,
    share: FloatArray,
    out: BatchMetrics,
    b: int,
    chip_host_in: LongArray,
    chip_host_out: LongArray,
) -> None:
    """Give every chip of a stage the memory of its first chip, the busiest, and its share of the work."""
    compute_s = out.compute_s[b, first]
    out.compute_s[b, first] *= share[first]
    for replica in range(first + 1, first + size):
        out.compute_s[b, replica] += compute_s * share[replica]
        out.peak_bytes[b, replica] += out.peak_bytes[b, first]
        out.weight_bytes[b, replica] += out.weight_bytes[b, first]
        out.stream_bytes[b, replica] += out.stream_bytes[b, first]
        chip_host_in[replica] += chip_host_in[first]
        chip_host_out[replica] += chip_host_out[first]


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
) -> int:
    """Number the kernels along the order and sum their compute; measured seconds are separate."""
    kernel = -1
    previous = -1
    for op in order:
        if kernel < 0 or group[op] != previous:
            kernel += 1
            previous = group[op]
            kernel_chip[kernel] = placement[op]
            kernel_s[kernel] = NOTHING_YET
            measured_s[kernel] = 0.0
        kernel_of[op] = kernel
        kind = tables.chip_kind[placement[op]]
        if np.isnan(tables.measured_s[kind, op]):
            kernel_s[kernel] = max(kernel_s[kernel], 0.0) + tables.op_s[kind, op]
        else:
            measured_s[kernel] += tables.measured_s[kind, op]
    return kernel + 1


@uncounted_inner
def _account_tensors(
    tables: CostTables,
    stamp: int,
    kernel_of: IntArray,
    kernel_chip: IntArray,
    kernel_seen: LongArray,
    kernel_read: LongArray,
    kernel_bytes: LongArray,
    chip_seen: LongArray,
    chip_host_in: LongArray,
    chip_host_out: LongArray,
    link_seen: LongArray,
    link_bytes: LongArray,
    turn_bytes: FloatArray,
    readers: LongArray,
    host_bytes: LongArray,
    stage_size: LongArray,
    border_bytes: LongArray,
) -> None:
    """Count every tensor once in the traffic of kernels, links and host."""
    for k in range(len(tables.tensor_kind)):
        stamp += 1
        size = tables.tensor_bytes[k]
        producer = tables.tensor_producer[k]
        is_weight = tables.tensor_kind[k] == WEIGHT
        home_kernel = kernel_of[producer] if producer != NO_PRODUCER else -1
        home = kernel_chip[home_kernel] if producer != NO_PRODUCER else -1
        fetches = 0
        is_stored = tables.tensor_is_output[k]
        farthest = int64(0)
        num_readers = 0
        for r in range(tables.reader_ptr[k], tables.reader_ptr[k + 1]):
            kernel = kernel_of[tables.reader_op[r]]
            if kernel == home_kernel:
                continue
            # A kernel reads a tensor once, even for several of its ops: the largest read counts.
            touched = tables.read_bytes[r]
            if kernel_seen[kernel] != stamp:
                kernel_seen[kernel] = stamp
                kernel_read[kernel] = 0
            if touched > kernel_read[kernel]:
                kernel_bytes[kernel] += touched - kernel_read[kernel]
                kernel_read[kernel] = touched
            is_stored = True
            chip = kernel_chip[kernel]
            if chip == home or chip_seen[chip] == stamp:
                continue
            chip_seen[chip] = stamp
            if is_weight:
                continue
            if home < 0:
                chip_host_in[chip] += size
                fetches += 1
                continue
            if tables.is_ring:
                farthest = max(farthest, (chip - home) % len(tables.chip_kind))
            else:
                readers[num_readers] = chip
                num_readers += 1
        if is_weight:
            continue
        if home < 0:
            host_bytes[0] += size * (1 if tables.host_multicast else fetches)
            continue
        if is_stored:
            kernel_bytes[home_kernel] += size
        if tables.tensor_is_output[k]:
            host_bytes[1] += size
            chip_host_out[home] += size
        if num_readers > 0:
            _load_routes(
                tables, home, readers[:num_readers], size, stage_size, link_seen, link_bytes, turn_bytes
            )
        if farthest > 0:
            # Links after the last chip of its stage carry the whole tensor, links inside both stages a share.
            inside = stage_size[home] - 1
            border_bytes[1, home] += size
            border_bytes[0, (home + farthest) % len(tables.chip_kind)] += size
            if farthest > inside:
                _load_ring(home + inside, farthest - inside, len(tables.chip_kind), size, link_bytes)
    if tables.is_ring:
        for link in range(1, len(tables.chip_kind)):
            link_bytes[link] += link_bytes[link - 1]


@uncounted_inner
def _load_ring(home: int, hops: int, num_chips: int, size: int, link_bytes: LongArray) -> None:
    """Add ``size`` to links home … home + hops - 1 as a difference array, summed afterwards."""
    end = home + hops
    link_bytes[home] += size
    if end <= num_chips:
        link_bytes[end] -= size
    else:
        link_bytes[0] += size
        link_bytes[end - num_chips] -= size


@uncounted_inner
def _load_routes(
    tables: CostTables,
    home: int,
    readers: LongArray,
    size: int,
    stage_size: LongArray,
    link_seen: LongArray,
    link_bytes: LongArray,
    turn_bytes: FloatArray,
) -> None:
    """Add ``size`` to each link of the routes once; replicas add the mean over their turns."""
    cycle = stage_size[home]
    for chip in readers:
        cycle *= stage_size[chip] // gcd(cycle, stage_size[chip])
        cycle = min(cycle, MOST_TURNS)
    cycle = min(round_of(cycle, tables.sequences), MOST_TURNS)
    for inference in range(cycle):
        link_seen[-1] += 1  # a new stamp for each tensor and inference
        source = home + inference % stage_size[home]
        for chip in readers:
            pair = source * len(tables.chip_kind) + chip + inference % stage_size[chip]
            for i in range(tables.route_ptr[pair], tables.route_ptr[pair + 1]):
                link = tables.route_link[i]
                if link_seen[link] == link_seen[-1]:
                    continue
                link_seen[link] = link_seen[-1]
                if cycle == 1:
                    link_bytes[link] += size
                else:
                    turn_bytes[link] += size / cycle


@uncounted_inner
def _finish_kernels(
    tables: CostTables,
    num_kernels: int,
    kernel_chip: IntArray,
    kernel_bytes: LongArray,
    measured_s: FloatArray,
    kernel_s: FloatArray,
    compute_s: FloatArray,
) -> None:
    """Fill in kernel seconds: the slower of compute and memory, plus overhead; measured ops add their own."""
    for kernel in range(num_kernels):
        chip = kernel_chip[kernel]
        kind = tables.chip_kind[chip]
        seconds = measured_s[kernel]
        if kernel_s[kernel] != NOTHING_YET:
            moved_s = kernel_bytes[kernel] * tables.sram_s_per_byte[kind]
            seconds += max(kernel_s[kernel], moved_s) + tables.kernel_overhead_s[kind]
        kernel_s[kernel] = seconds
        compute_s[chip] += seconds


@compiled_inner
def _interval(
    tables: CostTables,
    b: int,
    link_bytes: LongArray,
    turn_bytes: FloatArray,
    host_bytes: LongArray,
    chip_host_in: LongArray,
    chip_host_out: LongArray,
    stage_size: LongArray,
    share: FloatArray,
    border_bytes: LongArray,
    out: BatchMetrics,
) -> None:
    num_chips = len(tables.chip_kind)
    num_links = len(tables.link_s_per_byte)
    link_s = out.link_s[b]
    for link in range(num_links):
        link_s[link] = (link_bytes[link] + turn_bytes[link]) * tables.link_s_per_byte[link]
    for first in range(num_chips):
        size = stage_size[first]
        for behind in range(1, size):
            # Inputs go on to the chips after this link; results come from the `behind` chips before it.
            inferences = round_of(size, tables.sequences)
            done = turns_before(behind, size, tables.sequences)
            shared = (inferences - done) * border_bytes[0, first] + done * border_bytes[1, first]
            link = first + behind - 1
            link_s[link] += shared / inferences * tables.link_s_per_byte[link]
    link_s[num_links] = (host_bytes[0] + turn_bytes[num_links]) * tables.host_in_s_per_byte
    link_s[num_links + 1] = host_bytes[1] * tables.host_out_s_per_byte
    total_s = np.empty(num_chips)
    for chip in range(num_chips):
        total_s[chip] = out.compute_s[b, chip]
    if not tables.overlap:
        for link in range(num_links):
            for chip in (tables.link_from[link], tables.link_to[link]):
                if chip >= 0 and tables.pays_transfers[tables.chip_kind[chip]]:
                    total_s[chip] += link_s[link]
        for chip in range(num_chips):
            if tables.pays_transfers[tables.chip_kind[chip]]:
                total_s[chip] += chip_host_in[chip] * tables.host_in_s_per_byte * share[chip]
                total_s[chip] += chip_host_out[chip] * tables.host_out_s_per_byte * share[chip]
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
