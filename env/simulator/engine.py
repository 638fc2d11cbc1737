"""The discrete-event engine: a plan on a package, many inferences one behind the other.

Every chip runs its stages in the plan's order, inference after inference. A tensor that
crosses chips waits for room at its readers (credit), for a DMA engine, and for each link
of its way, which serves first come, first served. The host serves the oldest inference
first. Replicas of a chip take inferences in turn; each keeps the buffers of its readers'
next turns free for them, so that results may overtake each other and are still taken in order.

No valid plan deadlocks: with credit a tensor on its way can always be put down, so links
empty; the first unfinished stage of the oldest inference, in the plan's order, then has
its inputs made and sent, and the buffers it waits for are freed by inferences before it.
A dependency the target's rule forbids has no credit: its tensors are pushed, and where
there is no room they stop the queue of the link they are on.
"""

from __future__ import annotations

import numpy as np

from go_opt.common.compiling import uncounted, uncounted_inner
from go_opt.env.simulator.package import (
    CHIP_FLOW,
    HOST_IN,
    HOST_OUT,
    HOST_WAIT,
    INPUT_WAIT,
    NONE,
    ON_CHIP,
    ON_LINK,
    OUTPUT_WAIT,
    STREAM,
    STREAM_WAIT,
    ask_host,
    crosses,
    drop_event,
    give_node,
    inference_of,
    next_of_host,
    next_turn,
    put_event,
    record_carried,
    record_span,
    reset,
    take_node,
    takes,
    turn_of,
)
from go_opt.env.simulator.steady import period_of

STAGE_END, ENTER, SENT, ARRIVE, HOST_SERVED, HOST_TOOK, PACE = np.arange(7)
STEADY, NOT_STEADY, DEADLOCK = range(3)
CHECK_EVERY = 8  # inferences


@uncounted
def run(package, num_rounds, first_check):
    """Run until the package is in steady state, or ``num_rounds`` inferences are through.

    Looks for steady state once ``first_check`` inferences are through. Returns how it ended and
    the period in inferences (0: none found).
    """
    reset(package, num_rounds)
    _begin(package)
    shared, checked = package.shared[0], 0
    while shared.num_events > 0:
        now_s, kind = package.events[0].time_s, package.events[0].kind
        subject, value = package.events[0].subject, package.events[0].value
        drop_event(package)
        if kind == STAGE_END:
            _end_stage(package, subject, now_s)
        elif kind == ENTER:
            _enter_link(package, subject, value, now_s)
        elif kind == SENT:
            _leave_chip(package, subject, now_s)
        elif kind == ARRIVE:
            _arrive(package, subject, np.int64(value), now_s)
        elif kind == HOST_SERVED:
            _host_served(package, subject, now_s)
        elif kind == HOST_TOOK:
            _host_took(package, subject, now_s)
        else:
            _keep_pace(package, now_s)
        if shared.completed >= max(first_check, checked + CHECK_EVERY):
            checked = shared.completed
            period = period_of(package)
            if period > 0:
                return STEADY, period
    return (NOT_STEADY if shared.completed == num_rounds else DEADLOCK), 0


@uncounted_inner
def _begin(package):
    for flow in range(len(package.flows)):
        _ask(package, flow)
    if not package.shared[0].prefetch_all:
        for chip in range(len(package.chips)):
            flow = _next_stream(package, chip, package.chips[chip].stage_end - 1)
            if flow != NONE:
                ask_host(package, flow)
    _serve_host(package, 0.0)
    if package.shared[0].pace_s > 0:
        put_event(package, package.shared[0].pace_s, PACE, np.int64(0), 0.0)
    for chip in range(len(package.chips)):
        _try_start(package, chip, 0.0, INPUT_WAIT)


@uncounted_inner
def _next_stream(package, number, stage):
    """The streamed flow a chip waits for next after ``stage``, around its inferences."""
    chip = package.chips[number]
    stages = chip.stage_end - chip.stage_begin
    for i in range(1, stages + 1):
        flow = package.stages[chip.stage_begin + (stage - chip.stage_begin + i) % stages].stream
        if flow != NONE:
            return flow
    return NONE


