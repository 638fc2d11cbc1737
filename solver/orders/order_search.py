"""Genetic search over orders for the slicer, one proposal at a time.

The rival of every table (:mod:`go_opt.solver.orders.genetic`), started from structured orders and
those of the caller, with keys tied by repeated structure in every other generation
(:mod:`go_opt.solver.orders.tied_keys`), and made quick: an order that cannot be sliced below the cost
of the worst elite, or is hopeless from the start, is refused by one candidate interval
(:mod:`go_opt.solver.orders.order_screen`) and never sliced.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray, IntArray
from go_opt.env import list_schedule
from go_opt.solver.orders.cheapest import Slicer
from go_opt.solver.orders.genetic import ELITE_SHARE, POPULATION, Evolution, Keys, order_keys
from go_opt.solver.orders.order_screen import OrderScreen
from go_opt.solver.orders.orders import starting_orders
from go_opt.solver.orders.tied_keys import TiedKeys, tied_keys

STARTING_ORDERS: Final = 31  # with the default one half of a generation of 64
ELITES: Final = max(1, int(POPULATION * ELITE_SHARE))
BETTER: Final = 1.0 - 1e-9  # than the worst elite
SCREENED_AGAIN: Final = 0.98  # once what is asked for has come down to this part of what it was
HOPELESS: Final = 2.0  # times the best so far
# Times the best so far: how good an order that is not sliced may be at best, where slicing is dear.
LEVELS: Final = (1.0, 1.05, 1.15, 1.3, 1.6, HOPELESS)
SCREENED_TOGETHER: Final = 8


class OrderPlan(NamedTuple):
    """An order and its slicing."""

    placement: IntArray  # [N]
    order: IntArray  # [N]
    fusion_group: IntArray  # [N]
    interval_s: float
    replication: IntArray | None = None  # [N]; None: no stage is replicated


def genetic_orders(
    slicer: Slicer, fusion_group: IntArray, *, seed: int, seeds: Iterable[IntArray] = (), ties: bool = True
) -> Iterator[OrderPlan | None]:
    """Endless, one for each order tried: its plan, or ``None`` where it is of no use to the search.

    The default order comes first.

    Args:
      fusion_group: [N] kernels, numbered 0 … M - 1, contiguous along the default order.
      seeds: [N] further orders to start with, in each of which kernels are contiguous.
      ties: whether identical blocks share keys in every other generation.
    """
    graph, tables, default = slicer.instance.graph, slicer.instance.tables, slicer.instance.order
    starting = itertools.islice(starting_orders(slicer.instance, fusion_group, seed), STARTING_ORDERS)
    first = np.stack([order_keys(order, fusion_group) for order in (default, *seeds, *starting)])
    # The screen knows one chip for each segment.
    screen = None if slicer.replicates else OrderScreen(tables, default, fusion_group, slicer.passing)
    trial = _Trial(slicer, fusion_group, screen, best_s=slicer.cap_s / HOPELESS)
    untied = _Generations(Evolution(first.shape[1], seed=seed, first=first))
    evolutions = [untied]
    tie = tied_keys(graph, fusion_group) if ties else None
    if tie is not None:
        # Half of what is known, alike in all blocks; the rest of the first generation is random.
        strictness = np.random.default_rng(seed).uniform(-1.0, 2.0, len(first))
        known = [tie.tied(*of_one) for of_one in zip(first, strictness, strict=True)]
        evolutions.append(_Generations(Evolution(tie.num_keys, seed=seed, first=np.stack(known)), tie))
    for evolution in itertools.cycle(evolutions):
        if evolution is untied and trial.best_order is not None and trial.best_s < untied.best_s:
            # What ties have found goes on without them.
            untied.evolution.genomes[0] = order_keys(trial.best_order, fusion_group)
        yield from evolution.generation(trial)


@dataclass
class _Trial:
    """Tries orders: first by the screen, then by the slicer."""

    slicer: Slicer
    fusion_group: IntArray
    screen: OrderScreen | None
    best_s: float = math.inf
    best_order: IntArray | None = None

    @property
    def is_dear(self) -> bool:
        """Whether the screen is so much quicker than the slicer that it alone judges most orders."""
        return self.screen is not None and self.screen.streams and self.best_s < math.inf

    def levels_s(self, keys: Keys) -> FloatArray:
        """[B] the least of the levels that ``keys`` [B, M] may make plans within; infinite above them."""
        levels_s = np.full(len(keys), math.inf)
        left = np.flatnonzero(self.is_promising(keys, HOPELESS * self.best_s))
        for level in LEVELS:
            at_most_s = level * self.best_s * BETTER
            is_within = self.is_promising(keys[left], at_most_s) if level < HOPELESS else left >= 0
            levels_s[left[is_within]] = at_most_s
            left = left[~is_within]
        return levels_s

    def is_promising(self, keys: Keys, at_most_s: float) -> BoolArray:
        """[B] whether ``keys`` [B, M] may make plans within ``at_most_s``."""
        if self.screen is None:
            return np.ones(len(keys), dtype=np.bool_)
        return self.screen.within(keys, at_most_s)

    def plan(self, keys: Keys, at_most_s: float) -> OrderPlan | None:
        """By the list schedule of ``keys`` [M]."""
        order = list_schedule(self.slicer.instance.graph, self.fusion_group, keys)
        sliced = self.slicer(order, self.fusion_group, at_most_s)
        if sliced is None:
            return None
        if sliced.interval_s < self.best_s:
            self.best_s, self.best_order = sliced.interval_s, order
        return OrderPlan(sliced.placement, order, self.fusion_group, sliced.interval_s, sliced.replication)


class _Generations:
    """Generations of genomes, whose elites are the best of all so far, and what becomes of them."""

    def __init__(self, evolution: Evolution, tie: TiedKeys | None = None) -> None:
        self.evolution, self._tie = evolution, tie
        self._elites_s: list[float] = []  # ascending

    @property
    def best_s(self) -> float:
        """Of this evolution."""
        return self._elites_s[0] if self._elites_s else math.inf

    def generation(self, trial: _Trial) -> Iterator[OrderPlan | None]:
        """One for each genome; those that cannot become elites are not costed."""
        genomes = self.evolution.genomes
        keys = genomes if self._tie is None else self._tie.expanded(genomes)
        costs_s = np.full(len(keys), math.inf)
        yield from (self._by_levels if trial.is_dear else self._one_by_one)(trial, keys, costs_s)
        self.evolution.advance(costs_s)

    def _by_levels(self, trial: _Trial, keys: Keys, costs_s: FloatArray) -> Iterator[OrderPlan | None]:
        """Only what may be better than the best plan is sliced; the rest costs what it may be at best."""
        half = (len(keys) + 1) // 2
        by_turns = np.argsort(np.arange(len(keys)) % half, kind="stable")  # known and random ones alternate
        for few in np.split(by_turns, range(SCREENED_TOGETHER, len(keys), SCREENED_TOGETHER)):
            costs_s[few] = trial.levels_s(keys[few])
            best_s = trial.best_s
            for i in few:
                plan = trial.plan(keys[i], trial.best_s * BETTER) if costs_s[i] < best_s else None
                self._keep(plan, costs_s, i)
                yield plan

    def _one_by_one(self, trial: _Trial, keys: Keys, costs_s: FloatArray) -> Iterator[OrderPlan | None]:
        is_promising, screened_s = np.ones(len(keys), dtype=np.bool_), math.inf
        for i in range(len(keys)):
            at_most_s = min(self._worst_elite_s * BETTER, trial.best_s * HOPELESS)
            if at_most_s < screened_s * SCREENED_AGAIN:
                is_promising[i:] &= trial.is_promising(keys[i:], at_most_s)
                screened_s = at_most_s
            plan = trial.plan(keys[i], at_most_s) if is_promising[i] else None
            self._keep(plan, costs_s, i)
            yield plan

    def _keep(self, plan: OrderPlan | None, costs_s: FloatArray, genome: int) -> None:
        if plan is not None:
            costs_s[genome] = plan.interval_s
            self._elites_s = sorted([*self._elites_s, plan.interval_s])[:ELITES]

    @property
    def _worst_elite_s(self) -> float:
        return self._elites_s[-1] if len(self._elites_s) == ELITES else math.inf
