"""Biased random-key genetic search: the strongest published rival for slicing orders.

A genome is a key per kernel; list scheduling by key makes the order, slicing the plan.
Gonçalves and Resende, "Biased random-key genetic algorithms for combinatorial
optimization", J. Heuristics 2011; used with slicing by Archer et al., "Pipeline
parallelism for neural networks", ICML 2024.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import Final

import numpy as np
from numpy.typing import NDArray

ELITE_SHARE: Final = 0.2
MUTANT_SHARE: Final = 0.15
ELITE_BIAS: Final = 0.7  # chance that a child takes a key from its elite parent
POPULATION: Final = 64

Keys = NDArray[np.float64]
# Yields new genomes [B, num_keys] and the cost of the worst elite; is sent their costs [B].
Generations = Generator[tuple[Keys, float], NDArray[np.float64], None]


def genetic_search(
    cost: Callable[[Keys], float],
    num_keys: int,
    *,
    evaluations: int,
    seed: int,
    first: Keys | None = None,
    population: int = POPULATION,
) -> tuple[float, Keys]:
    """The least cost and its keys after ``evaluations`` calls of ``cost``.

    Args:
      cost: of a genome; infinite where it decodes to no valid plan.
      num_keys: keys of a genome, each in [0, 1).
      first: [num_keys] or [F, num_keys] genomes to start with among the random ones.
      population: genomes of a generation.
    """
    evolution = generations(num_keys, seed=seed, first=first, population=min(population, evaluations))
    genomes, _ = next(evolution)
    best_cost, best = math.inf, genomes[0]
    while evaluations > 0:
        costs = np.array([cost(genome) for genome in genomes[:evaluations]])
        evaluations -= len(costs)
        least = int(np.argmin(costs))
        if costs[least] < best_cost:
            best_cost, best = float(costs[least]), genomes[least].copy()
        if evaluations > 0:
            genomes, _ = evolution.send(costs)
    return best_cost, best


def generations(
    num_keys: int, *, seed: int, first: Keys | None = None, population: int = POPULATION
) -> Generations:
    """Endless generations of genomes; arguments as for :func:`genetic_search`.

    Whoever costs no less than the worst elite does not become one: its cost need not be known.
    Genomes may be written over before their costs are sent.
    """
    rng = np.random.default_rng(seed)
    genomes = rng.random((population, num_keys))
    if first is not None:
        known = np.atleast_2d(first)[:population]
        genomes[: len(known)] = known
    costs = yield genomes, math.inf
    elites, mutants = max(1, int(population * ELITE_SHARE)), int(population * MUTANT_SHARE)
    while True:
        by_cost = np.argsort(costs, kind="stable")
        genomes, costs = genomes[by_cost], costs[by_cost]
        children = _children(rng, genomes, elites, population - elites - mutants)
        born = np.concatenate([rng.random((mutants, num_keys)), children])
        costs[elites:] = yield born, float(costs[elites - 1])
        genomes[elites:] = born


def _children(rng: np.random.Generator, genomes: Keys, elites: int, number: int) -> Keys:
    """Uniform crossover of an elite with one of the rest, biased to the elite's keys."""
    elite = genomes[rng.integers(0, elites, number)]
    other = genomes[rng.integers(min(elites, len(genomes) - 1), len(genomes), number)]
    return np.where(rng.random(elite.shape) < ELITE_BIAS, elite, other)
