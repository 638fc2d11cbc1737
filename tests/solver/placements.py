"""Random placement problems on small graphs, and every placement that obeys their rules."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from go_opt.common.arrays import IntArray
from go_opt.solver.problem.problem import (
    NO_SKIP_ALL,
    NO_SKIP_OFF,
    TRIANGLE_ADJACENT,
    TRIANGLE_LONGEST_PATH,
    TRIANGLE_THREE_CHIP,
    PlacementProblem,
    placement_problem,
)
from go_opt.solver.propagation.propagators.domains import unpack_chips
from go_opt.solver.propagation.propagators.rules import SLACK
from go_opt.solver.propagation.propagators.tables import RuleTables
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
    rises = every[:, source] + tables.succ_rise <= every[:, reader]  # a first sieve, for speed
    return {tuple(map(int, placement)) for placement in every[rises.all(axis=1)] if holds(tables, placement)}


def holds(tables: RuleTables, placement: IntArray) -> bool:
    """Whether ``placement`` [U] obeys every rule, by definition."""
    open_chips = unpack_chips(tables.allowed, tables.num_chips)
    source, reader = tables.edges()
    return (
        bool(open_chips[np.arange(tables.num_units), placement].all())
        and bool((placement[source] + tables.succ_rise <= placement[reader]).all())
        and no_skip_holds(tables, placement)
        and triangle_holds(tables, placement)
        and capacity_holds(tables, placement)
    )


def no_skip_holds(tables: RuleTables, placement: IntArray) -> bool:
    if tables.no_skip == NO_SKIP_OFF:
        return True
    used = np.unique(placement)
    return len(used) == (tables.num_chips if tables.no_skip == NO_SKIP_ALL else used[-1] + 1)


def triangle_holds(tables: RuleTables, placement: IntArray) -> bool:
    source, reader = (placement[ends] for ends in tables.edges())
    depends = np.zeros((tables.num_chips, tables.num_chips), dtype=np.bool_)
    depends[source, reader] = source != reader
    if tables.triangle == TRIANGLE_ADJACENT:
        return bool((reader - source <= 1).all())
    if tables.triangle == TRIANGLE_THREE_CHIP:
        return not (depends & (depends.astype(int) @ depends.astype(int) > 0)).any()
    if tables.triangle == TRIANGLE_LONGEST_PATH:
        longest = depends.astype(int)
        for a in range(tables.num_chips - 1, -1, -1):
            for c in np.flatnonzero(depends[a]):
                longest[a] = np.maximum(longest[a], np.where(longest[c] > 0, longest[c] + 1, 0))
        return not (depends & (longest > 1)).any()
    return True


def capacity_holds(tables: RuleTables, placement: IntArray) -> bool:
    for limit, chip in enumerate(tables.limit_chip):
        here = np.flatnonzero(placement == chip)
        held = tables.limit_amount[limit, here].sum()
        if tables.limit_shares[limit]:
            rows = [tables.item[tables.item_ptr[u] : tables.item_ptr[u + 1]] for u in here]
            needed = np.unique(np.concatenate([np.zeros(0, np.int64), *rows]))
            held += tables.item_amount[needed].sum()
        if held > tables.limit_most[limit] * (1 + SLACK) or held < tables.limit_least[limit] * (1 - SLACK):
            return False
    return True


def rows_of(placements: Any) -> set[Placement]:
    """The distinct rows [S, U]."""
    return {tuple(int(chip) for chip in row) for row in placements}
