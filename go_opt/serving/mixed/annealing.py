"""Annealing of ranges: one node's range, two nodes' ranges or a border of several changes at a time.

What is maximised is the flow less the share of a target rate that layers lack of the rates of the nodes
that hold them: the flow alone does not say which of two plans without any is nearer to one.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import FloatArray, LongArray
from go_opt.common.compiling import int64, uncounted, uncounted_inner
from go_opt.serving.mixed.flow import Network, Work, max_flow

# Shares of moves, added up: a range behind another, before another, exchanged, copied; then a border.
_BEHIND, _BEFORE, _EXCHANGED, _COPIED = 0.35, 0.5, 0.65, 0.75
_MEETS: Final = 0.6  # of ranges behind another: that end where a third begins
DRAWS: Final = 8  # numbers that a move takes
COLDEST: Final = 5e-4  # of the target


class Ranges(NamedTuple):
    """Starts and ends of the nodes' ranges ``[start, end)``. Axis ``N``: nodes."""

    now: LongArray  # [2, N]
    trial: LongArray  # [2, N]
    best: LongArray  # [2, N], so far
    scores: FloatArray  # [2]: of the current ranges; the flow of the best

    @classmethod
    def of(cls, now: LongArray) -> Ranges:
        return cls(now, now.copy(), now.copy(), np.array([-np.inf, -1.0]))


class Cooling(NamedTuple):
    """What an annealing aims at, and how it cools."""

    target_per_s: float
    hottest: float  # of the target
    lack_weight: float  # of what layers lack, beside the flow
    moves: int  # of the whole annealing


@uncounted
def anneal(
    ranges: Ranges, network: Network, work: Work, cooling: Cooling, first: int, draws: FloatArray
) -> None:
    """Makes moves of an annealing from the move ``first`` on; ``ranges`` has the outcome.

    Args:
      draws: ``[moves, DRAWS]``, uniform in 0 to 1.
    """
    for move in range(draws.shape[0]):
        share = (first + move) / cooling.moves
        degree = cooling.hottest * (COLDEST / cooling.hottest) ** share * cooling.target_per_s
        _copy(ranges.now, ranges.trial)
        if not _propose(ranges, network, draws[move]) or not _is_legal(ranges, network):
            continue
        flow = max_flow(ranges.trial[0], ranges.trial[1], network, work)
        score = flow - cooling.lack_weight * _lack(ranges, work, cooling.target_per_s)
        rise = score - ranges.scores[0]
        if rise >= 0.0 or draws[move, 3] < np.exp(rise / degree):
            ranges.scores[0] = score
            _copy(ranges.trial, ranges.now)
            if flow > ranges.scores[1]:
                ranges.scores[1] = flow
                _copy(ranges.now, ranges.best)


@uncounted_inner
def _copy(source: LongArray, destination: LongArray) -> None:
    for row in range(2):
        for node in range(source.shape[1]):
            destination[row, node] = source[row, node]


@uncounted_inner
def _is_legal(ranges: Ranges, network: Network) -> bool:
    for node in range(ranges.now.shape[1]):
        start, end = ranges.trial[0, node], ranges.trial[1, node]
        if start < 0 or end > network.layers or end <= start or end - start > network.most_held[node]:
            return False
    return True


@uncounted_inner
def _lack(ranges: Ranges, work: Work, target_per_s: float) -> float:
    """What the mean layer lacks of the target; ``work`` has the limits of the trial's nodes."""
    layers = work.held.size - 1
    for layer in range(layers):
        work.held[layer] = 0.0
    for node in range(ranges.now.shape[1]):
        work.held[ranges.trial[0, node]] += work.limit[node]
        work.held[ranges.trial[1, node]] -= work.limit[node]
    lack = held = 0.0
    for layer in range(layers):
        held += work.held[layer]
        lack += max(0.0, target_per_s - held)
    return lack / layers


@uncounted_inner
def _propose(ranges: Ranges, network: Network, draws: FloatArray) -> bool:
    """Changes the trial; False if the drawn move does nothing."""
    nodes = ranges.now.shape[1]
    node = int64(draws[0] * nodes)
    other = int64(draws[1] * nodes)
    kind = draws[2]
    if kind < _BEHIND:
        _behind(node, other, ranges, network, draws)
    elif kind < _BEFORE:
        _before(node, other, ranges, network, draws)
    elif kind < _COPIED:
        for row in range(2):
            ranges.trial[row, node] = ranges.now[row, other]
            if kind < _EXCHANGED:
                ranges.trial[row, other] = ranges.now[row, node]
    else:
        return bool(_shift(node, other, ranges, network, draws))
    return True


@uncounted_inner
def _behind(node: int, other: int, ranges: Ranges, network: Network, draws: FloatArray) -> None:
    """The node begins at the first layer or where another ends; it ends where a third begins, or anywhere."""
    nodes = ranges.now.shape[1]
    start = 0 if draws[5] * (nodes + 1) < 1.0 else ranges.now[1, other]
    if start >= network.layers:
        start = ranges.now[0, other]
    end = start + 1 + int64(draws[4] * network.most_held[node])
    if draws[6] < _MEETS:
        third = int64(draws[7] * (nodes + 1)) - 1
        meets = network.layers if third < 0 else ranges.now[0, third]
        if meets - start > 0 and meets - start <= network.most_held[node]:
            end = meets
    ranges.trial[0, node] = start
    ranges.trial[1, node] = min(end, network.layers)


@uncounted_inner
def _before(node: int, other: int, ranges: Ranges, network: Network, draws: FloatArray) -> None:
    """The node ends at the last layer or where another begins."""
    end = network.layers if draws[5] * (ranges.now.shape[1] + 1) < 1.0 else ranges.now[0, other]
    if end == 0:
        end = ranges.now[1, other]
    ranges.trial[0, node] = max(0, end - 1 - int64(draws[4] * network.most_held[node]))
    ranges.trial[1, node] = end


@uncounted_inner
def _shift(node: int, other: int, ranges: Ranges, network: Network, draws: FloatArray) -> bool:
    """A border of the node moves by one layer, or all borders from it to one of another node."""
    border = ranges.now[1, node] if draws[4] < 0.5 else ranges.now[0, node]
    step = 1 if draws[5] < 0.5 else -1
    least = most = border
    if draws[6] < 0.5:
        least = min(border, ranges.now[0, other])
        most = max(border, ranges.now[0, other])
    if least == 0 or most == network.layers:
        return False
    for row in range(2):
        for one in range(ranges.now.shape[1]):
            if least <= ranges.now[row, one] <= most:
                ranges.trial[row, one] = ranges.now[row, one] + step
    return True