@uncounted_inner
def _has_room(package, flow):
    """Whether every reader that grants credit has a buffer for the next of this flow."""
    limit, inference = package.shared[0].buffers, inference_of(flow, flow.queued)
    i = flow.delivery_begin
    while i < flow.delivery_end:
        delivery = package.deliveries[_taker(package, i, inference)]
        if delivery.has_credit and delivery.freed + limit <= turn_of(delivery, inference):
            return False
        i += delivery.replicas
    return True


@uncounted_inner
def _taker(package, first, inference):
    """The replica of a delivery whose turn it is, given the first of them."""
    replicas = package.deliveries[first].replicas
    return first if replicas == 1 else first + inference % replicas


@uncounted_inner
def _may_start(package, chip):
    """Whether the next stage of a chip has all it waits for."""
    shared = package.shared[0]
    if chip.is_running or chip.stage == chip.stage_end or chip.inference >= shared.admitted:
        return False
    stage = package.stages[chip.stage]
    for i in range(stage.needs_begin, stage.needs_end):
        if package.deliveries[package.refs[i]].arrived <= chip.turn:
            return False
    for i in range(stage.makes_begin, stage.makes_end):
        flow = package.flows[package.refs[i]]
        if flow.made - flow.sent >= shared.buffers:
            return False
    return True


@uncounted_inner
def _try_start(package, number, now_s, cause):
    chip, shared = package.chips[number], package.shared[0]
    if not _may_start(package, chip):
        return
    chip.is_running = 1
    this, stage = package.rounds[chip.inference], package.stages[chip.stage]
    if not this.is_started:
        this.is_started, this.start_s = 1, now_s
    package.stall_s[number, chip.inference, cause] += now_s - chip.free_s
    if stage.stream != NONE and not shared.prefetch_all:
        flow = _next_stream(package, number, chip.stage)
        if inference_of(package.flows[flow], package.flows[flow].queued) < shared.rounds:
            ask_host(package, flow)
            _serve_host(package, now_s)
    end_s = now_s + stage.seconds
    record_span(package, ON_CHIP, number, chip.stage, chip.inference, now_s, end_s)
    put_event(package, end_s, STAGE_END, number, 0.0)


@uncounted_inner
def _end_stage(package, number, now_s):
    chip = package.chips[number]
    flow = package.stages[chip.stage].stream
    chip.free_s = now_s
    if flow != NONE and package.flows[flow].sent <= chip.turn:
        chip.awaits_weights = 1
    else:
        _finish_stage(package, number, now_s)


@uncounted_inner
def _finish_stage(package, number, now_s):
    chip, inference = package.chips[number], package.chips[number].inference
    stage = package.stages[chip.stage]
    package.stall_s[number, inference, STREAM_WAIT] += now_s - chip.free_s
    chip.free_s, chip.is_running = now_s, 0
    for i in range(stage.frees_begin, stage.frees_end):
        _free_buffer(package, package.refs[i], now_s)
    for i in range(stage.makes_begin, stage.makes_end):
        flow = package.flows[package.refs[i]]
        flow.made += 1
        if flow.kind == CHIP_FLOW:
            _send(package, np.int64(package.refs[i]), now_s)
        else:
            _send_to_host(package, package.refs[i], now_s)
    chip.stage += 1
    if chip.stage == chip.stage_end:
        package.chip_end_s[number, chip.turn] = now_s
        chip.stage, chip.turn, chip.inference = chip.stage_begin, chip.turn + 1, inference + chip.replicas
        _part_done(package, inference, now_s)
    _try_start(package, number, now_s, INPUT_WAIT)


@uncounted_inner
def _free_buffer(package, number, now_s):
    delivery = package.deliveries[number]
    delivery.freed += 1
    flow = package.flows[delivery.flow]
    if flow.kind == HOST_IN:
        _ask(package, delivery.flow)
        _serve_host(package, now_s)
    elif delivery.has_credit:
        # The maker of the inference that the buffer is for now; with one maker always that.
        maker = np.int64(0)
        if delivery.makers > 1:
            turn = delivery.freed + package.shared[0].buffers - 1
            maker = inference_of(delivery, turn) % delivery.makers
        _send(package, delivery.flow + maker, now_s)
    else:
        for hop in range(flow.hop_begin, flow.hop_end):
            if package.hops[hop].delivery == number:
                _unblock(package, package.hops[hop].link, now_s)


