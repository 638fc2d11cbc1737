"""How the layers of a model are divided among ranks: the best seconds, and what no division is below.

Layers of a rank may recompute nothing, attention or all, each as it wants, as long as its memory holds them;
stages of a device are alike.
Arrays: [P, K] seconds of a micro-batch by rank and number of layers, infinite where they do not fit.
"""

from __future__ import annotations

from functools import cache
from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray
from go_opt.common.compiling import compiled, compiled_inner

_STEPS: Final = 40  # of a bisection


class Ranks(NamedTuple):
    """What layers cost on each rank; rows of three are by RECOMPUTE."""

    layer_s: FloatArray  # [3]
    kept_bytes: FloatArray  # [3] a layer and micro-batch
    working_bytes: FloatArray  # [3]
    state_bytes: float  # a layer
    in_flight: FloatArray  # [P] micro-batches
    free_bytes: FloatArray  # [P] without layers
    least_working_bytes: FloatArray  # [P]
    more_s: FloatArray  # [P] seconds beside layers
    unit: int  # stages of a device; numbers of layers of each kind are multiples of it


@compiled
def rank_seconds_table(ranks: Ranks, most: int) -> tuple[FloatArray, IntArray]:
    """[P, K] least seconds, and [P, K, 2] the layers that recompute attention and all, up to ``most``."""
    number = len(ranks.in_flight)
    seconds = np.full((number, most + 1), np.inf)
    chosen = np.zeros((number, most + 1, 2), np.int32)
    none, attention, full = ranks.layer_s[0], ranks.layer_s[1], ranks.layer_s[2]
    for rank in range(number):
        kept = ranks.in_flight[rank] * ranks.kept_bytes
        for count in range(ranks.unit, most + 1, ranks.unit):
            free = ranks.free_bytes[rank] - count * ranks.state_bytes
            if free < 0:
                break
            for all_again in range(0, count + 1, ranks.unit):
                rest = count - all_again
                least = rest * none + all_again * full + ranks.more_s[rank]
                if least >= seconds[rank, count]:
                    break
                some = _fewest(ranks, kept, rank, free, all_again, rest)
                if some < 0:
                    continue
                took = least + some * (attention - none)
                if took < seconds[rank, count]:
                    seconds[rank, count] = took
                    chosen[rank, count, 0], chosen[rank, count, 1] = some, all_again
    return seconds, chosen


@compiled_inner
def _fewest(ranks: Ranks, kept: FloatArray, rank: int, free: float, all_again: int, rest: int) -> int:
    """The fewest of ``rest`` layers that recompute attention so that all fit; -1 if they never do."""
    used = all_again * kept[2] + rest * kept[0]
    working = max(ranks.least_working_bytes[rank], ranks.working_bytes[2] if all_again else 0.0)
    if used + working <= free:
        return 0
    working = max(working, ranks.working_bytes[1])
    each = kept[0] - kept[1]
    if each <= 0.0:
        return -1
    some = max(int(np.ceil((used + working - free) / (each * ranks.unit))), 1) * ranks.unit
    return some if some <= rest else -1


@compiled_inner
def _sums(seconds: FloatArray, layers: int, limit: float) -> tuple[FloatArray, IntArray]:
    """[K] least sums over ranks with none above ``limit``, by layers in all, and [P, K] the last rank's."""
    number, most = seconds.shape[0], seconds.shape[1] - 1
    best = np.full(layers + 1, np.inf)
    best[0] = 0.0
    choice = np.zeros((number, layers + 1), np.int32)
    for rank in range(number):
        after = np.full(layers + 1, np.inf)
        for count in range(1, min(most, layers) + 1):
            took = seconds[rank, count]
            if not took <= limit:
                continue
            for before in range(layers - count + 1):
                if best[before] + took < after[before + count]:
                    after[before + count] = best[before] + took
                    choice[rank, before + count] = count
        best = after
    return best, choice


def best_division(
    seconds: FloatArray, head_s: float, layers: int, number: float, share: float, at_most: float
) -> IntArray:
    """[P] layers that minimise :func:`go_opt.parallel.step.pipeline_s`; zeros if none is below ``at_most``.

    Args:
      seconds: [P, K] those of the last rank with ``head_s``, the model's head.
      share: one over the stages of a device.
    """
    alone = seconds.copy()
    alone[-1] -= head_s
    limits = np.unique(alone[alone < np.inf])
    found: IntArray = _best_division(alone, head_s, limits, layers, number, share, at_most)
    return found


