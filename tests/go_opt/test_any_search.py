"""No search fails: every shipped target with graphs of eight families, and random graphs and targets.

``tests/benchmarks/bench_any_search.py`` runs the full product of the matrix.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from go_opt.env import load_target, load_zoo, target_names
from tests.searches import GRAPHS, drawn_options, each_option, search
from tests.strategies import kind_names, random_graph, random_target

EVALUATIONS = 24
FUZZED = 240


@pytest.mark.parametrize("target", target_names())
def test_every_target_with_every_graph(target: str) -> None:
    """Options differ by pair: all of them come with every target and every graph."""
    options, first = each_option(), target_names().index(target)
    for number, name in enumerate(GRAPHS):
        chosen = options[(first * len(GRAPHS) + number) * 3 % len(options)]
        search(load_zoo(name), load_target(target), max_evaluations=EVALUATIONS, **chosen)


@pytest.mark.parametrize("seed", range(8))
def test_random_graphs_and_targets(seed: int) -> None:
    rng = np.random.default_rng([40, seed])
    shipped = itertools.cycle(target_names())
    for _ in range(FUZZED // 8):
        target = random_target(rng) if rng.random() < 0.7 else load_target(next(shipped))
        kinds = kind_names(target) if rng.random() < 0.5 else ()
        graph = random_graph(rng, int(rng.integers(1, 14)), kinds=kinds)
        evaluations = int(rng.integers(1, 60))
        search(graph, target, max_evaluations=evaluations, seed=seed, **drawn_options(rng))
