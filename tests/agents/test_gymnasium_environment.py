"""The Gymnasium environment: its own checker, plans that keep the rules, rewards as everywhere."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings

from go_opt.agents.training.problems.environment import LocalEnvironment, greedy_objective_s, open_session
from go_opt.env import INVALID_REWARD, evaluate_plan, load_target, load_zoo
from go_opt.errors import InvalidInputError
from go_opt.gymnasium_environment import ID, PlacementEnv
from go_opt.service.environment.environment_service import EnvironmentService
from go_opt.service.environment.remote_environment import RemoteEnvironment
from go_opt.solver.orders.instance import instance
from go_opt.solver.verify.verifier import verify
from tests.serving import serve_in_thread
from tests.strategies import examples, random_graph, seeds, small_mcm, toy_graph

MODULE_ID = f"go_opt.gymnasium_environment:{ID}"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serve_in_thread([EnvironmentService({("hardware", "throughput"): LocalEnvironment()})]) as served_at:
        yield served_at


def play(environment: Any, seed: int = 0) -> tuple[float, dict[str, Any], int]:
    """One episode of random chips among those that are open: reward, info and steps."""
    rng = np.random.default_rng(seed)
    observation, _ = environment.reset(seed=seed)
    for step in range(1, 10_000):
        assert observation in environment.observation_space
        action = rng.choice(np.flatnonzero(observation["action_mask"]))
        observation, reward, has_ended, is_cut, info = environment.step(action)
        assert not is_cut
        if has_ended:
            return reward, info, step
        assert reward == 0.0
    raise AssertionError("the episode does not end.")


def test_its_own_checker_has_no_complaint() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(MODULE_ID, graph="zoo:din", target="mcm-2x2").unwrapped)
        check_env(gymnasium.make(MODULE_ID, graph="zoo:din", target="gpu-4").unwrapped)


def test_made_by_its_id() -> None:
    graph, target = load_zoo("din"), load_target("mcm-6x6")
    environment = gymnasium.make(MODULE_ID, graph="zoo:din")
    placed = environment.unwrapped
    assert isinstance(placed, PlacementEnv)
    reward, info, _ = play(environment, seed=1)
    assert placed.plan is not None
    assert verify(graph, target, placed.plan) == []
    interval_s = evaluate_plan(graph, target, placed.plan).interval_s
    assert info == {"interval_s": interval_s}
    with open_session(LocalEnvironment(), graph, target) as session:
        greedy_s = greedy_objective_s(session, instance(graph, target))
    assert reward == pytest.approx(math.log(greedy_s / interval_s))
    environment.close()


@settings(max_examples=examples(25))
@given(seed=seeds)
def test_every_complete_placement_keeps_the_rules(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph, target = random_graph(rng, num_ops=12), small_mcm(4)
    environment = PlacementEnv(graph, target)
    reward, info, _ = play(environment, seed)
    assert environment.plan is not None
    assert {v.constraint for v in verify(graph, target, environment.plan)} <= {"memory"}
    metrics = evaluate_plan(graph, target, environment.plan)
    assert info["interval_s"] == (metrics.interval_s if metrics.valid else math.inf)
    assert metrics.valid or reward == INVALID_REWARD
    environment.close()


def test_what_is_seen() -> None:
    graph = toy_graph()
    environment = PlacementEnv(graph, small_mcm(2))
    start, info = environment.reset()
    assert info == {}
    assert start["placement"].tolist() == [0, -1, -1, -1, -1, -1]  # nothing lies below chip 0
    assert start["is_next"].tolist() == [1, 0, 0, 0, 0, 0]
    assert start["action_mask"].tolist() == [1, 0]
    assert start["edges"].tolist() == [[a, b] for a, b in zip(graph.edge_src, graph.edge_dst, strict=True)]
    assert len(start["ops"]) == len(start["op_type"]) == 6
    after, *_ = environment.step(np.int64(0))
    assert after["is_next"].tolist() == [0, 1, 1, 0, 0, 0]  # dense and relu are one kernel
    assert after["action_mask"].tolist() == [1, 1]
    last, *_ = environment.step(np.int64(1))
    assert last["placement"].tolist() == [0, 1, 1, 1, 1, 1]


def test_a_chip_that_is_not_open_ends_the_episode() -> None:
    environment = PlacementEnv(toy_graph(), small_mcm(2))
    environment.reset()
    _, reward, has_ended, _, info = environment.step(np.int64(1))
    assert (reward, has_ended) == (INVALID_REWARD, True)
    assert info["reason"] == "chip 1 is not open to the kernel."
    with pytest.raises(InvalidInputError, match="the episode has ended"):
        environment.step(np.int64(0))
    environment.reset()
    environment.step(np.int64(0))


def test_episodes_are_the_same_for_the_same_actions() -> None:
    environment = PlacementEnv("zoo:din", "mcm-2x2")
    assert play(environment, seed=4) == play(environment, seed=4)


def test_a_remote_environment(address: str) -> None:
    here = PlacementEnv("zoo:din", "mcm-2x2")
    for there in (
        PlacementEnv("zoo:din", "mcm-2x2", address),
        PlacementEnv("zoo:din", "mcm-2x2", RemoteEnvironment(address)),
    ):
        assert play(there, seed=2) == play(here, seed=2)
        there.close()
