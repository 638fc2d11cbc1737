"""The discrete-event engine: runs a plan on a package for many inferences, pipelined, until it is steady.

Every chip runs its stages in the order of the plan, inference after inference. A tensor that
crosses chips waits for room at its readers (credit), for a DMA engine, and for each link
of its route. Links serve first come, first served. The host serves the oldest inference
first. Replicas of a chip take inferences in turn. Readers grant buffers by turn, so the
results of replicas may overtake each other and are still read in order.

No valid plan deadlocks. With credit, a tensor in flight has a buffer at its readers, so links
drain. Then the inputs of the first unfinished stage of the oldest inference, in the order of the plan,
are made and sent, and earlier inferences free the buffers that it waits for.
A dependency that the rule of the target forbids has no credit: its tensors are sent anyway, and
without a free buffer they block the queue of their link.
"""

from __future__ import annotations

from math import gcd

from go_opt.common.arrays import FloatArray
from go_opt.common.compiling import int64, uncounted, uncounted_inline, uncounted_inner
from go_opt.env.simulator.package import (
    ARRIVE,
    CHIP_FLOW,
    CHUNK_CAME,
    CHUNK_LEFT,
    ENTER,
    HOST_IN,
    HOST_OUT,
    HOST_SERVED,
    HOST_TOOK,
    HOST_WAIT,
    INPUT_WAIT,
    NONE,
    ON_CHIP,
    OUTPUT_WAIT,
    PACE,
    SENT,
    STAGE_END,
    STREAM,
    STREAM_WAIT,
    Package,
    crosses,
    drop_event,
    inference_of,
    next_turn,
    put_event,
    record_span,
    replica_of,
    reset,
    turn_of,
)
from go_opt.env.simulator.transfers import (
    ask,
    ask_first,
    ask_next,
    chunk_came,
    chunk_left,
    dispatch,
    enter_link,
    has_forwarded,
    send,
    send_to_host,
    serve_host,
    taker,
    unblock,
)

STEADY, NOT_STEADY, DEADLOCK = range(3)
CHECK_EVERY = 8  # inferences


@uncounted
def run(package: Package, num_rounds: int, first_check: int) -> tuple[int, int]:
    """Run until the package is in steady state, or ``num_rounds`` inferences are complete.

    Looks for steady state once ``first_check`` inferences are complete. Returns the outcome and
    the period in inferences (0: none found).
    """
    reset(package, num_rounds)
    _begin(package)
    shared, checked = package.shared[0], 0
    while shared.num_events > 0:
        now_s, kind = package.events[0].time_s, package.events[0].kind
        subject, value = package.events[0].subject, package.events[0].value
        drop_event(package)
        weights_came = False
        if kind == STAGE_END:
            _end_stage(package, subject, now_s)
        elif kind == ENTER:
            enter_link(package, subject, value, now_s)
        elif kind == SENT:
            _leave_chip(package, subject, now_s)
        elif kind == ARRIVE:
            _arrive(package, subject, int64(value), now_s)
        elif kind == HOST_SERVED:
            weights_came = _host_served(package, subject, now_s)
        elif kind == CHUNK_LEFT:
            chunk_left(package, subject, now_s)
        elif kind == CHUNK_CAME:
            weights_came = chunk_came(package, subject, now_s)
        elif kind == HOST_TOOK:
            _host_took(package, subject, now_s)
        else:
            _keep_pace(package, now_s)
        if weights_came:
            _weights_came(package, subject, now_s)
        if shared.completed >= max(first_check, checked + CHECK_EVERY):
            checked = shared.completed
            period = period_of(package)
            if period > 0:
                return STEADY, period
    return (NOT_STEADY if shared.completed == num_rounds else DEADLOCK), 0


@uncounted_inner
def _begin(package: Package) -> None:
    for flow in range(len(package.flows)):
        ask(package, flow)
    if not package.shared[0].prefetch_all:
        for chip in range(len(package.chips)):
            ask_first(package, chip)
    serve_host(package, 0.0)
    if package.shared[0].pace_s > 0:
        put_event(package, package.shared[0].pace_s, PACE, int64(0), 0.0)
    for chip in range(len(package.chips)):
        _try_start(package, chip, 0.0, INPUT_WAIT)


@uncounted_inner
def _may_start(package: Package, number: int) -> bool:
    """Whether the next stage of a chip can start now."""
    chip, shared = package.chips[number], package.shared[0]
    if chip.is_running or chip.stage == chip.stage_end or chip.inference >= shared.admitted:
        return False
    stage = package.stages[chip.stage]
    if not has_forwarded(package, number, stage):
        return False
    for i in range(stage.needs_begin, stage.needs_end):
        if package.deliveries[package.refs[i]].arrived <= chip.turn:
            return False
    for i in range(stage.makes_begin, stage.makes_end):
        flow = package.flows[package.refs[i]]
        if flow.made - flow.sent >= shared.buffers:
            return False
    return True


