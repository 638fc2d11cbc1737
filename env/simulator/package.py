"""The simulated package: what chips and links run, what they wait for, and their progress.

A *stage* is a run of kernels of one chip of which only the first waits for something and
only the last is waited for. A *flow* carries one tensor from its chip to all chips that
read it, hop by hop along a tree of links; a *delivery* is its end at one chip. Flows from
and to the host have no hops. *Rounds* are inferences, counted from zero.

Chips that are ``replicas`` of each other (design section 8) have their own stages, flows and
deliveries, in consecutive rows. Rows of ``replica`` q take every ``replicas``-th inference
from q on; each is a *turn*. Without replication every inference is a turn. Replicas keep sequences
(:mod:`go_opt.env.model.traffic`): after ``in_round`` inferences they take the same ``turns`` again.

Everything is in arrays of records, so that a compiled function takes them all in one
:class:`Package`. Fields that end in ``begin`` and ``end`` are a range of another array.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import BoolArray, FloatArray, IntArray, LongArray, Record, RecordArray, record
from go_opt.common.compiling import int64, uncounted, uncounted_inline, uncounted_inner
from go_opt.env.model.traffic import round_of, turns_of

NONE: Final = -1
UNBOUNDED: Final = 1 << 40  # stands for "no limit" where counters are compared
# Inferences that enter at once, before the rest keep a pace: a tensor that comes to the same link
# again then always finds it busy with another inference.
LEAD: Final = 3
# NumPy integers, since kernels would be compiled again for every literal argument.
CHIP_FLOW, HOST_IN, STREAM, HOST_OUT = np.arange(4)
# Causes of a chip's waiting, in the order of ``metrics.STALL_CAUSES``.
INPUT_WAIT, HOST_WAIT, OUTPUT_WAIT, STREAM_WAIT = np.arange(4)
ON_CHIP, ON_LINK = np.arange(2)  # where something ran
# Kinds of events.
STAGE_END, ENTER, SENT, ARRIVE, HOST_SERVED, HOST_TOOK, CHUNK_LEFT, CHUNK_CAME, PACE = np.arange(9)

# `stage` of `inference`, the chip's `turn`, runs or is next; `ready_*`: flows that wait for a DMA engine.
# `begun`: stages begun that wait for forwarded weights; `received`: forwarded weights that have arrived.
CHIP: Final = record(
    "replica replicas in_round turns stage_begin stage_end engines stage turn inference is_running "
    "awaits_weights begun received engines_free ready_head ready_tail",
    "dependency_s free_s",
)
# `kernel` to `kernel_end`: places in `Assembly.chip_kernel`; `stream`: the flow of its weights or NONE.
# `needs` and `frees`: deliveries that it reads first and last; `makes`: flows; all in `Package.refs`.
STAGE: Final = record(
    "kernel kernel_end stream needs_begin needs_end frees_begin frees_end makes_begin makes_end", "seconds"
)
# `chip` is the source, for streams the destination; it takes `setup_s` to send. Counted in turns: `made`;
# `queued` with a DMA engine or the host; `sent` over all first links, whose
# list starts with `first_hop`. All replicas of a flow share their deliveries. If a stream
# `is_forwarded`, the first replica gets it from the host, each other one from the previous chip
# over the link between them, in `chunks` per turn. Counted in chunks: `begun` by this link, which
# `is_busy` with one or not, and `received` by the chip. `maker`: the kernel that makes it (for a stream,
# waits for it), or NONE.
FLOW: Final = record(
    "kind chip replica replicas in_round turns tensor size_bytes hop_begin hop_end "
    "delivery_begin delivery_end first_hop made queued sent is_forwarded chunks chunk_bytes begun received "
    "is_busy maker",
    "setup_s",
)
# `flow` is the first of the `makers` replicas that send here. Counted in turns: `arrived`, in
# order; `freed`; `in_flight`, arrived or on the last link. With several makers,
# `received` is the start of the delivery's row in `Package.received`. Kernels `first` to `last` read it.
DELIVERY: Final = record(
    "flow makers chip replica replicas in_round turns received has_credit arrived freed in_flight first last"
)
# Counted in turns of the flow: `turn` is the next one to enter the link
# and `left` the next one to leave it. `child` starts the list of following hops, `sibling` is the next
# in such a list. Only inferences for replicas `first_replica` to `end_replica` (exclusive) of `readers`
# cross, and those of the list in `Package.others` that starts at `others`.
HOP: Final = record(
    "flow link parent child sibling delivery readers in_round first_replica end_replica others turn left"
)
# Further inferences that cross a hop; `others` is the next row of the list.
OTHERS: Final = record("readers in_round first_replica end_replica others")
# The host's two links come last. `blocked_*`: hops that wait because a buffer is full. `cycle` inferences
# carry `round_bytes`; `carried_bytes` so far are `rounds` times that and a rest.
LINK: Final = record(
    "blocked_head blocked_tail cycle round_bytes carried_bytes rounds", "s_per_byte latency_s free_s"
)
NODE: Final = record("next subject", "value")
EVENT: Final = record("serial kind subject", "time_s value")
ROUND: Final = record("parts_done is_started", "start_s completion_s")
# One row: the package's own parameters and counters. If `pace_s` is above zero, one inference
# enters every `pace_s` seconds (`is_held`: the window delays it), else as many as the window allows.
# After `cycle` inferences the same chips have their turns again; `completed` counts inferences in
# order. Links that do not queue carry each tensor as if it were alone.
SHARED: Final = record(
    "buffers window sequences packet_bytes prefetch_all parts cycle queues "
    "rounds admitted completed is_held free_node host_requests host_is_busy "
    "num_events num_serials num_spans",
    "pace_s",
)
# What ran: `subject` is a stage, or a flow if `is_link`.
SPAN: Final = record("is_link resource subject inference", "start_s end_s")


class Package(NamedTuple):
    """Axes: ``D`` chips, ``S`` stages, ``F`` flows, ``V`` deliveries, ``H`` hops, ``L`` links."""

    chips: NDArray  # [D] CHIP
    stages: NDArray  # [S] STAGE, chip by chip in the order they run
    flows: NDArray  # [F] FLOW
    deliveries: NDArray  # [V] DELIVERY, flow by flow
    hops: NDArray  # [H] HOP, flow by flow, parents first
    others: NDArray  # OTHERS
    links: NDArray  # [L + 2] LINK
    refs: IntArray
    received: BoolArray  # turns that arrived at deliveries of several makers, possibly out of order
    shared: NDArray  # [1] SHARED
    nodes: NDArray  # NODE: a pool for the lists
    events: NDArray  # EVENT: a binary heap by time
    host_heap: LongArray  # requests as round * F + flow, least first
    rounds: NDArray  # ROUND
    # [D + L + 2, turns] end of a chip's last stage; when a link has carried that many cycles' bytes
    end_s: FloatArray
    stall_s: FloatArray  # [D, rounds, 4] waiting by cause
    link_wait_s: FloatArray  # [L + 2, rounds] waiting of transfers for the link
    spans: NDArray  # SPAN: filled while there is room


@uncounted_inner
def reset(package: Package, num_rounds: int) -> None:
    """Reset the package for a run of ``num_rounds`` inferences."""
    for chip in package.chips:
        chip.stage, chip.turn, chip.inference = chip.stage_begin, 0, chip.replica
        chip.is_running, chip.awaits_weights, chip.begun, chip.received = 0, 0, 0, 0
        chip.engines_free, chip.ready_head, chip.ready_tail, chip.free_s = chip.engines, NONE, NONE, 0.0
    for flow in package.flows:
        flow.made, flow.queued, flow.sent = 0, 0, 0
        flow.begun, flow.received, flow.is_busy = 0, 0, 0
    for delivery in package.deliveries:
        delivery.arrived, delivery.freed, delivery.in_flight = 0, 0, 0
    for hop in package.hops:
        hop.turn = next_turn(package, hop, int64(0))
        hop.left = hop.turn
    for i in range(len(package.received)):
        package.received[i] = False
    for link in package.links:
        link.blocked_head, link.blocked_tail, link.free_s = NONE, NONE, 0.0
        link.carried_bytes, link.rounds = 0, 0
    for i in range(len(package.nodes)):
        package.nodes[i].next = i + 1 if i + 1 < len(package.nodes) else NONE
    for i in range(num_rounds):
        this = package.rounds[i]
        this.parts_done, this.is_started, this.start_s, this.completion_s = 0, 0, 0.0, 0.0
    for number in range(len(package.chips)):
        for i in range(num_rounds):
            for cause in range(package.stall_s.shape[2]):
                package.stall_s[number, i, cause] = 0.0
    _clear(package.end_s, num_rounds)
    _clear(package.link_wait_s, num_rounds)
    shared = package.shared[0]
    shared.rounds, shared.completed = num_rounds, 0
    shared.admitted = min(min(LEAD, shared.window) if shared.pace_s > 0 else shared.window, num_rounds)
    shared.is_held = 0
    shared.free_node, shared.host_requests, shared.host_is_busy = 0, 0, 0
    shared.num_events, shared.num_serials, shared.num_spans = 0, 0, 0


@uncounted_inner
def _clear(rows: FloatArray, number: int) -> None:
    for row in range(len(rows)):
        for i in range(number):
            rows[row, i] = 0.0


@uncounted_inner
def cut_up(flow: Record, size_bytes: int, buffer_bytes: int) -> None:
    """Cut forwarded weights into chunks of half the stream buffer; without a buffer, into one chunk."""
    flow.is_forwarded = 1
    flow.chunk_bytes = max(buffer_bytes // 2, 1) if buffer_bytes > 0 else max(size_bytes, 1)
    flow.chunks = max(-(-size_bytes // flow.chunk_bytes), 1)


@uncounted
def inference_of(row: Record, turn: int) -> int:
    """The inference of a turn of a chip, flow or delivery."""
    if row.replicas == 1:
        return turn
    return turn // row.turns * row.in_round + turn % row.turns * row.replicas + row.replica


@uncounted_inner
def turn_of(row: Record, inference: int) -> int:
    """The turn of an inference that the row takes."""
    if row.replicas == 1:
        return inference
    return inference // row.in_round * row.turns + inference % row.in_round // row.replicas


@uncounted_inner
def replica_of(row: Record, inference: int) -> int:
    """The replica of the row's that takes an inference."""
    return inference % row.in_round % row.replicas


