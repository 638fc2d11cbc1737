"""Genetic search over orders for the slicer, one proposal at a time.

The rival of every table (:mod:`go_opt.solver.orders.genetic`), started from structured orders and
those of the caller, with keys tied by repeated structure in every other generation
(:mod:`go_opt.solver.orders.tied_keys`). An order is sliced only below the cost of the worst elite.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import IntArray
from go_opt.env import list_schedule
from go_opt.solver.orders.cheapest import Slicer
from go_opt.solver.orders.genetic import ELITE_SHARE, POPULATION, Evolution, Keys, order_keys
from go_opt.solver.orders.orders import starting_orders
from go_opt.solver.orders.tied_keys import TiedKeys, tied_keys

STARTING_ORDERS: Final = 31  # with the default one half of a generation of 64
ELITES: Final = max(1, int(POPULATION * ELITE_SHARE))
BETTER: Final = 1.0 - 1e-9  # than the worst elite
HOPELESS: Final = 2.0  # times the best so far


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
    graph, default = slicer.instance.graph, slicer.instance.order
    starting = itertools.islice(starting_orders(slicer.instance, fusion_group, seed), STARTING_ORDERS)
    first = np.stack([order_keys(order, fusion_group) for order in (default, *seeds, *starting)])
    trial = _Trial(slicer, fusion_group, best_s=slicer.cap_s / HOPELESS)
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
    """Slices orders, and remembers the best."""

    slicer: Slicer
    fusion_group: IntArray
    best_s: float = math.inf
    best_order: IntArray | None = None

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
        """One for each genome; those that cannot become elites cost infinitely much."""
        genomes = self.evolution.genomes
        keys = genomes if self._tie is None else self._tie.expanded(genomes)
        costs_s = np.full(len(keys), math.inf)
        for i, of_one in enumerate(keys):
            plan = trial.plan(of_one, min(self._worst_elite_s * BETTER, trial.best_s * HOPELESS))
            if plan is not None:
                costs_s[i] = plan.interval_s
                self._elites_s = sorted([*self._elites_s, plan.interval_s])[:ELITES]
            yield plan
        self.evolution.advance(costs_s)

    @property
    def _worst_elite_s(self) -> float:
        return self._elites_s[-1] if len(self._elites_s) == ELITES else math.inf
