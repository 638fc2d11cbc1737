"""Flows of a plan and the links each takes, with the bytes of these, before stages are cut."""

from __future__ import annotations

from math import gcd

import numpy as np

from go_opt.common.arrays import BoolArray, IntArray, LongArray, Record, RecordArray
from go_opt.common.compiling import compiled_inner, int64, uncounted_inner
from go_opt.env.cost.tables import CostTables
from go_opt.env.model.memory import Fit, Holdings
from go_opt.env.model.traffic import MOST_TURNS
from go_opt.env.simulator.package import (
    CHIP_FLOW,
    DELIVERY,
    FLOW,
    HOP,
    HOST_IN,
    HOST_OUT,
    LINK,
    NONE,
    OTHERS,
    STREAM,
    becomes_replica,
    crosses,
    cut_up,
    takes,
)
from go_opt.model.graph import INPUT, NO_PRODUCER, WEIGHT

RULES = ("off", "longest_path", "three_chip", "adjacent")
OFF, LONGEST_PATH, THREE_CHIP, ADJACENT = range(4)


@compiled_inner
def lay_plumbing(
    tables: CostTables,
    kernel_of: IntArray,
    kernel_chip: IntArray,
    replicas: IntArray,
    held: Holdings,
    fit: Fit,
    num_rounds: int,
) -> tuple[RecordArray, RecordArray, int]:
    """The flows of a plan, their deliveries, and the number of entries of ``Package.received``.

    Args:
      replicas: [D] chips of the stage that starts at each chip.
      num_rounds: inferences at most.
    """
    weight_of, stream_bytes, is_forwarded = _streams(held, fit, len(kernel_chip))
    most_flows, most_ends = _most_rows(tables, kernel_of, kernel_chip, replicas, weight_of)
    flows, deliveries = np.zeros(most_flows, FLOW), np.zeros(most_ends, DELIVERY)
    slot_of = np.full(len(tables.chip_kind), NONE, np.int64)
    num_flows, ends, num_came = int64(0), int64(0), 0
    for k in range(len(tables.tensor_kind)):
        if tables.tensor_kind[k] == WEIGHT:
            continue
        producer = tables.tensor_producer[k]
        home = kernel_of[producer] if producer != NO_PRODUCER else NONE
        home_chip = kernel_chip[home] if home != NONE else NONE
        makers = int64(replicas[home_chip]) if home != NONE else int64(1)
        begin, size = ends, tables.tensor_bytes[k]
        for r in range(tables.reader_ptr[k], tables.reader_ptr[k + 1]):
            kernel = kernel_of[tables.reader_op[r]]
            chip = kernel_chip[kernel]
            if chip == home_chip:
                continue
            if slot_of[chip] < begin:
                slot_of[chip] = ends
                deliveries[ends].first, deliveries[ends].last = kernel, kernel
                num_came = _add_deliveries(
                    tables, deliveries, ends, chip, replicas[chip], makers, num_came, num_rounds
                )
                ends += replicas[chip]
            delivery = deliveries[slot_of[chip]]
            delivery.first, delivery.last = min(delivery.first, kernel), max(delivery.last, kernel)
        apart = tables.tensor_kind[k] == INPUT and not tables.host_multicast
        kind = HOST_IN if home == NONE else CHIP_FLOW
        while begin < ends:
            end = begin + deliveries[begin].replicas if apart else ends
            for delivery in range(begin, end):
                deliveries[delivery].flow = num_flows
            for flow in range(num_flows, num_flows + makers):
                flows[flow].delivery_begin, flows[flow].delivery_end = begin, end
            num_flows = _add_flows(tables, flows, num_flows, kind, home, home_chip, makers, k, size)
            begin = end
        if tables.tensor_is_output[k] and home != NONE:
            num_flows = _add_flows(tables, flows, num_flows, HOST_OUT, home, home_chip, makers, k, size)
    for kernel in range(len(weight_of)):
        if weight_of[kernel] == NONE:
            continue
        chip, size = kernel_chip[kernel], stream_bytes[kernel]
        if is_forwarded[kernel]:
            for replica in range(replicas[chip]):
                cut_up(flows[num_flows + replica], size, tables.stream_buffer_bytes[chip])
        num_flows = _add_flows(
            tables, flows, num_flows, STREAM, kernel, chip, replicas[chip], weight_of[kernel], size
        )
    for end in range(ends):
        first = deliveries[end - deliveries[end].replica]
        deliveries[end].first, deliveries[end].last = first.first, first.last
    return flows[:num_flows].copy(), deliveries[:ends].copy(), num_came