@uncounted_inner
def becomes_replica(row: Record, replica: int, replicas: int, sequences: int) -> None:
    """Fill in which inferences a chip, flow or delivery takes."""
    row.replica, row.replicas = replica, replicas
    row.in_round, row.turns = round_of(replicas, sequences), turns_of(replica, replicas, sequences)


@uncounted_inner
def takes(row: Record, inference: int) -> bool:
    """Whether an inference is a turn of the row."""
    return row.replicas == 1 or replica_of(row, inference) == row.replica


@uncounted_inner
def crosses(others: RecordArray, hop: Record, inference: int) -> bool:
    """Whether an inference crosses the link of the hop."""
    if hop.first_replica == 0 and hop.end_replica == hop.readers:
        return True
    if hop.first_replica <= inference % hop.in_round % hop.readers < hop.end_replica:
        return True
    i = hop.others
    while i != NONE:
        if (
            others[i].first_replica
            <= inference % others[i].in_round % others[i].readers
            < others[i].end_replica
        ):
            return True
        i = others[i].others
    return False


@uncounted_inner
def next_turn(package: Package, hop: Record, turn: int) -> int:
    """The first turn of the hop's flow from ``turn`` on that crosses it; some later one if none does."""
    flow = package.flows[hop.flow]
    for _ in range(2 * len(package.chips)):
        if crosses(package.others, hop, inference_of(flow, turn)):
            break
        turn += 1
    return turn


