"""The ranges of most tokens per second: annealings from random ranges and chains, until a bound is met."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from go_opt.common.arrays import LongArray
from go_opt.common.compiling import quick_compilation
from go_opt.errors import InfeasibleError
from go_opt.result import OPTIMAL_GAP
from go_opt.serving.mixed.annealing import DRAWS, Cooling, Ranges, anneal
from go_opt.serving.mixed.bound import cheapest_cover, upper_bound
from go_opt.serving.mixed.cluster import Case
from go_opt.serving.mixed.flow import Network, new_work
from go_opt.serving.mixed.plan import RangePlan, network_of, plan_of

_MOVES: Final = 20_000  # of the first annealings; those of each round are twice those of the one before
_SLICE: Final = 5_000  # moves between two looks at the clock
# Of each round, chosen on Helix's clusters: how it begins, weight of what layers lack, hottest degree.
_ROUND: Final = (("alone", 10.0, 0.01), ("random", 1.0, 0.01), ("random", 0.3, 0.03), ("worth", 3.0, 0.003))
_LEAST_AIM: Final = 0.9  # of the bound, of chains of later rounds


def plan_ranges(
    case: Case, budget_s: float = 5.0, seed: int = 0, should_stop: Callable[[], bool] = lambda: False
) -> RangePlan:
    """The best ranges found within ``budget_s``, checked.

    Raises:
      InfeasibleError: the nodes cannot hold all layers, or no range of them was found that tokens pass.
    """
    held = int(case.most_held.sum())
    if held < case.layers:
        raise InfeasibleError(
            f"the nodes hold {held} layers together, the model has {case.layers}.", is_proven=True
        )
    network = network_of(case)
    work = new_work(network)
    _load_kernels(case, network)
    begin = time.perf_counter()
    bound_per_s = upper_bound(case)
    best, found, evaluations = 0.0, np.zeros((2, 0), np.int64), 0
    random = np.random.default_rng(seed)
    for ranges, first, cooling in _annealings(case, bound_per_s, random):
        anneal(ranges, network, work, cooling, first, random.random((_SLICE, DRAWS)))
        evaluations += _SLICE
        if ranges.scores[1] > best:
            best, found = float(ranges.scores[1]), ranges.best.copy()
        is_over = time.perf_counter() - begin > budget_s or should_stop()
        if is_over or best >= bound_per_s / (1.0 + OPTIMAL_GAP):
            break
    if not best:
        raise InfeasibleError("no ranges of layers were found that tokens pass; try a longer --budget.")
    plan = plan_of(case, found[0], found[1], bound_per_s, evaluations, time.perf_counter() - begin)
    broken = plan.verify()
    assert not broken, broken
    return plan


def _load_kernels(case: Case, network: Network) -> None:
    """Before the clock runs: after an install they are compiled."""
    with quick_compilation():
        nowhere = np.zeros((2, case.cluster.num_nodes), np.int64)
        none = np.zeros((0, DRAWS))
        anneal(Ranges.of(nowhere), network, new_work(network), Cooling(1.0, 1.0, 1.0, 1), 0, none)
        cheapest_cover(np.ones(1), np.ones(1), 1.0)


def _annealings(
    case: Case, target_per_s: float, random: np.random.Generator
) -> Iterator[tuple[Ranges, int, Cooling]]:
    """Endless: the ranges and the first move of the next slice."""
    moves = _MOVES
    while True:
        for kind, weight, hottest in _ROUND:
            aim_per_s = target_per_s * random.uniform(_LEAST_AIM, 1.0) if moves > _MOVES else target_per_s
            is_alone = kind == "alone"
            begin = (
                _random_ranges(case, random)
                if kind == "random"
                else _chain(case, aim_per_s, random, is_alone=is_alone)
            )
            ranges, cooling = Ranges.of(begin), Cooling(target_per_s, hottest, weight, moves)
            for first in range(0, moves, _SLICE):
                yield ranges, first, cooling
        moves *= 2


def _random_ranges(case: Case, random: np.random.Generator) -> LongArray:
    held = random.integers(1, case.most_held + 1)
    starts = random.integers(0, case.layers - held + 1)
    return np.array([starts, starts + held])


def _chain(case: Case, target_per_s: float, random: np.random.Generator, *, is_alone: bool) -> LongArray:
    """One node behind the other, over links that pass the target; nodes that are left copy ranges.

    Args:
      is_alone: each has the most layers at the target's rate, if it reaches that; otherwise as many as are
        worth most.
    """
    counts = np.arange(case.node_per_s.shape[1])
    worth = (np.minimum(case.node_per_s, target_per_s) * counts).argmax(axis=1)
    if is_alone:
        alone = ((case.node_per_s >= target_per_s * (1.0 - OPTIMAL_GAP)) * counts).max(axis=1)
        worth = np.where(alone > 0, alone, worth)
    nodes = case.cluster.num_nodes
    starts, ends = ranges = np.zeros((2, nodes), np.int64)
    left, end, last = np.ones(nodes, bool), 0, nodes
    while left.any() and end < case.layers:
        chance = left * (1e-9 + np.minimum(case.link_per_s[last, :nodes] / target_per_s, 1.0) ** 4)
        last = int(random.choice(nodes, p=chance / chance.sum()))
        starts[last], ends[last] = end, min(end + worth[last], case.layers)
        left[last], end = False, ends[last]
    for node in np.flatnonzero(left):
        other = int(random.choice(np.flatnonzero(~left)))
        starts[node] = starts[other]
        ends[node] = min(ends[other], starts[other] + case.most_held[node])
    return ranges
