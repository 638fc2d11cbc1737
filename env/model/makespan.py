"""One execution of a plan alone on its target: event driven, links as resources.

Each chip runs its kernels in the plan's order. A tensor leaves when its kernel ends and
holds all links of its routes from the moment they are all free, first come first
served by time, then by chip, then by tensor. Inputs and streamed weights cross the host's
link one after the other in the order they are first needed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray
from go_opt.common.compiling import compiled, compiled_inner, int64
from go_opt.env.cost import CostTables
from go_opt.env.cost.read_only import read_only
from go_opt.env.cost.routes import transfer_s
from go_opt.model.csr import row_pointers
from go_opt.model.graph import INPUT, NO_PRODUCER

NONE = -1


class Execution(NamedTuple):
    """When everything happens in one execution. Axes: ``M`` kernels, ``K`` tensors."""

    makespan_s: float
    start_s: FloatArray  # [M]
    rank: LongArray  # [M] place among the ends of kernels, at which their tensors ask for links
    sent_s: FloatArray  # [K] when a tensor leaves its chip, if it does
    to_host_s: FloatArray  # [K] when an output begins to cross the host's link


def makespan_s(
    tables: CostTables,
    order: IntArray,
    kernel_of: IntArray,
    kernel_chip: IntArray,
    kernel_s: FloatArray,
    stream_bytes: LongArray,
) -> float:
    """Seconds from the first byte read from the host to the last one written to it; arguments as below."""
    return execution(tables, order, kernel_of, kernel_chip, kernel_s, stream_bytes).makespan_s


def execution(
    tables: CostTables,
    order: IntArray,
    kernel_of: IntArray,
    kernel_chip: IntArray,
    kernel_s: FloatArray,
    stream_bytes: LongArray,
) -> Execution:
    """One execution from the first byte read from the host to the last one written to it.

    Args:
      order: [N] the plan's order.
      kernel_of: [N] kernel of each op, numbered along the plan's order.
      kernel_chip: [M] chip of each kernel.
      kernel_s: [M] seconds of each kernel.
      stream_bytes: [D] weights streamed to each chip before its first kernel.
    """
    tensor_ptr, tensors = _tensors_by_kernel(tables, kernel_of, len(kernel_chip))
    num_kernels, num_tensors = len(kernel_chip), len(tables.tensor_kind)
    start_s, rank = np.zeros(num_kernels), np.zeros(num_kernels, np.int64)
    sent_s, to_host_s = np.zeros(num_tensors), np.zeros(num_tensors)
    seconds = _makespan(
        tables, read_only(order), kernel_of, kernel_chip, kernel_s, stream_bytes, tensor_ptr, tensors,
        start_s, rank, sent_s, to_host_s,
    )  # fmt: skip
    return Execution(float(seconds), start_s, rank, sent_s, to_host_s)


def _tensors_by_kernel(
    tables: CostTables, kernel_of: IntArray, num_kernels: int
) -> tuple[LongArray, IntArray]:
    """CSR over kernels: the tensors each produces."""
    produced = np.flatnonzero(tables.tensor_producer != NO_PRODUCER)
    home = kernel_of[tables.tensor_producer[produced]]
    tensors = produced[np.argsort(home, kind="stable")].astype(np.int32)
    return row_pointers(home, num_kernels), tensors


@compiled
def _makespan(
    tables: CostTables,
    order: IntArray,
    kernel_of: IntArray,
    kernel_chip: IntArray,
    kernel_s: FloatArray,
    stream_bytes: LongArray,
    tensor_ptr: LongArray,
    tensors: IntArray,
    start_s: FloatArray,
    rank: LongArray,
    left_s: FloatArray,
    to_host_s: FloatArray,
) -> float:
    """The makespan; fills what :class:`Execution` has."""
    num_kernels = len(kernel_chip)
    num_chips = len(tables.chip_kind)
    ready_s = _host_arrivals(tables, order, kernel_of, kernel_chip, stream_bytes)
    waits_for = np.zeros(num_kernels, np.int64)
    next_on_chip = np.empty(num_kernels, np.int64)
    last_on_chip = np.empty(num_chips, np.int64)
    running = np.empty(num_chips, np.int64)
    end_s = np.empty(num_chips)
    for kernel in range(num_kernels):
        next_on_chip[kernel] = NONE
    for chip in range(num_chips):
        last_on_chip[chip] = NONE
        end_s[chip] = np.inf
    for kernel in range(num_kernels):
        before = last_on_chip[kernel_chip[kernel]]
        if before >= 0:
            next_on_chip[before] = kernel
            waits_for[kernel] += 1
        last_on_chip[kernel_chip[kernel]] = kernel
    for k in range(len(tables.tensor_kind)):
        if tables.tensor_producer[k] != NO_PRODUCER:
            home = kernel_of[tables.tensor_producer[k]]
            for r in range(tables.reader_ptr[k], tables.reader_ptr[k + 1]):
                waits_for[kernel_of[tables.reader_op[r]]] += kernel_of[tables.reader_op[r]] != home
    link_free_s = np.zeros(len(tables.link_s_per_byte))
    link_seen = np.zeros(len(tables.link_s_per_byte), np.int64)
    links = np.empty(len(tables.link_s_per_byte), np.int64)
    host_out_free_s = 0.0
    finished_s = 0.0
    num_ended = 0
    for kernel in range(num_kernels):
        if waits_for[kernel] == 0:
            running[kernel_chip[kernel]] = kernel
            end_s[kernel_chip[kernel]] = ready_s[kernel] + kernel_s[kernel]
    while True:
        # Few kernels run at once (one a chip), so the next event is found by a scan over chips.
        chip = _first_to_end(end_s)
        now_s = end_s[chip]
        if now_s == np.inf:
            return finished_s
        kernel = running[chip]
        end_s[chip] = np.inf
        start_s[kernel], rank[kernel] = ready_s[kernel], num_ended
        num_ended += 1
        finished_s = max(finished_s, now_s)
        following = next_on_chip[kernel]
        if following >= 0:
            waits_for[following] -= 1
            ready_s[following] = max(ready_s[following], now_s)
            _start_if_ready(following, waits_for, ready_s, kernel_chip, kernel_s, running, end_s)
        for i in range(tensor_ptr[kernel], tensor_ptr[kernel + 1]):
            tensor = tensors[i]
            if tables.tensor_is_output[tensor]:
                begin_s = to_host_s[tensor] = max(now_s, host_out_free_s)
                host_out_free_s = begin_s + tables.tensor_bytes[tensor] * tables.host_out_s_per_byte
                finished_s = max(finished_s, host_out_free_s)
            begin_s = _claim_links(
                tables, kernel_of, kernel_chip, tensor, chip, now_s, link_free_s, link_seen, links
            )
            left_s[tensor] = begin_s
            for r in range(tables.reader_ptr[tensor], tables.reader_ptr[tensor + 1]):
                reader = kernel_of[tables.reader_op[r]]
                if reader == kernel:
                    continue
                sent_s = transfer_s(
                    tables, int64(chip), int64(kernel_chip[reader]), tables.tensor_bytes[tensor]
                )
                arrival_s = now_s if kernel_chip[reader] == chip else begin_s + sent_s
                waits_for[reader] -= 1
                ready_s[reader] = max(ready_s[reader], arrival_s)
                _start_if_ready(reader, waits_for, ready_s, kernel_chip, kernel_s, running, end_s)


@compiled_inner
def _first_to_end(end_s: FloatArray) -> int:
    first = int64(0)
    for chip in range(1, len(end_s)):
        if end_s[chip] < end_s[first]:
            first = int64(chip)
    return first


@compiled_inner
def _start_if_ready(
    kernel: int,
    waits_for: LongArray,
    ready_s: FloatArray,
    kernel_chip: IntArray,
    kernel_s: FloatArray,
    running: LongArray,
    end_s: FloatArray,
) -> None:
    if waits_for[kernel] == 0:
        running[kernel_chip[kernel]] = kernel
        end_s[kernel_chip[kernel]] = ready_s[kernel] + kernel_s[kernel]


@compiled_inner
def _host_arrivals(
    tables: CostTables, order: IntArray, kernel_of: IntArray, kernel_chip: IntArray, stream_bytes: LongArray
) -> FloatArray:
    """[M] when the inputs and streamed weights of each kernel have crossed the host's link."""
    arrival_s = np.zeros(len(kernel_chip))
    is_streamed = np.zeros(len(tables.chip_kind), np.bool_)
    is_sent = np.zeros(len(tables.tensor_kind), np.bool_)
    now_s = 0.0
    for op in order:
        kernel = kernel_of[op]
        chip = kernel_chip[kernel]
        if not is_streamed[chip] and stream_bytes[chip] > 0:
            is_streamed[chip] = True
            now_s += stream_bytes[chip] * tables.host_in_s_per_byte
            arrival_s[kernel] = max(arrival_s[kernel], now_s)
        for i in range(tables.op_read_ptr[op], tables.op_read_ptr[op + 1]):
            tensor = tables.reader_tensor[tables.op_read[i]]
            if tables.tensor_kind[tensor] != INPUT or is_sent[tensor]:
                continue
            is_sent[tensor] = True
            now_s += tables.tensor_bytes[tensor] * tables.host_in_s_per_byte
            for r in range(tables.reader_ptr[tensor], tables.reader_ptr[tensor + 1]):
                reader = kernel_of[tables.reader_op[r]]
                arrival_s[reader] = max(arrival_s[reader], now_s)
    return arrival_s