@uncounted_inner
def _try_start(package: Package, number: int, now_s: float, cause: int) -> None:
    chip, shared = package.chips[number], package.shared[0]
    if not _may_start(package, number):
        return
    chip.is_running = 1
    this, stage = package.rounds[chip.inference], package.stages[chip.stage]
    if not this.is_started:
        this.is_started, this.start_s = 1, now_s
    package.stall_s[number, chip.inference, cause] += now_s - chip.free_s
    if stage.stream != NONE and not shared.prefetch_all and ask_next(package, number, now_s):
        serve_host(package, now_s)
    end_s = now_s + stage.seconds
    record_span(package, ON_CHIP, number, chip.stage, chip.inference, now_s, end_s)
    put_event(package, end_s, STAGE_END, number, 0.0)


@uncounted_inline
def _end_stage(package: Package, number: int, now_s: float) -> None:
    chip = package.chips[number]
    flow = package.stages[chip.stage].stream
    chip.free_s = now_s
    if flow != NONE and package.flows[flow].sent <= chip.turn:
        chip.awaits_weights = 1
    else:
        _finish_stage(package, number, now_s)


@uncounted_inner
def _finish_stage(package: Package, number: int, now_s: float) -> None:
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
            send(package, int64(package.refs[i]), now_s)
        else:
            send_to_host(package, package.refs[i], now_s)
    chip.stage += 1
    if chip.stage == chip.stage_end:
        package.end_s[number, chip.turn] = now_s
        chip.stage, chip.turn = chip.stage_begin, chip.turn + 1
        chip.inference = inference_of(chip, chip.turn)
        _part_done(package, inference, now_s)
    _try_start(package, number, now_s, INPUT_WAIT)


@uncounted_inline
def _free_buffer(package: Package, number: int, now_s: float) -> None:
    delivery = package.deliveries[number]
    delivery.freed += 1
    flow = package.flows[delivery.flow]
    if flow.kind == HOST_IN:
        ask(package, delivery.flow)
        serve_host(package, now_s)
    elif delivery.has_credit:
        # The replica that makes the inference for which the buffer is now free.
        maker = int64(0)
        if delivery.makers > 1:
            turn = delivery.freed + package.shared[0].buffers - 1
            maker = replica_of(flow, inference_of(delivery, turn))
        send(package, delivery.flow + maker, now_s)
        if flow.size_bytes == 0:  # sent at once, so that its chip may go on
            _try_start(package, package.flows[delivery.flow + maker].chip, now_s, OUTPUT_WAIT)
    else:
        for hop in range(flow.hop_begin, flow.hop_end):
            if package.hops[hop].delivery == number:
                unblock(package, package.hops[hop].link, now_s)


@uncounted_inline
def _leave_chip(package: Package, number: int, now_s: float) -> None:
    """A tensor has crossed one of its first links; the last one frees the DMA engine and output buffer."""
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
    dispatch(package, chip, now_s)
    _try_start(package, flow.chip, now_s, OUTPUT_WAIT)


@uncounted_inline
def _arrive(package: Package, number: int, inference: int, now_s: float) -> None:
    """A tensor has arrived; its reader takes it after those of all earlier turns."""
    delivery = package.deliveries[number]
    if delivery.received == NONE:
        delivery.arrived += 1
    else:
        package.received[delivery.received + turn_of(delivery, inference)] = True
        while package.received[delivery.received + delivery.arrived]:
            delivery.arrived += 1
    _try_start(package, delivery.chip, now_s, INPUT_WAIT)


@uncounted_inline
def _host_served(package: Package, number: int, now_s: float) -> bool:
    """A transfer from the host has arrived; True if it is a turn's weights."""
    flow = package.flows[number]
    package.shared[0].host_is_busy = 0
    flow.sent += 1
    serve_host(package, now_s)
    if flow.kind == STREAM:
        return True
    i = flow.delivery_begin
    while i < flow.delivery_end:
        delivery = package.deliveries[taker(package, i, flow.sent - 1)]
        delivery.arrived += 1
        _try_start(package, delivery.chip, now_s, HOST_WAIT)
        i += delivery.replicas
    return False


@uncounted_inner
def _weights_came(package: Package, number: int, now_s: float) -> None:
    """A chip has the weights of a stream: it may go on, and so may the previous replica."""
    flow = package.flows[number]
    chip = package.chips[flow.chip]
    chip.received += flow.is_forwarded
    if chip.awaits_weights and package.stages[chip.stage].stream == number:
        chip.awaits_weights = 0
        _finish_stage(package, flow.chip, now_s)
    if flow.is_forwarded and flow.replica > 0:
        _try_start(package, flow.chip - 1, now_s, OUTPUT_WAIT)


