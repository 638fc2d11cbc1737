"""A step of PPO as a whole: the gradient through solver and network, and that it learns."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import jax
import numpy as np
import pytest
from flax import nnx

from go_opt.agents.networks import initial_parameters
from go_opt.agents.training.problems.cases import Case
from go_opt.agents.training.problems.environment import LocalEnvironment, Session, open_session
from go_opt.agents.training.problems.lessons import Lesson
from go_opt.agents.training.problems.settings import Settings
from go_opt.agents.training.updates.learner import LearnerState
from go_opt.agents.training.updates.log_prob import episode_density
from go_opt.agents.training.updates.ppo import surrogate
from go_opt.agents.training.updates.step import Entropies, Step, _gradient, take_step
from go_opt.common.arrays import FloatArray
from go_opt.env import INVALID_REWARD
from tests.agents.training.small import (
    ADJACENT,
    BUCKET,
    CONFIG,
    JOINT,
    LESSONS,
    ORDER,
    PLACEMENT,
    SETTINGS,
    Answers,
    Plans,
    gradient_of,
    small_case,
    small_learner,
    trained_parameters,
)

CASES = [small_case(0), small_case(1)]


def unsure_parameters() -> nnx.State:
    """Under which samples differ, placements too."""
    return trained_parameters(scale=0.05)


def analytical_sessions() -> list[Session]:
    return [open_session(LocalEnvironment(), each.instance.graph, each.instance.target) for each in CASES]


def step(
    parameters: nnx.State,
    settings: Settings,
    sessions: list[Session],
    *,
    seed: int = 0,
    done: float = 0.0,
    threads: int = 1,
) -> tuple[LearnerState, Step]:
    learner = small_learner()
    with ThreadPoolExecutor(threads) as executor:
        return take_step(
            learner, learner.start(parameters), CASES, BUCKET, sessions, settings,
            seed=(seed,), done=done, executor=executor,
        )  # fmt: skip


def ppo_loss(parameters: nnx.State, played: Step, settings: Settings) -> float:
    """The mean over the graphs, the lessons' added up, less the entropy of the keys."""
    learner = small_learner()
    outputs = learner.outputs(learner.start(parameters), CASES, BUCKET)
    loss = 0.0
    for batch, said in zip(played.batches, outputs, strict=True):
        for episodes, old, gains in zip(batch.episodes, batch.log_prob, batch.advantage, strict=True):
            density = episode_density(batch.case, said, episodes)
            loss += surrogate(density.log_prob, old, gains, settings.clip).loss
            loss -= settings.key_entropy[0] * density.key_entropy
    return loss / len(CASES)


def moved(parameters: nnx.State, direction: nnx.State, by: float) -> nnx.State:
    return jax.tree.map(lambda at, along: (at + by * along).astype(np.float32), parameters, direction)


def dot(a: nnx.State, b: nnx.State) -> float:
    return float(sum((x * y).sum() for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)))


@pytest.mark.parametrize("lessons", [*((each,) for each in LESSONS), LESSONS], ids=str)
def test_the_update_follows_the_slope_of_the_loss(lessons: tuple[Lesson, ...]) -> None:
    """Of the whole chain, by finite differences along random directions in all parameters.

    Float32 gives slopes to a few parts in a thousand where they are steep: directions are the
    gradient with most of its entries left out at random.
    """
    settings = replace(
        SETTINGS, lessons=lessons, epochs=1, key_entropy=(0.1, 0.1), placement_entropy=(0.0, 0.0)
    )
    parameters = unsure_parameters()
    state, played = step(parameters, settings, analytical_sessions())
    gradient = gradient_of(state)
    norm = np.sqrt(dot(gradient, gradient))
    assert norm > 0.1
    rng = np.random.default_rng(0)
    for _ in range(3):
        along = jax.tree.map(lambda leaf: leaf * (rng.random(leaf.shape) < 0.3) / norm, gradient)
        size = 3e-4
        ahead, behind = (ppo_loss(moved(parameters, along, h), played, settings) for h in (size, -size))
        assert (ahead - behind) / (2 * size) == pytest.approx(dot(gradient, along), rel=2e-3)


def test_later_epochs_follow_the_clipped_loss() -> None:
    """Away from the policy that drew, where some samples no longer count."""
    settings = replace(SETTINGS, epochs=1, key_entropy=(0.0, 0.0), placement_entropy=(0.0, 0.0))
    parameters = unsure_parameters()
    _, played = step(parameters, settings, analytical_sessions())
    rng = np.random.default_rng(1)
    elsewhere = jax.tree.map(
        lambda leaf: leaf + 0.01 * rng.standard_normal(leaf.shape, dtype=np.float32), parameters
    )
    learner = small_learner()
    start = learner.start(elsewhere)
    gradients, clipped = [], []
    for batch, said in zip(played.batches, learner.outputs(start, CASES, BUCKET), strict=True):
        gradient, metrics = _gradient(batch, said, settings, Entropies(0.0, 0.0))
        gradients.append(gradient)
        clipped.append(metrics["clipped_share"])
    assert 0.0 < np.mean(clipped) < 1.0
    followed = gradient_of(learner.update(start, CASES, BUCKET, gradients)[0])
    along = jax.tree.map(lambda leaf: leaf / np.sqrt(dot(followed, followed)), followed)
    size = 1e-4  # so small that no sample crosses the clip
    ahead, behind = (ppo_loss(moved(elsewhere, along, h), played, settings) for h in (size, -size))
    assert (ahead - behind) / (2 * size) == pytest.approx(dot(followed, along), rel=2e-3)


