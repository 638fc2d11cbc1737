"""Flows of a plan and the links each takes, before stages are cut."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from go_opt.env.simulator.package import CHIP_FLOW, DELIVERY, FLOW, HOP, HOST_IN, HOST_OUT, NONE, STREAM
from go_opt.graph import INPUT, NO_PRODUCER, WEIGHT


class Streams(NamedTuple):
    """Weights that stream, one row a kernel that waits for some. Axis: ``W`` such kernels."""

    kernel: NDArray[np.int32]  # [W]
    weight: NDArray[np.int32]  # [W] the first of them
    size_bytes: NDArray[np.int64]  # [W] of all


class Plumbing(NamedTuple):
    """Axes: ``F`` flows, ``V`` deliveries."""

    flows: NDArray  # [F] FLOW
    deliveries: NDArray  # [V] DELIVERY
    maker: NDArray[np.int32]  # [F] kernel that makes it (that waits for it, of a stream), or NONE
    first_reader: NDArray[np.int32]  # [V] kernel
    last_reader: NDArray[np.int32]  # [V] kernel


@njit(cache=True, nogil=True)
def lay_plumbing(tables, kernel_of, kernel_chip, streams, multicast):
    """The flows of a plan; with ``multicast`` an input crosses the host's link once."""
    num_chips, num_reads = len(tables.chip_kind), len(tables.reader_op)
    num_tensors = len(tables.tensor_kind)
    most_flows = 2 * num_tensors + num_reads + len(streams.kernel)
    flows = np.zeros(most_flows, FLOW)
    maker = np.empty(most_flows, np.int32)
    deliveries = np.zeros(num_reads, DELIVERY)
    first_reader = np.empty(num_reads, np.int32)
    last_reader = np.empty(num_reads, np.int32)
    slot_of = np.full(num_chips, NONE, np.int64)
    num_flows, ends = np.int64(0), np.int64(0)
    for k in range(num_tensors):
        if tables.tensor_kind[k] == WEIGHT:
            continue
        producer = tables.tensor_producer[k]
        home = kernel_of[producer] if producer != NO_PRODUCER else NONE
        home_chip = kernel_chip[home] if home != NONE else NONE
        begin = ends
        for r in range(tables.reader_ptr[k], tables.reader_ptr[k + 1]):
            kernel = kernel_of[tables.reader_op[r]]
            chip = kernel_chip[kernel]
            if chip == home_chip:
                continue
            if slot_of[chip] < begin:
                slot_of[chip] = ends
                deliveries[ends].chip = chip
                first_reader[ends], last_reader[ends] = kernel, kernel
                ends += 1
            slot = slot_of[chip]
            first_reader[slot] = min(first_reader[slot], kernel)
            last_reader[slot] = max(last_reader[slot], kernel)
        apart = tables.tensor_kind[k] == INPUT and not multicast
        while begin < ends:
            end = begin + 1 if apart else ends
            kind = HOST_IN if home == NONE else CHIP_FLOW
            _add_flow(flows, num_flows, kind, home_chip, k, tables.tensor_bytes[k])
            flows[num_flows].delivery_begin, flows[num_flows].delivery_end = begin, end
            maker[num_flows] = home
            for delivery in range(begin, end):
                deliveries[delivery].flow = num_flows
            num_flows += 1
            begin = end
        if tables.tensor_is_output[k] and home != NONE:
            _add_flow(flows, num_flows, HOST_OUT, home_chip, k, tables.tensor_bytes[k])
            maker[num_flows] = home
            num_flows += 1
    for i in range(len(streams.kernel)):
        kernel = streams.kernel[i]
        _add_flow(flows, num_flows, STREAM, kernel_chip[kernel], streams.weight[i], streams.size_bytes[i])
        maker[num_flows] = kernel
        num_flows += 1
    return Plumbing(
        flows[:num_flows].copy(),
        deliveries[:ends].copy(),
        maker[:num_flows].copy(),
        first_reader[:ends].copy(),
        last_reader[:ends].copy(),
    )


@njit(cache=True, nogil=True)
def _add_flow(flows, number, kind, chip, tensor, size_bytes):
    flow = flows[number]
    flow.kind, flow.chip, flow.tensor, flow.size_bytes = kind, chip, tensor, size_bytes


@njit(cache=True, nogil=True)
def lay_hops(tables, flows, deliveries):
    """The tree of links of each chip-to-chip flow, parents first; fills the flows' ranges."""
    num_chips, num_links = len(tables.chip_kind), len(tables.link_s_per_byte)
    hops = np.zeros(16 + 4 * len(deliveries), HOP)
    hop_of_link = np.full(num_links, NONE, np.int64)
    route = np.empty(max(num_links, num_chips), np.int64)
    num_hops = np.int64(0)
    for number in range(len(flows)):
        flow = flows[number]
        flow.hop_begin = num_hops
        if flow.kind == CHIP_FLOW:
            for delivery in range(flow.delivery_begin, flow.delivery_end):
                length = _route(tables, flow.chip, deliveries[delivery].chip, route)
                if num_hops + length > len(hops):
                    more = np.zeros(2 * len(hops) + length, HOP)
                    more[:num_hops] = hops[:num_hops]
                    hops = more
                parent = np.int64(NONE)
                for i in range(length):
                    if hop_of_link[route[i]] < flow.hop_begin:
                        hop_of_link[route[i]] = num_hops
                        hop = hops[num_hops]
                        hop.flow, hop.link, hop.parent, hop.delivery = number, route[i], parent, NONE
                        num_hops += 1
                    parent = hop_of_link[route[i]]
                hops[parent].delivery = delivery
        flow.hop_end = num_hops
        _list_children(flow, hops)
    return hops[:num_hops].copy()


@njit(cache=True, nogil=True)
def _list_children(flow, hops):
    flow.first_hop = NONE
    for number in range(flow.hop_begin, flow.hop_end):
        hops[number].child = NONE
    # Backwards, so that lists come out in order.
    for number in range(flow.hop_end - 1, flow.hop_begin - 1, -1):
        hop = hops[number]
        if hop.parent == NONE:
            hop.sibling, flow.first_hop = flow.first_hop, number
        else:
            hop.sibling, hops[hop.parent].child = hops[hop.parent].child, number


@njit(cache=True, nogil=True)
def _route(tables, source, destination, route):
    """Fill ``route`` with the links from one chip to another; their number."""
    if tables.is_ring:
        length = (destination - source) % len(tables.chip_kind)
        for i in range(length):
            route[i] = (source + i) % len(tables.chip_kind)
        return length
    pair = source * len(tables.chip_kind) + destination
    begin, end = tables.route_ptr[pair], tables.route_ptr[pair + 1]
    for i in range(end - begin):
        route[i] = tables.route_link[begin + i]
    return end - begin
