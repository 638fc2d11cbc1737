"""Trains the weights of the walk on many graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from go_opt.agents.walk.case import WalkCase
from go_opt.agents.walk.learning import BATCH, WalkLearner
from go_opt.common.arrays import FloatArray, IntArray

VISITS: Final = 1000  # of a graph, drawn uniformly, with one batch of samples and one update
RATES: Final = (0.05, 0.015)  # of learning, in the first and the second half of the visits


class TrainingGraph(NamedTuple):
    """A graph on a target, and what judges its placements."""

    case: WalkCase
    interval_s: Callable[[IntArray], FloatArray]  # of placements [S, U]: [S], infinite where invalid


def train_walk(graphs: Sequence[TrainingGraph], *, seed: int, visits: int = VISITS) -> FloatArray:
    """The weights [F] after training on ``graphs``; the same for the same ``seed``."""
    rng = np.random.default_rng(seed)
    learner = WalkLearner.start()
    for visit in range(visits):
        graph = graphs[int(rng.integers(len(graphs)))]
        drawn = graph.case.draw(learner.weights, BATCH, rng)
        rate = RATES[2 * visit >= visits]
        learner = learner.learn(graph.case, drawn.is_cut, graph.interval_s(drawn.placement), rate)
    return learner.weights
