"""When a package is in steady state, and how far apart its inferences then are."""

from __future__ import annotations

from go_opt.env.simulator.package import engine_njit

MAX_PERIOD = 16
# Times are sums of floats: differences of equal steps agree to about this much of the time.
TOLERANCE = 1e-9


@engine_njit
def period_of(package):
    """The least number of inferences after which every chip and link does the same again; 0: none yet.

    All must step alike, as they do once the buffers between them are full; for good then, since
    everything is as it was. That can take long, or for ever where nothing is limited. So once
    a whole window of inferences is through, each may repeat at a pace of its own, and the
    slowest counts: around a cycle of waits (this buffer for that stage, and so on) nothing ever
    gains on the cycle's own pace, so the slowest cycle already steps as it will when those
    ahead have filled their buffers. That holds for a given order of service on shared links.
    """
    shared = package.shared[0]
    last = shared.completed - 1
    end_s = package.rounds[last].completion_s
    all_alike = shared.completed < shared.window + 4
    is_full = shared.admitted - shared.completed >= shared.window - 1
    for period in range(1, MAX_PERIOD + 1):
        if shared.completed < 3 * period + 8:
            return 0
        step_s = end_s - package.rounds[last - period].completion_s
        if shared.pace_s > 0 and not is_full and step_s > period * shared.pace_s + TOLERANCE * end_s:
            return 0  # inferences pile up: it is not the same again
        if _is_periodic(package, last, period, step_s, TOLERANCE * end_s, all_alike):
            return period
    return 0


@engine_njit
def _is_periodic(package, last, period, step_s, tolerance_s, all_alike):
    for i in range(1, 2 * period + 6):
        now, before = package.rounds[last - i], package.rounds[last - i - period]
        if abs(now.completion_s - before.completion_s - step_s) > tolerance_s:
            return False
    for chip in range(len(package.chip_end_s)):
        end_s = package.chip_end_s[chip]
        if not _repeats(end_s, last, period, tolerance_s):
            return False
        if all_alike and end_s[last] > 0 and abs(end_s[last] - end_s[last - period] - step_s) > tolerance_s:
            return False
    for link in range(len(package.link_end_s)):
        if not _repeats(package.link_end_s[link], last, period, tolerance_s):
            return False
    return True


@engine_njit
def _repeats(end_s, last, period, tolerance_s):
    step_s = end_s[last] - end_s[last - period]
    for i in range(1, 2 * period + 6):
        if abs(end_s[last - i] - end_s[last - i - period] - step_s) > tolerance_s:
            return False
    return True


@engine_njit
def slowest_step_s(package, last, over):
    """Seconds an inference takes at the slowest chip or link, over the ``over`` inferences up to ``last``."""
    slowest_s = package.rounds[last].completion_s - package.rounds[last - over].completion_s
    for chip in range(len(package.chip_end_s)):
        slowest_s = max(slowest_s, package.chip_end_s[chip, last] - package.chip_end_s[chip, last - over])
    for link in range(len(package.link_end_s)):
        slowest_s = max(slowest_s, package.link_end_s[link, last] - package.link_end_s[link, last - over])
    return slowest_s / over


@engine_njit
def average_step_s(package, last, over):
    """:func:`slowest_step_s` where nothing repeats.

    Such an average may be off by about one inference in ``over``; that of a chip or link which
    never rested is exact. Where both are the same as far as can be told, the latter counts.
    """
    slowest_s = slowest_step_s(package, last, over)
    restless_s = 0.0
    for chip in range(len(package.chip_end_s)):
        step_s = (package.chip_end_s[chip, last] - package.chip_end_s[chip, last - over]) / over
        work_s = 0.0
        for stage in range(package.chips[chip].stage_begin, package.chips[chip].stage_end):
            work_s += package.stages[stage].seconds
        if step_s <= work_s * (1 + TOLERANCE):
            restless_s = max(restless_s, step_s)
    for link in range(len(package.link_end_s)):
        step_s = (package.link_end_s[link, last] - package.link_end_s[link, last - over]) / over
        if step_s <= package.links[link].round_bytes * package.links[link].s_per_byte * (1 + TOLERANCE):
            restless_s = max(restless_s, step_s)
    return restless_s if slowest_s <= restless_s * (1 + 1 / over) else slowest_s
