"""One execution of a plan alone on its target: event driven, links as resources.

Each chip runs its kernels in the order of the plan. A tensor leaves once its kernel has ended and all
links of its routes are free, and then occupies them. Tensors request links in order of time, then
of chip, then of op in the order of the plan. Inputs and streamed weights cross the link of the host one
after the other, in the order of their first use on a chip. With ``host_multicast`` an input crosses it once.
The working data are arrays of records, which keep related fields adjacent in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray, RecordArray, csr, record, row_pointers
from go_opt.common.compiling import compiled, int64, uncounted, uncounted_inner
from go_opt.env.cost.tables import CostTables, read_only
from go_opt.env.kernels.numbering import number_kernels, seconds_of_kernels
from go_opt.model.graph import INPUT, NO_PRODUCER

NONE: Final = -1

# Decisions. Kernel numbers are any below the number of ops; `place` is the position in the plan's order.
KERNEL: Final = record("first_op chip place", "seconds")
OP: Final = record("kernel following")  # `following` is the next op of the kernel in the plan's order
# The graph and the target. The lists of a row end where those of the next row begin.
OP_LISTS: Final = record("outputs inputs")
# `fetched` is the place in `Workspace.fetched_s` of an input on chip 0, the other chips follow.
TENSOR: Final = record("size_bytes is_output readers fetched")
PAIR: Final = record("links", "setup_s s_per_byte")  # of chips
# The state of an execution. `waits_for` counts kernels and tensors; `cause` is the kernel waited for last,
# or NONE; `start_s` is the latest arrival so far; `following` is the next kernel on the chip; `rank` is the
# position of the kernel's end among all ends.
RUN: Final = record("waits_for following cause rank", "start_s")
SENT: Final = record("", "sent_s to_host_s")  # of a tensor
CHIP: Final = record("running", "end_s")
LINK: Final = record("seen", "s_per_byte free_s")  # `seen` is the last tensor routed over it, counted from 1


class Workspace(NamedTuple):
    """A graph on a target, and buffers that successive executions reuse. Axes as in :class:`CostTables`."""

    op_lists: RecordArray  # [N + 1] OP_LISTS
    outputs: IntArray  # tensors that ops write
    inputs: IntArray  # graph inputs that ops read
    tensors: RecordArray  # [K + 1] TENSOR
    readers: IntArray  # [R] ops
    pairs: RecordArray  # [D * D + 1] PAIR
    route_link: IntArray
    run: RecordArray  # [N] RUN
    sent: RecordArray  # [K] SENT
    fetched_s: FloatArray  # when inputs have crossed the host's link to each chip; infinite if they have not
    chips: RecordArray  # [D] CHIP
    links: RecordArray  # [L] LINK
    used: LongArray  # [L] links of the tensor that leaves now
    host_s_per_byte: FloatArray  # [2] in, out
    is_ring: bool
    host_multicast: bool  # an input crosses the host's link once for all chips


def workspace_of(tables: CostTables) -> Workspace:
    """Buffers for executions of plans of ``tables``."""
    num_ops, num_tensors, num_links = tables.num_ops, len(tables.tensor_kind), len(tables.link_s_per_byte)
    produced = np.flatnonzero(tables.tensor_producer != NO_PRODUCER)
    read = tables.reader_tensor[tables.op_read]
    is_input = tables.tensor_kind[read] == INPUT
    op_lists = np.zeros(num_ops + 1, OP_LISTS)
    op_lists["outputs"], by_op = csr(tables.tensor_producer[produced], num_ops)
    op_lists["inputs"] = row_pointers(tables.reader_op[tables.op_read][is_input], num_ops)
    tensors = np.zeros(num_tensors + 1, TENSOR)
    tensors["size_bytes"][:-1] = tables.tensor_bytes
    tensors["is_output"][:-1] = tables.tensor_is_output
    tensors["readers"] = tables.reader_ptr
    inputs = np.unique(read[is_input])
    tensors["fetched"][inputs] = np.arange(len(inputs)) * tables.num_chips
    links = np.zeros(num_links, LINK)
    links["s_per_byte"] = tables.link_s_per_byte
    return Workspace(
        op_lists=op_lists,
        outputs=produced[by_op].astype(np.int32),
        inputs=read[is_input].astype(np.int32),
        tensors=tensors,
        readers=tables.reader_op,
        pairs=_pairs(tables),
        route_link=tables.route_link,
        run=np.zeros(num_ops, RUN),
        sent=np.zeros(num_tensors, SENT),
        fetched_s=np.zeros(len(inputs) * tables.num_chips),
        chips=np.zeros(tables.num_chips, CHIP),
        links=links,
        used=np.zeros(num_links, np.int64),
        host_s_per_byte=np.array([tables.host_in_s_per_byte, tables.host_out_s_per_byte]),
        is_ring=tables.is_ring,
        host_multicast=tables.host_multicast,
    )


def _pairs(tables: CostTables) -> RecordArray:
    """The terms of :func:`go_opt.env.cost.tables.transfer_s` for each pair of chips."""
    num_chips = tables.num_chips
    pairs = np.zeros(num_chips**2 + 1, PAIR)
    source, destination = np.divmod(np.arange(num_chips**2), num_chips)
    latency_s, s_per_byte = np.zeros(num_chips**2), np.zeros(num_chips**2)
    if tables.is_ring:
        latency_s += (destination - source) % num_chips * tables.link_latency_s[:1].sum()
        s_per_byte += tables.link_s_per_byte[:1].sum()
    else:
        pairs["links"] = tables.route_ptr
        pair = np.repeat(np.arange(num_chips**2), np.diff(tables.route_ptr))
        np.add.at(latency_s, pair, tables.link_latency_s[tables.route_link])
        np.maximum.at(s_per_byte, pair, tables.link_s_per_byte[tables.route_link])
    pairs["setup_s"][:-1] = tables.dma_setup_s[tables.chip_kind[source]] + latency_s
    pairs["setup_s"][:-1] += tables.dependency_s[tables.chip_kind[destination]]
    pairs["s_per_byte"][:-1] = s_per_byte
    return pairs


@uncounted_inner
def execute(
    workspace: Workspace,
    kernels: RecordArray,
    ops: RecordArray,
    sequence: IntArray,
    num_kernels: int,
    stream_bytes: LongArray,
    at_most_s: float,
) -> float:
    """Returns the makespan, or infinity if it is above ``at_most_s``; fills in the state in ``workspace``.

    Args:
      kernels, ops: [N] KERNEL and OP.
      sequence: kernels in the plan's order; the first ``num_kernels`` count.
      stream_bytes: [D] weights streamed to each chip before its first kernel.
    """
    run, chips = workspace.run, workspace.chips
    _begin(workspace, kernels, sequence, num_kernels)
    _wait(workspace, ops)
    _fetch(workspace, kernels, ops, sequence, num_kernels, stream_bytes)
    for i in range(num_kernels):
        _start_if_ready(kernels, run, chips, int64(sequence[i]))
    host_out_free_s = 0.0
    finished_s = 0.0
    num_ended = 0
    while finished_s <= at_most_s:
        # At most one kernel runs per chip, so a scan over the chips finds the next event.
        chip = int64(0)
        for other in range(1, len(chips)):
            if chips[other].end_s < chips[chip].end_s:
                chip = int64(other)
        kernel, now_s = chips[chip].running, chips[chip].end_s
        if now_s == np.inf:
            return finished_s
        chips[chip].end_s = np.inf
        run[kernel].rank = num_ended
        num_ended += 1
        finished_s = max(finished_s, now_s)
        if run[kernel].following != NONE:
            _arrive(kernels, run, chips, run[kernel].following, kernel, now_s)
        op = kernels[kernel].first_op
        while op != NONE:
            for i in range(workspace.op_lists[op].outputs, workspace.op_lists[op + 1].outputs):
                tensor = int64(workspace.outputs[i])
                if workspace.tensors[tensor].is_output:
                    begin_s = max(now_s, host_out_free_s)
                    workspace.sent[tensor].to_host_s = begin_s
                    size_bytes = workspace.tensors[tensor].size_bytes
                    host_out_free_s = begin_s + size_bytes * workspace.host_s_per_byte[1]
                    finished_s = max(finished_s, host_out_free_s)
                _send(workspace, kernels, ops, tensor, kernel, now_s)
            op = ops[op].following
    return np.inf


@uncounted_inner
def _begin(workspace: Workspace, kernels: RecordArray, sequence: IntArray, num_kernels: int) -> None:
    """Reset the state, and link each kernel to the next one on its chip."""
    run, chips = workspace.run, workspace.chips
    for chip in range(len(chips)):
        chips[chip].running = NONE
        chips[chip].end_s = np.inf
    for link in range(len(workspace.links)):
        workspace.links[link].free_s = 0.0
        workspace.links[link].seen = 0
    for i in range(num_kernels):
        kernel = int64(sequence[i])
        chip = kernels[kernel].chip
        before = chips[chip].running
        chips[chip].running = kernel
        run[kernel].waits_for = before != NONE
        run[kernel].following = NONE
        run[kernel].cause = NONE
        run[kernel].start_s = 0.0
        if before != NONE:
            run[before].following = kernel


@uncounted_inner
def _wait(workspace: Workspace, ops: RecordArray) -> None:
    """Count what each kernel waits for: every read of an op from another kernel."""
    for op in range(len(ops)):
        kernel = ops[op].kernel
        for i in range(workspace.op_lists[op].outputs, workspace.op_lists[op + 1].outputs):
            tensor = workspace.outputs[i]
            for r in range(workspace.tensors[tensor].readers, workspace.tensors[tensor + 1].readers):
                reader = ops[workspace.readers[r]].kernel
                workspace.run[reader].waits_for += reader != kernel


@uncounted_inner
def _arrive(
    kernels: RecordArray, run: RecordArray, chips: RecordArray, kernel: int, cause: int, now_s: float
) -> None:
    """End one wait of ``kernel`` at ``now_s``, due to the kernel ``cause``."""
    if now_s >= run[kernel].start_s:
        run[kernel].start_s = now_s
        run[kernel].cause = cause
    run[kernel].waits_for -= 1
    _start_if_ready(kernels, run, chips, kernel)


@uncounted_inner
def _start_if_ready(kernels: RecordArray, run: RecordArray, chips: RecordArray, kernel: int) -> None:
    if run[kernel].waits_for == 0:
        chip = kernels[kernel].chip
        chips[chip].running = kernel
        chips[chip].end_s = run[kernel].start_s + kernels[kernel].seconds


@uncounted_inner
def _fetch(
    workspace: Workspace,
    kernels: RecordArray,
    ops: RecordArray,
    sequence: IntArray,
    num_kernels: int,
    stream_bytes: LongArray,
) -> None:
    """Delay kernels until their inputs and streamed weights have crossed the host's link."""
    run, chips, fetched_s = workspace.run, workspace.chips, workspace.fetched_s
    fetched_s[:] = np.inf
    now_s = 0.0
    for i in range(num_kernels):
        kernel = int64(sequence[i])
        chip = kernels[kernel].chip
        if chips[chip].running != NONE:  # this is its first kernel
            chips[chip].running = NONE
            if stream_bytes[chip] > 0:
                now_s += stream_bytes[chip] * workspace.host_s_per_byte[0]
                run[kernel].start_s = max(run[kernel].start_s, now_s)
        op = kernels[kernel].first_op
        while op != NONE:
            for j in range(workspace.op_lists[op].inputs, workspace.op_lists[op + 1].inputs):
                tensor = int64(workspace.inputs[j])
                at = fetched_place(workspace, tensor, int64(chip))
                if fetched_s[at] == np.inf:
                    now_s += workspace.tensors[tensor].size_bytes * workspace.host_s_per_byte[0]
                    fetched_s[at] = now_s
                run[kernel].start_s = max(run[kernel].start_s, fetched_s[at])
            op = ops[op].following


