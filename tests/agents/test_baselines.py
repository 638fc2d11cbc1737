"""The rivals: counted, valid, the same for the same seed, and blind where they must be."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.agents.generator import generate_graph
from go_opt.bench.baselines import METHODS, Method, Samples, analytical
from go_opt.bench.baselines.direct_annealing import anneal_placement
from go_opt.env import Target, load_target, load_zoo
from go_opt.solver import broken_rules, placement_problem, verify
from go_opt.solver.orders.instance import Instance, instance
from tests.strategies import examples, make_plan, random_graph, seeds, small_mcm, toy_graph

EVALUATIONS = 24


def toy_case(num_chips: int = 3) -> Instance:
    return instance(toy_graph(), small_mcm(num_chips, link_bytes_per_s=1e9))


def random_case(seed: int) -> Instance:
    rng = np.random.default_rng(seed)
    target: Target = small_mcm(int(rng.integers(1, 6)), sram_bytes=10**6)
    return instance(random_graph(rng, int(rng.integers(1, 25))), target)


def violations(case: Instance, method: Method, seed: int) -> list:
    run = method.run(case, EVALUATIONS, seed)
    assert run.best is not None
    placement, order, group = run.best
    plan = make_plan(case.graph, case.target, placement, order=order, fusion_group=group)
    return verify(case.graph, case.target, plan)


def test_samples_count_and_keep_the_best_by_hand() -> None:
    answers = iter([[3.0, np.inf], [5.0], [2.0]])
    samples = Samples(lambda placement, order, group: np.array(next(answers)), 5)
    plans = np.array([[0, 1], [2, 3]], dtype=np.int32)
    samples(plans, plans, plans)
    assert samples.left == 3
    assert samples.one(plans[1], plans[1], plans[1]) == 5.0
    assert samples.best is not None
    assert samples.best[0].tolist() == [0, 1]
    samples.one(plans[1], plans[1], plans[1])
    assert samples.best[0].tolist() == [2, 3]
    # The fifth is never spent: the curve stays.
    assert samples.curve_s().tolist() == [3.0, 3.0, 3.0, 2.0, 2.0]
    with pytest.raises(AssertionError, match="1 evaluations left"):
        samples(plans, plans, plans)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@settings(max_examples=examples(8))
@given(seed=seeds)
def test_every_answer_is_valid_and_every_run_repeats(method: Method, seed: int) -> None:
    case = random_case(seed)
    assert violations(case, method, seed) == []
    first, again = (method.run(case, EVALUATIONS, seed) for _ in range(2))
    np.testing.assert_array_equal(first.curve_s, again.curve_s)
    assert first.curve_s.shape == (EVALUATIONS,)
    assert (np.diff(first.curve_s) <= 0).all()
    assert first.spent <= EVALUATIONS
    assert first.best is not None
    best_s = analytical(case)(*(array[None] for array in first.best))[0]
    assert best_s == first.curve_s[-1]


@pytest.mark.parametrize(
    "method", [m for m in METHODS.values() if m.regime == "black_box"], ids=lambda m: m.name
)
def test_black_box_methods_see_no_costs(method: Method) -> None:
    # Costs of another world in the tables, the same answers of the evaluator: the same run.
    case = instance(generate_graph(1, num_ops=60), load_target("mcm-6x6"))
    rng = np.random.default_rng(0)
    tables = case.tables._replace(
        op_s=rng.permuted(case.tables.op_s, axis=1),
        tensor_bytes=rng.permutation(case.tables.tensor_bytes),
        sram_bytes=case.tables.sram_bytes // 100,
    )
    blind = replace(case, tables=tables)
    first, again = (method.run(seen, 64, 0, analytical(case)) for seen in (case, blind))
    np.testing.assert_array_equal(first.curve_s, again.curve_s)


def test_toy_optimum_is_found() -> None:
    # By brute force over all placements of the four default kernels on three chips.
    case = toy_case()
    problem = placement_problem(case.graph, case.target, case.fusion_group)
    units = np.array(list(itertools.product(range(3), repeat=4)), dtype=np.int32)
    valid = units[broken_rules(problem, units) == 0][:, problem.unit_of_op]
    plans = (np.tile(array, (len(valid), 1)) for array in (case.order, case.fusion_group))
    optimum_s = analytical(case)(valid, *plans).min()
    for name in ("random", "annealing", "greedy + annealing", "slice", "genetic"):
        assert METHODS[name].run(case, 200, 0).curve_s[-1] == pytest.approx(optimum_s), name
    start = np.zeros(6, dtype=np.int32)
    annealed = anneal_placement(case, start, case.order, case.fusion_group, moves=2000, seed=0)
    assert annealed.interval_s == pytest.approx(optimum_s)


def test_first_genomes_are_the_defaults() -> None:
    case = instance(load_zoo("dlrm_kaggle"), load_target("mcm-6x6"))
    sliced_s = METHODS["slice"].run(case, 1, 0).curve_s[0]
    for name in ("genetic", "genetic, structured start", "genetic, feature mix", "genetic, fusion too"):
        assert METHODS[name].run(case, 1, 0).curve_s[0] == sliced_s


@settings(max_examples=examples(8))
@given(seed=seeds)
def test_direct_annealing_never_loses_and_stays_valid(seed: int) -> None:
    case = random_case(seed)
    run = METHODS["random"].run(case, 4, seed)
    assert run.best is not None
    placement, order, group = run.best
    annealed = anneal_placement(case, placement, order, group, moves=300, seed=seed)
    assert annealed.interval_s <= run.curve_s[-1]
    assert math.isclose(
        analytical(case)(annealed.placement[None], order[None], group[None])[0], annealed.interval_s
    )
    plan = make_plan(case.graph, case.target, annealed.placement, order=order, fusion_group=group)
    assert verify(case.graph, case.target, plan) == []
