"""Moves of a unit with its closure, against brute force over all placements."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings

from go_opt.solver import broken_rules, placement_problem
from go_opt.solver.adjacent_moves import move_unit
from tests.strategies import examples, random_graph, seeds, small_mcm, toy_graph


def test_toy_by_hand() -> None:
    # embed -> dense -> relu -> mix -> add -> logits, and embed -> add.
    problem = placement_problem(toy_graph(), small_mcm(3))
    start = np.array([0, 0, 1, 1, 1, 1], dtype=np.int32)

    def moved(unit: int, step: int) -> list[int] | None:
        placement = move_unit(problem, start, unit, step)
        return None if placement is None else placement.tolist()

    assert moved(1, 1) == [0, 1, 1, 1, 1, 1]  # dense alone
    assert moved(5, 1) == [0, 0, 1, 1, 1, 2]  # logits alone
    assert moved(4, 1) is None  # add pulls embed, and embed pushes dense, off chip 0
    assert moved(2, -1) == [0, 0, 0, 1, 1, 1]
    assert moved(3, -1) == [0, 0, 0, 0, 1, 1]  # mix takes relu along
    assert moved(0, -1) is None
    assert start.tolist() == [0, 0, 1, 1, 1, 1]


@settings(max_examples=examples(100))
@given(seed=seeds)
def test_the_nearest_placement_by_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, int(rng.integers(1, 7)))
    problem = placement_problem(graph, small_mcm(3, triangle="adjacent"))
    units = np.array(list(itertools.product(range(3), repeat=problem.num_units)), dtype=np.int32)
    valid = units[broken_rules(problem, units) == 0]
    start = valid[rng.integers(len(valid))]
    unit, step = int(rng.integers(problem.num_units)), int(rng.choice((-1, 1)))
    moved = move_unit(problem, start, unit, step)
    # Only moves in the direction of the step, at most one chip each, gaps allowed.
    free = placement_problem(graph, small_mcm(3, triangle="adjacent", no_skip="off"))
    options = units[(broken_rules(free, units) == 0) & (units[:, unit] == start[unit] + step)]
    change = (options - start) * step
    options = options[((change >= 0) & (change <= 1)).all(axis=1)]
    if not len(options):
        assert moved is None
        return
    least = options[np.argmin(np.abs(options - start).sum(axis=1))]
    is_valid = broken_rules(problem, least[None])[0] == 0
    assert (moved is not None) == is_valid
    if moved is not None:
        np.testing.assert_array_equal(moved, least)
