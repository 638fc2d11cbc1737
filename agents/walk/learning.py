"""Learns the parameters of a walk from its own samples: the best ones become likelier.

The log-probability of a batch's best samples rises (Corsini et al., "Self-labeling the job shop
scheduling problem", NeurIPS 2024). Weights follow its gradient, scaled to norm one, by Adam; the head of one
graph follows its mean by plain steps. The scale of intervals has no effect.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from go_opt.agents.walk.case import WalkCase
from go_opt.common.arrays import BoolArray, FloatArray
from go_opt.solver.walk.walk import NUM_FEATURES, score_walks

BATCH: Final = 20  # samples of one graph between two updates
_PER_ELITE: Final = 5  # samples of which the best one is a label
_DECAYS: Final = (0.9, 0.999)  # of Adam's two moments
_LEAST_MOMENT: Final = 1e-8


@dataclass(frozen=True, eq=False)
class WalkLearner:
    """The parameters after some updates, and Adam's moments of the weights' gradient."""

    weights: FloatArray  # [F]
    mean: FloatArray  # [F]
    square: FloatArray  # [F]
    updates: int = 0
    head: FloatArray | None = None  # [M] of the one graph that is learned; None: zero

    @staticmethod
    def start(weights: FloatArray | None = None) -> WalkLearner:
        """From ``weights`` [F], or untrained."""
        nothing = np.zeros(NUM_FEATURES)
        return WalkLearner(nothing if weights is None else weights, nothing, nothing)

    def learn(
        self,
        case: WalkCase,
        is_cut: BoolArray,
        interval_s: FloatArray,
        rate: float,
        head_rate: float = 0.0,
    ) -> WalkLearner:
        """After an update by the walks ``is_cut`` [S, M] with intervals [S], infinite where invalid.

        Without two valid walks of different intervals there is nothing to learn.
        """
        valid = np.flatnonzero(np.isfinite(interval_s))
        if len(np.unique(interval_s)) < 2 or not len(valid):
            return self
        num_elites = -(-len(interval_s) // _PER_ELITE)
        best = valid[np.argsort(interval_s[valid], kind="stable")][:num_elites]
        head = case.no_head if self.head is None else self.head
        scores = score_walks(case.problem, self.weights, head, is_cut[best])
        gradient = scores.by_weights.sum(axis=0)
        norm = float(np.linalg.norm(gradient))
        after = self if norm == 0.0 else self._stepped(gradient / norm, rate)
        if head_rate > 0.0:
            after = replace(after, head=head + head_rate * scores.by_head.mean(axis=0))
        return after

    def _stepped(self, gradient: FloatArray, rate: float) -> WalkLearner:
        """After a step of Adam up the gradient."""
        of_mean, of_square = _DECAYS
        updates = self.updates + 1
        mean = of_mean * self.mean + (1.0 - of_mean) * gradient
        square = of_square * self.square + (1.0 - of_square) * gradient**2
        spread = np.sqrt(square / (1.0 - of_square**updates)) + _LEAST_MOMENT
        step = rate * mean / (1.0 - of_mean**updates) / spread
        return replace(self, weights=self.weights + step, mean=mean, square=square, updates=updates)
