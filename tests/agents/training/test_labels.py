"""Labels: which samples they are, and that the placements of the rule are sound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from go_opt.agents.training.problems.environment import LocalEnvironment
from go_opt.agents.training.problems.labels import labels, taught
from go_opt.agents.training.problems.lessons import SAMPLED, Lesson
from go_opt.agents.training.problems.rollout import Episodes, play
from go_opt.agents.training.problems.settings import TAUGHT
from go_opt.agents.training.updates.log_prob import mean_log_prob
from go_opt.common.arrays import FloatArray
from go_opt.solver import verify
from tests.agents.training.small import ORDER, PLACEMENT, Answers, random_outputs, small_case
from tests.strategies import make_plan

CASE = small_case(0)
OUTPUTS = random_outputs(np.random.default_rng(0), CASE)


def rewarded(rewards: FloatArray, lesson: Lesson = PLACEMENT) -> Episodes:
    few = replace(lesson, samples=len(rewards), elites=2)
    episodes = play(CASE, OUTPUTS, few, Answers(lambda placement, order: np.ones(len(placement))), 0)
    return replace(episodes, reward=rewards)


def test_the_best_are_labels() -> None:
    played = rewarded(np.array([0.1, 0.5, -5.0, 0.3, 0.2]))
    found = labels(played, None)
    assert found is not None
    assert found.reward.tolist() == [0.5, 0.3]
    np.testing.assert_array_equal(found.decoded.placement, played.decoded.placement[[1, 3]])


def test_those_of_the_rule_are_among_them() -> None:
    played, other = rewarded(np.array([0.1, 0.5, 0.2])), rewarded(np.array([0.4, -5.0]))
    found = labels(played, other)
    assert found is not None
    assert found.reward.tolist() == [0.5, 0.4]
    np.testing.assert_array_equal(found.decoded.placement[1], other.decoded.placement[0])


def test_a_label_is_better_than_most_samples() -> None:
    found = labels(rewarded(np.array([0.0, 0.0, 0.0, 0.5])), None)
    assert found is not None
    assert found.reward.tolist() == [0.5]


def test_plans_that_are_alike_teach_nothing() -> None:
    assert labels(rewarded(np.array([0.1, 0.105, 0.1])), None) is None
    assert labels(rewarded(np.full(3, -5.0)), rewarded(np.full(3, -5.0))) is None


@pytest.mark.parametrize("lesson", [PLACEMENT, SAMPLED], ids=lambda lesson: lesson.name)
def test_the_rule_gives_valid_placements_that_can_be_learned(lesson: Lesson) -> None:
    graph, target = CASE.instance.graph, CASE.instance.target
    found = taught(CASE, lesson, LocalEnvironment().open(graph, target), 3)
    assert found is not None
    decoded = found.decoded
    assert len(found.reward) == TAUGHT
    assert len(np.unique(decoded.placement, axis=0)) > 1
    for placement, order, group in zip(decoded.placement, decoded.order, decoded.fusion_group, strict=True):
        assert (
            verify(graph, target, make_plan(graph, target, placement, order=order, fusion_group=group)) == []
        )
    log_prob, gradient = mean_log_prob(CASE, OUTPUTS, found)
    assert np.isfinite(log_prob)
    assert log_prob < 0.0
    assert gradient.logits(lesson.mode).any()


def test_there_is_no_rule_for_orders() -> None:
    assert taught(CASE, ORDER, Answers(lambda placement, order: np.ones(len(placement))), 0) is None
