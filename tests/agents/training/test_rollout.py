"""Episodes: what is drawn, what stays at its default, and what is judged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from go_opt.agents.training.problems.environment import Evaluations, LocalEnvironment
from go_opt.agents.training.problems.rollout import Episodes, Lesson, play
from go_opt.common.arrays import FloatArray
from go_opt.env import INVALID_REWARD
from go_opt.errors import InvalidInputError
from go_opt.solver.orders.orders import schedule
from tests.agents.training.small import (
    JOINT,
    LESSONS,
    ORDER,
    PLACEMENT,
    UNFUSED,
    Answers,
    Plans,
    random_outputs,
    small_case,
)

CASE = small_case(0)
OUTPUTS = random_outputs(np.random.default_rng(0), CASE)


def all_alike(placement: Plans, order: Plans) -> FloatArray:
    return np.ones(len(placement))


def played(lesson: Lesson, seed: int = 0) -> Episodes:
    return play(CASE, OUTPUTS, lesson, Answers(all_alike), seed)


def rows(episodes: Episodes, name: str) -> Plans:
    """[S, N] of the plans."""
    return np.stack([getattr(each.plan, name) for each in episodes.decoded])


def assert_same(got: Episodes, expected: Episodes) -> None:
    np.testing.assert_array_equal(got.schedule_key, expected.schedule_key)
    np.testing.assert_array_equal(got.fusion_key, expected.fusion_key)
    for name in ("placement", "order", "fusion_group"):
        np.testing.assert_array_equal(rows(got, name), rows(expected, name))
    assert [each.is_repaired for each in got.decoded] == [each.is_repaired for each in expected.decoded]


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)
def test_same_seed_same_episodes(lesson: Lesson) -> None:
    first = played(lesson)
    assert_same(played(lesson), first)
    other = played(lesson, seed=1)
    assert (other.schedule_key != first.schedule_key).any() or (
        rows(other, "placement") != rows(first, "placement")
    ).any()


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)
def test_what_is_not_decided_does_not_matter(lesson: Lesson) -> None:
    """Its outputs may be anything: the same episodes."""
    unheard = random_outputs(np.random.default_rng(1), CASE)
    said = OUTPUTS._replace(
        **{
            field: getattr(unheard, field)
            for task, fields in {
                "placement": ("walk_weights", "walk_head"),
                "schedule": ("schedule_key",),
                "fusion": ("fusion_key",),
            }.items()
            for field in fields
            if task not in lesson.tasks
        }
    )
    assert_same(play(CASE, said, lesson, Answers(all_alike), 0), played(lesson))


def test_what_is_not_decided_stays_at_its_default() -> None:
    of_placement = played(PLACEMENT)
    assert not of_placement.schedule_key.any()
    assert not of_placement.fusion_key.any()
    np.testing.assert_array_equal(rows(of_placement, "fusion_group")[0], CASE.instance.fusion_group)
    assert (rows(of_placement, "order") == rows(of_placement, "order")[0]).all()
    assert len(np.unique(rows(of_placement, "placement"), axis=0)) > 1
    without_fusion = played(UNFUSED)
    np.testing.assert_array_equal(
        rows(without_fusion, "fusion_group"), np.tile(CASE.instance.fusion_group, (8, 1))
    )
    assert len(np.unique(rows(without_fusion, "order"), axis=0)) > 1


@pytest.mark.parametrize("lesson", [ORDER, JOINT], ids=lambda lesson: lesson.name)
def test_keys_come_in_pairs_around_the_mean(lesson: Lesson) -> None:
    """For every draw its mirror image; those of the two tasks are not paired alike."""
    episodes = played(lesson)
    partners = []
    for key, mean in (
        (episodes.schedule_key, OUTPUTS.schedule_key),
        (episodes.fusion_key, OUTPUTS.fusion_key),
    ):
        apart = np.abs((key - mean)[:, None] + (key - mean)).max(axis=2)
        assert (np.sort(apart, axis=1)[:, 0] < 1e-9).all()
        partners.append(apart.argmin(axis=1))
    assert (partners[0] != partners[1]).any()


def test_plans_are_judged_as_they_were_decoded() -> None:
    """Some are invalid, the others take a second more for each op off chip 0."""

    def interval_s(placement: Plans, order: Plans) -> FloatArray:
        seconds = 1.0 + (placement > 0).sum(axis=1)
        return np.where(placement.sum(axis=1) % 2, np.inf, seconds)

    session = Answers(interval_s)
    episodes = play(CASE, OUTPUTS, replace(PLACEMENT, samples=64), session, 0)
    ((placement, order, fusion_group),) = session.asked
    np.testing.assert_array_equal(placement, rows(episodes, "placement"))
    np.testing.assert_array_equal(order, rows(episodes, "order"))
    np.testing.assert_array_equal(fusion_group, rows(episodes, "fusion_group"))
    invalid = placement.sum(axis=1) % 2 == 1
    assert 0 < invalid.sum() < 64
    np.testing.assert_array_equal(np.isinf(episodes.interval_s), invalid)
    assert (episodes.reward[invalid] == INVALID_REWARD).all()
    seconds = 1.0 + (placement > 0).sum(axis=1)
    expected = np.log(CASE.reference_s / seconds)
    np.testing.assert_allclose(episodes.reward[~invalid], expected[~invalid])


def test_draws_that_hardly_vary_are_the_means() -> None:
    said = OUTPUTS._replace(exploration_log_std=np.full_like(OUTPUTS.exploration_log_std, -40.0))
    episodes = play(CASE, said, ORDER, Answers(all_alike), 0)
    group, order = schedule(CASE.instance, said.schedule_key, said.fusion_key)
    np.testing.assert_array_equal(rows(episodes, "order"), np.tile(order, (8, 1)))
    np.testing.assert_array_equal(rows(episodes, "fusion_group"), np.tile(group, (8, 1)))


def test_the_reference_is_what_the_environment_says_of_the_greedy_plan() -> None:
    """So a reward of zero is as fast as the greedy plan."""
    session = LocalEnvironment().open(CASE.instance.graph, CASE.instance.target)
    episodes = play(CASE, OUTPUTS, ORDER, session, 0)
    finite = np.isfinite(episodes.interval_s)
    assert finite.any()
    np.testing.assert_allclose(
        np.exp(episodes.reward[finite]) * episodes.interval_s[finite], CASE.reference_s
    )


def test_invalid_plans_are_the_worse_the_further_they_miss_the_memory() -> None:
    class Full(Answers):
        def evaluate(self, placement: Plans, order: Plans, fusion_group: Plans) -> Evaluations:
            share = 1.5 + np.arange(len(placement))
            return Evaluations(np.full(len(share), np.inf), share < 1.0, memory_share=share)

    episodes = play(CASE, OUTPUTS, PLACEMENT, Full(all_alike), 0)
    np.testing.assert_allclose(episodes.reward, INVALID_REWARD - np.log(1.5 + np.arange(8)))
    assert np.isinf(episodes.interval_s).all()
    assert episodes.labels().reward.tolist() == episodes.reward[:3].tolist()


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"tasks": ()}, "tasks"),
        ({"tasks": ("sleep",)}, "tasks"),
        ({"tasks": ("placement",), "samples": 4, "elites": 5}, "elites"),
        ({"tasks": ("placement",), "samples": 0}, "elites"),
    ],
)
def test_malformed_lessons_are_refused(arguments: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        Lesson(**arguments)  # type: ignore[arg-type]
    assert caught.value.field == field
