"""SAMPLE and FIX: valid, unchanged where valid, everything reachable, drawn by the rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.errors import InvalidInputError
from go_opt.solver.problem.problem import placement_problem
from go_opt.solver.propagation.modes import fix, sample
from go_opt.solver.propagation.propagators.tables import rule_tables
from tests.solver.placements import ON_A_RING, holds, random_problem, rows_of, valid_placements
from tests.strategies import JIT_IS_ON, examples, random_graph, seeds, small_mcm

FORMS = [(True, "prefix", "longest_path"), (True, "off", "three_chip"), (True, "prefix", "off")]


def uniform_rows(problem):
    return np.zeros((problem.num_units, problem.num_chips))


@given(seed=seeds)
@settings(max_examples=examples(6))
def test_sample_reaches_every_valid_placement_and_no_other(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, FORMS[int(rng.integers(len(FORMS)))], max_units=4)
    wanted = valid_placements(rule_tables(problem))
    drawn = sample(problem, uniform_rows(problem), seed=seed, num_samples=4000)
    assert drawn.found.all()
    assert rows_of(drawn.placement) <= wanted
    if JIT_IS_ON:
        assert rows_of(drawn.placement) == wanted


@pytest.mark.parametrize("rule", ["full", "adjacent"])
@given(seed=seeds)
@settings(max_examples=examples(10))
def test_fix_keeps_what_is_valid_and_repairs_the_rest(rule, seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng)
    tables = rule_tables(problem._replace(triangle=3) if rule == "adjacent" else problem)
    valid = valid_placements(tables)
    every = np.array(list(np.ndindex(*[problem.num_chips] * problem.num_units)), np.int32)
    fixed = fix(problem, every, rule=rule, seed=seed)
    assert fixed.found.all()
    assert rows_of(fixed.placement) == valid
    for proposal, placement in zip(every, fixed.placement, strict=True):
        if tuple(map(int, proposal)) in valid:
            assert list(placement) == list(proposal)


@pytest.mark.parametrize("rule", ["full", "adjacent"])
def test_nothing_is_invalid_under_any_policy(rule) -> None:
    rng = np.random.default_rng(7)
    for num_ops in (2, 30, 120) if JIT_IS_ON else (2, 12):
        problem = placement_problem(random_graph(rng, num_ops), small_mcm(int(rng.integers(2, 9))))
        tables = rule_tables(problem)
        one_chip = np.full((num_ops, problem.num_chips), -np.inf)
        one_chip[:, -1] = 0.0
        nowhere = np.full((num_ops, problem.num_chips), -np.inf)
        peaked = 20 * rng.standard_normal((num_ops, problem.num_chips))
        for rows in (uniform_rows(problem), one_chip, nowhere, peaked):
            drawn = sample(problem, rows, num_samples=3, rule=rule, max_backtracks=20)
            assert drawn.found.all()
            assert all(holds(tables, placement) for placement in drawn.placement)


@pytest.mark.parametrize("rule", ["full", "adjacent"])
def test_what_the_rows_demand_is_drawn(rule) -> None:
    """The likely chips where they are valid, and elsewhere as many of them as the rules leave."""
    problem = placement_problem(random_graph(np.random.default_rng(5), 25), small_mcm(5))
    likely = sample(problem, uniform_rows(problem), num_samples=20, rule=rule).placement
    rows = np.where(np.arange(5) == likely[:, :, None], 0.0, -50.0)
    assert (sample(problem, rows, num_samples=20, rule=rule).placement == likely).all()
    likely[:, 0] = (likely[:, 0] + 2) % 5
    rows = np.where(np.arange(5) == likely[:, :, None], 0.0, -50.0)
    near = sample(problem, rows, num_samples=20, rule=rule).placement == likely
    far = sample(problem, uniform_rows(problem), num_samples=20, rule=rule, seed=1).placement == likely
    assert near.mean() > 0.6 > far.mean()


def test_a_budget_of_no_backtracks_falls_back() -> None:
    rng = np.random.default_rng(0)
    graph = random_graph(rng, 60)
    problem = placement_problem(graph, small_mcm(12))
    drawn = sample(problem, uniform_rows(problem), num_samples=30, max_backtracks=0)
    assert drawn.found.all()
    assert drawn.backtracks == 0
    assert (drawn.fell_back == drawn.backtracked).all()


def test_the_same_seed_gives_the_same_answer() -> None:
    rng = np.random.default_rng(2)
    problem = random_problem(rng, ON_A_RING)
    first, second = (sample(problem, uniform_rows(problem), seed=3, num_samples=9) for _ in range(2))
    assert (first.placement == second.placement).all()


def test_more_than_64_chips() -> None:
    rng = np.random.default_rng(4)
    num_ops = 150 if JIT_IS_ON else 40
    problem = placement_problem(random_graph(rng, num_ops), small_mcm(100))
    tables = rule_tables(problem)
    drawn = sample(problem, uniform_rows(problem), num_samples=3)
    fixed = fix(problem, rng.integers(0, 100, (3, num_ops)).astype(np.int32))
    for placement in (*drawn.placement, *fixed.placement):
        assert holds(tables, placement)


def test_bad_input_is_named() -> None:
    problem = random_problem(np.random.default_rng(1))
    rows = uniform_rows(problem)
    with pytest.raises(InvalidInputError, match="log_probs has shape"):
        sample(problem, rows[1:])
    with pytest.raises(InvalidInputError, match="NaN"):
        sample(problem, rows * np.nan)
    with pytest.raises(InvalidInputError, match="proposals has shape"):
        fix(problem, np.zeros((1, problem.num_units + 1), np.int32))
