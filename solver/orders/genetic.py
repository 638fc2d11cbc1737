"""Biased random-key genetic search: the strongest published rival for slicing orders.

A genome has keys in [0, 1). For an order it has one key per kernel: list scheduling by key makes the
order, slicing the plan. For order and kernels together it has two keys per op: one for its place, one
for its wish to share a kernel with its producers (:mod:`go_opt.env.kernels.fusion`).
Gonçalves and Resende, "Biased random-key genetic algorithms for combinatorial
optimization", J. Heuristics 2011; used with slicing by Archer et al., "Pipeline
parallelism for neural networks", ICML 2024. Axes: ``M`` kernels, ``N`` ops.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import chain, islice
from typing import Final

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray
from go_opt.env.kernels.numbering import number_kernels
from go_opt.solver.orders.instance import OrderProblem
from go_opt.solver.orders.orders import fixed_orders, random_orders, schedule

ELITE_SHARE: Final = 0.2
MUTANT_SHARE: Final = 0.15
ELITE_BIAS: Final = 0.7  # chance that a child takes a key from its elite parent
POPULATION: Final = 64
# Wishes in [0, 1) become priorities in [-FUSION_RANGE, FUSION_RANGE): a quarter of them
# remove an op from its default kernel, a quarter let it join another.
FUSION_RANGE: Final = 2.0
AS_BY_DEFAULT, JOINED = 0.5, 1.0  # wishes

Keys = FloatArray


def genetic_search(
    cost: Callable[[Keys], float],
    num_keys: int,
    *,
    evaluations: int,
    seed: int,
    first: Keys | None = None,
) -> tuple[float, Keys]:
    """Returns the least cost and its keys after ``evaluations`` calls of ``cost``.

    Args:
      cost: returns the cost of a genome; infinite if it decodes to no valid plan.
      num_keys: keys of a genome, each in [0, 1).
      first: [num_keys] or [F, num_keys] genomes for the first generation; the others are random.
    """
    evolution = Evolution(num_keys, seed=seed, first=first, population=min(POPULATION, evaluations))
    best_cost, best = math.inf, evolution.genomes[0]
    while True:
        costs = np.array([cost(genome) for genome in evolution.genomes[:evaluations]])
        evaluations -= len(costs)
        least = int(np.argmin(costs))
        if costs[least] < best_cost:
            best_cost, best = float(costs[least]), evolution.genomes[least].copy()
        if evaluations <= 0:
            return best_cost, best
        evolution.advance(costs)


class Evolution:
    """Generations of genomes; arguments as for :func:`genetic_search`."""

    def __init__(
        self, num_keys: int, *, seed: int, first: Keys | None = None, population: int = POPULATION
    ) -> None:
        self._rng = np.random.default_rng(seed)
        self._elites = max(1, int(population * ELITE_SHARE))
        self._mutants = int(population * MUTANT_SHARE)
        self.genomes = self._rng.random((population, num_keys))  # [B, num_keys] to be evaluated
        if first is not None:
            known = np.atleast_2d(first)[:population]
            self.genomes[: len(known)] = known
        self._kept = self.genomes[:0]  # the elites
        self._kept_costs = np.empty(0)

    def advance(self, costs: FloatArray) -> None:
        """Makes the next generation, given the costs of ``genomes``."""
        genomes = np.concatenate([self._kept, self.genomes])
        costs = np.concatenate([self._kept_costs, costs])
        by_cost = np.argsort(costs, kind="stable")
        genomes, costs = genomes[by_cost], costs[by_cost]
        self._kept, self._kept_costs = genomes[: self._elites], costs[: self._elites]
        children = self._children(genomes, len(genomes) - self._elites - self._mutants)
        self.genomes = np.concatenate([self._rng.random((self._mutants, genomes.shape[1])), children])

    def _children(self, genomes: Keys, number: int) -> Keys:
        """Returns uniform crossovers of an elite and a non-elite, biased to the elite's keys."""
        rng, elites = self._rng, self._elites
        elite = genomes[rng.integers(0, elites, number)]
        other = genomes[rng.integers(min(elites, len(genomes) - 1), len(genomes), number)]
        return np.where(rng.random(elite.shape) < ELITE_BIAS, elite, other)


def order_keys(order: IntArray, fusion_group: IntArray) -> Keys:
    """Returns kernel keys [M] in (0, 1) for which list scheduling gives ``order``."""
    place = number_kernels(order, fusion_group)
    keys = np.empty(int(place.max()) + 1)
    keys[fusion_group] = 1.0 - (place + 1.0) / (len(keys) + 1.0)
    return keys


def decoded(case: OrderProblem, keys: Keys) -> tuple[IntArray, IntArray]:
    """Returns the kernels [N] and the order [N] of a genome [2 N]."""
    place, wish = np.split(keys, 2)
    return schedule(case, place, (2.0 * wish - 1.0) * FUSION_RANGE)


def first_genomes(case: OrderProblem, seed: int) -> Keys:
    """Genomes [B, 2 N] of four kinds in turn: known or random orders; default, joined or random kernels."""
    rng, num_ops = np.random.default_rng((seed, 5)), case.graph.num_ops
    fixed = (order for _, order in fixed_orders(case.graph, case.fusion_group))
    orders = chain([case.order], fixed, random_orders(case.graph, case.tables, case.fusion_group, seed))
    default, joined = np.full(num_ops, AS_BY_DEFAULT), np.full(num_ops, JOINED)
    first: list[Keys] = []
    for order in islice(orders, POPULATION // 4):
        place = order_keys(order, case.order)
        first += [np.append(place, default), np.append(rng.random(num_ops), default)]
        first += [np.append(place, joined), rng.random(2 * num_ops)]
    return np.stack(first)
