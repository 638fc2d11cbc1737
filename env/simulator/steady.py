"""Detects the steady state of a package, and measures its interval."""

from __future__ import annotations

from math import gcd

from go_opt.common.arrays import FloatArray, Record
from go_opt.common.compiling import int64, uncounted, uncounted_inner
from go_opt.env.simulator.package import Package

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
    for chip in range(len(package.chips)):
        work_s = max(work_s, _chip_work_s(package, chip))
    for link in range(len(package.links)):
        work_s = max(work_s, _link_work_s(package, link))
    return over * (slowest_step_s(package, last, over) - work_s) <= tolerance_s


@uncounted_inner
def _chip_work_s(package: Package, number: int) -> float:
    """Seconds of work of a chip per inference, the mean over all inferences."""
    chip, work_s = package.chips[number], 0.0
    for stage in range(chip.stage_begin, chip.stage_end):
        work_s += package.stages[stage].seconds
    return work_s * chip.turns / chip.in_round


@uncounted_inner
def _link_work_s(package: Package, number: int) -> float:
    """Seconds of work of a link per inference, the mean over all inferences."""
    link = package.links[number]
    return link.round_bytes / link.cycle * link.s_per_byte


@uncounted_inner
def _is_periodic(
    package: Package, last: int, period: int, step_s: float, tolerance_s: float, all_alike: bool
) -> bool:
    for i in range(1, 2 * period + 6):
        now, before = package.rounds[last - i], package.rounds[last - i - period]
        if abs(now.completion_s - before.completion_s - step_s) > tolerance_s:
            return False
    for number in range(len(package.chips)):
        chip, end_s = package.chips[number], package.chip_end_s[number]
        turn, turns = _last_turn(chip, last), period // chip.in_round * chip.turns
        if not _repeats(end_s, turn, turns, chip.replicas, tolerance_s):
            return False
        if all_alike and not _has_step(end_s, turn, turns, step_s, tolerance_s):
            return False
    for number in range(len(package.links)):
        link, end_s = package.links[number], package.link_end_s[number]
        cycle, cycles = _last_cycle(link, last), period // link.cycle
        if not _repeats(end_s, cycle, cycles, link.cycle, tolerance_s):
            return False
        carries_ahead = package.shared[0].prefetch_all and number == len(package.links) - 2
        if (all_alike or carries_ahead) and not _has_step(end_s, cycle, cycles, step_s, tolerance_s):
            return False
    return True


@uncounted_inner
def _last_turn(chip: Record, inference: int) -> int:
    """The chip's last turn up to an inference."""
    if chip.replicas == 1:
        return inference
    rest = inference % chip.in_round - chip.replica
    return inference // chip.in_round * chip.turns + rest // chip.replicas


@uncounted_inner
def _last_cycle(link: Record, inference: int) -> int:
    """The last cycle whose bytes the link has surely carried after an inference."""
    return inference if link.cycle == 1 else (inference + 1) // link.cycle - 1


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
    for chip in range(len(package.chips)):
        slowest_s = max(slowest_s, _chip_step_s(package, chip, last, over))
    for link in range(len(package.links)):
        slowest_s = max(slowest_s, _link_step_s(package, link, last, over))
    return slowest_s


@uncounted_inner
def _chip_step_s(package: Package, number: int, last: int, over: int) -> float:
    """Seconds per inference at a chip, over whole turns; inferences of its other replicas count too."""
    chip, end_s = package.chips[number], package.chip_end_s[number]
    turn, rounds = _last_turn(chip, last), over // chip.in_round
    if rounds == 0:
        return 0.0  # less than a round
    return (end_s[turn] - end_s[turn - rounds * chip.turns]) / (rounds * chip.in_round)


@uncounted_inner
def _link_step_s(package: Package, number: int, last: int, over: int) -> float:
    """Seconds per inference on a link, over whole cycles."""
    link, end_s = package.links[number], package.link_end_s[number]
    cycle, cycles = _last_cycle(link, last), over // link.cycle
    if cycles == 0:
        return 0.0  # less than a cycle
    return (end_s[cycle] - end_s[cycle - cycles]) / (cycles * link.cycle)


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
    for chip in range(len(package.chips)):
        step_s = _chip_step_s(package, chip, last, over)
        if step_s <= _chip_work_s(package, chip) * (1 + TOLERANCE):
            restless_s = max(restless_s, step_s)
    for link in range(len(package.links)):
        step_s = _link_step_s(package, link, last, over)
        if step_s <= _link_work_s(package, link) * (1 + TOLERANCE):
            restless_s = max(restless_s, step_s)
    return restless_s if slowest_s <= restless_s * (1 + 1 / over) else slowest_s


@uncounted_inner
def _completion_slope_s(package: Package, last: int, over: int) -> float:
    """The slope of a least-squares line through the last ``over`` completions, in seconds per inference."""
    moment_s = 0.0
    for i in range(over):
        moment_s += (i - (over - 1) / 2) * package.rounds[last + 1 - over + i].completion_s
    return moment_s * 12 / (over * (over * over - 1.0))
