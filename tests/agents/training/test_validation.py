"""The score of a policy: what the best of a few proposals is expected to be, by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import pytest

from go_opt.agents.decoding.decode import Outputs
from go_opt.agents.inputs.features import GraphFeatures
from go_opt.agents.policy.network import Policy
from go_opt.agents.training.problems.cases import Case
from go_opt.agents.training.problems.environment import Session
from go_opt.agents.training.run import LEAST_REWARD, PROPOSALS, ROUNDS, Score, validate
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


POLICY = cast("Policy", _Says(1.0))


def speed_ups(of: Case, logs: FloatArray) -> Answers:
    """A session that answers these log speed-ups, plan by plan; an infinite interval is invalid."""
    return Answers(lambda placement, order: of.reference_s * np.exp(-logs))


def score(sessions: list[Answers], *, seed: int = 0) -> Score:
    return validate(POLICY, CASES, cast("list[Session]", sessions), [ORDER, PLACEMENT], seed)


def names() -> list[str]:
    return [of.instance.graph.name for of in CASES]


def test_by_hand() -> None:
    """Of three rounds the first has two good plans, the second one that is bad, the third none."""
    logs = np.full((ROUNDS, PROPOSALS), -np.inf)
    logs[0, [5, 9]] = 0.75, 0.25
    logs[1, 3] = -0.5
    lessons, rounds = 2, iter(np.tile(logs, (2, 1)))
    first = Answers(lambda placement, order: CASES[0].reference_s * np.exp(-next(rounds)))
    sessions = [first, speed_ups(CASES[1], np.full(PROPOSALS, 0.5))]
    got = score(sessions)
    best = (0.75 - 0.5 + LEAST_REWARD) / 3
    expected = dict(zip(names(), [best, 0.5], strict=True))
    assert got.by_graph[ORDER.name] == pytest.approx(expected)
    assert got.by_graph[PLACEMENT.name] == pytest.approx(expected)
    assert got.by_lesson[ORDER.name] == pytest.approx((best + 0.5) / 2)
    for session in sessions:
        assert [len(order) for _, order, _ in session.asked] == [PROPOSALS] * ROUNDS * lessons


def test_graphs_without_a_good_plan_cost_no_more_than_the_least() -> None:
    logs = np.full(PROPOSALS, -np.inf), np.full(PROPOSALS, -3.0)
    sessions = [speed_ups(of, each) for of, each in zip(CASES, logs, strict=True)]
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
        sessions = [speed_ups(of, np.zeros(PROPOSALS)) for of in CASES]
        score(sessions, seed=seed)
        return [plans for session in sessions for batch in session.asked for plans in batch]

    first, again, other = asked(0), asked(0), asked(1)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))
