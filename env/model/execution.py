"""The event loop of one execution, on arrays of records: what belongs together stands together in memory.

:mod:`go_opt.env.model.makespan` says what it computes.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray, RecordArray
from go_opt.common.compiling import int64, uncounted_inner
from go_opt.common.records import record
from go_opt.env.cost import CostTables
from go_opt.model.csr import row_pointers
from go_opt.model.graph import INPUT, NO_PRODUCER

NONE: Final = -1

# Decisions. Kernels have any numbers below the number of ops; `place` is that in the plan's order.
KERNEL: Final = record("first_op chip place", "seconds")
OP: Final = record("kernel following")  # `following` is the next op of the kernel in the plan's order
# What the graph and the target say. Lists end where those of the next row begin.
OP_LISTS: Final = record("outputs inputs")
TENSOR: Final = record("size_bytes is_output readers")
PAIR: Final = record("links", "setup_s s_per_byte")  # of chips
# What happens. `waits_for` counts kernels and tensors; `cause` is the kernel waited for last, or NONE;
# `start_s` is when what has arrived so far did; `following` is the next kernel on the chip; `rank` is the
# place among the ends of kernels.
RUN: Final = record("waits_for following cause rank", "start_s")
SENT: Final = record("is_fetched", "sent_s to_host_s")  # of a tensor; `is_fetched`: an input, from the host
CHIP: Final = record("running", "end_s")
LINK: Final = record("seen", "s_per_byte free_s")  # `seen` is the last tensor routed over it, counted from 1


class Package(NamedTuple):
    """A graph on a target, and room for one execution after the other. Axes as in :class:`CostTables`."""

    op_lists: RecordArray  # [N + 1] OP_LISTS
    outputs: IntArray  # tensors that ops write
    inputs: IntArray  # tensors of the host that ops read
    tensors: RecordArray  # [K + 1] TENSOR
    readers: IntArray  # [R] ops
    pairs: RecordArray  # [D * D + 1] PAIR
    route_link: IntArray
    run: RecordArray  # [N] RUN
    sent: RecordArray  # [K] SENT
    chips: RecordArray  # [D] CHIP
    links: RecordArray  # [L] LINK
    used: LongArray  # [L] links of the tensor on its way
    host_s_per_byte: FloatArray  # [2] in, out
    is_ring: bool


def package_of(tables: CostTables) -> Package:
    """Room for executions of plans of ``tables``."""
    num_ops, num_tensors, num_links = tables.num_ops, len(tables.tensor_kind), len(tables.link_s_per_byte)
    produced = np.flatnonzero(tables.tensor_producer != NO_PRODUCER)
    producer = tables.tensor_producer[produced]
    read = tables.reader_tensor[tables.op_read]
    is_input = tables.tensor_kind[read] == INPUT
    op_lists = np.zeros(num_ops + 1, OP_LISTS)
    op_lists["outputs"] = row_pointers(producer, num_ops)
    op_lists["inputs"] = row_pointers(tables.reader_op[tables.op_read][is_input], num_ops)
    tensors = np.zeros(num_tensors + 1, TENSOR)
    tensors["size_bytes"][:-1] = tables.tensor_bytes
    tensors["is_output"][:-1] = tables.tensor_is_output
    tensors["readers"] = tables.reader_ptr
    links = np.zeros(num_links, LINK)
    links["s_per_byte"] = tables.link_s_per_byte
    return Package(
        op_lists=op_lists,
        outputs=produced[np.argsort(producer, kind="stable")].astype(np.int32),
        inputs=read[is_input].astype(np.int32),
        tensors=tensors,
        readers=tables.reader_op,
        pairs=_pairs(tables),
        route_link=tables.route_link,
        run=np.zeros(num_ops, RUN),
        sent=np.zeros(num_tensors, SENT),
        chips=np.zeros(tables.num_chips, CHIP),
        links=links,
        used=np.zeros(num_links, np.int64),
        host_s_per_byte=np.array([tables.host_in_s_per_byte, tables.host_out_s_per_byte]),
        is_ring=tables.is_ring,
    )


def _pairs(tables: CostTables) -> RecordArray:
    """As :func:`go_opt.env.cost.routes.transfer_s`, for each pair of chips."""
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
    pairs["s_per_byte"][:-1] = s_per_byte
    return pairs


@uncounted_inner
def execute(
    package: Package,
    kernels: RecordArray,
    ops: RecordArray,
    sequence: IntArray,
    num_kernels: int,
    stream_bytes: LongArray,
    at_most_s: float,
) -> float:
    """The makespan, infinite where it is above ``at_most_s``; fills in what happens.

    Args:
      kernels, ops: [N] KERNEL and OP.
      sequence: kernels in the plan's order; the first ``num_kernels`` count.
      stream_bytes: [D] weights streamed to each chip before its first kernel.
    """
    run, chips = package.run, package.chips
    _begin(package, kernels, sequence, num_kernels)
    _wait(package, ops)
    _fetch(package, kernels, ops, sequence, num_kernels, stream_bytes)
    for i in range(num_kernels):
        _start_if_ready(kernels, run, chips, int64(sequence[i]))
    host_out_free_s = 0.0
    finished_s = 0.0
    num_ended = 0
    while finished_s <= at_most_s:
        # Few kernels run at once (one a chip), so the next event is found by a scan over chips.
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
            for i in range(package.op_lists[op].outputs, package.op_lists[op + 1].outputs):
                tensor = int64(package.outputs[i])
                if package.tensors[tensor].is_output:
                    begin_s = max(now_s, host_out_free_s)
                    package.sent[tensor].to_host_s = begin_s
                    size_bytes = package.tensors[tensor].size_bytes
                    host_out_free_s = begin_s + size_bytes * package.host_s_per_byte[1]
                    finished_s = max(finished_s, host_out_free_s)
                _send(package, kernels, ops, tensor, kernel, now_s)
            op = ops[op].following
    return np.inf


@uncounted_inner
def _begin(package: Package, kernels: RecordArray, sequence: IntArray, num_kernels: int) -> None:
    """Nothing has run: who runs behind whom on each chip."""
    run, chips = package.run, package.chips
    for chip in range(len(chips)):
        chips[chip].running = NONE
        chips[chip].end_s = np.inf
    for link in range(len(package.links)):
        package.links[link].free_s = 0.0
        package.links[link].seen = 0
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
def _wait(package: Package, ops: RecordArray) -> None:
    """Each kernel waits for every tensor that each of its ops reads from another one."""
    for op in range(len(ops)):
        kernel = ops[op].kernel
        for i in range(package.op_lists[op].outputs, package.op_lists[op + 1].outputs):
            tensor = package.outputs[i]
            for r in range(package.tensors[tensor].readers, package.tensors[tensor + 1].readers):
                reader = ops[package.readers[r]].kernel
                package.run[reader].waits_for += reader != kernel


@uncounted_inner
def _arrive(
    kernels: RecordArray, run: RecordArray, chips: RecordArray, kernel: int, cause: int, now_s: float
) -> None:
    """Something that ``kernel`` waits for is there, because the kernel ``cause`` has ended."""
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
    package: Package,
    kernels: RecordArray,
    ops: RecordArray,
    sequence: IntArray,
    num_kernels: int,
    stream_bytes: LongArray,
) -> None:
    """When the inputs and streamed weights of each kernel have crossed the host's link."""
    run, chips, sent = package.run, package.chips, package.sent
    for tensor in range(len(sent)):
        sent[tensor].is_fetched = 0
    now_s = 0.0
    for i in range(num_kernels):
        kernel = int64(sequence[i])
        chip = kernels[kernel].chip
        if chips[chip].running != NONE:  # its first kernel
            chips[chip].running = NONE
            if stream_bytes[chip] > 0:
                now_s += stream_bytes[chip] * package.host_s_per_byte[0]
                run[kernel].start_s = max(run[kernel].start_s, now_s)
        op = kernels[kernel].first_op
        while op != NONE:
            for j in range(package.op_lists[op].inputs, package.op_lists[op + 1].inputs):
                tensor = int64(package.inputs[j])
                if sent[tensor].is_fetched:
                    continue
                sent[tensor].is_fetched = 1
                now_s += package.tensors[tensor].size_bytes * package.host_s_per_byte[0]
                for r in range(package.tensors[tensor].readers, package.tensors[tensor + 1].readers):
                    reader = ops[package.readers[r]].kernel
                    run[reader].start_s = max(run[reader].start_s, now_s)
            op = ops[op].following


