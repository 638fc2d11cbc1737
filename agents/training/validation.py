"""Scores a policy zero-shot on validation graphs, by the best of a few proposals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from go_opt.agents.decoding.outputs import neutral_outputs
from go_opt.agents.policy.network import Policy
from go_opt.agents.training.problems.cases import Case
from go_opt.agents.training.problems.environment import Session
from go_opt.agents.training.problems.lessons import Lesson
from go_opt.agents.training.problems.rollout import play

PROPOSALS: Final = 16
ROUNDS: Final = 3  # the mean of whose bests is the score
# Counted for a plan that is not valid: -5 would outweigh all the other graphs.
LEAST_REWARD: Final = -1.0


@dataclass(frozen=True)
class Score:
    """Log speed-up over the greedy plan of the best of ``PROPOSALS``, the mean of ``ROUNDS``."""

    by_graph: dict[str, dict[str, float]]  # lesson → graph → log speed-up

    @property
    def by_lesson(self) -> dict[str, float]:
        """Means over graphs."""
        return {lesson: float(np.mean(list(graphs.values()))) for lesson, graphs in self.by_graph.items()}

    @property
    def mean(self) -> float:
        """Of all lessons."""
        return float(np.mean(list(self.by_lesson.values())))

    def metrics(self) -> dict[str, float]:
        """By name, for the log."""
        by_graph = {
            f"validation/{lesson}/{graph}": value
            for lesson, graphs in self.by_graph.items()
            for graph, value in graphs.items()
        }
        return (
            {"validation": self.mean} | {f"validation/{k}": v for k, v in self.by_lesson.items()} | by_graph
        )


def validate(
    policy: Policy, cases: Sequence[Case], sessions: Sequence[Session], lessons: Sequence[Lesson], seed: int
) -> Score:
    """The score of ``policy``; the same for the same ``seed``."""
    by_graph: dict[str, dict[str, float]] = {lesson.name: {} for lesson in lessons}
    asks_network = any(lesson.draws_keys for lesson in lessons)
    for case, session in zip(cases, sessions, strict=True):
        no_head = np.zeros(case.instance.graph.num_ops)
        outputs = policy(case.features) if asks_network else neutral_outputs(policy.walk_weights, no_head)
        for lesson in lessons:
            batch = replace(lesson, samples=PROPOSALS)
            best = [
                play(case, outputs, batch, session, ROUNDS * seed + i, misses=0).reward.max()
                for i in range(ROUNDS)
            ]
            by_graph[lesson.name][case.instance.graph.name] = float(np.maximum(best, LEAST_REWARD).mean())
    return Score(by_graph)