def test_when_drawn_every_ratio_is_one() -> None:
    _, played = step(unsure_parameters(), replace(SETTINGS, epochs=1), analytical_sessions())
    assert played.metrics["kl"] == 0.0
    assert played.metrics["clipped_share"] == 0.0
    assert played.metrics["loss"] == pytest.approx(0.0, abs=1e-9)  # advantages are centred
    for batch in played.batches:
        for episodes, log_prob in zip(batch.episodes, batch.log_prob, strict=True):
            if not episodes.lesson.draws_keys:
                np.testing.assert_allclose(log_prob, episodes.decoded.log_prob, atol=1e-9)


def test_steps_do_not_depend_on_threads() -> None:
    alone, first = step(unsure_parameters(), SETTINGS, analytical_sessions())
    shared, again = step(unsure_parameters(), SETTINGS, analytical_sessions(), threads=2)
    assert again.metrics == first.metrics
    for got, expected in zip(
        jax.tree.leaves(shared.parameters), jax.tree.leaves(alone.parameters), strict=True
    ):
        np.testing.assert_array_equal(got, expected)
    _, other = step(unsure_parameters(), SETTINGS, analytical_sessions(), seed=1)
    assert other.metrics != first.metrics


def test_metrics_tell_of_every_lesson() -> None:
    """Half of the plans are invalid, the others as fast as the greedy one."""

    def every_other(of: Case) -> Callable[[Plans, Plans], FloatArray]:
        return lambda placement, order: np.where(np.arange(len(order)) % 2, np.inf, of.reference_s)

    _, played = step(unsure_parameters(), SETTINGS, [Answers(every_other(of)) for of in CASES])
    for lesson in LESSONS:
        assert played.metrics[f"invalid_share/{lesson.name}"] == 0.5
        assert played.metrics[f"reward/{lesson.name}"] == pytest.approx(INVALID_REWARD / 2)
        assert played.metrics[f"best_reward/{lesson.name}"] == pytest.approx(0.0)
        assert 0.0 <= played.metrics[f"backtracked_share/{lesson.name}"] <= 1.0
        assert played.metrics[f"fell_back_share/{lesson.name}"] == 0.0
    assert played.metrics["kl"] > 0.0  # of the second epoch
    assert all(np.isfinite(value) for value in played.metrics.values())


def test_without_any_difference_only_entropy_is_learnt() -> None:
    """Its worth falls over a run: to nothing here."""
    settings = replace(
        SETTINGS, lessons=(LESSONS[0],), key_entropy=(1.0, 0.0), placement_entropy=(0.0, 0.0), epochs=1
    )
    alike: list[Session] = [Answers(lambda placement, order: np.ones(len(order))) for _ in CASES]
    norms = [
        step(unsure_parameters(), settings, alike, done=done)[1].metrics["gradient_norm"]
        for done in (0.0, 0.5, 1.0)
    ]
    assert norms[0] > 0.1
    assert norms[1] == pytest.approx(norms[0] / 2, rel=1e-4)
    assert norms[2] == pytest.approx(0.0, abs=1e-6)


def heavy_first(of: Case) -> Callable[[Plans, Plans], FloatArray]:
    """Seconds that fall by e where costly ops stand in front, by a deviation of their logs."""
    weight = np.log1p(of.instance.graph.op_flops)
    weight = (weight - weight.mean()) / weight.std()

    def interval_s(placement: Plans, order: Plans) -> FloatArray:
        place = np.argsort(order, axis=1) / order.shape[1]
        return np.exp(4.0 * (place * weight).mean(axis=1))

    return interval_s


def low_chips(of: Case) -> Callable[[Plans, Plans], FloatArray]:
    """Seconds that rise by e for every chip that ops stand higher."""
    return lambda placement, order: np.exp(placement.mean(axis=1))


def learnt(lesson: Lesson, seconds: Callable[[Case], Callable[[Plans, Plans], FloatArray]]) -> FloatArray:
    """[30] mean reward of each step from the uniform policy on, over that of the first, in its deviations."""
    settings = replace(SETTINGS, lessons=(replace(lesson, samples=16, best_of=4),))
    learner = small_learner()
    state = learner.start(initial_parameters(CONFIG, 0))
    sessions = [Answers(seconds(of)) for of in CASES]
    rewards = []
    with ThreadPoolExecutor(1) as executor:
        for number in range(30):
            state, played = take_step(
                learner, state, CASES, BUCKET, sessions, settings,
                seed=(0, number), done=number / 30, executor=executor,
            )  # fmt: skip
            rewards.append([batch.episodes[0].reward for batch in played.batches])
    by_graph = np.array(rewards)
    first = by_graph[0]
    apart = (by_graph.mean(axis=2) - first.mean(axis=1)) / first.std(axis=1)
    return apart.mean(axis=1)


@pytest.mark.parametrize(
    ("lesson", "seconds"),
    [(ORDER, heavy_first), (PLACEMENT, low_chips), (ADJACENT, low_chips), (JOINT, low_chips)],
    ids=["order", "placement", "adjacent", "joint"],
)
def test_it_learns_what_is_rewarded(
    lesson: Lesson, seconds: Callable[[Case], Callable[[Plans, Plans], FloatArray]]
) -> None:
    """Some dozens of steps make the mean as good as the better ones were at first."""
    assert learnt(lesson, seconds)[-10:].mean() > 0.5
