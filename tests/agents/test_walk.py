"""The walk as a policy: valid placements, learning by hand, training that pays."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.agents.decoding.decode import Drawn, WalkCase, neutral_outputs
from go_opt.agents.decoding.proposals import advice, own_plans, policy_plans
from go_opt.agents.training.problems.environment import LocalEnvironment
from go_opt.agents.training.problems.rollout import PLACEMENT
from go_opt.agents.training.requests import PretrainRequest, pretrain
from go_opt.agents.training.updates.walk_learner import WalkLearner
from go_opt.bench.rivals import RIVALS, Limits, Problem, compete, pose, searches
from go_opt.bench.rivals.searches import walk_case_of
from go_opt.bench.rivals.trial import SpentError
from go_opt.env import evaluate_batch, load_target, load_zoo
from go_opt.solver import broken_rules
from go_opt.solver.problem.problem import TRIANGLE_ADJACENT
from go_opt.solver.walk.walk import NUM_FEATURES
from tests.agents.rivals.cases import Clock, random_problem, toy_problem
from tests.agents.training.small import CONFIG
from tests.strategies import examples, seeds

NO_WEIGHTS = np.zeros(NUM_FEATURES)
# Cuts become less likely the fuller a chip is.
SELDOM_CUTS = np.array([-3.7, 1.6, 0.6, 2.8, 0.3, -2.5, 0.3, 1.1, -0.2, -2.0, -1.1, -4.3])
PARTS = ("placement", "order", "fusion_group")


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
    case = walk_case_of(problem)
    head = rng.normal(size=problem.graph.num_ops)
    drawn = case.draw(rng.normal(size=NUM_FEATURES), head, 5, rng)
    proposal = np.empty_like(drawn.placement)
    proposal[:, case.units.unit_of_op] = np.cumsum(drawn.is_cut, axis=1)[:, case.problem.kernel_of]
    assert not broken_rules(case.units, drawn.placement).any()
    # A valid walk stays as it was.
    assert (drawn.is_repaired == (drawn.placement != proposal).any(axis=1)).all()
    if not relays:
        adjacent = case.units._replace(triangle=TRIANGLE_ADJACENT)
        assert (drawn.is_repaired == (broken_rules(adjacent, proposal) != 0)).all()


def test_an_update_by_hand() -> None:
    # One step of Adam along a gradient of norm one; the scale has no effect.
    learner = WalkLearner.start()
    gradient = np.zeros(NUM_FEATURES)
    gradient[[0, 3]] = 6.0, -8.0
    after = learner.stepped(gradient, rate=0.1)
    assert after.weights == pytest.approx(0.1 * np.sign(gradient), abs=1e-5)
    assert after.mean == pytest.approx(0.1 * gradient / 10.0)
    assert after.square == pytest.approx(0.001 * (gradient / 10.0) ** 2)
    again = after.stepped(7.0 * gradient, rate=0.1)
    assert again.updates == 2
    assert (again.weights == after.stepped(gradient, rate=0.1).weights).all()
    assert after.stepped(np.zeros(NUM_FEATURES), 0.1) is after
    assert after.head is None
    assert (after.parameters(3)[1] == 0.0).all()
    head = after.with_head(np.array([1.0, 2.0, 0.0])).with_head(np.array([0.5, 0.0, 0.0]))
    assert head.parameters(3)[1].tolist() == [1.5, 2.0, 0.0]
    assert (head.weights == after.weights).all()


def test_training_pays_and_repeats(tmp_path: Path) -> None:
    target = load_target("mcm-6x6:paper")
    graphs = [load_zoo(name) for name in ("hgnet_v2_b4", "shufflenet", "mobilenet_v1")]

    def trained(seed: int) -> np.ndarray:
        request = PretrainRequest(
            graphs, (), target, 3_000, seed, config=CONFIG, generated_share=0.0, plain_share=1.0
        )
        folder = tmp_path / str(time.monotonic_ns())
        return pretrain(request, folder, LocalEnvironment()).policy.walk_weights

    weights = trained(1)
    assert (weights == trained(1)).all()
    assert (weights != trained(2)).any()
    medians = []
    for each in (NO_WEIGHTS, weights):
        of_graphs = []
        for graph in graphs:
            problem = pose(graph, target, relays=False, decide="placement")
            case = walk_case_of(problem)
            drawn = case.draw(each, np.zeros(graph.num_ops), 60, np.random.default_rng(9))
            of_graphs.append(np.median(np.log(interval_s(problem, case, drawn.placement))))
        medians.append(np.mean(of_graphs))
    assert medians[1] < medians[0] - 0.05


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
    assert (seen["policy"][: PLACEMENT.samples] == seen["policy-finetuned"][: PLACEMENT.samples]).all()
    assert (seen["policy"][PLACEMENT.samples :] != seen["policy-finetuned"][PLACEMENT.samples :]).any()


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

    monkeypatch.setattr(searches, "random_placements", at_random)
    monkeypatch.setattr(searches, "evaluate_units", evaluated)
    trial: Any = SimpleNamespace(problem=toy_problem(), left=np.inf)
    with pytest.raises(SpentError):
        searches.policy(trial, 0)
    assert asked == [20, -15, 5, -15, 5, 20]


def test_until_a_walk_fits_every_second_one_is_untrained() -> None:
    """On a WaveNet these weights seldom cut, and no walk fits. After one that fits nothing changes."""
    problem = pose(load_zoo("wavenet_4x36"), load_target("mcm-6x6"), relays=False)
    case, head = walk_case_of(problem), np.zeros(problem.graph.num_ops)

    def drawn(weights: np.ndarray, misses: int | None, number: int = 40) -> Drawn:
        return case.draw(weights, head, number, np.random.default_rng(0), misses)

    learned, untrained = drawn(SELDOM_CUTS, None), drawn(NO_WEIGHTS, None)
    fits = np.isfinite(interval_s(problem, case, untrained.placement))
    assert not np.isfinite(interval_s(problem, case, learned.placement)).any()
    assert fits[1::2].any()
    assert fits[0::2].any()
    for misses in (0, 3):
        turns = np.arange(40) % 2 == 1 - misses % 2
        turns[np.flatnonzero(fits & turns)[0] + 1 :] = False
        got = drawn(SELDOM_CUTS, misses)
        for part in range(3):
            assert (got[part][turns] == untrained[part][turns]).all()
            assert (got[part][~turns] == learned[part][~turns]).all()
        assert got.misses is None
    assert drawn(SELDOM_CUTS, 4, 1).misses == 5
    # The untrained walk is its own control, and a first walk that fits changes nothing.
    assert (drawn(NO_WEIGHTS, 0).placement == untrained.placement).all()
    start = int(np.flatnonzero(fits)[0])
    only = case.draw(NO_WEIGHTS, head, 1, np.random.default_rng(start), None)
    assert (case.draw(NO_WEIGHTS, head, 1, np.random.default_rng(start), 0).placement == only.placement).all()


def test_weights_whose_walks_never_fit_have_a_plan_after_some_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In rivals, in the search's proposals, and in the score."""
    target = load_target("mcm-6x6")
    graph = load_zoo("wavenet_4x36")
    problem = pose(graph, target, relays=False)
    monkeypatch.setattr(searches, "shipped_policy", lambda: SimpleNamespace(walk_weights=SELDOM_CUTS))
    for name in ("policy", "policy-finetuned"):
        assert np.isfinite(compete(RIVALS[name], problem, Limits(evaluations=20), 0, Clock()).interval_s)
    of_graph = neutral_outputs(SELDOM_CUTS, np.zeros(graph.num_ops))
    advised = advice(lambda features: of_graph, graph, target)
    on = problem.instance
    for plans, number in ((policy_plans(advised, on, 0), 100), (own_plans(advised, on, 1), 20)):
        walked = [plan for plan in islice(plans, number) if len(plan.placement)]
        rows = (np.array([getattr(plan, part) for plan in walked]) for part in PARTS)
        assert evaluate_batch(on.tables, *rows).fits.any()
