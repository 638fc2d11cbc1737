"""What the tensors of a plan take, in one pass: traffic of kernels, links and host, and memory of chips.

Chips of a replicated stage take inferences in turn and forward streamed weights. Sequence q runs on replica
q mod r of every stage of r chips, and its states stay there. Without sequences, inferences take their place.
In a *round* every sequence has one inference; if each of the r chips has as many of these, r inferences are a
round as well.
"""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray
from go_opt.common.compiling import compiled_inline, compiled_inner, int64, uncounted_inner
from go_opt.env.cost.tables import COPY, CostTables
from go_opt.model.graph import NO_PRODUCER, WEIGHT


@uncounted_inner
def round_of(size: int, sequences: int) -> int:
    """Inferences after which the chips of a stage take the same turns again; no ``sequences``: 0."""
    return sequences if sequences % size > 0 else size


@uncounted_inner
def turns_before(replica: int, size: int, sequences: int) -> int:
    """Inferences of a round that run on the replicas before ``replica``."""
    inferences = round_of(size, sequences)
    return inferences // size * replica + min(inferences % size, replica)


@uncounted_inner
def turns_of(replica: int, size: int, sequences: int) -> int:
    """Inferences of a round that run on a replica; the first has the most."""
    return (round_of(size, sequences) - replica + size - 1) // size


@uncounted_inner
def number_stages(
    placement: IntArray,
    replication: IntArray,
    sequences: int,
    stage_size: LongArray,
    share: FloatArray,
    border_bytes: LongArray,
) -> None:
    """Fill in ``stage_size``, and the ``share`` of inferences of each chip; clear ``border_bytes``."""
    num_chips = len(stage_size)
    for d in range(num_chips):
        stage_size[d] = 1
        share[d] = 1.0
        border_bytes[0, d] = 0
        border_bytes[1, d] = 0
    for op in range(len(placement)):
        size = min(replication[op], num_chips - placement[op])
        if sequences > 0:
            size = min(size, sequences)
        stage_size[placement[op]] = max(stage_size[placement[op]], size)
    for d in range(num_chips):
        for replica in range(stage_size[d] if stage_size[d] > 1 else 0):
            turns = turns_of(replica, stage_size[d], sequences)
            share[d + replica] = turns / round_of(stage_size[d], sequences)


@uncounted_inner
def share_stream(first: int, size: int, bytes_a_turn: float, turn_bytes: FloatArray) -> None:
    """Add forwarded weights: the host sends them once per stage, and each chip sends them to the next."""
    turn_bytes[-1] += bytes_a_turn
    for link in range(first, first + size - 1):
        turn_bytes[link] += bytes_a_turn


NONE = -1
# Buffers of a tensor that enters or leaves a chip, whatever the target's `buffers` (design section 5).
BORDER_BUFFERS = 2
# Most inferences over which link loads are averaged; only stages of over 40 chips in all can need more.
MOST_TURNS = 1 << 14


class Traffic(NamedTuple):
    """What :func:`count_tensors` fills in, and its scratch; the next plan uses the same arrays.

    Axes: ``N`` ops, of which there are as many as kernels or more, ``K`` tensors, ``R`` reads, ``D`` chips,
    ``L`` links.
    """

    stage_size: LongArray  # [D] chips of the stage that starts at each chip: given
    kernel_bytes: LongArray  # [N] read and written
    last_read: IntArray  # [N] of a kernel, from another kernel or the host; NONE: no read
    read_before: IntArray  # [R] the read of the same kernel before, or NONE
    read_from: IntArray  # [R] the kernel that writes what is read; NONE: the host
    chip_host_in: LongArray  # [D] inputs
    chip_host_out: LongArray  # [D]
    host_bytes: LongArray  # [2] in and out
    link_bytes: LongArray  # [L], and behind them room for differences
    turn_bytes: FloatArray  # [L + 1] mean bytes of inferences that take turns; the host's link in comes last
    stage_bytes: LongArray  # [2, D] into and out of the stage that starts at a chip of a ring
    border_bytes: LongArray  # [D] buffers of tensors that enter or leave a chip
    resident_bytes: LongArray  # [D] of all weights that a chip reads, and its states
    inner_bytes: LongArray  # [D] of the other activations side by side
    num_inner: LongArray  # [D] these
    num_weights: LongArray  # [D] weights that a chip reads, and its states
    last_made: IntArray  # [N] of these, by a kernel; NONE: it makes none
    made_before: IntArray  # [K] the one of the same kernel before it, or NONE
    dead_of: IntArray  # [K] the kernel that reads it last
    born_bytes: LongArray  # [N] of those that a kernel makes
    dead_bytes: LongArray  # [N] of those that it reads last
    # Stamps say "already seen for this tensor of this plan" without clearing arrays.
    kernel_seen: LongArray  # [N]
    kernel_read: LongArray  # [N] bytes of the tensor seen last
    chip_seen: LongArray  # [D]
    link_seen: LongArray  # [L + 1] last: the number of stamps so far
    readers: LongArray  # [D] other chips that read the tensor


