"""Biased random-key genetic search: the strongest published rival for slicing orders.

A genome is a key per kernel; list scheduling by key makes the order, slicing the plan.
Gonçalves and Resende, "Biased random-key genetic algorithms for combinatorial
optimization", J. Heuristics 2011; used with slicing by Archer et al., "Pipeline
parallelism for neural networks", ICML 2024.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

ELITE_SHARE: Final = 0.2
MUTANT_SHARE: Final = 0.15
ELITE_BIAS: Final = 0.7  # chance that a child takes a key from its elite parent

Keys = NDArray[np.float64]


def genetic_search(
    cost: Callable[[Keys], float],
    num_keys: int,
    *,
    evaluations: int,
    seed: int,
    first: Keys | None = None,
    population: int = 64,
) -> tuple[float, Keys]:
    """The least cost and its keys after ``evaluations`` calls of ``cost``.

    Args:
      cost: of a genome; infinite where it decodes to no valid plan.
      num_keys: keys of a genome, each in [0, 1).
      first: [num_keys] or [F, num_keys] genomes to start with among the random ones.
      population: genomes of a generation.
    """
    rng = np.random.default_rng(seed)
    size = min(population, evaluations)
    genomes = rng.random((size, num_keys))
    if first is not None:
        known = np.atleast_2d(first)[:size]
        genomes[: len(known)] = known
    costs = np.array([cost(genome) for genome in genomes])
    left = evaluations - size
    elites, mutants = max(1, int(size * ELITE_SHARE)), int(size * MUTANT_SHARE)
    while left > 0:
        by_cost = np.argsort(costs, kind="stable")
        genomes, costs = genomes[by_cost], costs[by_cost]
        num_new = min(size - elites, left)
        born = np.concatenate(
            [rng.random((mutants, num_keys)), _children(rng, genomes, elites, size - elites - mutants)]
        )[:num_new]
        genomes[elites : elites + num_new] = born
        costs[elites : elites + num_new] = [cost(genome) for genome in born]
        left -= num_new
    best = int(np.argmin(costs))
    return float(costs[best]), genomes[best]


def _children(rng: np.random.Generator, genomes: Keys, elites: int, number: int) -> Keys:
    """Uniform crossover of an elite with one of the rest, biased to the elite's keys."""
    elite = genomes[rng.integers(0, elites, number)]
    other = genomes[rng.integers(min(elites, len(genomes) - 1), len(genomes), number)]
    return np.where(rng.random(elite.shape) < ELITE_BIAS, elite, other)
