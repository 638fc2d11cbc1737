"""Every rival: verified plans, exact counts, the same for the same seed; optimal where it must be."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.agents.generator import generate_graph
from go_opt.bench.rivals import RIVALS, Limits, Problem, Rival, compete, pose
from go_opt.env import evaluate_plan, load_target, load_zoo
from go_opt.model.graph import WEIGHT
from go_opt.solver.certify.build import refinement_problem
from go_opt.solver.certify.refinement import Refinement
from go_opt.solver.verify.verifier import verify
from tests.agents.rivals.cases import Clock, best_by_brute_force_s, random_problem, toy_problem
from tests.benchmarks.library_rivals import LIBRARY_RIVALS
from tests.benchmarks.policy_rivals import POLICY_RIVALS
from tests.strategies import examples, random_graph, random_target, seeds, small_mcm

EVALUATIONS = 12


def playable() -> list:
    """CP-SAT has no wheels for the newest Python; its rival is skipped there."""
    is_missing = pytest.mark.skipif(find_spec("ortools") is None, reason="ortools")
    return [
        pytest.param(rival, id=rival.name, marks=[is_missing] if rival.name == "cp-sat" else [])
        for rival in LIBRARY_RIVALS.values()
    ]


def check(rival: Rival, problem: Problem, seed: int):
    outcome = compete(rival, problem, Limits(evaluations=EVALUATIONS), seed, Clock())
    assert outcome.evaluations <= EVALUATIONS
    assert [p.evaluations for p in outcome.curve] == sorted({p.evaluations for p in outcome.curve})
    assert (np.diff([p.interval_s for p in outcome.curve]) < 0).all()
    if outcome.plan is None:
        assert math.isinf(outcome.interval_s)
        return outcome
    assert verify(problem.graph, problem.target, outcome.plan) == []
    metrics = evaluate_plan(problem.graph, problem.target, outcome.plan)
    assert metrics.valid
    assert metrics.interval_s == outcome.interval_s == outcome.curve[-1].interval_s
    return outcome


@pytest.mark.parametrize("relays", [False, True])
@pytest.mark.parametrize("rival", playable())
@settings(max_examples=examples(6))
@given(seed=seeds)
def test_plans_are_verified_and_runs_repeat(rival: Rival, relays: bool, seed: int) -> None:
    problem = random_problem(seed, relays=relays)
    outcome, again = (check(rival, problem, seed) for _ in range(2))
    assert outcome.curve == again.curve
    assert outcome.plan is not None


@pytest.mark.parametrize("rival", playable())
@settings(max_examples=examples(6))
@given(seed=seeds)
def test_other_targets_and_tight_memory(rival: Rival, seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_target(rng, acyclic=None)
    check(rival, pose(random_graph(rng, int(rng.integers(1, 12))), target, relays=bool(seed % 2)), seed)


@pytest.mark.parametrize("rival", playable())
def test_only_placement_open(rival: Rival) -> None:
    problem = pose(generate_graph(3, num_ops=30), load_target("mcm-2x2"), relays=True, decide="placement")
    outcome = check(rival, problem, 0)
    if outcome.notes == ("kernels are fixed",):
        return
    assert outcome.plan is not None
    assert len(np.unique(outcome.plan.fusion_group)) == 30
    assert outcome.plan.order.tolist() == list(range(30))


@pytest.mark.parametrize("relays", [False, True])
@pytest.mark.parametrize("rival", playable())
def test_the_toy_is_solved(rival: Rival, relays: bool) -> None:
    if rival.name == "greedy":
        pytest.skip("no search")
    problem = toy_problem(relays=relays)
    outcome = compete(rival, problem, Limits(evaluations=200), 0, Clock())
    best_s = best_by_brute_force_s(problem)
    if rival.name == "genetic-fusion":  # other kernels than the default ones are better still
        assert outcome.interval_s < best_s
    else:
        assert outcome.interval_s == pytest.approx(best_s)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("relays", [False, True])
@settings(max_examples=examples(15))
@given(seed=seeds)
def test_cp_sat_is_as_good_as_brute_force(relays: bool, overlap: bool, seed: int) -> None:
    pytest.importorskip("ortools")
    # In the adjacent form every tensor is relayed wherever it passes, as in the model.
    rules = {"overlap": overlap, "triangle": "adjacent"}
    problem = random_problem(seed, relays=relays, max_ops=7, max_chips=4, **rules)
    outcome = compete(LIBRARY_RIVALS["cp-sat"], problem, Limits(evaluations=1000), seed, Clock())
    best_s = best_by_brute_force_s(problem)
    assert outcome.bound_s <= best_s * (1 + 1e-9)
    assert outcome.interval_s <= best_s * (1 + 1e-5)  # ticks are rounded down
    assert outcome.bound_s >= best_s * (1 - 1e-5)
    assert "optimal" in outcome.notes


def test_weights_that_do_not_fit_stream_in_the_model_too() -> None:
    # Two chips of 25 kB; the embedding alone is 20 kB, of which 400 bytes are touched.
    pytest.importorskip("ortools")
    problem = toy_problem(num_chips=2, sram_bytes=25_000, host_in_bytes_per_s=1e8)
    outcome = compete(LIBRARY_RIVALS["cp-sat"], problem, Limits(evaluations=1000), 0, Clock())
    best_s = best_by_brute_force_s(problem)
    assert outcome.bound_s <= best_s * (1 + 1e-9)
    assert outcome.interval_s == pytest.approx(best_s)


@pytest.mark.parametrize("overlap", [True, False])
def test_the_bound_with_memory_is_never_above_a_plan_of_cp_sat(overlap: bool) -> None:
    """Some 15 ops, of whose weights a part has to stream: too many to try all placements."""
    pytest.importorskip("ortools")
    found = met = 0
    for seed in range(examples(12)):
        rng = np.random.default_rng([seed, 31])
        graph = random_graph(rng, int(rng.integers(8, 20)), max_elements=2000)
        fields = {"overlap": overlap, "link_bytes_per_s": 1e9, "triangle": "adjacent"}
        roomy = pose(graph, small_mcm(3, sram_bytes=10**9, **fields), relays=True)
        sliced = compete(RIVALS["slice"], roomy, Limits(evaluations=9), 0, Clock())
        assert sliced.plan is not None
        metrics = evaluate_plan(graph, roomy.target, sliced.plan)
        tables = roomy.instance.tables
        weights = int(tables.tensor_bytes[tables.tensor_kind == WEIGHT].sum())
        sram_bytes = int(1.2 * metrics.peak_bytes.max() + rng.uniform(0.1, 0.4) * weights) + 1
        problem = pose(graph, small_mcm(3, sram_bytes=sram_bytes, **fields), relays=True)
        outcome = compete(LIBRARY_RIVALS["cp-sat"], problem, Limits(evaluations=100), 0, Clock())
        refinement = Refinement(
            refinement_problem(
                graph,
                problem.instance.tables,
                problem.kernels,
                problem.order,
                forwarding="relayed",
                tight=True,
            )
        )
        refinement.run(1000)
        assert refinement.lower_bound_s <= outcome.interval_s * (1 + 1e-9), seed
        found += outcome.interval_s < np.inf
        met += refinement.lower_bound_s >= outcome.interval_s * (1 - 1e-5)
    assert found > examples(12) // 2
    assert met >= found // 2


def test_relays_let_rivals_pass_chips() -> None:
    # Without relays the residual keeps everything between its ends on two chips.
    strict, relayed = (
        compete(RIVALS["slice"], toy_problem(relays=relays, num_chips=6), Limits(evaluations=9), 0, Clock())
        for relays in (False, True)
    )
    assert relayed.interval_s <= strict.interval_s


def test_a_model_that_takes_too_long_to_build_is_given_up() -> None:
    pytest.importorskip("ortools")
    # Every look at the clock takes 0.3 s: there is time for the slicing, not for the model.
    outcome = compete(LIBRARY_RIVALS["cp-sat"], toy_problem(), Limits(budget_s=2.0), 0, Clock(step_s=0.3))
    sliced = compete(RIVALS["slice"], toy_problem(), Limits(evaluations=9), 0, Clock())
    assert outcome.interval_s == sliced.interval_s
    assert outcome.notes == ()
    assert outcome.wall_s < 4.0


def blind_rivals() -> list[Rival]:
    """Those that may know what plans cost from evaluations alone."""
    return [RIVALS["random"], RIVALS["annealing"]]


@pytest.mark.parametrize("rival", blind_rivals(), ids=lambda rival: rival.name)
def test_blind_rivals_see_no_costs(rival: Rival) -> None:
    # Costs of another world in the tables, the same answers of the evaluator: the same run.
    problem = pose(generate_graph(1, num_ops=60), load_target("mcm-6x6"), relays=False)
    rng = np.random.default_rng(0)
    tables = problem.instance.tables._replace(
        op_s=rng.permuted(problem.instance.tables.op_s, axis=1),
        tensor_bytes=rng.permutation(problem.instance.tables.tensor_bytes),
        sram_bytes=problem.instance.tables.sram_bytes // 100,
    )
    blind = replace(problem, instance=replace(problem.instance, tables=tables), evaluate=problem.interval_s)
    first, again = (compete(rival, seen, Limits(evaluations=64), 0, Clock()) for seen in (problem, blind))
    assert first.curve == again.curve


@pytest.mark.parametrize("name", ["fixed-orders", "structured", "feature-mix"])
@settings(max_examples=examples(6))
@given(seed=seeds)
def test_rivals_of_the_policy(name: str, seed: int) -> None:
    assert check(POLICY_RIVALS[name], random_problem(seed, relays=False), seed).plan is not None


def test_first_genomes_are_the_defaults() -> None:
    problem = pose(load_zoo("dlrm_kaggle"), load_target("mcm-6x6"), relays=False)
    sliced_s = compete(RIVALS["slice"], problem, Limits(evaluations=1), 0).interval_s
    for name in ("genetic", "genetic-fusion", "feature-mix"):
        assert compete(POLICY_RIVALS[name], problem, Limits(evaluations=1), 0).interval_s == sliced_s
