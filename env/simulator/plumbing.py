"""Flows of a plan and the links each takes, before stages are cut."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import BoolArray, IntArray, LongArray, Record, RecordArray
from go_opt.common.compiling import compiled_inner, int64, uncounted_inner
from go_opt.env.cost.tables import CostTables
from go_opt.env.simulator.package import (
    CHIP_FLOW,
    DELIVERY,
    FLOW,
    HOP,
    HOST_IN,
    HOST_OUT,
    NONE,
    OTHERS,
    STREAM,
    becomes_replica,
    cut_up,
)
from go_opt.model.graph import INPUT, NO_PRODUCER, WEIGHT


class Streams(NamedTuple):
    """Streamed weights, one row per kernel that waits for some. Axis: ``W`` such kernels."""

    kernel: IntArray  # [W]
    weight: IntArray  # [W] the kernel's first
    size_bytes: LongArray  # [W] of all weights of the kernel
    is_forwarded: BoolArray  # [W] from replica to replica


class Plumbing(NamedTuple):
    """Axes: ``F`` flows, ``V`` deliveries."""

    flows: NDArray  # [F] FLOW
    deliveries: NDArray  # [V] DELIVERY
    maker: IntArray  # [F] kernel that makes it (for a stream, waits for it), or NONE
    first_reader: IntArray  # [V] kernel
    last_reader: IntArray  # [V] kernel
    num_came: int  # entries of ``Package.came``


@compiled_inner
def lay_plumbing(
    tables: CostTables,
    kernel_of: IntArray,
    kernel_chip: IntArray,
    replicas: IntArray,
    streams: Streams,
    num_rounds: int,
) -> Plumbing:
    """The flows of a plan.

    Args:
      replicas: [D] chips of the stage that starts at each chip.
      num_rounds: inferences at most.
    """
    num_chips = len(tables.chip_kind)
    most_flows, most_ends = _most_rows(tables, kernel_of, kernel_chip, replicas, streams)
    flows = np.zeros(most_flows, FLOW)
    maker = np.empty(most_flows, np.int32)
    deliveries = np.zeros(most_ends, DELIVERY)
    first_reader = np.empty(most_ends, np.int32)
    last_reader = np.empty(most_ends, np.int32)
    slot_of = np.full(num_chips, NONE, np.int64)
    num_flows, ends, num_came = int64(0), int64(0), 0
    for k in range(len(tables.tensor_kind)):
        if tables.tensor_kind[k] == WEIGHT:
            continue
        producer = tables.tensor_producer[k]
        home = kernel_of[producer] if producer != NO_PRODUCER else NONE
        home_chip = kernel_chip[home] if home != NONE else NONE
        makers = int64(replicas[home_chip]) if home != NONE else int64(1)
        begin = ends
        for r in range(tables.reader_ptr[k], tables.reader_ptr[k + 1]):
            kernel = kernel_of[tables.reader_op[r]]
            chip = kernel_chip[kernel]
            if chip == home_chip:
                continue
            if slot_of[chip] < begin:
                slot_of[chip] = ends
                first_reader[ends], last_reader[ends] = kernel, kernel
                num_came = _add_deliveries(
                    tables, deliveries, ends, chip, replicas[chip], makers, num_came, num_rounds
                )
                ends += replicas[chip]
            slot = slot_of[chip]
            first_reader[slot] = min(first_reader[slot], kernel)
            last_reader[slot] = max(last_reader[slot], kernel)
        apart = tables.tensor_kind[k] == INPUT and not tables.host_multicast
        kind = HOST_IN if home == NONE else CHIP_FLOW
        while begin < ends:
            end = begin + deliveries[begin].replicas if apart else ends
            for delivery in range(begin, end):
                deliveries[delivery].flow = num_flows
            for flow in range(num_flows, num_flows + makers):
                flows[flow].delivery_begin, flows[flow].delivery_end = begin, end
            maker[num_flows] = home
            num_flows = _add_flows(
                tables, flows, num_flows, kind, home_chip, makers, k, tables.tensor_bytes[k]
            )
            begin = end
        if tables.tensor_is_output[k] and home != NONE:
            maker[num_flows] = home
            num_flows = _add_flows(
                tables, flows, num_flows, HOST_OUT, home_chip, makers, k, tables.tensor_bytes[k]
            )
    for i in range(len(streams.kernel)):
        kernel = streams.kernel[i]
        chip = kernel_chip[kernel]
        maker[num_flows] = kernel
        if streams.is_forwarded[i]:
            for replica in range(replicas[chip]):
                cut_up(flows[num_flows + replica], streams.size_bytes[i], tables.stream_buffer_bytes[chip])
        num_flows = _add_flows(
            tables, flows, num_flows, STREAM, chip, replicas[chip], streams.weight[i], streams.size_bytes[i]
        )
    for flow in range(num_flows):
        maker[flow] = maker[flow - flows[flow].replica]
    for end in range(ends):
        first = end - deliveries[end].replica
        first_reader[end], last_reader[end] = first_reader[first], last_reader[first]
    return Plumbing(
        flows[:num_flows].copy(),
        deliveries[:ends].copy(),
        maker[:num_flows].copy(),
        first_reader[:ends].copy(),
        last_reader[:ends].copy(),
        num_came,
    )


@uncounted_inner
def _most_rows(
    tables: CostTables, kernel_of: IntArray, kernel_chip: IntArray, replicas: IntArray, streams: Streams
) -> tuple[int, int]:
    """Upper limits of the flows and the deliveries of a plan."""
    flows, ends = int64(0), int64(0)
    for kernel in streams.kernel:
        flows += replicas[kernel_chip[kernel]]
    for k in range(len(tables.tensor_kind)):
        if tables.tensor_kind[k] == WEIGHT:
            continue
        producer = tables.tensor_producer[k]
        home_chip = kernel_chip[kernel_of[producer]] if producer != NO_PRODUCER else NONE
        flows += 2 * replicas[home_chip] if home_chip != NONE else 0
        for r in range(tables.reader_ptr[k], tables.reader_ptr[k + 1]):
            chip = kernel_chip[kernel_of[tables.reader_op[r]]]
            ends += replicas[chip] if chip != home_chip else 0
            flows += home_chip == NONE
    return flows, ends


@uncounted_inner
def _add_deliveries(
    tables: CostTables,
    deliveries: RecordArray,
    number: int,
    chip: int,
    replicas: int,
    makers: int,
    num_came: int,
    num_rounds: int,
) -> int:
    """Add one for each replica of a reading chip; returns the new ``num_came``."""
    for replica in range(replicas):
        delivery = deliveries[number + replica]
        delivery.chip = chip + replica
        becomes_replica(delivery, replica, replicas, tables.sequences)
        delivery.makers, delivery.came = makers, NONE
        if makers > 1:
            delivery.came = num_came
            # One more entry, which stays False.
            num_came += (num_rounds // delivery.in_round + 1) * delivery.turns + 1
    return num_came


@uncounted_inner
def _add_flows(
    tables: CostTables,
    flows: RecordArray,
    number: int,
    kind: int,
    chip: int,
    replicas: int,
    tensor: int,
    size_bytes: int,
) -> int:
    """Add one for each replica of a chip; returns the new number of flows."""
    for replica in range(replicas):
        flow = flows[number + replica]
        flow.kind, flow.chip, flow.tensor, flow.size_bytes = kind, chip + replica, tensor, size_bytes
        becomes_replica(flow, replica, replicas, tables.sequences)
    return number + replicas


@compiled_inner
def lay_hops(
    tables: CostTables, flows: RecordArray, deliveries: RecordArray
) -> tuple[RecordArray, RecordArray]:
    """The tree of links of each chip-to-chip flow, parents first; fills the flows' ranges.

    Returns the hops, and ``Package.others``.
    """
    num_chips, num_links = len(tables.chip_kind), len(tables.link_s_per_byte)
    hops = np.zeros(16 + 4 * len(deliveries), HOP)
    hop_of_link = np.full(num_links, NONE, np.int64)
    route = np.empty(max(num_links, num_chips), np.int64)
    num_hops, num_others = int64(0), int64(0)
    others = np.zeros(16, OTHERS)
    for number in range(len(flows)):
        flow = flows[number]
        flow.hop_begin = num_hops
        if flow.kind == CHIP_FLOW:
            for end in range(flow.delivery_begin, flow.delivery_end):
                delivery = deliveries[end]
                length = _route(tables, flow.chip, delivery.chip, route)
                if num_hops + length > len(hops):
                    more = np.zeros(2 * len(hops) + length, HOP)
                    for i in range(num_hops):
                        more[i] = hops[i]
                    hops = more
                parent = int64(NONE)
                for i in range(length):
                    if hop_of_link[route[i]] < flow.hop_begin:
                        hop_of_link[route[i]] = num_hops
                        hop = hops[num_hops]
                        hop.flow, hop.link, hop.parent, hop.delivery = number, route[i], parent, NONE
                        hop.readers, hop.in_round = delivery.replicas, delivery.in_round
                        hop.nearer, hop.beyond = delivery.replica, delivery.replica + 1
                        hop.others = NONE
                        num_hops += 1
                    parent = hop_of_link[route[i]]
                    if num_others == len(others):
                        more = np.zeros(2 * num_others, OTHERS)
                        for j in range(num_others):
                            more[j] = others[j]
                        others = more
                    num_others = _come_as_far(hops[parent], others, num_others, delivery)
                hops[parent].delivery = end
        flow.hop_end = num_hops
        _list_children(flow, hops)
    return hops[:num_hops].copy(), others[:num_others].copy()


@uncounted_inner
def _come_as_far(hop: Record, others: RecordArray, num_others: int, delivery: Record) -> int:
    """Let the inferences of a delivery cross a hop; returns the new number of ``others``.

    Replicas are in the order of their chips, which on the ring is the order of the links to them.
    """
    readers, replica = delivery.replicas, delivery.replica
    if hop.nearer == 0 and hop.beyond == hop.readers:
        return num_others
    if hop.readers == readers and hop.nearer <= replica <= hop.beyond:
        hop.beyond = max(hop.beyond, replica + 1)
        return num_others
    i = hop.others
    while i != NONE:
        other = others[i]
        if other.readers == readers and other.nearer <= replica <= other.beyond:
            other.beyond = max(other.beyond, replica + 1)
            break
        i = other.others
    if i == NONE:
        i = num_others
        other = others[i]
        other.readers, other.in_round = readers, delivery.in_round
        other.nearer, other.beyond, other.others = replica, replica + 1, hop.others
        hop.others = i
        num_others += 1
    added = others[i]
    if added.nearer == 0 and added.beyond == readers:
        hop.readers, hop.in_round, hop.nearer, hop.beyond = readers, delivery.in_round, 0, readers
    elif hop.readers == readers and added.nearer <= hop.beyond and hop.nearer <= added.beyond:
        hop.nearer, hop.beyond = min(hop.nearer, added.nearer), max(hop.beyond, added.beyond)
    return num_others


@uncounted_inner
def _list_children(flow: Record, hops: RecordArray) -> None:
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


@uncounted_inner
def _route(tables: CostTables, source: int, destination: int, route: LongArray) -> int:
    """Fill ``route`` with the links from one chip to another; returns their number, 0 without a route."""
    if tables.is_ring:
        if destination < source and len(tables.link_s_per_byte) < len(tables.chip_kind):
            return 0  # a chain has no way back
        length = (destination - source) % len(tables.chip_kind)
        for i in range(length):
            route[i] = (source + i) % len(tables.chip_kind)
        return length
    pair = source * len(tables.chip_kind) + destination
    begin, end = tables.route_ptr[pair], tables.route_ptr[pair + 1]
    for i in range(end - begin):
        route[i] = tables.route_link[begin + i]
    return end - begin