@compiled_inner
def new_traffic(tables: CostTables, stage_size: LongArray) -> Traffic:
    """Empty arrays; :func:`clear_kernel` and :func:`clear_chips` come before the first count."""
    num_ops, num_tensors, num_reads = tables.op_s.shape[1], len(tables.tensor_kind), len(tables.reader_op)
    num_chips, num_links = len(tables.chip_kind), len(tables.link_s_per_byte)
    return Traffic(
        stage_size,
        np.empty(num_ops, np.int64), np.empty(num_ops, np.int32),
        np.empty(num_reads, np.int32), np.empty(num_reads, np.int32),
        np.empty(num_chips, np.int64), np.empty(num_chips, np.int64), np.empty(2, np.int64),
        np.empty(num_chips + num_links + 1, np.int64), np.empty(num_links + 1, np.float64),
        np.zeros((2, num_chips), np.int64),
        np.empty(num_chips, np.int64), np.empty(num_chips, np.int64), np.empty(num_chips, np.int64),
        np.empty(num_chips, np.int64), np.empty(num_chips, np.int64),
        np.empty(num_ops, np.int32), np.empty(num_tensors, np.int32), np.empty(num_tensors, np.int32),
        np.empty(num_ops, np.int64), np.empty(num_ops, np.int64),
        np.zeros(num_ops, np.int64), np.empty(num_ops, np.int64),
        np.zeros(num_chips, np.int64), np.zeros(num_links + 1, np.int64), np.empty(num_chips, np.int64),
    )  # fmt: skip


@uncounted_inner
def clear_kernel(traffic: Traffic, kernel: int) -> None:
    traffic.kernel_bytes[kernel] = 0
    traffic.born_bytes[kernel] = 0
    traffic.dead_bytes[kernel] = 0
    traffic.last_read[kernel] = traffic.last_made[kernel] = NONE


@uncounted_inner
def clear_chips(traffic: Traffic) -> None:
    """Clear what is counted of chips, links and the host."""
    for d in range(len(traffic.chip_host_in)):
        traffic.chip_host_in[d] = 0
        traffic.chip_host_out[d] = 0
        traffic.border_bytes[d] = 0
        traffic.resident_bytes[d] = 0
        traffic.inner_bytes[d] = 0
        traffic.num_inner[d] = 0
        traffic.num_weights[d] = 0
    # Plain loops: assigning to slices makes the kernels take seconds longer to compile.
    for i in range(len(traffic.link_bytes)):
        traffic.link_bytes[i] = 0
    for link in range(len(traffic.turn_bytes)):
        traffic.turn_bytes[link] = 0
    traffic.host_bytes[0] = 0
    traffic.host_bytes[1] = 0


@uncounted_inner
def count_tensors(
    tables: CostTables, kernel_of: IntArray, kernel_chip: IntArray, stamp: int, traffic: Traffic
) -> None:
    """Count every tensor once. ``stamp``: tensors that were counted into ``traffic`` before."""
    for k in range(len(tables.tensor_kind)):
        stamp += 1
        producer = tables.tensor_producer[k]
        is_weight = tables.tensor_kind[k] == WEIGHT
        home_kernel = kernel_of[producer] if producer != NO_PRODUCER else NONE
        home = kernel_chip[home_kernel] if producer != NO_PRODUCER else NONE
        last, num_readers = int64(NONE), int64(0)
        for r in range(tables.reader_ptr[k], tables.reader_ptr[k + 1]):
            kernel = kernel_of[tables.reader_op[r]]
            if kernel == home_kernel:
                continue
            # A kernel reads a tensor once, even for several of its ops: the largest read counts.
            touched = tables.read_bytes[r]
            if traffic.kernel_seen[kernel] != stamp:
                traffic.kernel_seen[kernel] = stamp
                traffic.kernel_read[kernel] = touched
                traffic.kernel_bytes[kernel] += touched
                if not is_weight:
                    traffic.read_from[r] = home_kernel
                    traffic.read_before[r] = traffic.last_read[kernel]
                    traffic.last_read[kernel] = r
            elif touched > traffic.kernel_read[kernel]:
                traffic.kernel_bytes[kernel] += touched - traffic.kernel_read[kernel]
                traffic.kernel_read[kernel] = touched
            last = max(last, kernel)
            chip = kernel_chip[kernel]
            if chip != home and traffic.chip_seen[chip] != stamp:
                traffic.chip_seen[chip] = stamp
                traffic.readers[num_readers] = chip
                num_readers += 1
        if is_weight:
            is_state = tables.sequences > 0 and tables.tensor_bytes[k] == 0
            for i in range(num_readers):
                chip = traffic.readers[i]
                size = traffic.stage_size[chip] * tables.stage_chips[chip]
                resident = weight_bytes(tables.stored_bytes[k], is_state, tables.sequences, size)
                traffic.resident_bytes[chip] += resident
                traffic.num_weights[chip] += 1
        elif home == NONE:
            _count_input(tables, k, num_readers, traffic)
        else:
            _count_activation(tables, k, home_kernel, home, last, num_readers, traffic)
    if tables.is_ring:
        for link in range(1, len(tables.chip_kind)):
            traffic.link_bytes[link] += traffic.link_bytes[link - 1]