@uncounted_inner
def put_event(package: Package, time_s: float, kind: int, subject: int, value: float) -> None:
    """Add an event; events at the same time keep the order in which they were added."""
    shared, events = package.shared[0], package.events
    i = shared.num_events
    shared.num_events += 1
    shared.num_serials += 1
    # A new event is the latest of its time, so only later times move down.
    while i > 0 and events[(i - 1) >> 1].time_s > time_s:
        events[i] = events[(i - 1) >> 1]
        i = (i - 1) >> 1
    event = events[i]
    event.serial, event.kind, event.subject = shared.num_serials, kind, subject
    event.time_s, event.value = time_s, value


@uncounted_inline
def drop_event(package: Package) -> None:
    """Remove the first event."""
    events = package.events
    package.shared[0].num_events -= 1
    size = package.shared[0].num_events
    last = events[size]
    i = 0
    while 2 * i + 1 < size:
        child = 2 * i + 1
        if child + 1 < size and _is_before(events[child + 1], events[child]):
            child += 1
        if not _is_before(events[child], last):
            break
        events[i] = events[child]
        i = child
    events[i] = last


@uncounted_inner
def _is_before(a: Record, b: Record) -> bool:
    return a.time_s < b.time_s or (a.time_s == b.time_s and a.serial < b.serial)


