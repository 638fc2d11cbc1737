"""The walk as a policy: valid placements, learning by hand, training that pays, files that are checked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.agents.policy.tensor_file import save_tensors
from go_opt.agents.walk.case import WalkCase
from go_opt.agents.walk.learning import BATCH, WalkLearner
from go_opt.agents.walk.training import TrainingGraph, train_walk
from go_opt.agents.walk.walk_file import FORMAT, load_walk, save_walk, shipped_walk
from go_opt.bench.rivals import RIVALS, Limits, Problem, compete, pose, walks
from go_opt.bench.rivals.trial import SpentError
from go_opt.bench.rivals.walks import walk_case
from go_opt.env import load_target, load_zoo
from go_opt.errors import PolicyError
from go_opt.solver import broken_rules
from go_opt.solver.problem.problem import TRIANGLE_ADJACENT
from go_opt.solver.walk.walk import NUM_FEATURES, score_walks
from tests.agents.rivals.cases import Clock, random_problem, toy_problem
from tests.strategies import examples, seeds

NO_WEIGHTS = np.zeros(NUM_FEATURES)


def interval_s(problem: Problem, case: WalkCase, placement: np.ndarray) -> np.ndarray:
    of_ops = np.ascontiguousarray(placement[:, case.units.unit_of_op])
    order, kernels = (np.tile(row, (len(of_ops), 1)) for row in (problem.order, problem.kernels))
    return problem.interval_s(of_ops, order, kernels)


@pytest.mark.parametrize("relays", [False, True])
@settings(max_examples=examples(25))
@given(seed=seeds)
def test_placements_keep_the_rules(relays: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(seed, relays=relays)
    case = walk_case(problem)
    drawn = case.draw(rng.normal(size=NUM_FEATURES), 5, rng)
    proposal = np.empty_like(drawn.placement)
    proposal[:, case.units.unit_of_op] = np.cumsum(drawn.is_cut, axis=1)[:, case.problem.kernel_of]
    assert not broken_rules(case.units, drawn.placement).any()
    # A valid walk stays as it was.
    assert (drawn.is_repaired == (drawn.placement != proposal).any(axis=1)).all()
    if not relays:
        adjacent = case.units._replace(triangle=TRIANGLE_ADJACENT)
        assert (drawn.is_repaired == (broken_rules(adjacent, proposal) != 0)).all()


def test_an_update_by_hand() -> None:
    # Of five walks the second is the best, so its score alone is followed, one step of Adam long.
    case = walk_case(toy_problem())
    is_cut = np.zeros((5, case.problem.num_kernels), dtype=np.bool_)
    is_cut[1, 2] = is_cut[2, 1] = True
    reached_s = np.array([4.0, 2.0, 3.0, np.inf, np.inf])
    learner = WalkLearner.start()
    after = learner.learn(case, is_cut, reached_s, rate=0.1)
    score = score_walks(case.problem, NO_WEIGHTS, np.zeros(case.problem.num_kernels), is_cut[1:2])
    gradient = score.by_weights[0] / np.linalg.norm(score.by_weights[0])
    assert after.weights == pytest.approx(0.1 * np.sign(gradient), abs=1e-5)
    assert after.mean == pytest.approx(0.1 * gradient)
    assert after.square == pytest.approx(0.001 * gradient**2)
    again = after.learn(case, is_cut, reached_s * 7.0, rate=0.1)
    assert again.updates == 2
    assert after.head is None
    with_head = learner.learn(case, is_cut, reached_s, rate=0.1, head_rate=0.5)
    assert (with_head.weights == after.weights).all()
    assert with_head.head == pytest.approx(0.5 * score.by_head[0])
    twice = with_head.learn(case, is_cut, reached_s, rate=0.1, head_rate=0.5)
    further = score_walks(case.problem, with_head.weights, with_head.head, is_cut[1:2]).by_head[0]
    assert twice.head == pytest.approx(with_head.head + 0.5 * further)
    assert (again.weights == after.learn(case, is_cut, reached_s, rate=0.1).weights).all()


def test_nothing_to_learn() -> None:
    case = walk_case(toy_problem())
    is_cut = np.zeros((4, case.problem.num_kernels), dtype=np.bool_)
    learner = WalkLearner.start()
    for reached_s in (np.full(4, np.inf), np.full(4, 2.0), np.zeros(0)):
        assert learner.learn(case, is_cut[: len(reached_s)], reached_s, 0.1) is learner


def test_one_valid_walk_among_invalid_ones_teaches() -> None:
    case = walk_case(toy_problem())
    is_cut = np.zeros((2, case.problem.num_kernels), dtype=np.bool_)
    is_cut[0, 2] = True
    assert WalkLearner.start().learn(case, is_cut, np.array([2.0, np.inf]), 0.1).updates == 1


def test_training_pays_and_repeats() -> None:
    target = load_target("mcm-6x6:paper")
    problems = [
        pose(load_zoo(name), target, relays=False, decide="placement")
        for name in ("hgnet_v2_b4", "shufflenet", "mobilenet_v1")
    ]
    graphs = []
    for problem in problems:
        case = walk_case(problem)
        graphs.append(
            TrainingGraph(case, lambda placed, problem=problem, case=case: interval_s(problem, case, placed))
        )
    weights = train_walk(graphs, seed=1, visits=150)
    assert (weights == train_walk(graphs, seed=1, visits=150)).all()
    assert (weights != train_walk(graphs, seed=2, visits=150)).any()
    untrained, trained = (
        [
            np.median(np.log(graph.interval_s(graph.case.draw(each, 60, np.random.default_rng(9)).placement)))
            for graph in graphs
        ]
        for each in (NO_WEIGHTS, weights)
    )
    assert np.mean(trained) < np.mean(untrained) - 0.05


def test_the_shipped_weights_beat_the_untrained_walk_on_validation() -> None:
    best = {"policy": [], "policy-untrained": [], "random": []}
    for name in ("inception_v3", "vit_b16", "inception_resnet_v2"):
        problem = pose(load_zoo(name), load_target("mcm-6x6:paper"), relays=False, decide="placement")
        for method, reached_s in best.items():
            outcome = [compete(RIVALS[method], problem, Limits(evaluations=20), s, Clock()) for s in range(2)]
            reached_s += [each.interval_s for each in outcome]
    gain = {method: np.mean(np.log(np.array(of) / best["policy"])) for method, of in best.items()}
    assert gain["policy-untrained"] > np.log(1.1)
    assert gain["random"] > np.log(1.2)


def test_finetuned_begins_as_zero_shot_and_learns_from_its_own_samples() -> None:
    problem = pose(load_zoo("inception_v3"), load_target("mcm-6x6:paper"), relays=False, decide="placement")
    seen: dict[str, np.ndarray] = {}

    for name in ("policy", "policy-finetuned"):
        parts = []

        def judged(placement, order, kernels, parts=parts):
            parts.append(placement)
            return problem.interval_s(placement, order, kernels)

        outcome = compete(RIVALS[name], replace(problem, evaluate=judged), Limits(evaluations=50), 3, Clock())
        assert outcome.evaluations == 50
        seen[name] = np.concatenate(parts)
        assert len(seen[name]) == 50
    assert (seen["policy"][:BATCH] == seen["policy-finetuned"][:BATCH]).all()
    assert (seen["policy"][BATCH:] != seen["policy-finetuned"][BATCH:]).any()


def test_where_no_walk_is_valid_most_samples_are_random(monkeypatch: pytest.MonkeyPatch) -> None:
    """20 walks, then 15 of 20 samples at random; once a walk is valid, only walks."""
    asked: list[int] = []  # samples of each batch, negative where they are random

    def at_random(trial, units, rng, number):
        return np.full((number, units.num_units), -1)

    def evaluated(trial, units, placement):
        is_random = bool((placement < 0).all())
        asked.append(-len(placement) if is_random else len(placement))
        if len(asked) == 6:
            raise SpentError
        return np.full(len(placement), 1.0 if is_random or len(asked) == 5 else np.inf)

    monkeypatch.setattr(walks, "random_placements", at_random)
    monkeypatch.setattr(walks, "evaluate_units", evaluated)
    trial: Any = SimpleNamespace(problem=toy_problem(), left=np.inf)
    with pytest.raises(SpentError):
        walks.policy(trial, 0)
    assert asked == [20, -15, 5, -15, 5, 20]


def test_files(tmp_path: Path) -> None:
    weights = np.arange(NUM_FEATURES, dtype=np.float64)
    path = tmp_path / "walk"
    save_walk(path, weights, {"seed": 7})
    loaded = load_walk(path)
    assert (loaded.weights == weights).all()
    assert loaded.card == {"seed": 7}
    assert shipped_walk().card["target"] == "mcm-6x6:paper"


@pytest.mark.parametrize(
    ("arrays", "record", "words"),
    [
        ({"weights": np.zeros(11)}, {"card": {}}, "float64"),
        ({"weights": np.zeros(12, np.float32)}, {"card": {}}, "float64"),
        ({"weight": np.zeros(12)}, {"card": {}}, "weights"),
        ({"weights": np.zeros(12), "more": np.zeros(1)}, {"card": {}}, "no other array"),
        ({"weights": np.full(12, np.nan)}, {"card": {}}, "NaN"),
        ({"weights": np.zeros(12)}, {}, "card"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, arrays: dict, record: dict, words: str) -> None:
    path = tmp_path / "walk"
    save_tensors(path, FORMAT, record, arrays)
    with pytest.raises(PolicyError, match=words):
        load_walk(path)


def test_a_file_of_another_format_or_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "walk"
    for other in (replace(FORMAT, name="go-opt policy"), replace(FORMAT, version=99)):
        save_tensors(path, other, {"card": {}}, {"weights": np.zeros(NUM_FEATURES)})
        with pytest.raises(PolicyError):
            load_walk(path)
