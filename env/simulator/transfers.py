"""Transfers of the engine: tensors leave their chips, cross links, and cross the host's links."""

from __future__ import annotations

import numpy as np

from go_opt.common.arrays import Record
from go_opt.common.compiling import int64, uncounted_inner
from go_opt.env.simulator.package import (
    ARRIVE,
    ENTER,
    HOST_IN,
    HOST_SERVED,
    HOST_TOOK,
    NONE,
    SENT,
    STREAM,
    Package,
    crosses,
    give_node,
    inference_of,
    next_turn,
    occupy,
    put_event,
    replica_of,
    take_node,
    takes,
    turn_of,
)
from go_opt.env.simulator.streams import ask_host, comes_from_host, next_chunk_of_host, next_of_host


@uncounted_inner
def _has_room(package: Package, flow: Record) -> bool:
    """Whether every reader that grants credit has a buffer for the next tensor of this flow."""
    limit, inference = package.shared[0].buffers, inference_of(flow, flow.queued)
    i = flow.delivery_begin
    while i < flow.delivery_end:
        delivery = package.deliveries[taker(package, i, inference)]
        if delivery.has_credit and delivery.freed + limit <= turn_of(delivery, inference):
            return False
        i += delivery.replicas
    return True


@uncounted_inner
def taker(package: Package, first: int, inference: int) -> int:
    """The replica of a delivery whose turn an inference is, given the first replica."""
    row = package.deliveries[first]
    return first if row.replicas == 1 else first + replica_of(row, inference)


@uncounted_inner
def send(package: Package, number: int, now_s: float) -> None:
    """Hand a made tensor to the DMA engines once its readers have room."""
    flow = package.flows[number]
    chip = package.chips[flow.chip]
    while flow.queued < flow.made and _has_room(package, flow):
        if flow.size_bytes == 0:
            _hand_over(package, flow, now_s)
            continue
        node = take_node(package, number, np.float64(inference_of(flow, flow.queued)))
        flow.queued += 1
        if chip.ready_head == NONE:
            chip.ready_head = node
        else:
            package.nodes[chip.ready_tail].next = node
        chip.ready_tail = node
    dispatch(package, chip, now_s)


@uncounted_inner
def _hand_over(package: Package, flow: Record, now_s: float) -> None:
    """What a collective exchanges takes no engine and no link, and is there at once."""
    inference = inference_of(flow, flow.queued)
    i = flow.delivery_begin
    while i < flow.delivery_end:
        number = taker(package, i, inference)
        put_event(package, now_s, ARRIVE, int64(number), np.float64(inference))
        i += package.deliveries[number].replicas
    flow.queued += 1
    flow.sent += 1


@uncounted_inner
def dispatch(package: Package, chip: Record, now_s: float) -> None:
    while chip.engines_free > 0 and chip.ready_head != NONE:
        flow = package.flows[package.nodes[chip.ready_head].subject]
        inference = int64(package.nodes[chip.ready_head].value)
        chip.ready_head = give_node(package, chip.ready_head)
        chip.engines_free -= 1
        begin_s = now_s + flow.setup_s
        hop = flow.first_hop
        while hop != NONE:
            if crosses(package.others, package.hops[hop], inference):
                put_event(package, begin_s, ENTER, hop, begin_s)
            hop = package.hops[hop].sibling


@uncounted_inner
def enter_link(package: Package, hop: int, last_byte_s: float, now_s: float) -> None:
    link = package.links[package.hops[hop].link]
    if link.blocked_head == NONE and _transmit(package, hop, last_byte_s, now_s):
        return
    node = take_node(package, hop, last_byte_s)
    if link.blocked_head == NONE:
        link.blocked_head = node
    else:
        package.nodes[link.blocked_tail].next = node
    link.blocked_tail = node


@uncounted_inner
def unblock(package: Package, number: int, now_s: float) -> None:
    link = package.links[number]
    while link.blocked_head != NONE:
        node = package.nodes[link.blocked_head]
        if not _transmit(package, node.subject, node.value, now_s):
            return
        link.blocked_head = give_node(package, link.blocked_head)


@uncounted_inner
def _transmit(package: Package, number: int, last_byte_s: float, now_s: float) -> bool:
    """Send a tensor over one link of its route; False if its reader has no room for it.

    ``last_byte_s`` is when its last byte reaches this link: the transfer cannot end earlier. If a
    slower link feeds this one, packets of other tensors go in between.
    """
    hop, shared = package.hops[number], package.shared[0]
    link, flow = package.links[hop.link], package.flows[hop.flow]
    inference = inference_of(flow, hop.turn)
    lands = hop.delivery != NONE and takes(package.deliveries[hop.delivery], inference)
    if lands and not package.deliveries[hop.delivery].has_credit:
        delivery = package.deliveries[hop.delivery]
        if delivery.landing - delivery.freed >= shared.buffers:
            return False
        delivery.landing += 1
    start_s, end_s = occupy(package, hop.link, hop.flow, inference, flow.size_bytes, now_s)
    end_s = max(end_s, last_byte_s)
    hop.turn = next_turn(package, hop, hop.turn + 1)
    if lands:
        dependency_s = package.chips[package.deliveries[hop.delivery].chip].dependency_s
        there_s = end_s + link.latency_s + dependency_s
        put_event(package, there_s, ARRIVE, hop.delivery, np.float64(inference))
    if hop.parent == NONE:
        put_event(package, end_s, SENT, number, 0.0)
    packet_s = min(flow.size_bytes, shared.packet_bytes) * link.s_per_byte
    child = hop.child
    while child != NONE:
        if crosses(package.others, package.hops[child], inference):
            put_event(package, start_s + packet_s + link.latency_s, ENTER, child, end_s + link.latency_s)
        child = package.hops[child].sibling
    return True


@uncounted_inner
def ask(package: Package, number: int) -> None:
    """Request admitted inputs that readers have room for, and weights if all are prefetched."""
    flow, shared = package.flows[number], package.shared[0]
    if not comes_from_host(flow):
        return
    if flow.kind == HOST_IN or (flow.kind == STREAM and shared.prefetch_all):
        while inference_of(flow, flow.queued) < shared.admitted and _has_room(package, flow):
            ask_host(package, number)


@uncounted_inner
def serve_host(package: Package, now_s: float) -> None:
    shared, link = package.shared[0], len(package.links) - 2
    while shared.host_requests > 0 and not shared.host_is_busy:
        number = next_of_host(package)
        flow = package.flows[number]
        shared.host_is_busy = shared.queues
        if flow.is_forwarded:
            next_chunk_of_host(package, number, now_s)
        inference = inference_of(flow, flow.sent)
        _, end_s = occupy(package, link, number, inference, flow.size_bytes, now_s)
        put_event(package, end_s, HOST_SERVED, number, 0.0)


@uncounted_inner
def send_to_host(package: Package, number: int, now_s: float) -> None:
    flow, link = package.flows[number], len(package.links) - 1
    inference = inference_of(flow, flow.made - 1)
    _, end_s = occupy(package, link, number, inference, flow.size_bytes, now_s + flow.setup_s)
    put_event(package, end_s, HOST_TOOK, number, 0.0)