@uncounted_inner
def take_node(package: Package, subject: int, value: float) -> int:
    """A list node from the pool."""
    number = package.shared[0].free_node
    node = package.nodes[number]
    package.shared[0].free_node = node.next
    node.next, node.subject, node.value = NONE, subject, value
    return number


@uncounted_inner
def give_node(package: Package, number: int) -> int:
    """Put a list node back; returns the one after it."""
    node = package.nodes[number]
    following = node.next
    node.next = package.shared[0].free_node
    package.shared[0].free_node = number
    return following


@uncounted_inner
def occupy(
    package: Package, number: int, flow: int, inference: int, size_bytes: int, ready_s: float
) -> tuple[float, float]:
    """Let a link carry bytes of a flow, once they are ready and the link is free.

    Returns:
      When it begins and when it ends.
    """
    link = package.links[number]
    start_s = max(ready_s, link.free_s)
    end_s = start_s + size_bytes * link.s_per_byte
    if package.shared[0].queues:
        link.free_s = end_s
    package.link_wait_s[number, inference] += start_s - ready_s
    record_span(package, ON_LINK, number, flow, inference, start_s, end_s)
    _record_carried(package, number, size_bytes, end_s)
    return start_s, end_s


@uncounted_inner
def _record_carried(package: Package, number: int, size_bytes: int, end_s: float) -> None:
    """Record when a link has carried the bytes of one more cycle, regardless of their inferences.

    Tensors of different inferences share a link, so the time at which it finishes one inference says
    little. The times recorded here are as far apart as its work per cycle while it is never idle.
    """
    link = package.links[number]
    link.carried_bytes += size_bytes
    excess_bytes = link.carried_bytes - (link.rounds + 1) * link.round_bytes
    if excess_bytes >= 0 and link.round_bytes > 0:
        package.end_s[len(package.chips) + number, link.rounds] = end_s - excess_bytes * link.s_per_byte
        link.rounds += 1


@uncounted_inner
def record_span(
    package: Package, is_link: int, resource: int, subject: int, inference: int, start_s: float, end_s: float
) -> None:
    """Record what ran, if there is room for it."""
    row = package.shared[0].num_spans
    if row < len(package.spans):
        span = package.spans[row]
        span.is_link, span.resource, span.subject, span.inference = is_link, resource, subject, inference
        span.start_s, span.end_s = start_s, end_s
        package.shared[0].num_spans += 1
