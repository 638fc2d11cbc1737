"""The score of a policy: what the best of a few proposals is expected to be, by hand."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from go_opt.agents.decoding.outputs import Outputs
from go_opt.agents.inputs.features import GraphFeatures
from go_opt.agents.policy.network import Policy
from go_opt.agents.training.problems.cases import Case
from go_opt.agents.training.problems.environment import Session
from go_opt.agents.training.validation import DRAWS, LEAST_REWARD, Score, expected_best, validate
from go_opt.common.arrays import FloatArray
from tests.agents.training.small import ORDER, PLACEMENT, Answers, Plans, random_outputs, small_case

CASES = [small_case(0), small_case(1)]


@dataclass(frozen=True)
class _Says:
    """A policy without a network."""

    scale: float

    def __call__(self, features: GraphFeatures) -> Outputs:
        of = next(each for each in CASES if each.features is features)
        return random_outputs(np.random.default_rng(0), of, self.scale)


POLICY = cast(Policy, _Says(1.0))


def speed_ups(of: Case, logs: FloatArray) -> Answers:
    """A session that answers these log speed-ups, plan by plan; an infinite interval is invalid."""
    return Answers(lambda placement, order: of.reference_s * np.exp(-logs))


def score(sessions: list[Answers], *, seed: int = 0) -> Score:
    return validate(POLICY, CASES, cast(list[Session], sessions), [ORDER, PLACEMENT], seed)


def names() -> list[str]:
    return [of.instance.graph.name for of in CASES]


def test_by_hand() -> None:
    """Of 48 draws two are good: 16 hold the best one with 1/3, only the second with 32/48 * 16/47."""
    logs = np.full(DRAWS, -np.inf)
    logs[[5, 30]] = 0.75, 0.25
    best = 0.75 / 3 + 0.25 * (2 / 3 * 16 / 47)
    neither = LEAST_REWARD * (2 / 3 * 31 / 47)
    sessions = [speed_ups(CASES[0], logs), speed_ups(CASES[1], np.full(DRAWS, 0.5))]
    got = score(sessions)
    expected = dict(zip(names(), [best + neither, 0.5], strict=True))
    assert got.by_graph[ORDER.name] == pytest.approx(expected)
    assert got.by_graph[PLACEMENT.name] == pytest.approx(expected)
    assert got.by_lesson[ORDER.name] == pytest.approx((best + neither + 0.5) / 2)
    for session in sessions:
        assert [len(order) for _, order, _ in session.asked] == [DRAWS] * 2


def test_graphs_without_a_good_plan_cost_no_more_than_the_least() -> None:
    sessions = [speed_ups(CASES[0], np.full(DRAWS, -np.inf)), speed_ups(CASES[1], np.full(DRAWS, -3.0))]
    assert score(sessions).mean == pytest.approx(LEAST_REWARD)


def test_means_and_metrics() -> None:
    got = Score({"order": {"a": 1.0, "b": 0.0}, "joint": {"a": 0.25}})
    assert got.by_lesson == {"order": 0.5, "joint": 0.25}
    assert got.mean == 0.375
    assert got.metrics() == {
        "validation": 0.375,
        "validation/order": 0.5,
        "validation/joint": 0.25,
        "validation/order/a": 1.0,
        "validation/order/b": 0.0,
        "validation/joint/a": 0.25,
    }


def test_same_seed_same_proposals() -> None:
    def asked(seed: int) -> list[Plans]:
        sessions = [speed_ups(of, np.zeros(DRAWS)) for of in CASES]
        score(sessions, seed=seed)
        return [plans for session in sessions for batch in session.asked for plans in batch]

    first, again, other = asked(0), asked(0), asked(1)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


# Few different values, so that ties are common.
reward_lists = st.lists(st.integers(-3, 3).map(float) | st.floats(-5.0, 5.0), min_size=2, max_size=7)


@given(rewards=reward_lists, k=st.integers(1, 7))
def test_the_best_of_k_is_the_mean_over_all_sets(rewards: list[float], k: int) -> None:
    k = min(k, len(rewards))
    expected = np.mean([max(each) for each in combinations(rewards, k)])
    assert expected_best(np.array(rewards), k) == pytest.approx(expected, abs=1e-9)
