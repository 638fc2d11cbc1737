"""The walk: features and gradients by hand, against a slow twin, and a distribution that sums to one."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.errors import InvalidInputError
from go_opt.solver.orders.instance import instance
from go_opt.solver.walk.walk import NUM_FEATURES, WalkProblem, draw_walks, score_walks, walk_problem
from tests.solver.walk_twin import WalkTwin
from tests.strategies import (
    examples,
    random_graph,
    random_order,
    random_target,
    seeds,
    small_mcm,
    toy_graph,
)

NO_WEIGHTS = np.zeros(NUM_FEATURES)


def toy_walk(num_chips: int = 2, **changes) -> WalkProblem:
    """Each op is a kernel."""
    toy = instance(toy_graph(), small_mcm(num_chips, **changes))
    return walk_problem(toy.tables, toy.order, toy.order)


def random_walk_problem(rng: np.random.Generator, most_ops: int = 12) -> tuple[WalkProblem, WalkTwin]:
    """Along a random order, with one kernel for each op or with fused ones, in tight memory."""
    target = random_target(rng)
    case = instance(random_graph(rng, int(rng.integers(1, most_ops))), target)
    order = random_order(rng, case.graph)
    given = (case.tables, order, case.order)
    if rng.random() < 0.5:
        given = (case.tables, case.order, case.fusion_group)
    return walk_problem(*given), WalkTwin(*given)


def random_cuts(rng: np.random.Generator, problem: WalkProblem, num_walks: int) -> np.ndarray:
    is_cut = rng.random((num_walks, problem.num_kernels)) < 0.4
    is_cut[:, 0] = False
    return is_cut & (np.cumsum(is_cut, axis=1) < problem.num_chips)


def test_by_hand() -> None:
    # 43.4 us on two chips: a share is 21.7 us; a cut with 1000 bytes takes 10 us. The prior is
    # log(2 / 4), so a cut has chance 1/3. Before dense and relu:
    dense = [1, 3.4 / 21.7, 12.4 / 21.7, 0, math.log10(20 / 43.4 + 0.01), 0, 0.12, 0, 0, 0.03, 0, 0.02]
    relu = [1, 12.4 / 21.7, 18.4 / 21.7, 0, math.log10(40 / 43.4 + 0.01), 0, 0.12, 0, 0, 0.06, 0, 0.04]
    for features in (dense, relu):
        features[5] = features[1] * features[4]
    is_cut = np.array([[False, False, True, False, False, False]])
    scores = score_walks(toy_walk(), NO_WEIGHTS, np.zeros(6), is_cut)
    assert scores.log_prob == pytest.approx([math.log(2 / 3) + math.log(1 / 3)])
    assert scores.by_head == pytest.approx(np.array([[0, -1 / 3, 2 / 3, 0, 0, 0]]))
    want = -1 / 3 * np.array(dense) + 2 / 3 * np.array(relu)
    assert scores.by_weights == pytest.approx(want[None], rel=1e-12)


def test_memory_by_hand() -> None:
    # 13,000 bytes: table, w1 and w2 are 14,000. Before mix, x and a cross; h was alive beside x.
    problem = toy_walk(sram_bytes=13_000)
    weights, head = np.zeros(NUM_FEATURES), np.full(6, -50.0)
    head[3] = 0.0
    is_cut = np.zeros((1, 6), dtype=np.bool_)
    by_weights = score_walks(problem, weights, head, is_cut).by_weights[0] / -(1 / 3)
    assert by_weights[6:8] == pytest.approx([14 / 13, 1.0])
    assert by_weights[9:] == pytest.approx([(3 + 2 * 2) / 13, 0.0, 4 / 13])


@settings(max_examples=examples(60))
@given(seed=seeds)
def test_scores_are_the_twins(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem, twin = random_walk_problem(rng)
    weights, head = rng.normal(size=NUM_FEATURES), rng.normal(size=problem.num_kernels)
    cuts = random_cuts(rng, problem, 3)
    scores = score_walks(problem, weights, head, cuts)
    for s, is_cut in enumerate(cuts):
        log_prob, by_weights, by_head = 0.0, np.zeros(NUM_FEATURES), np.zeros(problem.num_kernels)
        for kernel, features, chance in twin.chances(weights, head, is_cut):
            log_prob += math.log(chance if is_cut[kernel] else 1.0 - chance)
            by_head[kernel] = is_cut[kernel] - chance
            by_weights += by_head[kernel] * features
        assert scores.log_prob[s] == pytest.approx(log_prob, rel=1e-6, abs=1e-9)
        assert scores.by_head[s] == pytest.approx(by_head, abs=1e-9)
        assert scores.by_weights[s] == pytest.approx(by_weights, rel=1e-6, abs=1e-8)


@settings(max_examples=examples(30))
@given(seed=seeds)
def test_draws_follow_the_chances(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem, twin = random_walk_problem(rng)
    weights, head = rng.normal(size=NUM_FEATURES), rng.normal(size=problem.num_kernels)
    uniforms = rng.random((3, problem.num_kernels))
    cuts, chips = draw_walks(problem, weights, head, uniforms)
    assert (chips == np.cumsum(cuts, axis=1)).all()
    assert chips.max() < problem.num_chips
    for is_cut, numbers in zip(cuts, uniforms, strict=True):
        chances = {kernel: chance for kernel, _, chance in twin.chances(weights, head, is_cut)}
        wanted = [kernel in chances and numbers[kernel] < chances[kernel] for kernel in range(len(is_cut))]
        assert is_cut.tolist() == wanted


@settings(max_examples=examples(20))
@given(seed=seeds)
def test_all_walks_together_have_probability_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem, _ = random_walk_problem(rng, most_ops=9)
    weights, head = rng.normal(size=NUM_FEATURES), rng.normal(size=problem.num_kernels)
    rows = [(False, *rest) for rest in itertools.product((False, True), repeat=problem.num_kernels - 1)]
    walks = np.array([row for row in rows if sum(row) < problem.num_chips])
    scores = score_walks(problem, weights, head, walks)
    chance = np.exp(scores.log_prob)
    assert chance.sum() == pytest.approx(1.0)
    # The score function has mean zero.
    assert chance @ scores.by_weights == pytest.approx(np.zeros(NUM_FEATURES), abs=1e-9)
    assert chance @ scores.by_head == pytest.approx(np.zeros(problem.num_kernels), abs=1e-9)


@settings(max_examples=examples(15))
@given(seed=seeds)
def test_gradients_are_finite_differences(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem, _ = random_walk_problem(rng)
    weights, head = rng.normal(size=NUM_FEATURES), rng.normal(size=problem.num_kernels)
    cuts = random_cuts(rng, problem, 2)
    scores = score_walks(problem, weights, head, cuts)
    step = 1e-5
    for values, gradient in ((weights, scores.by_weights), (head, scores.by_head)):
        for j in range(len(values)):
            ends = []
            for sign in (-1.0, 1.0):
                moved = values.copy()
                moved[j] += sign * step
                pair = (moved, head) if values is weights else (weights, moved)
                ends.append(score_walks(problem, *pair, cuts).log_prob)
            assert gradient[:, j] == pytest.approx((ends[1] - ends[0]) / (2 * step), rel=1e-4, abs=1e-5)


def test_extreme_weights_are_exact() -> None:
    problem = toy_walk()
    cuts = np.array([[False] * 6, [False, True, False, False, False, False]])
    for logit in (-1e6, 1e6):
        weights = np.append(logit, np.zeros(NUM_FEATURES - 1))
        log_prob = score_walks(problem, weights, np.zeros(6), cuts).log_prob
        assert np.isfinite(log_prob).all()
        assert log_prob.max() == pytest.approx(0.0, abs=1e-12)
        assert log_prob.min() == pytest.approx(-1e6 * (5 if logit > 0 else 1), rel=1e-5)


def test_what_is_refused() -> None:
    problem = toy_walk()
    cuts = np.zeros((1, 6), dtype=np.bool_)
    early, many = cuts.copy(), cuts.copy()
    early[0, 0], many[0, 1:3] = True, True
    for is_cut in (early, many):
        with pytest.raises(InvalidInputError, match="is_cut"):
            score_walks(problem, NO_WEIGHTS, np.zeros(6), is_cut)
    for weights, head in (
        (np.zeros(11), np.zeros(6)),
        (NO_WEIGHTS, np.zeros(5)),
        (NO_WEIGHTS * np.nan, np.zeros(6)),
    ):
        with pytest.raises(InvalidInputError, match="finite numbers"):
            draw_walks(problem, weights, head, np.zeros((1, 6)))
    with pytest.raises(InvalidInputError, match="6 kernels"):
        draw_walks(problem, NO_WEIGHTS, np.zeros(6), np.zeros((1, 7)))