@uncounted_inner
def _send(package, number, now_s):
    """Hand a made tensor to the DMA engines once its readers have room."""
    flow = package.flows[number]
    chip = package.chips[flow.chip]
    while flow.queued < flow.made and _has_room(package, flow):
        node = take_node(package, number, np.float64(inference_of(flow, flow.queued)))
        flow.queued += 1
        if chip.ready_head == NONE:
            chip.ready_head = node
        else:
            package.nodes[chip.ready_tail].next = node
        chip.ready_tail = node
    _dispatch(package, chip, now_s)


@uncounted_inner
def _dispatch(package, chip, now_s):
    while chip.engines_free > 0 and chip.ready_head != NONE:
        flow = package.flows[package.nodes[chip.ready_head].subject]
        inference = np.int64(package.nodes[chip.ready_head].value)
        chip.ready_head = give_node(package, chip.ready_head)
        chip.engines_free -= 1
        begin_s = now_s + chip.setup_s
        hop = flow.first_hop
        while hop != NONE:
            if crosses(package.others, package.hops[hop], inference):
                put_event(package, begin_s, ENTER, hop, begin_s)
            hop = package.hops[hop].sibling


@uncounted_inner
def _enter_link(package, hop, last_byte_s, now_s):
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
def _unblock(package, number, now_s):
    link = package.links[number]
    while link.blocked_head != NONE:
        node = package.nodes[link.blocked_head]
        if not _transmit(package, node.subject, node.value, now_s):
            return
        link.blocked_head = give_node(package, link.blocked_head)