@compiled_inline
def _count_input(tables: CostTables, k: int, num_readers: int, traffic: Traffic) -> None:
    size = tables.tensor_bytes[k]
    traffic.host_bytes[0] += size * (1 if tables.host_multicast else num_readers)
    for i in range(num_readers):
        chip = traffic.readers[i]
        traffic.chip_host_in[chip] += size
        traffic.border_bytes[chip] += BORDER_BUFFERS * tables.stored_bytes[k]


@compiled_inline
def _count_activation(
    tables: CostTables, k: int, home_kernel: int, home: int, last: int, num_readers: int, traffic: Traffic
) -> None:
    """Count what is written. ``last``: the kernel that reads it last, if another one does, or NONE."""
    size, is_output = tables.tensor_bytes[k], tables.tensor_is_output[k]
    if not is_output and last == NONE:
        return
    traffic.kernel_bytes[home_kernel] += size
    if is_output:
        traffic.host_bytes[1] += size
        traffic.chip_host_out[home] += size
    elif num_readers == 0:
        traffic.made_before[k] = traffic.last_made[home_kernel]
        traffic.last_made[home_kernel] = k
        traffic.dead_of[k] = last
        traffic.inner_bytes[home] += tables.stored_bytes[k]
        traffic.num_inner[home] += 1
        traffic.born_bytes[home_kernel] += tables.stored_bytes[k]
        traffic.dead_bytes[last] += tables.stored_bytes[k]
        return
    if tables.tensor_kind[k] != COPY:
        traffic.border_bytes[home] += BORDER_BUFFERS * tables.stored_bytes[k]
    for i in range(num_readers):
        traffic.border_bytes[traffic.readers[i]] += BORDER_BUFFERS * tables.stored_bytes[k]
    if num_readers > 0 and tables.is_ring:
        _load_ring(home, num_readers, len(tables.chip_kind), size, traffic)
    elif num_readers > 0:
        _load_routes(tables, home, num_readers, size, traffic)


@uncounted_inner
def weight_bytes(stored_bytes: int, is_state: bool, sequences: int, size: int) -> int:
    """Bytes of a weight on a chip; of a state, for the sequences of the busiest of ``size`` chips."""
    return stored_bytes // sequences * -(-sequences // size) if is_state and size > 1 else stored_bytes


@uncounted_inner
def _load_ring(home: int, num_readers: int, num_chips: int, size: int, traffic: Traffic) -> None:
    """Load the links from the chip ``home`` on as differences, which are summed afterwards.

    Links after the last chip of its stage carry the whole tensor, links inside both stages a share.
    """
    farthest = int64(0)
    for i in range(num_readers):
        hops = traffic.readers[i] - home
        farthest = max(farthest, hops if hops > 0 else hops + num_chips)
    traffic.stage_bytes[1, home] += size
    traffic.stage_bytes[0, (home + farthest) % num_chips] += size
    begin, end = home + traffic.stage_size[home] - 1, home + farthest
    if begin >= end:
        return
    traffic.link_bytes[begin] += size
    if end <= num_chips:
        traffic.link_bytes[end] -= size
    else:
        traffic.link_bytes[0] += size
        traffic.link_bytes[end - num_chips] -= size


@uncounted_inner
def _load_routes(tables: CostTables, home: int, num_readers: int, size: int, traffic: Traffic) -> None:
    """Add ``size`` to each link of the routes once; replicas add the mean over their turns."""
    stage_size, link_seen = traffic.stage_size, traffic.link_seen
    cycle = stage_size[home]
    for i in range(num_readers):
        readers = stage_size[traffic.readers[i]]
        cycle *= readers // gcd(cycle, readers)
        cycle = min(cycle, MOST_TURNS)
    cycle = min(round_of(cycle, tables.sequences), MOST_TURNS)
    for inference in range(cycle):
        link_seen[-1] += 1  # a new stamp for each tensor and inference
        source = home + inference % stage_size[home]
        for j in range(num_readers):
            chip = traffic.readers[j]
            pair = source * len(tables.chip_kind) + chip + inference % stage_size[chip]
            for i in range(tables.route_ptr[pair], tables.route_ptr[pair + 1]):
                link = tables.route_link[i]
                if link_seen[link] == link_seen[-1]:
                    continue
                link_seen[link] = link_seen[-1]
                if cycle == 1:
                    traffic.link_bytes[link] += size
                else:
                    traffic.turn_bytes[link] += size / cycle
