"""Genetic search for orders and kernels together, by priorities of both.

A genome (:mod:`go_opt.solver.orders.genetic`) has two keys per op. Kernels joined across branches keep
tensors out of memory; where memory is the bottleneck, no other method finds such plans.

Only genomes that can beat the worst elite are sliced completely.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np

from go_opt.model.plan import Candidate
from go_opt.solver.orders.cheapest import BETTER, HOPELESS, Slicer
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
from go_opt.solver.orders.instance import OrderProblem
from go_opt.solver.orders.orders import starting_orders


def joint_orders(
    slicer: Slicer, *, seed: int, known: Callable[[], Candidate | None] = lambda: None
) -> Iterator[Candidate | None]:
    """Yields, without end, the plan of each slicing tried, or ``None`` if the search rejects it.

    Args:
      known: returns the best plan of other methods; the search adopts it if it is better.
    """
    case, trial = slicer.instance, _Trial(slicer)
    first = _first(case, seed)
    evolution = Evolution(first.shape[1], seed=seed, first=first)
    while True:
        genomes, of_others = evolution.genomes, known()
        if of_others is not None and of_others.expected_s < trial.best_s:
            trial.best_s = of_others.expected_s
            genomes[0] = joint_keys(case, of_others.order, of_others.fusion_group)
        costs_s = np.full(len(genomes), math.inf)
        for i, keys in enumerate(genomes):  # genomes that cannot become elites keep infinite costs
            plan, costs_s[i] = trial.plan(keys, evolution.worst_elite)
            yield plan
        evolution.advance(costs_s)


@dataclass
class _Trial:
    """Slices the decoded genomes."""

    slicer: Slicer
    best_s: float = math.inf

    def plan(self, keys: Keys, worst_elite_s: float) -> tuple[Candidate | None, float]:
        """Returns the plan of a genome [2 N], or ``None`` if rejected, and its cost for the evolution."""
        kernels, order = decoded(self.slicer.instance, keys)
        at_most_s = min(worst_elite_s * BETTER, self.best_s * HOPELESS)
        plan = self.slicer(order, kernels, at_most_s)
        if plan is None or plan.expected_s >= at_most_s:
            return None, math.inf
        self.best_s = min(self.best_s, plan.expected_s)
        return plan, plan.expected_s


def _first(case: OrderProblem, seed: int) -> Keys:
    """Returns genomes of four kinds in turn: known or random orders; default, joined or random kernels."""
    rng, num_ops = np.random.default_rng((seed, 5)), case.graph.num_ops
    orders = chain([case.order], starting_orders(case, case.fusion_group, seed))
    default, joined = np.full(num_ops, AS_BY_DEFAULT), np.full(num_ops, JOINED)
    first: list[Keys] = []
    for order in islice(orders, POPULATION // 4):
        place = order_keys(order, case.order)
        first += [np.append(place, default), np.append(rng.random(num_ops), default)]
        first += [np.append(place, joined), rng.random(2 * num_ops)]
    return np.stack(first)