@compiled_inner
def _streams(held: Holdings, fit: Fit, num_kernels: int) -> tuple[IntArray, LongArray, BoolArray]:
    """[M] each: the first streamed weight that a kernel waits for, or NONE; the bytes of all of them."""
    bytes_of = np.zeros(num_kernels, np.int64)
    weight_of = np.full(num_kernels, NONE, np.int32)
    is_forwarded = np.zeros(num_kernels, np.bool_)
    for pair in range(len(held.weight)):
        if fit.is_streamed[pair]:
            kernel = held.weight_reader[pair]
            if weight_of[kernel] == NONE:
                weight_of[kernel] = held.weight[pair]
            bytes_of[kernel] += fit.streamed_bytes[pair]
            is_forwarded[kernel] = fit.is_forwarded[pair]
    return weight_of, bytes_of, is_forwarded


@uncounted_inner
def _most_rows(
    tables: CostTables, kernel_of: IntArray, kernel_chip: IntArray, replicas: IntArray, weight_of: IntArray
) -> tuple[int, int]:
    """Upper limits of the flows and the deliveries of a plan."""
    flows, ends = int64(0), int64(0)
    for kernel in range(len(weight_of)):
        flows += replicas[kernel_chip[kernel]] if weight_of[kernel] != NONE else 0
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
        delivery.makers, delivery.received = makers, NONE
        if makers > 1:
            delivery.received = num_came
            # One more entry, which stays False.
            num_came += (num_rounds // delivery.in_round + 1) * delivery.turns + 1
    return num_came


@uncounted_inner
def _add_flows(
    tables: CostTables,
    flows: RecordArray,
    number: int,
    kind: int,
    maker: int,
    chip: int,
    replicas: int,
    tensor: int,
    size_bytes: int,
) -> int:
    """Add one for each replica of a chip; returns the new number of flows."""
    for replica in range(replicas):
        flow = flows[number + replica]
        flow.kind, flow.maker, flow.chip = kind, maker, chip + replica
        flow.tensor, flow.size_bytes = tensor, size_bytes
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
                        hop.first_replica, hop.end_replica = delivery.replica, delivery.replica + 1
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
    if hop.first_replica == 0 and hop.end_replica == hop.readers:
        return num_others
    if hop.readers == readers and hop.first_replica <= replica <= hop.end_replica:
        hop.end_replica = max(hop.end_replica, replica + 1)
        return num_others
    i = hop.others
    while i != NONE:
        other = others[i]
        if other.readers == readers and other.first_replica <= replica <= other.end_replica:
            other.end_replica = max(other.end_replica, replica + 1)
            break
        i = other.others
    if i == NONE:
        i = num_others
        other = others[i]
        other.readers, other.in_round = readers, delivery.in_round
        other.first_replica, other.end_replica, other.others = replica, replica + 1, hop.others
        hop.others = i
        num_others += 1
    added = others[i]
    if added.first_replica == 0 and added.end_replica == readers:
        hop.readers, hop.in_round, hop.first_replica, hop.end_replica = readers, delivery.in_round, 0, readers
    elif (
        hop.readers == readers
        and added.first_replica <= hop.end_replica
        and hop.first_replica <= added.end_replica
    ):
        hop.first_replica, hop.end_replica = (
            min(hop.first_replica, added.first_replica),
            max(hop.end_replica, added.end_replica),
        )
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


@compiled_inner
def grant_credit(flows: RecordArray, deliveries: RecordArray, num_chips: int, rule: int) -> None:
    """Set ``has_credit`` of all deliveries except those over a dependency that the rule forbids.

    With credit, a reader grants a buffer before the tensor is sent. Replicas of a chip count as one here.
    The hardware keeps no count for what the target's triangle rule forbids, which is the reason for the rule.
    """
    for i in range(len(deliveries)):
        deliveries[i].has_credit = 1
    if rule == OFF:
        return
    depends = np.zeros((num_chips, num_chips), np.bool_)
    for i in range(len(deliveries)):
        delivery, flow = deliveries[i], flows[deliveries[i].flow]
        if flow.kind == CHIP_FLOW:
            depends[flow.chip, delivery.chip - delivery.replica] = True
    reaches = _reaches(depends) if rule == LONGEST_PATH else depends
    for i in range(len(deliveries)):
        delivery, flow = deliveries[i], flows[deliveries[i].flow]
        if flow.kind != CHIP_FLOW:
            continue
        reader = delivery.chip - delivery.replica
        if rule == ADJACENT:
            delivery.has_credit = reader == flow.chip + flow.replicas
            continue
        for chip in range(num_chips):
            if depends[flow.chip, chip] and chip != reader and reaches[chip, reader]:
                delivery.has_credit = 0


@compiled_inner
def _reaches(depends: BoolArray) -> BoolArray:
    """[D, D] whether dependencies lead from a chip to another one; they go to higher chips."""
    reaches = depends.copy()
    num_chips = len(depends)
    for source in range(num_chips - 1, -1, -1):
        for chip in range(source + 1, num_chips):
            if depends[source, chip]:
                for end_replica in range(chip + 1, num_chips):
                    reaches[source, end_replica] |= reaches[chip, end_replica]
    return reaches


@compiled_inner
def lay_links(
    tables: CostTables,
    shared: Record,
    chips: RecordArray,
    flows: RecordArray,
    hops: RecordArray,
    others: RecordArray,
) -> RecordArray:
    """LINK records of the links between chips and the host's two, filled from the flows that cross them."""
    num_links = len(tables.link_s_per_byte)
    links = np.zeros(num_links + 2, LINK)
    for i in range(num_links):
        links[i].s_per_byte, links[i].latency_s = tables.link_s_per_byte[i], tables.link_latency_s[i]
    links[num_links].s_per_byte = tables.host_in_s_per_byte
    links[num_links + 1].s_per_byte = tables.host_out_s_per_byte
    for i in range(len(links)):
        # On a ring, link i leaves chip i; it is inside if the next chip is another replica.
        is_inside = i < len(chips) and chips[i].replica + 1 < chips[i].replicas
        links[i].cycle = chips[i].in_round if is_inside else 1
        if i < num_links and not tables.is_ring:
            links[i].cycle = min(shared.cycle, MOST_TURNS)
    for i in range(len(hops)):
        flow, link = flows[hops[i].flow], links[hops[i].link]
        if tables.is_ring:
            crossings = _crossings_of_ring(chips, flow, hops[i], link.cycle)
        else:
            crossings = _crossings(others, flow, hops[i], link.cycle)
        link.round_bytes += flow.size_bytes * crossings
    host_in = links[num_links]
    for flow in flows:
        if flow.is_forwarded:
            cycle = host_in.cycle * (flow.replicas // gcd(host_in.cycle, flow.replicas))
            host_in.cycle = min(cycle, MOST_TURNS)
    for flow in flows:
        if flow.is_forwarded and flow.replica > 0:
            links[flow.chip - 1].round_bytes += flow.size_bytes
        elif flow.kind == HOST_OUT and flow.replica == 0:
            links[num_links + 1].round_bytes += flow.size_bytes
        elif flow.kind != CHIP_FLOW and flow.replica == 0:
            turns = host_in.cycle // flow.replicas if flow.is_forwarded else host_in.cycle
            host_in.round_bytes += flow.size_bytes * turns
    return links


@uncounted_inner
def _crossings(others: RecordArray, flow: Record, hop: Record, cycle: int) -> int:
    """The number of inferences of a link's cycle in which a flow crosses it."""
    crossings = int64(0)
    for inference in range(cycle):
        crossings += takes(flow, inference) and crosses(others, hop, inference)
    return crossings


@uncounted_inner
def _crossings_of_ring(chips: RecordArray, flow: Record, hop: Record, cycle: int) -> int:
    """The same on a ring, in closed form; the first replica counts for all."""
    if cycle > 1 and hop.link - chips[hop.link].replica == flow.chip - flow.replica:
        return flow.turns
    if flow.replica > 0:
        return 0
    # Inside the readers' replicas, only inferences for the later ones.
    return cycle - cycle // hop.readers * hop.first_replica - min(cycle % hop.readers, hop.first_replica)