@uncounted_inner
def _transmit(package, number, last_byte_s, now_s):
    """Send a tensor over one link of its way; False where its reader has no room for it.

    ``last_byte_s`` is when its last byte reaches this link: it cannot leave before. Where a slower
    link feeds this one, packets of others go in between.
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
    start_s = max(now_s, link.free_s)
    link.free_s = start_s + flow.size_bytes * link.s_per_byte
    end_s = max(link.free_s, last_byte_s)
    record_carried(package, hop.link, flow.size_bytes, link.free_s)
    package.link_wait_s[hop.link, inference] += start_s - now_s
    record_span(package, ON_LINK, hop.link, hop.flow, inference, start_s, link.free_s)
    hop.turn = next_turn(package, hop, hop.turn + 1)
    if lands:
        put_event(package, end_s + link.latency_s, ARRIVE, hop.delivery, np.float64(inference))
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
def _leave_chip(package, number, now_s):
    """A tensor has crossed one of its first links; the last of them frees the engine and its output slot."""
    flow, turn = package.flows[package.hops[number].flow], package.hops[number].left
    package.hops[number].left = next_turn(package, package.hops[number], turn + 1)
    hop, inference = flow.first_hop, inference_of(flow, turn)
    while hop != NONE:
        other = package.hops[hop]
        if other.left <= turn and crosses(package.others, other, inference):
            return
        hop = other.sibling
    flow.sent += 1
    chip = package.chips[flow.chip]
    chip.engines_free += 1
    _dispatch(package, chip, now_s)
    _try_start(package, flow.chip, now_s, OUTPUT_WAIT)


@uncounted_inner
def _arrive(package, number, inference, now_s):
    """A tensor is there; its reader takes it after those of all turns before."""
    delivery = package.deliveries[number]
    if delivery.came == NONE:
        delivery.arrived += 1
    else:
        package.came[delivery.came + turn_of(delivery, inference)] = True
        while package.came[delivery.came + delivery.arrived]:
            delivery.arrived += 1
    _try_start(package, delivery.chip, now_s, INPUT_WAIT)


@uncounted_inner
def _ask(package, number):
    """Ask the host for what of an input may come by now, and for weights where all may come ahead."""
    flow, shared = package.flows[number], package.shared[0]
    if flow.kind == HOST_IN or (flow.kind == STREAM and shared.prefetch_all):
        while inference_of(flow, flow.queued) < shared.admitted and _has_room(package, flow):
            ask_host(package, number)


@uncounted_inner
def _serve_host(package, now_s):
    shared = package.shared[0]
    if shared.host_is_busy or shared.host_requests == 0:
        return
    number, link = next_of_host(package), len(package.links) - 2
    flow = package.flows[number]
    shared.host_is_busy = 1
    end_s = now_s + flow.size_bytes * package.links[link].s_per_byte
    record_span(package, ON_LINK, link, number, inference_of(flow, flow.sent), now_s, end_s)
    put_event(package, end_s, HOST_SERVED, number, 0.0)


@uncounted_inner
def _host_served(package, number, now_s):
    flow = package.flows[number]
    package.shared[0].host_is_busy = 0
    record_carried(package, len(package.links) - 2, flow.size_bytes, now_s)
    flow.sent += 1
    _serve_host(package, now_s)
    if flow.kind == STREAM:
        chip = package.chips[flow.chip]
        if chip.awaits_weights and package.stages[chip.stage].stream == number:
            chip.awaits_weights = 0
            _finish_stage(package, flow.chip, now_s)
        return
    i = flow.delivery_begin
    while i < flow.delivery_end:
        delivery = package.deliveries[_taker(package, i, flow.sent - 1)]
        delivery.arrived += 1
        _try_start(package, delivery.chip, now_s, HOST_WAIT)
        i += delivery.replicas


@uncounted_inner
def _send_to_host(package, number, now_s):
    flow, place = package.flows[number], len(package.links) - 1
    link, inference = package.links[place], inference_of(flow, flow.made - 1)
    ready_s = now_s + package.chips[flow.chip].setup_s
    start_s = max(ready_s, link.free_s)
    link.free_s = start_s + flow.size_bytes * link.s_per_byte
    package.link_wait_s[place, inference] += start_s - ready_s
    record_span(package, ON_LINK, place, number, inference, start_s, link.free_s)
    put_event(package, link.free_s, HOST_TOOK, number, 0.0)


@uncounted_inner
def _host_took(package, number, now_s):
    flow = package.flows[number]
    record_carried(package, len(package.links) - 1, flow.size_bytes, now_s)
    flow.sent += 1
    _part_done(package, inference_of(flow, flow.sent - 1), now_s)
    _try_start(package, flow.chip, now_s, OUTPUT_WAIT)


@uncounted_inner
def _part_done(package, inference, now_s):
    """One chip, or one output, is through with an inference; the last lets another one in.

    One that has overtaken others is complete with the last of those.
    """
    shared = package.shared[0]
    package.rounds[inference].parts_done += 1
    while shared.completed < shared.rounds:
        first = package.rounds[shared.completed]
        if first.parts_done < shared.parts:
            return
        first.completion_s = now_s
        shared.completed += 1
        if shared.is_held:
            _keep_pace(package, now_s)
        elif shared.pace_s == 0 and shared.admitted < shared.rounds:
            _admit(package, now_s)


@uncounted_inner
def _keep_pace(package, now_s):
    """Let one inference in and the next one a pace later; where the window is full, once it is not."""
    shared = package.shared[0]
    if shared.admitted == shared.rounds:
        return
    shared.is_held = shared.admitted - shared.completed >= shared.window
    if not shared.is_held:
        _admit(package, now_s)
        put_event(package, now_s + shared.pace_s, PACE, np.int64(0), 0.0)


@uncounted_inner
def _admit(package, now_s):
    package.shared[0].admitted += 1
    for flow in range(len(package.flows)):
        if package.flows[flow].kind != CHIP_FLOW and package.flows[flow].kind != HOST_OUT:
            _ask(package, flow)
    _serve_host(package, now_s)
    for chip in range(len(package.chips)):
        _try_start(package, chip, now_s, HOST_WAIT)