@compiled
def _best_division(
    alone: FloatArray,
    head_s: float,
    limits: FloatArray,
    layers: int,
    number: float,
    share: float,
    at_most: float,
) -> IntArray:
    ranks, most = alone.shape[0], alone.shape[1] - 1
    counts = np.zeros(ranks, np.int32)
    least = _sums(alone, layers, np.inf)[0][layers] + head_s
    low, high = 0, len(limits)
    while low < high:  # the least limit that any division keeps
        middle = (low + high) // 2
        if _sums(alone, layers, limits[middle])[0][layers] < np.inf:
            high = middle
        else:
            low = middle + 1
    for k in range(low, len(limits)):
        limit = limits[k]
        if (number - share) * limit + share * least >= at_most:
            break
        sums, choice = _sums(alone[:-1], layers, limit)
        last = 0
        for count in range(1, min(most, layers) + 1):
            own = alone[-1, count]
            if not own <= limit:
                continue
            slowest = max(limit, (1.0 - share) * limit + share * own + head_s)
            took = (number - share) * slowest + share * (sums[layers - count] + own + head_s)
            if took < at_most:
                at_most, last = took, count
        if last:
            counts[-1], left = last, layers - last
            for rank in range(ranks - 2, -1, -1):
                counts[rank] = choice[rank, left]
                left -= counts[rank]
    return counts


class Waits(NamedTuple):
    """Seconds of messages, which hold the rank that receives them. All [P]."""

    own_s: FloatArray  # in a micro-batch
    ahead_s: FloatArray  # before the next rank begins, and behind its end


@compiled_inner
def _is_below(own_s: FloatArray, ahead_s: FloatArray, layers: int, limit: float) -> bool:
    """Whether a division keeps ``own_s`` and the ``ahead_s`` of rows before below a limit, in each row."""
    number, most = own_s.shape[0], own_s.shape[1] - 1
    before = np.full(layers + 1, np.inf)  # least seconds of the rows before, by layers
    before[0] = 0.0
    for row in range(number):
        after = np.full(layers + 1, np.inf)
        for count in range(1, min(most, layers) + 1):
            own, ahead = own_s[row, count], ahead_s[row, count]
            if not own <= limit:
                continue
            for used in range(layers - count + 1):
                if own + before[used] <= limit:
                    after[used + count] = min(after[used + count], before[used] + ahead)
        before = after
    return bool(before[layers] < np.inf)


@compiled_inner
def _least_limit(own_s: FloatArray, ahead_s: FloatArray, layers: int, high: float) -> float:
    """The least limit that :func:`_is_below` finds kept; ``high`` if that is above it."""
    low = 0.0
    if not _is_below(own_s, ahead_s, layers, high):
        return high
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        if _is_below(own_s, ahead_s, layers, middle):
            high = middle
        else:
            low = middle
    return low


@compiled
def least_schedule_s(
    seconds: FloatArray,
    waits: Waits,
    once_s: FloatArray,
    in_flight: FloatArray,
    layers: int,
    number: float,
    share: float,
    high: float,
) -> float:
    """What no step is below, for any division and schedule; ``high`` if that is above it.

    Rank i starts behind ``share`` of each rank before it, forwards, and ends as long before the last pass,
    backwards: passes take at least ``number seconds_i + share (sum of those before i)`` for each i.

    With one stage a device, a rank that keeps ``k`` micro-batches also waits: its first backward pass comes
    behind all ranks after it, forwards and backwards, and ``k`` forward passes of its own at most; as long
    it waits behind its last forward pass. The two waits are apart if ``k`` is less than ``number``. Then
    passes take ``all + (sum of those after i) + (number - k) seconds_i``, with ``all`` the sum over ranks.

    Args:
      once_s: [K] what is behind the passes, by layers of the first rank.
    """
    passed = seconds + waits.own_s.reshape(-1, 1)
    own, ahead = number * passed, share * seconds + waits.ahead_s.reshape(-1, 1)
    own[0] += once_s
    ahead[0] += once_s
    least: float = _least_limit(own, ahead, layers, high)
    if share < 1.0 or len(seconds) == 1 or least >= high:
        return least
    whole = passed.copy()
    whole[0] += once_s
    work = _sums(whole, layers, np.inf)[0][layers]
    own = np.zeros_like(passed)
    for rank in range(len(passed)):
        if in_flight[rank] < number:
            own[rank] = work + (number - in_flight[rank]) * passed[rank]
    behind: float = _least_limit(own[::-1].copy(), passed[::-1].copy(), layers, high)
    return max(least, behind)


@cache
def load_divisions() -> None:
    """Compile what this module has compiled, or load it, so that no search waits for it."""
    one, three = np.ones(1), np.ones(3)
    seconds, _ = rank_seconds_table(Ranks(three, three, three, 1.0, one, 9.0 * one, one, one, 1), 1)
    best_division(seconds, 0.0, 1, 1.0, 1.0, 9.0)
    least_schedule_s(seconds, Waits(one, one), np.zeros(2), one, 1, 1.0, 1.0, 9.0)
