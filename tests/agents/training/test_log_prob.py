"""The log-probability of episodes: that of the decoder, the keys' and the placement's; its gradient."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.agents.decoding.decode import Outputs
from go_opt.agents.decoding.exploration import key_density
from go_opt.agents.training.problems.cases import Case
from go_opt.agents.training.problems.rollout import Episodes, Lesson, play
from go_opt.agents.training.updates.learner import mean_log_prob
from go_opt.env.kernels.numbering import number_kernels
from go_opt.solver.walk.walk import score_walks
from tests.agents.training.small import LESSONS, Answers, random_outputs, small_case
from tests.strategies import examples, seeds


def played(of: Case, outputs: Outputs, lesson: Lesson, seed: int) -> Episodes:
    return play(of, outputs, lesson, Answers(lambda placement, order: np.ones(len(placement))), seed)


def moved(outputs: Outputs, direction: Outputs, step: float) -> Outputs:
    return Outputs(*(at + step * by for at, by in zip(outputs, direction, strict=True)))


def dot(a: Outputs, b: Outputs) -> float:
    return float(sum((x * y).sum() for x, y in zip(a, b, strict=True)))


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)
def test_it_is_the_sum_of_what_was_drawn(lesson: Lesson) -> None:
    """Of the cuts given the order, and of the keys of those tasks that are decided."""
    of = small_case(1)
    outputs = random_outputs(np.random.default_rng(0), of)
    episodes = played(of, outputs, lesson, 0)
    expected = np.zeros(lesson.samples)
    for s, (plan, _, walked) in enumerate(episodes.decoded):
        if walked is None:
            continue
        case, is_cut = walked
        kernel_of = number_kernels(plan.order, plan.fusion_group)
        assert (kernel_of == case.problem.kernel_of).all()
        head = [outputs.walk_head[kernel_of == m].mean() for m in range(len(is_cut))]
        expected[s] = score_walks(case.problem, outputs.walk_weights, np.array(head), is_cut[None]).log_prob[
            0
        ]
    keys = (episodes.schedule_key, episodes.fusion_key)
    means = (outputs.schedule_key, outputs.fusion_key)
    for i, task in enumerate(("schedule", "fusion")):
        if task in lesson.tasks:
            log_std = outputs.exploration_log_std[i]
            expected += key_density(of.key_space, means[i], log_std, keys[i]).log_density
    assert mean_log_prob(of, outputs, episodes)[0] == pytest.approx(expected.mean(), abs=1e-9)


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)
@settings(max_examples=examples(5))
@given(seed=seeds)
def test_gradient_is_the_slope(lesson: Lesson, seed: int) -> None:
    """Under other outputs than those that drew, along a random direction of each output."""
    of = small_case(1)
    rng = np.random.default_rng(seed)
    episodes = played(of, random_outputs(rng, of), lesson, seed)
    outputs = random_outputs(rng, of)
    _, gradient = mean_log_prob(of, outputs, episodes)
    direction, nothing = random_outputs(rng, of), random_outputs(rng, of, scale=0.0)
    step = 1e-6
    for field in Outputs._fields:
        along = nothing._replace(**{field: getattr(direction, field)})
        ahead, behind = (mean_log_prob(of, moved(outputs, along, h), episodes)[0] for h in (step, -step))
        scale = np.abs(getattr(gradient, field)).max()
        slope = (ahead - behind) / (2 * step)
        assert dot(gradient, along) == pytest.approx(slope, rel=1e-4, abs=1e-4 * max(1.0, scale)), field


def test_what_is_not_decided_has_no_gradient() -> None:
    of = small_case(1)
    outputs = random_outputs(np.random.default_rng(0), of)
    for lesson in LESSONS:
        _, gradient = mean_log_prob(of, outputs, played(of, outputs, lesson, 0))
        is_placed = "placement" in lesson.tasks
        heard = {
            "walk_weights": is_placed,
            "walk_head": is_placed,
            "schedule_key": "schedule" in lesson.tasks,
            "fusion_key": "fusion" in lesson.tasks,
        }
        for field, is_heard in heard.items():
            assert getattr(gradient, field).any() == is_heard, (lesson.name, field)
        for i, task in enumerate(("schedule", "fusion")):
            assert gradient.exploration_log_std[i].any() == (task in lesson.tasks)