@uncounted_inner
def _host_took(package: Package, number: int, now_s: float) -> None:
    flow = package.flows[number]
    flow.sent += 1
    _part_done(package, inference_of(flow, flow.sent - 1), now_s)
    _try_start(package, flow.chip, now_s, OUTPUT_WAIT)


@uncounted_inner
def _part_done(package: Package, inference: int, now_s: float) -> None:
    """A chip or an output is done with an inference; inferences complete in order."""
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
def _keep_pace(package: Package, now_s: float) -> None:
    """Admit one inference, and the next one ``pace_s`` later; if the window is full, wait for room."""
    shared = package.shared[0]
    if shared.admitted == shared.rounds:
        return
    shared.is_held = shared.admitted - shared.completed >= shared.window
    if not shared.is_held:
        _admit(package, now_s)
        put_event(package, now_s + shared.pace_s, PACE, int64(0), 0.0)


@uncounted_inner
def _admit(package: Package, now_s: float) -> None:
    package.shared[0].admitted += 1
    for flow in range(len(package.flows)):
        if package.flows[flow].kind != CHIP_FLOW and package.flows[flow].kind != HOST_OUT:
            ask(package, flow)
    serve_host(package, now_s)
    for chip in range(len(package.chips)):
        _try_start(package, chip, now_s, HOST_WAIT)


MAX_PERIOD = 16  # cycles
# Times are sums of floats: equal steps differ by up to about this share of the time.
TOLERANCE = 1e-9


@uncounted_inner
def period_of(package: Package) -> int:
    """The least number of inferences after which every chip and link repeats; 0: none yet.

    All must have the same step. They do once the buffers between them are full and the weights are
    as far ahead as they may be, and then for good, since the state repeats. That can take long.
    So after a whole window of inferences each may repeat at its own step if the slowest is never
    idle: no plan has a shorter interval, and parts that are ahead wait for it. Where they share links
    with it that is not proven, but seen in thousands of random plans.

    Two things that run ahead can delay it later, so they must have the same step: weights that
    stream ahead of the inputs, which share the host's link with them; and tensors without credit,
    which block a link once their readers' buffers are full.

    Periods are multiples of the cycle after which the same replicas and sequences have their turns.
    """
    shared = package.shared[0]
    last = shared.completed - 1
    end_s = package.rounds[last].completion_s
    all_alike = shared.completed < shared.window + 4 or not _has_credit(package)
    is_full = shared.admitted - shared.completed >= shared.window - 1
    # Sequences may follow each other at uneven distances.
    cycle = shared.cycle
    if shared.sequences > 0:
        cycle *= shared.sequences // gcd(cycle, shared.sequences)
    for cycles in range(1, MAX_PERIOD + 1):
        period = cycles * cycle
        if shared.completed < 3 * period + 8:
            return 0
        step_s = end_s - package.rounds[last - period].completion_s
        if shared.pace_s > 0 and not is_full and step_s > period * shared.pace_s + TOLERANCE * end_s:
            return 0  # inferences pile up: the state does not repeat
        if not _is_periodic(package, last, period, step_s, TOLERANCE * end_s, all_alike):
            continue
        if all_alike or _is_restless(package, last, period, TOLERANCE * end_s):
            return period
        if _is_periodic(package, last, period, step_s, TOLERANCE * end_s, True):
            return period
    return 0


@uncounted_inner
def _has_credit(package: Package) -> bool:
    """Whether no tensor is sent to a reader that may have no buffer for it."""
    with_credit = int64(0)
    for delivery in package.deliveries:
        with_credit += delivery.has_credit
    return with_credit == len(package.deliveries)


@uncounted_inner
def _is_restless(package: Package, last: int, over: int, tolerance_s: float) -> bool:
    """Whether the slowest step is no longer than the most work of a chip or link per inference."""
    work_s = 0.0
    for number in range(len(package.end_s)):
        work_s = max(work_s, _work_s(package, number))
    return over * (slowest_step_s(package, last, over) - work_s) <= tolerance_s


@uncounted_inner
def _work_s(package: Package, number: int) -> float:
    """Seconds of work of a chip or link per inference, the mean over all inferences."""
    if number >= len(package.chips):
        link = package.links[number - len(package.chips)]
        return link.round_bytes / link.cycle * link.s_per_byte
    chip, work_s = package.chips[number], 0.0
    for stage in range(chip.stage_begin, chip.stage_end):
        work_s += package.stages[stage].seconds
    return work_s * chip.turns / chip.in_round


