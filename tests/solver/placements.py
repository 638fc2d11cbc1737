"""Random placement problems on small graphs, and every placement that obeys their rules."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from go_opt.solver.problem.problem import PlacementProblem, placement_problem
from go_opt.solver.propagation.propagators import RuleTables
from go_opt.solver.propagation.search import holds
from tests.strategies import random_graph, small_mcm

Placement = tuple[int, ...]

# Triangle rules need acyclic dataflow: targets without it have none.
RULES = [
    *itertools.product((True,), ("off", "prefix", "all"), ("off", "longest_path", "three_chip", "adjacent")),
    *itertools.product((False,), ("off", "prefix", "all"), ("off",)),
]
ON_A_RING = (True, "prefix", "longest_path")


def random_problem(
    rng: np.random.Generator, rules: tuple[bool, str, str] = ON_A_RING, *, max_units: int = 6
) -> PlacementProblem:
    """2 to 6 units on 2 to 4 chips, at most 300 assignments."""
    while True:
        num_units, num_chips = int(rng.integers(2, max_units + 1)), int(rng.integers(2, 5))
        if num_chips**num_units <= 300:
            break
    acyclic, no_skip, triangle = rules
    target = small_mcm(num_chips, acyclic=acyclic, no_skip=no_skip, triangle=triangle)
    return placement_problem(random_graph(rng, num_units), target)


def valid_placements(tables: RuleTables) -> set[Placement]:
    """By enumeration, from the definitions."""
    every = np.array(list(itertools.product(range(tables.num_chips), repeat=tables.num_units)), np.int32)
    source, reader = tables.edges()
    if tables.acyclic:  # a first sieve, for speed
        every = every[(every[:, source] <= every[:, reader]).all(axis=1)]
    return {tuple(map(int, placement)) for placement in every if holds(tables, placement)}


def rows_of(placements: Any) -> set[Placement]:
    """The distinct rows [S, U]."""
    return {tuple(int(chip) for chip in row) for row in placements}