@uncounted_inner
def fetched_place(workspace: Workspace, tensor: int, chip: int) -> int:
    """The place in ``fetched_s`` of an input on a chip."""
    return int64(workspace.tensors[tensor].fetched) + (0 if workspace.host_multicast else chip)


@uncounted_inner
def depart(
    workspace: Workspace, kernels: RecordArray, ops: RecordArray, tensor: int, kernel: int, now_s: float
) -> float:
    """Returns when a tensor leaves: once all links of its routes are free. Occupies these links."""
    home, links, size_bytes = kernels[kernel].chip, workspace.links, workspace.tensors[tensor].size_bytes
    first, last = workspace.tensors[tensor].readers, workspace.tensors[tensor + 1].readers
    begin_s = now_s
    if size_bytes == 0:
        return begin_s
    num_used = int64(0)
    farthest = int64(0)
    for r in range(first, last):
        chip = kernels[ops[workspace.readers[r]].kernel].chip
        if chip == home:
            continue
        if workspace.is_ring:
            farthest = max(farthest, (chip - home) % len(workspace.chips))
            continue
        pair = home * len(workspace.chips) + chip
        for i in range(workspace.pairs[pair].links, workspace.pairs[pair + 1].links):
            link = int64(workspace.route_link[i])
            if links[link].seen != tensor + 1:
                links[link].seen = tensor + 1
                workspace.used[num_used] = link
                num_used += 1
    for hop in range(farthest):
        link = (home + hop) % len(workspace.chips)
        if link < len(links):  # a chain has no link from its last chip to its first
            workspace.used[num_used] = link
            num_used += 1
    for i in range(num_used):
        begin_s = max(begin_s, links[workspace.used[i]].free_s)
    for i in range(num_used):
        link = workspace.used[i]
        links[link].free_s = begin_s + size_bytes * links[link].s_per_byte
    return begin_s


