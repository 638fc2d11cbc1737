"""A step of training as a whole: the gradient through solver and network, and that it learns."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import jax
import numpy as np
import pytest
from flax import nnx

from go_opt.agents.decoding.decode import Outputs
from go_opt.agents.policy.network import Policy, untrained
from go_opt.agents.training.problems.cases import Case
from go_opt.agents.training.problems.environment import LocalEnvironment, Session, open_session
from go_opt.agents.training.problems.rollout import Episodes, Lesson, Settings
from go_opt.agents.training.updates.learner import Learner, LearnerState, Step, mean_log_prob, take_step
from go_opt.agents.training.updates.walk_learner import WalkLearner
from go_opt.common.arrays import FloatArray
from go_opt.env import INVALID_REWARD
from tests.agents.training.small import (
    BUCKET,
    CONFIG,
    JOINT,
    LESSONS,
    ORDER,
    PLACEMENT,
    SETTINGS,
    UNFUSED,
    Answers,
    Plans,
    gradient_of,
    small_case,
    small_learner,
    trained_policy,
)

CASES = [small_case(0), small_case(1)]


def unsure_policy() -> Policy:
    """Under which samples differ, placements too."""
    return trained_policy(scale=0.004)


def analytical_sessions() -> list[Session]:
    return [open_session(LocalEnvironment(), each.instance.graph, each.instance.target) for each in CASES]


def step(
    policy: Policy,
    settings: Settings,
    sessions: list[Session],
    *,
    seed: int = 0,
    threads: int = 1,
) -> tuple[LearnerState, Step]:
    learner = Learner(CONFIG, settings, updates=1)
    with ThreadPoolExecutor(threads) as executor:
        return take_step(
            learner, learner.start(policy), CASES, BUCKET, sessions, settings,
            seed=(seed,), executor=executor,
        )  # fmt: skip


def all_apart(placement: Plans, order: Plans) -> FloatArray:
    """Seconds that differ between any two plans."""
    weight = np.sqrt(np.arange(placement.shape[1]))
    return np.exp(np.sin(placement @ weight) + np.sin(order @ weight))


def loss(policy: Policy, labelled: list[Episodes]) -> float:
    """Minus the log-probability of each graph's label."""
    learner = small_learner()
    outputs = learner.outputs(learner.start(policy), CASES, BUCKET)
    return -sum(mean_log_prob(*each)[0] for each in zip(CASES, outputs, labelled, strict=False))


def moved(policy: Policy, direction: nnx.State, by: float) -> Policy:
    parameters = jax.tree.map(
        lambda at, along: (at + by * along).astype(np.float32), policy.parameters, direction
    )
    return replace(policy, parameters=parameters)


def dot(a: nnx.State, b: nnx.State) -> float:
    return float(sum((x * y).sum() for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)))


@pytest.mark.parametrize("lesson", [ORDER, UNFUSED, JOINT], ids=lambda lesson: lesson.name)
def test_the_update_follows_the_slope_of_the_loss(lesson: Lesson) -> None:
    """Of the network's whole chain, by finite differences along random directions in all parameters.

    Directions are the gradient of one graph with most of its entries left out at random: float32
    gives slopes to a few parts in a thousand where they are steep.
    """
    settings = replace(SETTINGS, lessons=(lesson,))
    policy, learner = unsure_policy(), small_learner()
    _, played = step(policy, settings, [Answers(all_apart) for _ in CASES])
    labelled = [batch.episodes[0].labels() for batch in played.batches]
    assert all(len(each.reward) for each in labelled)
    none = Outputs(*(np.zeros_like(part) for part in played.batches[1].gradient))
    only_first = [played.batches[0].gradient, none]
    gradient = gradient_of(learner.update(learner.start(policy), CASES, BUCKET, only_first)[0])
    rng = np.random.default_rng(0)
    slopes, expected = [], []
    for _ in range(3):
        along = jax.tree.map(lambda leaf: leaf * (rng.random(leaf.shape) < 0.3), gradient)
        size = 1e-3
        ahead, behind = (loss(moved(policy, along, h), [labelled[0]]) for h in (size, -size))
        slopes.append((ahead - behind) / (2 * size))
        expected.append(dot(gradient, along))
    # The gradient has norm one half: slopes are as steep as the loss is.
    np.testing.assert_allclose(np.array(slopes) / slopes[0], np.array(expected) / expected[0], rtol=1e-2)
    assert slopes[0] > 0.0


def test_each_lesson_gives_the_network_a_gradient_of_norm_one() -> None:
    for lesson in LESSONS:
        settings = replace(SETTINGS, lessons=(lesson,))
        _, played = step(unsure_policy(), settings, [Answers(all_apart) for _ in CASES])
        for batch in played.batches:
            of_network = batch.gradient[2:]
            assert sum((part**2).sum() for part in of_network) == pytest.approx(float(lesson.draws_keys))


