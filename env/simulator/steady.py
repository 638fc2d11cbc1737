"""Detects the steady state of a package, and measures its interval."""

from __future__ import annotations

from math import gcd

from go_opt.common.arrays import FloatArray
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