@compiled_inner
def _claim_links(
    tables: CostTables,
    kernel_of: IntArray,
    kernel_chip: IntArray,
    tensor: int,
    home: int,
    now_s: float,
    link_free_s: FloatArray,
    link_seen: LongArray,
    links: LongArray,
) -> float:
    """When the tensor can leave: all links of its routes free. They are busy until it is through."""
    num_used = _links_used(tables, kernel_of, kernel_chip, tensor, home, link_seen, links)
    begin_s = now_s
    for i in range(num_used):
        begin_s = max(begin_s, link_free_s[links[i]])
    for i in range(num_used):
        busy_s = tables.tensor_bytes[tensor] * tables.link_s_per_byte[links[i]]
        link_free_s[links[i]] = begin_s + busy_s
    return begin_s


@compiled_inner
def _links_used(
    tables: CostTables,
    kernel_of: IntArray,
    kernel_chip: IntArray,
    tensor: int,
    home: int,
    link_seen: LongArray,
    links: LongArray,
) -> int:
    """Collect the links from chip ``home`` to the readers of ``tensor``, each once; their number."""
    num_chips = len(tables.chip_kind)
    num_used = int64(0)
    farthest = int64(0)
    for r in range(tables.reader_ptr[tensor], tables.reader_ptr[tensor + 1]):
        chip = int64(kernel_chip[kernel_of[tables.reader_op[r]]])
        if tables.is_ring:
            farthest = max(farthest, (chip - home) % num_chips)
            continue
        pair = home * num_chips + chip
        for i in range(tables.route_ptr[pair], tables.route_ptr[pair + 1]):
            link = tables.route_link[i]
            if link_seen[link] != tensor + 1:
                link_seen[link] = tensor + 1
                links[num_used] = link
                num_used += 1
    for hop in range(farthest):
        link = (home + hop) % num_chips
        if link < len(tables.link_s_per_byte):  # a chain has none from its last chip to its first
            links[num_used] = link
            num_used += 1
    return num_used