@uncounted_inner
def _send(
    package: Package, kernels: RecordArray, ops: RecordArray, tensor: int, kernel: int, now_s: float
) -> None:
    """A tensor leaves as soon as all links of its routes are free, which are busy until it is through."""
    home, links, size_bytes = kernels[kernel].chip, package.links, package.tensors[tensor].size_bytes
    first, last = package.tensors[tensor].readers, package.tensors[tensor + 1].readers
    begin_s = now_s
    num_used = int64(0)
    farthest = int64(0)
    for r in range(first, last):
        chip = kernels[ops[package.readers[r]].kernel].chip
        if chip == home:
            continue
        if package.is_ring:
            farthest = max(farthest, (chip - home) % len(package.chips))
            continue
        pair = home * len(package.chips) + chip
        for i in range(package.pairs[pair].links, package.pairs[pair + 1].links):
            link = int64(package.route_link[i])
            if links[link].seen != tensor + 1:
                links[link].seen = tensor + 1
                package.used[num_used] = link
                num_used += 1
    for hop in range(farthest):
        link = (home + hop) % len(package.chips)
        if link < len(links):  # a chain has none from its last chip to its first
            package.used[num_used] = link
            num_used += 1
    for i in range(num_used):
        begin_s = max(begin_s, links[package.used[i]].free_s)
    for i in range(num_used):
        link = package.used[i]
        links[link].free_s = begin_s + size_bytes * links[link].s_per_byte
    package.sent[tensor].sent_s = begin_s
    for r in range(first, last):
        reader = ops[package.readers[r]].kernel
        if reader == kernel:
            continue
        chip = kernels[reader].chip
        there_s = now_s
        if chip != home:
            pair = home * len(package.chips) + chip
            there_s = begin_s + (package.pairs[pair].setup_s + size_bytes * package.pairs[pair].s_per_byte)
        _arrive(kernels, package.run, package.chips, reader, kernel, there_s)
