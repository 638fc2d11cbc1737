"""Requests to the host, and streamed weights: from the host, or from replica to replica."""

from __future__ import annotations

from typing import Final

import numpy as np

from go_opt.common.arrays import Record
from go_opt.common.compiling import compiled_inner, uncounted_inner
from go_opt.env.model.memory import Fit, Holdings
from go_opt.env.simulator.package import (
    CHUNK_CAME,
    CHUNK_LEFT,
    NONE,
    Package,
    inference_of,
    occupy,
    put_event,
)
from go_opt.env.simulator.plumbing import Streams

# Each half of a stream buffer holds a chunk.
CHUNKS_UNDER_WAY: Final = 2


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


@compiled_inner
def streams_of(held: Holdings, fit: Fit, num_kernels: int) -> Streams:
    """Kernels that wait for streamed weights, with the bytes of all that each waits for."""
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
    waiting, kernel = 0, np.empty(num_kernels, np.int32)
    for i in range(num_kernels):
        if weight_of[i] != NONE:
            kernel[waiting], weight_of[waiting], bytes_of[waiting] = i, weight_of[i], bytes_of[i]
            is_forwarded[waiting] = is_forwarded[i]
            waiting += 1
    return Streams(kernel[:waiting], weight_of[:waiting], bytes_of[:waiting], is_forwarded[:waiting])


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
    return package.chips[number + 1].came >= chip.begun - 1


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
    if flow.begun == package.flows[number - 1].came or flow.begun - flow.came >= CHUNKS_UNDER_WAY:
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
    flow.came += 1
    if flow.replica + 1 < flow.replicas:
        forward(package, number + 1, now_s)
    is_last = flow.came % flow.chunks == 0
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