@uncounted_inner
def _send(
    workspace: Workspace, kernels: RecordArray, ops: RecordArray, tensor: int, kernel: int, now_s: float
) -> None:
    """Send a tensor to its readers."""
    home, size_bytes = kernels[kernel].chip, workspace.tensors[tensor].size_bytes
    begin_s = depart(workspace, kernels, ops, tensor, kernel, now_s)
    workspace.sent[tensor].sent_s = begin_s
    for r in range(workspace.tensors[tensor].readers, workspace.tensors[tensor + 1].readers):
        reader = ops[workspace.readers[r]].kernel
        if reader == kernel:
            continue
        chip = kernels[reader].chip
        there_s = now_s
        if chip != home and size_bytes > 0:
            pair = home * len(workspace.chips) + chip
            there_s = begin_s + (
                workspace.pairs[pair].setup_s + size_bytes * workspace.pairs[pair].s_per_byte
            )
        _arrive(kernels, workspace.run, workspace.chips, reader, kernel, there_s)


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
    workspace, num_ops = workspace_of(tables), tables.num_ops
    kernels, ops = np.zeros(num_ops, KERNEL), np.zeros(num_ops, OP)
    sequence = np.arange(num_ops, dtype=np.int32)
    for place, along, group, streamed in zip(
        read_only(placement), read_only(order), fusion_group, stream_bytes, strict=True
    ):
        kernel_of = number_kernels(along, group)
        size, seconds = _execute(tables, workspace, kernels, ops, sequence, place, along, kernel_of, streamed)
        run, sent = workspace.run[:size], workspace.sent
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
    workspace: Workspace,
    kernels: RecordArray,
    ops: RecordArray,
    sequence: IntArray,
    placement: IntArray,
    order: IntArray,
    kernel_of: IntArray,
    stream_bytes: LongArray,
) -> tuple[int, float]:
    """Returns the number of kernels, and the makespan."""
    size = _decide(kernels, ops, order, kernel_of)
    by_kind = seconds_of_kernels(tables, kernel_of, size)
    for kernel in range(size):
        chip = placement[kernels[kernel].first_op]
        kernels[kernel].chip, kernels[kernel].seconds = chip, by_kind[tables.chip_kind[chip], kernel]
    return size, execute(workspace, kernels, ops, sequence, size, stream_bytes, math.inf)
