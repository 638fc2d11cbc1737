"""First and last chips of graphs stretched over as many chips as they can be."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.agents.inputs.features import chip_bounds
from go_opt.solver import most_chips_adjacent, placement_problem
from tests.agents.degenerate import no_edges
from tests.strategies import examples, random_graph, seeds, small_mcm, toy_graph


def bounds(graph, target):
    first, last = chip_bounds(placement_problem(graph, target), np.arange(graph.num_ops, dtype=np.int32))
    return list(first), list(last)


@pytest.mark.parametrize(
    ("num_chips", "first", "last"),
    [
        # embed x -> dense -> relu -> mix -> add -> logits, and add reads x too: x, dense, relu and
        # mix lie on chips 0 and 1 with add, logits may follow on 2.
        (8, [0, 0, 0, 0, 1, 2], [0, 1, 1, 1, 1, 2]),
        # On two chips logits is held on chip 1, add may lie on either.
        (2, [0, 0, 0, 0, 0, 1], [0, 1, 1, 1, 1, 1]),
        (1, [0] * 6, [0] * 6),
    ],
)
def test_toy_by_hand(num_chips: int, first: list[int], last: list[int]) -> None:
    assert bounds(toy_graph(), small_mcm(num_chips)) == (first, last)


def test_without_an_order_of_chips_every_chip_is_open() -> None:
    first, last = bounds(toy_graph(), small_mcm(4, topology="all_to_all"))
    assert (first, last) == ([0] * 6, [3] * 6)


def test_ops_without_edges_lie_on_the_first_chip() -> None:
    assert bounds(no_edges(3), small_mcm(4)) == ([0] * 3, [0] * 3)


@settings(max_examples=examples(100))
@given(seed=seeds)
def test_bounds_are_those_of_all_placements_with_the_ends_held(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph, target = random_graph(rng, int(rng.integers(1, 7))), small_mcm(int(rng.integers(1, 4)))
    problem = placement_problem(graph, target)
    first, last = chip_bounds(problem, np.arange(graph.num_ops, dtype=np.int32))
    tuples = itertools.product(range(target.num_chips), repeat=graph.num_ops)
    placements = np.array(list(tuples))
    steps = placements[:, graph.edge_dst] - placements[:, graph.edge_src]
    valid = placements[((steps >= 0) & (steps <= 1)).all(axis=1)]
    held = valid[((valid >= first) & (valid <= last)).all(axis=1)]
    np.testing.assert_array_equal(held.min(axis=0), first)
    np.testing.assert_array_equal(held.max(axis=0), last)
    # Every component reaches as far as any placement lets it.
    width = [
        np.ptp(valid[:, problem.component == c], axis=1).max() + 1 for c in range(problem.num_components)
    ]
    assert [last[problem.component == c].max() + 1 for c in range(problem.num_components)] == width
    assert min(target.num_chips, sum(width)) == most_chips_adjacent(problem)
