"""Transfers of the engine: tensors and weights leave their chips or the host, and cross links."""

from __future__ import annotations

from typing import Final

import numpy as np

from go_opt.common.arrays import Record
from go_opt.common.compiling import int64, uncounted_inline, uncounted_inner
from go_opt.env.simulator.package import (
    ARRIVE,
    CHUNK_CAME,
    CHUNK_LEFT,
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

# Each half of a stream buffer holds a chunk.
CHUNKS_UNDER_WAY: Final = 2


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


@uncounted_inline
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


@uncounted_inline
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


@uncounted_inline
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
        if delivery.in_flight - delivery.freed >= shared.buffers:
            return False
        delivery.in_flight += 1
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


@uncounted_inner
def ask_host(package: Package, number: int) -> None:
    """Queue the next transfer of a flow from the host; the oldest inference is served first."""
    flow, shared, heap = package.flows[number], package.shared[0], package.host_heap
    key = inference_of(flow, flow.queued) * len(package.flows) + number
    flow.queued += 1
    i = shared.host_requests
    shared.host_requests += 1
    while i > 0 and heap[(i - 1) >> 1] > key:
        heap[i] = heap[(i - 1) >> 1]
        i = (i - 1) >> 1
    heap[i] = key


@uncounted_inner
def next_of_host(package: Package) -> int:
    """Remove the flow that the host serves next from the queue, and return it."""
    heap = package.host_heap
    first = heap[0]
    package.shared[0].host_requests -= 1
    size = package.shared[0].host_requests
    key, i = heap[size], 0
    while 2 * i + 1 < size:
        child = 2 * i + 1
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= key:
            break
        heap[i] = heap[child]
        i = child
    heap[i] = key
    return first % len(package.flows)


@uncounted_inner
def next_stream(package: Package, number: int, stage: int) -> int:
    """The streamed flow that a chip waits for next after ``stage``, in this or its next inference."""
    chip = package.chips[number]
    stages = chip.stage_end - chip.stage_begin
    for i in range(1, stages + 1):
        flow = package.stages[chip.stage_begin + (stage - chip.stage_begin + i) % stages].stream
        if flow != NONE:
            return flow
    return NONE


@uncounted_inner
def has_forwarded(package: Package, number: int, stage: Record) -> bool:
    """Whether the next replica has the forwarded weights before those of ``stage``, except the last.

    The chunks of the last may still be in flight; a chip has no room to run further ahead.
    """
    chip, shared = package.chips[number], package.shared[0]
    if stage.stream == NONE or shared.prefetch_all or not package.flows[stage.stream].is_forwarded:
        return True
    if chip.replica + 1 == chip.replicas or chip.inference + 1 >= shared.rounds:
        return True
    return package.chips[number + 1].received >= chip.begun - 1


@uncounted_inner
def ask_first(package: Package, number: int) -> None:
    """Request the weights that a chip waits for first, from the host or the previous replica."""
    place = next_stream(package, number, package.chips[number].stage_end - 1)
    if place != NONE:
        _ask_for_weights(package, place, 0.0)


@uncounted_inner
def ask_next(package: Package, number: int, now_s: float) -> bool:
    """Request the weights that a chip waits for after the stage it begins; True if from the host."""
    chip, rounds = package.chips[number], package.shared[0].rounds
    chip.begun += package.flows[package.stages[chip.stage].stream].is_forwarded
    place = next_stream(package, number, chip.stage)
    flow = package.flows[place]
    return inference_of(flow, flow.queued) < rounds and _ask_for_weights(package, place, now_s)


@uncounted_inner
def _ask_for_weights(package: Package, number: int, now_s: float) -> bool:
    flow = package.flows[number]
    if comes_from_host(flow):
        ask_host(package, number)
        return True
    flow.queued += 1
    forward(package, number, now_s)
    return False


@uncounted_inner
def comes_from_host(flow: Record) -> bool:
    """Whether a flow comes from the host, not from the previous replica."""
    return not flow.is_forwarded or flow.replica == 0


@uncounted_inner
def forward(package: Package, number: int, now_s: float) -> None:
    """Send a replica the next requested chunk of weights, if the previous replica has it."""
    flow, shared = package.flows[number], package.shared[0]
    turn = flow.begun // flow.chunks
    is_asked = shared.prefetch_all or turn < flow.queued
    if flow.is_busy or not is_asked or inference_of(flow, turn) >= shared.rounds:
        return
    if flow.begun == package.flows[number - 1].received or flow.begun - flow.received >= CHUNKS_UNDER_WAY:
        return
    place, size_bytes = flow.chip - 1, chunk_bytes(flow, flow.begun)
    flow.begun += 1
    flow.is_busy = 1
    _, end_s = occupy(package, place, number, inference_of(flow, turn), size_bytes, now_s)
    put_event(package, end_s, CHUNK_LEFT, number, 0.0)
    put_event(package, end_s + package.links[place].latency_s, CHUNK_CAME, number, 0.0)


@uncounted_inner
def chunk_bytes(flow: Record, chunk: int) -> int:
    """The size of a chunk of a forwarded flow; the last chunk of a turn may be smaller."""
    done = chunk % flow.chunks
    return min(flow.chunk_bytes, flow.size_bytes - done * flow.chunk_bytes)


@uncounted_inner
def chunk_left(package: Package, number: int, now_s: float) -> None:
    """The link to a replica has sent a chunk."""
    package.flows[number].is_busy = 0
    forward(package, number, now_s)


@uncounted_inner
def chunk_came(package: Package, number: int, now_s: float) -> bool:
    """A chunk has arrived, and its chip forwards it; True if it completes a turn's weights over a link."""
    flow = package.flows[number]
    flow.received += 1
    if flow.replica + 1 < flow.replicas:
        forward(package, number + 1, now_s)
    is_last = flow.received % flow.chunks == 0
    if flow.replica == 0:
        if not is_last:
            next_chunk_of_host(package, number, now_s)
        return False
    forward(package, number, now_s)
    flow.sent += is_last
    return is_last


@uncounted_inner
def next_chunk_of_host(package: Package, number: int, now_s: float) -> None:
    """The host's link begins to send a chunk."""
    flow, link = package.flows[number], package.links[len(package.links) - 2]
    put_event(package, now_s + chunk_bytes(flow, flow.begun) * link.s_per_byte, CHUNK_CAME, number, 0.0)
    flow.begun += 1
