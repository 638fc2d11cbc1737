"""One execution of a plan alone on its target: event driven, links as resources.

Each chip runs its kernels in the plan's order. A tensor leaves when its kernel ends and
holds all links of its routes from the moment they are all free, first come first
served by time, then by tensor. Inputs and streamed weights cross the host's link one
after the other in the order they are first needed.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from go_opt.env.analytical import transfer_s
from go_opt.env.cost import CostTables
from go_opt.graph import INPUT, NO_PRODUCER


def makespan_s(
    tables: CostTables,
    kernel_of: NDArray[np.int32],
    kernel_chip: NDArray[np.int32],
    kernel_s: NDArray[np.float64],
    stream_bytes: NDArray[np.int64],
) -> float:
    """Seconds from the first byte read from the host to the last one written to it.

    Args:
      kernel_of: [N] kernel of each op, numbered along the plan's order.
      kernel_chip: [M] chip of each kernel.
      kernel_s: [M] seconds of each kernel.
      stream_bytes: [D] weights streamed to each chip before its first kernel.
    """
    tensor_ptr, tensors = _tensors_by_kernel(tables, kernel_of, len(kernel_chip))
    return float(_makespan(tables, kernel_of, kernel_chip, kernel_s, stream_bytes, tensor_ptr, tensors))


def _tensors_by_kernel(
    tables: CostTables, kernel_of: NDArray[np.int32], num_kernels: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """CSR over kernels: the tensors each produces."""
    produced = np.flatnonzero(tables.tensor_producer != NO_PRODUCER)
    home = kernel_of[tables.tensor_producer[produced]]
    counts = np.bincount(home, minlength=num_kernels)
    tensors = produced[np.argsort(home, kind="stable")].astype(np.int32)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), tensors


@njit(cache=True, nogil=True)
def _makespan(tables, kernel_of, kernel_chip, kernel_s, stream_bytes, tensor_ptr, tensors):
    num_kernels = len(kernel_chip)
    num_chips = len(tables.chip_kind)
    ready_s = _host_arrivals(tables, kernel_of, kernel_chip, stream_bytes)
    waits_for = np.zeros(num_kernels, np.int64)
    next_on_chip = np.full(num_kernels, -1, np.int64)
    last_on_chip = np.full(num_chips, -1, np.int64)
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
    host_out_free_s = 0.0
    finished_s = 0.0
    # Few kernels run at once (one a chip), so the next event is found by a scan over chips.
    running = np.full(num_chips, -1, np.int64)
    end_s = np.full(num_chips, np.inf)
    for kernel in range(num_kernels):
        if waits_for[kernel] == 0:
            running[kernel_chip[kernel]] = kernel
            end_s[kernel_chip[kernel]] = ready_s[kernel] + kernel_s[kernel]
    while True:
        chip = int(np.argmin(end_s))
        now_s = end_s[chip]
        if now_s == np.inf:
            return finished_s
        kernel = running[chip]
        end_s[chip] = np.inf
        finished_s = max(finished_s, now_s)
        following = next_on_chip[kernel]
        if following >= 0:
            waits_for[following] -= 1
            ready_s[following] = max(ready_s[following], now_s)
            _start_if_ready(following, waits_for, ready_s, kernel_chip, kernel_s, running, end_s)
        for i in range(tensor_ptr[kernel], tensor_ptr[kernel + 1]):
            tensor = tensors[i]
            if tables.tensor_is_output[tensor]:
                begin_s = max(now_s, host_out_free_s)
                host_out_free_s = begin_s + tables.tensor_bytes[tensor] * tables.host_out_s_per_byte
                finished_s = max(finished_s, host_out_free_s)
            begin_s = _claim_links(tables, kernel_of, kernel_chip, tensor, chip, now_s, link_free_s)
            for r in range(tables.reader_ptr[tensor], tables.reader_ptr[tensor + 1]):
                reader = kernel_of[tables.reader_op[r]]
                if reader == kernel:
                    continue
                sent_s = transfer_s(tables, chip, kernel_chip[reader], tables.tensor_bytes[tensor])
                arrival_s = now_s if kernel_chip[reader] == chip else begin_s + sent_s
                waits_for[reader] -= 1
                ready_s[reader] = max(ready_s[reader], arrival_s)
                _start_if_ready(reader, waits_for, ready_s, kernel_chip, kernel_s, running, end_s)


@njit(cache=True, nogil=True)
def _start_if_ready(kernel, waits_for, ready_s, kernel_chip, kernel_s, running, end_s):
    if waits_for[kernel] == 0:
        running[kernel_chip[kernel]] = kernel
        end_s[kernel_chip[kernel]] = ready_s[kernel] + kernel_s[kernel]


@njit(cache=True, nogil=True)
def _host_arrivals(tables, kernel_of, kernel_chip, stream_bytes):
    """[M] when the inputs and streamed weights of each kernel have crossed the host's link."""
    num_kernels = len(kernel_chip)
    arrival_s = np.zeros(num_kernels)
    first_reader = np.full(len(tables.tensor_kind), num_kernels, np.int64)
    for k in range(len(tables.tensor_kind)):
        if tables.tensor_kind[k] == INPUT:
            for r in range(tables.reader_ptr[k], tables.reader_ptr[k + 1]):
                first_reader[k] = min(first_reader[k], kernel_of[tables.reader_op[r]])
    inputs = np.argsort(first_reader, kind="mergesort")
    streamed = np.zeros(len(tables.chip_kind), np.bool_)
    now_s = 0.0
    i = 0
    for kernel in range(num_kernels):
        chip = kernel_chip[kernel]
        if not streamed[chip]:
            streamed[chip] = True
            now_s += stream_bytes[chip] * tables.host_in_s_per_byte
            if stream_bytes[chip] > 0:
                arrival_s[kernel] = max(arrival_s[kernel], now_s)
        while i < len(inputs) and first_reader[inputs[i]] == kernel:
            tensor = inputs[i]
            now_s += tables.tensor_bytes[tensor] * tables.host_in_s_per_byte
            for r in range(tables.reader_ptr[tensor], tables.reader_ptr[tensor + 1]):
                reader = kernel_of[tables.reader_op[r]]
                arrival_s[reader] = max(arrival_s[reader], now_s)
            i += 1
    return arrival_s


@njit(cache=True, nogil=True)
def _claim_links(tables, kernel_of, kernel_chip, tensor, home, now_s, link_free_s):
    """When the tensor can leave: all links of its routes free. They are busy until it is through."""
    num_chips = len(tables.chip_kind)
    size = tables.tensor_bytes[tensor]
    farthest = 0
    begin_s = now_s
    for claim in (False, True):
        for r in range(tables.reader_ptr[tensor], tables.reader_ptr[tensor + 1]):
            chip = kernel_chip[kernel_of[tables.reader_op[r]]]
            if chip == home:
                continue
            if tables.is_ring:
                farthest = max(farthest, (chip - home) % num_chips)
                continue
            pair = np.int64(home) * num_chips + chip
            for i in range(tables.route_ptr[pair], tables.route_ptr[pair + 1]):
                link = tables.route_link[i]
                if claim:
                    link_free_s[link] = begin_s + size * tables.link_s_per_byte[link]
                else:
                    begin_s = max(begin_s, link_free_s[link])
        for hop in range(farthest):
            link = (home + hop) % num_chips
            if claim:
                link_free_s[link] = begin_s + size * tables.link_s_per_byte[link]
            else:
                begin_s = max(begin_s, link_free_s[link])
    return begin_s
