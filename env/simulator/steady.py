"""When a package is in steady state, and how far apart its inferences then are."""

from __future__ import annotations

from go_opt.env.simulator.package import engine_njit

MAX_PERIOD = 16
# Times are sums of floats: differences of equal steps agree to about this much of the time.
TOLERANCE = 1e-9
UNBOUNDED = 1 << 40  # stands for "no limit" where counters are compared


@engine_njit
def period_of(package):
    """The least number of inferences after which every chip and link does the same again; 0: none yet.

    Where buffers are limited all must step alike, as they do once those are full; without a
    limit, what is ahead of the slowest runs faster for ever.
    """
    shared = package.shared[0]
    last = shared.completed - 1
    end_s = package.rounds[last].completion_s
    for period in range(1, MAX_PERIOD + 1):
        if shared.completed < 3 * period + 8:
            return 0
        step_s = end_s - package.rounds[last - period].completion_s
        if _is_periodic(package, last, period, step_s, TOLERANCE * end_s, shared.buffers < UNBOUNDED):
            return period
    return 0


@engine_njit
def _is_periodic(package, last, period, step_s, tolerance_s, common_rate):
    for i in range(1, 2 * period + 6):
        now, before = package.rounds[last - i], package.rounds[last - i - period]
        if abs(now.completion_s - before.completion_s - step_s) > tolerance_s:
            return False
    for chip in range(len(package.chip_end_s)):
        end_s = package.chip_end_s[chip]
        if not _repeats(end_s, last, period, tolerance_s):
            return False
        if common_rate and end_s[last] > 0 and abs(end_s[last] - end_s[last - period] - step_s) > tolerance_s:
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
def slowest_step_s(package, over):
    """Seconds an inference takes at the slowest chip or link, over the last ``over`` inferences."""
    last = package.shared[0].completed - 1
    slowest_s = package.rounds[last].completion_s - package.rounds[last - over].completion_s
    for chip in range(len(package.chip_end_s)):
        slowest_s = max(slowest_s, package.chip_end_s[chip, last] - package.chip_end_s[chip, last - over])
    for link in range(len(package.link_end_s)):
        slowest_s = max(slowest_s, package.link_end_s[link, last] - package.link_end_s[link, last - over])
    return slowest_s / over