@pytest.mark.parametrize("head_rate", [0.0, 0.5])
def test_the_walk_follows_graph_by_graph(head_rate: float) -> None:
    """The gradient of the labels' log-probability, whatever the other lessons; the network stays."""
    settings = replace(SETTINGS, lessons=(PLACEMENT,), walk_head_rate=head_rate)
    policy, cases = unsure_policy(), [CASES[0]] * 2
    learner = Learner(CONFIG, settings, updates=1)
    start = learner.start(policy)
    outputs = learner.outputs(start, cases, BUCKET)
    with ThreadPoolExecutor(1) as executor:
        state, played = take_step(
            learner, start, cases, BUCKET, [Answers(all_apart) for _ in cases], settings,
            seed=(0,), executor=executor,
        )  # fmt: skip
    expected, head = WalkLearner.start(policy.walk_weights), np.zeros(CASES[0].instance.graph.num_ops)
    for batch, said in zip(played.batches, outputs, strict=True):
        labelled = batch.episodes[0].labels()
        gradient = mean_log_prob(batch.case, said, labelled)[1]
        expected = expected.stepped(gradient.walk_weights, settings.walk_rate)
        head += head_rate * gradient.walk_head
    np.testing.assert_allclose(state.walk.weights, expected.weights)
    if head_rate:
        np.testing.assert_allclose(state.walk.head, head)
        np.testing.assert_array_equal(learner.outputs(state, cases, BUCKET)[0].walk_head, state.walk.head)
    else:
        assert state.walk.head is None
    assert state.parameters is start.parameters


def test_steps_do_not_depend_on_threads() -> None:
    alone, first = step(unsure_policy(), SETTINGS, analytical_sessions())
    shared, again = step(unsure_policy(), SETTINGS, analytical_sessions(), threads=2)
    assert again.metrics == first.metrics
    for got, expected in zip(
        jax.tree.leaves(shared.parameters), jax.tree.leaves(alone.parameters), strict=True
    ):
        np.testing.assert_array_equal(got, expected)
    _, other = step(unsure_policy(), SETTINGS, analytical_sessions(), seed=1)
    assert other.metrics != first.metrics


def test_metrics_tell_of_every_lesson() -> None:
    """Half of the plans are invalid, the others as fast as the greedy one."""

    def every_other(of: Case) -> Callable[[Plans, Plans], FloatArray]:
        return lambda placement, order: np.where(np.arange(len(order)) % 2, np.inf, of.reference_s)

    _, played = step(unsure_policy(), SETTINGS, [Answers(every_other(of)) for of in CASES])
    for lesson in LESSONS:
        assert played.metrics[f"invalid_share/{lesson.name}"] == 0.5
        assert played.metrics[f"reward/{lesson.name}"] == pytest.approx(INVALID_REWARD / 2)
        assert played.metrics[f"best_reward/{lesson.name}"] == pytest.approx(0.0)
        assert 0.0 <= played.metrics[f"repaired_share/{lesson.name}"] <= 1.0
    assert all(np.isfinite(value) for value in played.metrics.values())


def test_without_any_difference_nothing_is_learnt() -> None:
    alike: list[Session] = [Answers(lambda placement, order: np.ones(len(order))) for _ in CASES]
    state, played = step(unsure_policy(), SETTINGS, alike)
    assert played.metrics["gradient_norm"] == 0.0
    assert (state.walk.weights == unsure_policy().walk_weights).all()
    for got, expected in zip(
        jax.tree.leaves(state.parameters), jax.tree.leaves(unsure_policy().parameters), strict=True
    ):
        np.testing.assert_array_equal(got, expected)


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
    few = (replace(lesson, samples=16, elites=4),)
    settings = replace(SETTINGS, lessons=few)
    learner = Learner(CONFIG, settings, updates=30)
    state = learner.start(untrained(CONFIG, 0))
    sessions = [Answers(seconds(of)) for of in CASES]
    rewards = []
    with ThreadPoolExecutor(1) as executor:
        for number in range(30):
            state, played = take_step(
                learner, state, CASES, BUCKET, sessions, settings,
                seed=(0, number), executor=executor,
            )  # fmt: skip
            rewards.append([batch.episodes[0].reward for batch in played.batches])
    by_graph = np.array(rewards)
    first = by_graph[0]
    apart = (by_graph.mean(axis=2) - first.mean(axis=1)) / first.std(axis=1)
    return apart.mean(axis=1)


@pytest.mark.parametrize(
    ("lesson", "seconds"),
    [(ORDER, heavy_first), (PLACEMENT, low_chips), (UNFUSED, low_chips), (JOINT, low_chips)],
    ids=["order", "placement", "unfused", "joint"],
)
def test_it_learns_what_is_rewarded(
    lesson: Lesson, seconds: Callable[[Case], Callable[[Plans, Plans], FloatArray]]
) -> None:
    """Some dozens of steps make the mean as good as the better ones were at first."""
    assert learnt(lesson, seconds)[-10:].mean() > 0.5
