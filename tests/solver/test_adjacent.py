"""The adjacent core against the enumeration of all placements, and under stress."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from go_opt.common.arrays import FloatArray, IntArray
from go_opt.env import load_target, load_zoo
from go_opt.errors import InfeasibleError, InvalidInputError
from go_opt.solver.problem.problem import (
    NO_SKIP_ALL,
    NO_SKIP_OFF,
    PlacementProblem,
    most_chips_adjacent,
    placement_problem,
)
from go_opt.solver.propagation.adjacent import (
    ANCHORED,
    CONTRADICTION,
    DRAWN,
    GAPS,
    place_adjacent,
)
from tests.solver.adjacent_oracle import adjacent_placements, obeys
from tests.strategies import (
    JIT_IS_ON,
    chip_kind,
    examples,
    random_graph,
    random_target,
    seeds,
    small_mcm,
    toy_graph,
)
from tests.zoo import zoo_sample

# The issue asks for 100,000; tests/benchmarks/bench_solver.py draws those.
STRESS_SAMPLES = int(os.environ.get("GO_OPT_STRESS_SAMPLES", "6000")) // (1 if JIT_IS_ON else 30)
POLICIES = ("uniform", "random", "one_hot", "one_chip", "no_mass", "nearly_none")


def tiny_problem(seed: int, *, max_units: int = 6, max_chips: int = 4, **rules: str) -> PlacementProblem:
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, int(rng.integers(1, max_units + 1)))
    return placement_problem(graph, small_mcm(int(rng.integers(1, max_chips + 1)), **rules))


def policy(rng: np.random.Generator, name: str, num_units: int, num_chips: int) -> FloatArray:
    """[U, D] log-probabilities of one of ``POLICIES``."""
    rows = np.zeros((num_units, num_chips))
    if name == "random":
        rows = rng.normal(size=rows.shape) * 3
    elif name == "one_hot":
        rows -= 1e4
        rows[np.arange(num_units), rng.integers(num_chips, size=num_units)] = 0
    elif name == "one_chip":
        rows[:] = -np.inf
        rows[:, rng.integers(num_chips)] = 0
    elif name == "no_mass":
        rows[:] = -np.inf
    elif name == "nearly_none":
        rows = np.where(rng.random(rows.shape) < 0.3, rng.normal(size=rows.shape) * 300, -np.inf)
    return rows


def chance_by_hand(valid: IntArray, rows: FloatArray, order: IntArray, placement: IntArray) -> float:
    """Of drawing ``placement`` unit by unit, each from its chips in the ``valid`` ones still left."""
    chance = 1.0
    for unit in order:
        chips = np.unique(valid[:, unit])
        weights = np.exp(rows[unit, chips])
        chance *= float(weights[chips == placement[unit]].sum() / weights.sum())
        valid = valid[valid[:, unit] == placement[unit]]
    return chance


@settings(max_examples=examples(120))
@given(seed=seeds, rule=st.sampled_from(["off", "prefix"]))
def test_samples_are_all_the_placements_and_no_others(seed: int, rule: str) -> None:
    problem = tiny_problem(seed, max_units=5, max_chips=3, no_skip=rule)
    valid = adjacent_placements(problem, no_skip=rule == "prefix")
    uniform = np.zeros((problem.num_units, problem.num_chips))
    count = 60 * len(valid) if JIT_IS_ON else 20
    drawn = place_adjacent(problem, log_probs=uniform, seed=seed, num_samples=count)
    assert (drawn.ending == DRAWN).all()
    assert obeys(problem, drawn.placement, no_skip=rule == "prefix").all()
    # Enumeration also says what can be drawn: each of them where its chips alone have mass.
    for row in valid:
        only = np.where(np.arange(problem.num_chips) == row[:, None], 0.0, -np.inf)
        one = place_adjacent(problem, log_probs=only, seed=seed)
        assert one.placement[0].tolist() == row.tolist()


def test_draws_follow_the_rows() -> None:
    problem = placement_problem(toy_graph(), small_mcm(3, no_skip="off"))
    rng = np.random.default_rng(5)
    rows, order = policy(rng, "random", 6, 3), rng.permutation(6).astype(np.int32)
    count = 200_000 if JIT_IS_ON else 2000
    drawn = place_adjacent(problem, log_probs=rows, orders=order[None], seed=1, num_samples=count)
    valid = adjacent_placements(problem, no_skip=False)
    expected = np.array([chance_by_hand(valid, rows, order, placement) for placement in valid])
    times = np.array([(drawn.placement == placement).all(axis=1).sum() for placement in valid])
    assert times.sum() == count
    noise = 0.5 * np.sqrt(2 * expected * (1 - expected) / (np.pi * count)).sum()
    assert 0.5 * np.abs(times / count - expected).sum() < 2.5 * noise + 1e-12


@settings(max_examples=examples(80))
@given(seed=seeds, rule=st.sampled_from(["off", "prefix"]))
def test_valid_proposals_come_back_unchanged(seed: int, rule: str) -> None:
    problem = tiny_problem(seed, no_skip=rule)
    valid = adjacent_placements(problem, no_skip=rule == "prefix")
    valid = valid[np.random.default_rng(seed).permutation(len(valid))[:300]]
    fixed = place_adjacent(problem, proposals=valid, seed=seed)
    assert (fixed.placement == valid).all()
    assert (fixed.ending == DRAWN).all()


@settings(max_examples=examples(80))
@given(seed=seeds)
def test_any_proposal_becomes_valid(seed: int) -> None:
    problem = tiny_problem(seed, max_units=20, max_chips=9)
    rng = np.random.default_rng(seed)
    proposals = rng.integers(-2, problem.num_chips + 2, (20, problem.num_units))
    rows = policy(rng, "nearly_none", problem.num_units, problem.num_chips)
    for log_probs in (None, rows, np.tile(rows, (20, 1, 1))):
        fixed = place_adjacent(problem, proposals=proposals, seed=seed, log_probs=log_probs)
        assert obeys(problem, fixed.placement).all()
        assert (fixed.ending == DRAWN).all()


def test_fix_by_hand() -> None:
    """embed 0 | dense 2: out of [0, 1], set aside | relu 1, mix 1, add 1, logits 5: set aside.

    Then dense lies in [0, 1], nearest to 2 is 1; logits lies in [1, 2], nearest to 5 is 2.
    """
    problem = placement_problem(toy_graph(), small_mcm(6))
    proposal = np.array([[0, 2, 1, 1, 1, 5]])
    fixed = place_adjacent(problem, proposals=proposal, orders=problem.topological[None])
    assert fixed.placement.tolist() == [[0, 1, 1, 1, 1, 2]]
    # Where the whole graph lies too high, it moves down as one.
    assert place_adjacent(problem, proposals=proposal + 3).placement.min() == 0


@settings(max_examples=examples(80))
@given(seed=seeds)
def test_all_chips_are_used_where_they_can_be(seed: int) -> None:
    problem = tiny_problem(seed, no_skip="all")
    valid = adjacent_placements(problem, no_skip=True)
    rng = np.random.default_rng(seed)
    rows = policy(rng, POLICIES[seed % len(POLICIES)], problem.num_units, problem.num_chips)
    if not len(valid):
        most = most_chips_adjacent(problem)
        with pytest.raises(InfeasibleError, match=f"not all {problem.num_chips} chips .* at most {most}"):
            place_adjacent(problem, log_probs=rows)
        return
    drawn = place_adjacent(problem, log_probs=rows, seed=seed, num_samples=20)
    assert obeys(problem, drawn.placement).all()
    assert np.isin(drawn.ending, (DRAWN, ANCHORED)).all()
    assert (place_adjacent(problem, proposals=valid[:200]).placement == valid[:200]).all()
    proposals = rng.integers(0, problem.num_chips, (20, problem.num_units))
    assert obeys(problem, place_adjacent(problem, proposals=proposals).placement).all()


@pytest.mark.parametrize("name", zoo_sample())
def test_all_chips_of_shipped_graphs(name: str) -> None:
    graph = load_zoo(name)
    problem = placement_problem(graph, load_target("mcm-6x6"))._replace(no_skip=NO_SKIP_ALL)
    most = most_chips_adjacent(problem)
    count = 20 if JIT_IS_ON else 1
    problem = problem._replace(num_chips=most, chip_kind=problem.chip_kind[:most])
    rows = np.zeros((problem.num_units, most))
    drawn = place_adjacent(problem, log_probs=rows, seed=1, num_samples=count)
    assert obeys(problem, drawn.placement).all()


@settings(max_examples=examples(200))
@given(seed=seeds)
def test_bounds_of_the_caller(seed: int) -> None:
    """Valid, or a contradiction that enumeration confirms; gaps only where components differ."""
    rng = np.random.default_rng(seed)
    rule = ("off", "prefix", "all")[seed % 3]
    problem = tiny_problem(seed, no_skip=rule)
    if rule == "all" and most_chips_adjacent(problem) < problem.num_chips:
        return
    first = np.where(
        rng.random(problem.num_units) < 0.3, rng.integers(0, problem.num_chips, problem.num_units), 0
    )
    last = np.where(rng.random(problem.num_units) < 0.3, first, problem.num_chips - 1)
    rows = policy(rng, "random", problem.num_units, problem.num_chips)
    valid = adjacent_placements(problem, no_skip=rule != "off", first_chip=first, last_chip=last)
    bounds = {"first_chip": first, "last_chip": last}
    drawn = place_adjacent(problem, log_probs=rows, seed=seed, num_samples=10, **bounds)
    done = np.isin(drawn.ending, (DRAWN, ANCHORED))
    assert {tuple(row) for row in drawn.placement[done]} <= {tuple(row) for row in valid}
    assert not (len(valid) and (drawn.ending == CONTRADICTION).any())
    if not len(valid):
        assert not done.any()
    elif problem.num_components == 1 and rule != "all":
        assert done.all()
    kept = place_adjacent(problem, proposals=valid, **bounds)
    assert (kept.placement == valid).all()


def test_pins_that_contradict_each_other() -> None:
    problem = placement_problem(toy_graph(), small_mcm(6))
    rows = np.zeros((6, 6))
    # embed and add are one edge apart, so they cannot lie on chips 0 and 3.
    drawn = place_adjacent(
        problem, log_probs=rows, first_chip=[0, 0, 0, 0, 3, 0], last_chip=[0, 5, 5, 5, 5, 5]
    )
    assert drawn.ending.tolist() == [CONTRADICTION]
    assert drawn.placement.tolist() == [[-1] * 6]
    assert place_adjacent(problem, log_probs=rows, first_chip=1).ending.tolist() == [CONTRADICTION]
    off = problem._replace(no_skip=NO_SKIP_OFF)
    assert place_adjacent(off, log_probs=rows, first_chip=1).ending.tolist() == [DRAWN]


def test_kinds_that_cannot_run_a_unit() -> None:
    rng = np.random.default_rng(0)
    target = random_target(rng, topology="ring", kinds=[chip_kind("a", 3), chip_kind("b", 3)])
    graph = random_graph(rng, 30, kinds=("a", "b"))
    problem = placement_problem(graph, target)
    assert not problem.can_run.all()
    drawn = place_adjacent(problem, log_probs=np.zeros((30, 6)), num_samples=50)
    kinds = problem.chip_kind[drawn.placement]
    assert problem.can_run[kinds, np.arange(30)].all()
    assert (drawn.ending != GAPS).all()


def test_same_seed_same_answer_and_rows_of_each_sample() -> None:
    problem = tiny_problem(3, max_units=20, max_chips=9)
    rng = np.random.default_rng(0)
    rows = policy(rng, "random", problem.num_units, problem.num_chips)
    one, again = (place_adjacent(problem, log_probs=rows, seed=4, num_samples=8) for _ in range(2))
    each = place_adjacent(problem, log_probs=np.tile(rows, (8, 1, 1)), seed=4, num_samples=8)
    for a, b, c in zip(one, again, each, strict=True):
        assert np.array_equal(a, b)
        assert np.array_equal(a, c)


def test_malformed_arguments() -> None:
    problem = placement_problem(toy_graph(), small_mcm(2))
    rows = np.zeros((6, 2))
    with pytest.raises(InvalidInputError, match=r"log_probs has shape \(6, 3\)"):
        place_adjacent(problem, log_probs=np.zeros((6, 3)))
    with pytest.raises(InvalidInputError, match="NaN"):
        place_adjacent(problem, log_probs=np.where(rows == 0, np.nan, 0))
    with pytest.raises(InvalidInputError, match="proposals has shape"):
        place_adjacent(problem, proposals=np.zeros((2, 5), dtype=np.int32))


@pytest.mark.parametrize("name", POLICIES)
def test_stress(name: str) -> None:
    """Random DAGs of 2 to 2,000 ops, any policy: no failure, nothing invalid."""
    rng = np.random.default_rng(POLICIES.index(name))
    per_graph = 25
    for _ in range(max(1, STRESS_SAMPLES // len(POLICIES) // per_graph)):
        num_ops = int(2 * 1000 ** rng.random() if JIT_IS_ON else 2 * 50 ** rng.random())
        problem = placement_problem(random_graph(rng, num_ops), small_mcm(int(rng.integers(1, 70))))
        assert_never_fails(rng, problem, name, per_graph)


@pytest.mark.parametrize("name", zoo_sample())
def test_stress_on_shipped_graphs(name: str) -> None:
    rng = np.random.default_rng(0)
    problem = placement_problem(load_zoo(name), load_target("mcm-6x6"))
    for policy_name in POLICIES if JIT_IS_ON else POLICIES[:1]:
        assert_never_fails(rng, problem, policy_name, 5 if JIT_IS_ON else 1)


def assert_never_fails(
    rng: np.random.Generator, problem: PlacementProblem, name: str, num_samples: int
) -> None:
    rows = policy(rng, name, problem.num_units, problem.num_chips)
    proposals = np.tile(rows.argmax(axis=1).astype(np.int32), (num_samples, 1))
    drawn = place_adjacent(problem, log_probs=rows, seed=1, num_samples=num_samples)
    fixed = place_adjacent(problem, proposals=proposals, seed=1)
    for placement, status in ((drawn.placement, drawn.ending), (fixed.placement, fixed.ending)):
        assert (status == DRAWN).all()
        assert obeys(problem, placement).all()
