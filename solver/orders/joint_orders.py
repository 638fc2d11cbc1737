"""Genetic search for orders and kernels at once, by priorities of both.

A genome (:mod:`go_opt.solver.orders.genetic`) has two keys an op. Kernels joined across branches keep
tensors out of memory; where that binds, nothing else finds such plans. In every other generation
ops at the same place of identical blocks share their keys (:mod:`go_opt.solver.orders.tied_keys`).

Only genomes that can beat the worst elite are sliced for good. Along long orders charging slices for
what they stream takes most of the time: there only those that can beat the best are, and bounds rank
the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, cycle, islice
from typing import Final

import numpy as np

from go_opt.solver.orders.cheapest import BETTER, HOPELESS, OrderPlan, Slicer
from go_opt.solver.orders.genetic import (
    AS_BY_DEFAULT,
    JOINED,
    POPULATION,
    Evolution,
    Keys,
    decoded,
    joint_keys,
    order_keys,
)
from go_opt.solver.orders.instance import Instance
from go_opt.solver.orders.orders import starting_orders
from go_opt.solver.orders.tied_keys import TiedKeys, tied_keys

LONG: Final = 2_000  # kernels
NOTABLY: Final = 0.999  # better than the best, to be sliced where that is dear


def joint_orders(
    slicer: Slicer, *, seed: int, known: Callable[[], OrderPlan | None] = lambda: None
) -> Iterator[OrderPlan | None]:
    """Endless, one for each slicing tried: its plan, or ``None`` where it is of no use to the search.

    Args:
      known: the best plan of others; the search goes on from it where it has none as good.
    """
    case = slicer.instance
    tie = tied_keys(case.graph, case.order)
    evolutions = [_Generations(case, seed, of_one) for of_one in ([None] if tie is None else [tie, None])]
    trial = _Trial(slicer)
    for evolution in cycle(evolutions):
        of_others = known()
        if of_others is not None and of_others.interval_s < trial.best_s:
            trial.best_s = of_others.interval_s
            trial.best_keys = joint_keys(case, of_others.order, of_others.fusion_group)
        yield from evolution.generation(trial)


@dataclass
class _Trial:
    """Slices what genomes decode to."""

    slicer: Slicer
    best_s: float = math.inf
    best_keys: Keys | None = None  # [2 N]
    streams: bool = False  # whether the last slicing does

    @property
    def is_dear(self) -> bool:
        """Whether bounds are so much quicker than slicing that they rank what cannot be the best."""
        return self.streams and int(self.slicer.instance.fusion_group.max()) >= LONG

    def plan(self, keys: Keys, worst_elite_s: float) -> tuple[OrderPlan | None, float]:
        """By a genome [2 N]: its plan where it is of use, and its cost to the evolution."""
        kernels, order = decoded(self.slicer.instance, keys)
        at_most_s, refused_s = min(worst_elite_s * BETTER, self.best_s * HOPELESS), math.inf
        if self.is_dear:
            at_most_s = self.best_s * NOTABLY
            refused_s = max(self.slicer.least_s(order, kernels), self.best_s)
            if refused_s > self.best_s:
                return None, refused_s
        sliced = self.slicer(order, kernels, at_most_s)
        if sliced is None or sliced.interval_s >= at_most_s:
            return None, refused_s
        self.streams = sliced.streams
        plan = OrderPlan(sliced.placement, order, kernels, sliced.interval_s, sliced.replication)
        if plan.interval_s < self.best_s:
            self.best_s, self.best_keys = plan.interval_s, keys
        return plan, plan.interval_s


class _Generations:
    """Generations of genomes, those of identical blocks tied, and what becomes of them."""

    def __init__(self, case: Instance, seed: int, tie: TiedKeys | None) -> None:
        self._tie, self._best_s = tie, math.inf
        first = _first(case, seed, tie)
        self._evolution = Evolution(first.shape[1], seed=seed, first=first)

    def generation(self, trial: _Trial) -> Iterator[OrderPlan | None]:
        """One for each slicing; those that cannot become elites are not costed."""
        genomes = self._evolution.genomes
        if self._tie is None and trial.best_keys is not None and trial.best_s < self._best_s:
            genomes[0] = trial.best_keys  # what others and ties have found goes on here
        costs_s = np.full(len(genomes), math.inf)
        for i, genome in enumerate(genomes):
            keys = genome.copy() if self._tie is None else _untied(self._tie, genome)
            plan, costs_s[i] = trial.plan(keys, self._evolution.worst_elite)
            yield plan
        self._best_s = min(self._best_s, float(costs_s.min()))
        self._evolution.advance(costs_s)


def _first(case: Instance, seed: int, tie: TiedKeys | None) -> Keys:
    """Genomes of four kinds in turn: what is known of orders, of kernels, of both, of none."""
    rng, num_ops = np.random.default_rng((seed, 5)), case.graph.num_ops
    num_places, num_wishes = (num_ops, num_ops) if tie is None else (tie.num_keys, tie.num_keys - 1)
    orders = chain([case.order], starting_orders(case, case.fusion_group, seed))
    default, joined = np.full(num_wishes, AS_BY_DEFAULT), np.full(num_wishes, JOINED)
    first: list[Keys] = []
    for order in islice(orders, POPULATION // 4):
        keys = order_keys(order, case.order)
        place = keys if tie is None else tie.tied(keys, rng.uniform(-1.0, 2.0))
        first += [np.append(place, default), np.append(rng.random(num_places), default)]
        first += [np.append(place, joined), rng.random(num_places + num_wishes)]
    return np.stack(first)


def _untied(tie: TiedKeys, genome: Keys) -> Keys:
    """[2 N] keys of a genome [2 C + 1]: those of places and how strictly blocks follow, then wishes."""
    place, wish = np.split(genome, [tie.num_keys])
    return np.append(tie.expanded(place[None])[0], wish[tie.class_of])