@uncounted_inner
def _rhythm(package: Package, number: int, inference: int) -> tuple[int, int, int, int]:
    """Of a chip or link: the last turn up to an inference, turns a round, inferences a round and a turn.

    A link has one turn in each cycle, as the last of so many replicas: then it has surely carried the bytes.
    """
    if number >= len(package.chips):
        cycle = package.links[number - len(package.chips)].cycle
        return (inference + 1) // cycle - 1, int64(1), cycle, cycle
    chip = package.chips[number]
    rest = inference % chip.in_round - chip.replica
    turn = inference // chip.in_round * chip.turns + rest // chip.replicas
    return turn, chip.turns, chip.in_round, chip.replicas


@uncounted_inner
def _is_periodic(
    package: Package, last: int, period: int, step_s: float, tolerance_s: float, all_alike: bool
) -> bool:
    for i in range(1, 2 * period + 6):
        now, before = package.rounds[last - i], package.rounds[last - i - period]
        if abs(now.completion_s - before.completion_s - step_s) > tolerance_s:
            return False
    for number in range(len(package.end_s)):
        end_s = package.end_s[number]
        turn, turns, in_round, apart = _rhythm(package, number, last)
        turns *= period // in_round
        if not _repeats(end_s, turn, turns, apart, tolerance_s):
            return False
        carries_ahead = package.shared[0].prefetch_all and number == len(package.end_s) - 2
        if (all_alike or carries_ahead) and not _has_step(end_s, turn, turns, step_s, tolerance_s):
            return False
    return True


@uncounted_inner
def _repeats(end_s: FloatArray, last: int, period: int, inferences: int, tolerance_s: float) -> bool:
    """Whether turns, one every ``inferences``, end a constant time after those a ``period`` before."""
    step_s = end_s[last] - end_s[last - period]
    for i in range(1, 2 * period + 6 // inferences):
        if abs(end_s[last - i] - end_s[last - i - period] - step_s) > tolerance_s:
            return False
    return True


@uncounted_inner
def _has_step(end_s: FloatArray, last: int, period: int, step_s: float, tolerance_s: float) -> bool:
    """Whether the last turn ends ``step_s`` after that a ``period`` before; True if there are none."""
    is_used = period > 0 and end_s[last] > 0
    return not is_used or abs(end_s[last] - end_s[last - period] - step_s) <= tolerance_s


@uncounted_inner
def slowest_step_s(package: Package, last: int, over: int) -> float:
    """Seconds per inference of the slowest chip or link, over the ``over`` inferences up to ``last``."""
    slowest_s = (package.rounds[last].completion_s - package.rounds[last - over].completion_s) / over
    for number in range(len(package.end_s)):
        slowest_s = max(slowest_s, _step_s(package, number, last, over))
    return slowest_s


@uncounted_inner
def _step_s(package: Package, number: int, last: int, over: int) -> float:
    """Seconds per inference at a chip or link, over whole rounds; those of other replicas count too."""
    end_s = package.end_s[number]
    turn, turns, in_round, _ = _rhythm(package, number, last)
    rounds = over // in_round
    if rounds == 0:
        return 0.0  # less than a round
    return (end_s[turn] - end_s[turn - rounds * turns]) / (rounds * in_round)


@uncounted
def step_s(package: Package, last: int, over: int, repeats: bool) -> float:
    """Seconds between inferences, over the ``over`` inferences up to ``last``."""
    return slowest_step_s(package, last, over) if repeats else average_step_s(package, last, over)


@uncounted_inner
def average_step_s(package: Package, last: int, over: int) -> float:
    """:func:`slowest_step_s` if nothing repeats; with replicas, the mean step of completions.

    Such an average may be off by about one inference in ``over``; that of a chip or link that
    was never idle is exact. If both agree within that error, the latter counts.
    """
    slowest_s = slowest_step_s(package, last, over)
    if package.shared[0].cycle > 1:
        # Whole turns of replicas end too early or too late, so that some replica always looks slow.
        slowest_s = _completion_slope_s(package, last, over)
    restless_s = 0.0
    for number in range(len(package.end_s)):
        step_s = _step_s(package, number, last, over)
        if step_s <= _work_s(package, number) * (1 + TOLERANCE):
            restless_s = max(restless_s, step_s)
    return restless_s if slowest_s <= restless_s * (1 + 1 / over) else slowest_s


@uncounted_inner
def _completion_slope_s(package: Package, last: int, over: int) -> float:
    """The slope of a least-squares line through the last ``over`` completions, in seconds per inference."""
    moment_s = 0.0
    for i in range(over):
        moment_s += (i - (over - 1) / 2) * package.rounds[last + 1 - over + i].completion_s
    return moment_s * 12 / (over * (over * over - 1.0))
