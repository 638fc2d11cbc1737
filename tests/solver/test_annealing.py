"""Annealing on placements, against states made from scratch, the environment and brute force."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray

from go_opt.common.arrays import IntArray
from go_opt.env import (
    CostTables,
    Target,
    cost_tables,
    evaluate_batch,
    evaluate_plan,
    greedy_fusion,
    loop_roles,
)
from go_opt.model.graph import NO_PRODUCER, WEIGHT, Graph
from go_opt.solver import PlacementProblem, broken_rules, needed_relays, placement_problem, relays_of_arrays
from go_opt.solver.annealing.anneal import Annealing, anneal
from go_opt.solver.annealing.records import CHIP, NONE, AnnealingState
from go_opt.solver.annealing.tables import AnnealingProblem
from go_opt.solver.problem.passing import Passing
from tests.strategies import (
    JIT_IS_ON,
    examples,
    make_plan,
    random_graph,
    random_target,
    seeds,
    small_mcm,
    toy_graph,
)

PASSINGS: tuple[Passing, ...] = ("adjacent", "relayed", "free")
TRIANGLE = {"adjacent": "adjacent", "relayed": "off", "free": "off"}


def _case(
    rng: np.random.Generator, passing: Passing, **changes: object
) -> tuple[Graph, Target, CostTables, IntArray, IntArray, PlacementProblem]:
    graph = random_graph(rng, int(rng.integers(2, 25)))
    target = random_target(rng, topology="chain", triangle=TRIANGLE[passing], **changes)
    order = np.arange(graph.num_ops, dtype=np.int32)
    group = greedy_fusion(loop_roles(graph), order) if rng.random() < 0.7 else order
    return graph, target, cost_tables(graph, target), order, group, placement_problem(graph, target, group)


def _started(
    tables: CostTables,
    problem: PlacementProblem,
    order: IntArray,
    group: IntArray,
    passing: Passing,
    units: NDArray,
) -> Annealing:
    annealed = AnnealingProblem(tables, problem, order, group, passing)
    return Annealing(annealed, units[problem.unit_of_op], moves=0, seed=0)


def _along_chips(state: AnnealingState) -> list[list[int]]:
    chains = []
    for chip in range(len(state.chips)):
        chains.append([])
        unit = int(state.chips[chip].first)
        while unit != NONE:
            chains[-1].append(unit)
            unit = int(state.units[unit].following)
    return chains


@pytest.mark.parametrize("passing", PASSINGS)
@settings(max_examples=examples(30))
@given(seed=seeds)
def test_after_many_moves_the_state_is_that_from_scratch(passing: Passing, seed: int) -> None:
    rng = np.random.default_rng(seed)
    _, _, tables, order, group, problem = _case(rng, passing)
    annealed = AnnealingProblem(tables, problem, order, group, passing)
    chain = Annealing(annealed, np.zeros(len(order), np.int32), moves=2000, seed=seed)
    for _ in range(4):
        chain.run(500)
        moved = chain._state
        units = moved.units["chip"][:-1]
        started = _started(tables, problem, order, group, passing, units)
        state = started._state
        for field in CHIP.names or ():
            if not field.startswith("old_"):
                np.testing.assert_array_equal(moved.chips[field], state.chips[field])
        np.testing.assert_array_equal(moved.tensors, state.tensors)
        np.testing.assert_array_equal(moved.readers_on, state.readers_on)
        np.testing.assert_array_equal(chain._prices.terms["seconds"], started._prices.terms["seconds"])
        assert _along_chips(moved) == _along_chips(state)
        assert not broken_rules(problem, units[None].astype(np.int32))[0]
        best = chain.best
        best_units = np.zeros(problem.num_units, np.int32)
        best_units[problem.unit_of_op] = best.placement
        assert not broken_rules(problem, best_units[None])[0]
        if np.isfinite(best.objective_s):
            at_best = _started(tables, problem, order, group, passing, best_units)
            assert at_best._prices.terms["seconds"].max() == best.objective_s


@pytest.mark.parametrize("passing", ["adjacent", "free"])
@settings(max_examples=examples(60))
@given(seed=seeds)
def test_terms_are_those_of_the_environment(passing: Passing, seed: int) -> None:
    rng = np.random.default_rng(seed)
    _, _, tables, order, group, problem = _case(rng, passing)
    annealed = AnnealingProblem(tables, problem, order, group, passing)
    chain = Annealing(annealed, np.zeros(len(order), np.int32), moves=300, seed=seed, hot=5.0)
    chain.run(300)
    state, seconds = chain._state, chain._prices.terms["seconds"]
    placement = state.units["chip"][problem.unit_of_op].astype(np.int32)
    exact = evaluate_batch(tables, placement[None], order[None], group[None])
    chips = len(state.chips)
    np.testing.assert_array_equal(state.chips["stream_bytes"], exact.stream_bytes[0])
    np.testing.assert_array_equal(
        state.chips["over_bytes"], np.maximum(exact.peak_bytes[0] - tables.sram_bytes, 0)
    )
    if tables.overlap:
        np.testing.assert_allclose(seconds[:chips], exact.compute_s[0])
        np.testing.assert_allclose(seconds[chips : 2 * chips - 1], exact.link_s[0, : chips - 1])
        np.testing.assert_allclose(seconds[-2:], exact.link_s[0, -2:])
    np.testing.assert_allclose(seconds.max(), exact.interval_s[0])
    if exact.fits[0]:
        assert chain.best.objective_s <= exact.interval_s[0] * (1 + 1e-12)


@settings(max_examples=examples(60))
@given(seed=seeds)
def test_relays_by_their_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph, target, tables, order, group, problem = _case(rng, "relayed")
    annealed = AnnealingProblem(tables, problem, order, group, "relayed")
    chain = Annealing(annealed, np.zeros(len(order), np.int32), moves=300, seed=seed, hot=5.0)
    chain.run(300)
    state, seconds = chain._state, chain._prices.terms["seconds"]
    placement = state.units["chip"][problem.unit_of_op]
    copies = np.zeros((len(state.chips), 2), np.int64)
    held = np.zeros(len(state.chips), np.int64)
    links = np.zeros(len(state.chips), np.int64)
    for k in range(graph.num_tensors):
        size, producer = tables.tensor_bytes[k], tables.tensor_producer[k]
        chips = set(placement[tables.reader_op[tables.reader_ptr[k] : tables.reader_ptr[k + 1]]].tolist())
        if tables.tensor_kind[k] == WEIGHT:
            continue
        if producer == NO_PRODUCER:
            for chip in chips:
                held[chip] += 2 * size
            continue
        home = placement[producer]
        far = max(chips, default=home)
        for chip in range(home + 1, far):
            copies[chip] += (size, 1)
        for chip in range(home, far):
            links[chip] += size
            held[chip + 1] += 2 * size
        if far > home or tables.tensor_is_output[k]:
            held[home] += 2 * size
    np.testing.assert_array_equal(state.chips["relayed_bytes"], copies[:, 0])
    np.testing.assert_array_equal(state.chips["relays"], copies[:, 1])
    np.testing.assert_array_equal(state.chips["held_bytes"], held)
    np.testing.assert_array_equal(state.chips["link_bytes"], links)
    # And by the environment, where the rules ask for a relay on every chip that is passed.
    relays = relays_of_arrays(graph, *needed_relays(tables, placement.astype(np.int32), "adjacent"))
    plan = replace(make_plan(graph, target, placement, order=order, fusion_group=group), relays=relays)
    metrics = evaluate_plan(graph, target, plan)
    np.testing.assert_array_equal(state.chips["stream_bytes"], metrics.stream_bytes)
    over = np.maximum(metrics.peak_bytes - target.chip_sram_bytes, 0)
    np.testing.assert_array_equal(state.chips["over_bytes"], over)
    np.testing.assert_allclose(seconds.max(), metrics.interval_s)
    if tables.overlap:
        np.testing.assert_allclose(seconds[: len(state.chips)], metrics.compute_s)


@pytest.mark.skipif(not JIT_IS_ON, reason="long walks")
@pytest.mark.parametrize("passing", PASSINGS)
@settings(max_examples=15)
@given(seed=seeds)
def test_the_optimum_of_small_problems(passing: Passing, seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, int(rng.integers(2, 7)))
    target = small_mcm(3, triangle=TRIANGLE[passing], overlap=bool(rng.integers(2)), sram_bytes=10**6)
    tables, order = cost_tables(graph, target), np.arange(graph.num_ops, dtype=np.int32)
    problem = placement_problem(graph, target)
    units = np.array(list(itertools.product(range(3), repeat=graph.num_ops)), dtype=np.int32)
    valid = units[broken_rules(problem, units) == 0]
    least_s = min(
        _started(tables, problem, order, order, passing, placement)._prices.terms["seconds"].max()
        for placement in valid
    )
    annealed = AnnealingProblem(tables, problem, order, order, passing)
    found = anneal(annealed, np.zeros(graph.num_ops, np.int32), moves=4000, seed=seed)
    assert found.objective_s == least_s
    assert found.moves == 4000


@pytest.mark.parametrize("passing", PASSINGS)
def test_same_seed_same_answer_in_slices_of_any_size(passing: Passing) -> None:
    rng = np.random.default_rng(7)
    _, _, tables, order, group, problem = _case(rng, passing, num_chips=5)
    start = np.zeros(len(order), np.int32)
    annealed = AnnealingProblem(tables, problem, order, group, passing)
    whole = anneal(annealed, start, moves=600, seed=1)
    chain = Annealing(annealed, start, moves=600, seed=1)
    for moves in (1, 199, 17, 383):
        chain.run(moves)
    np.testing.assert_array_equal(chain.best.placement, whole.placement)
    assert chain.best.objective_s == whole.objective_s
    assert chain.best.moves == 600


def test_chips_that_are_not_allowed_are_not_used() -> None:
    graph, target = toy_graph(), small_mcm(4, triangle="off")
    tables, order = cost_tables(graph, target), np.arange(graph.num_ops, dtype=np.int32)
    problem = placement_problem(graph, target)
    allowed = np.ones((graph.num_ops, 4), dtype=np.bool_)
    allowed[2] = [True, False, False, False]  # relu, and so all it reads, stays on chip 0
    allowed[5, 2] = False
    annealed = AnnealingProblem(tables, problem, order, order, "free", allowed)
    chain = Annealing(annealed, np.zeros(6, np.int32), moves=1000, seed=0, hot=5.0)
    seen = set()
    for _ in range(200):
        chain.run(5)
        placement = chain._state.units["chip"][:-1]
        assert allowed[np.arange(6), placement].all()
        seen.add(tuple(placement))
    assert len(seen) > 3
    assert (chain.best.placement[:3] == 0).all()


@pytest.mark.parametrize("no_skip", ["prefix", "all", "off"])
def test_the_no_skip_rule_in_each_form(no_skip: str) -> None:
    graph, target = toy_graph(), small_mcm(3, triangle="off", no_skip=no_skip)
    tables, order = cost_tables(graph, target), np.arange(graph.num_ops, dtype=np.int32)
    problem = placement_problem(graph, target)
    start = np.array([0, 0, 1, 1, 2, 2], np.int32)
    annealed = AnnealingProblem(tables, problem, order, order, "free")
    chain = Annealing(annealed, start, moves=1000, seed=0, hot=5.0)
    used = set()
    for _ in range(300):
        chain.run(3)
        placement = chain._state.units["chip"][:-1].astype(np.int32)
        assert not broken_rules(problem, placement[None])[0]
        used.add(tuple(np.unique(placement)))
    allowed = {"prefix": {(0,), (0, 1), (0, 1, 2)}, "all": {(0, 1, 2)}}
    assert used == allowed[no_skip] if no_skip != "off" else (0, 2) in used


def test_activations_that_do_not_fit_are_left_first() -> None:
    # All on one chip the activations need more than it has; on three they fit.
    graph, target = toy_graph(), small_mcm(3, triangle="off", sram_bytes=9000)
    tables, order = cost_tables(graph, target), np.arange(graph.num_ops, dtype=np.int32)
    problem = placement_problem(graph, target)
    annealed = AnnealingProblem(tables, problem, order, order, "free")
    chain = Annealing(annealed, np.zeros(6, np.int32), moves=500, seed=0)
    chain.run(500)
    placement = chain.best.placement[None]
    exact = evaluate_batch(tables, placement, order[None], order[None])
    assert exact.fits[0]
    assert chain.best.objective_s == pytest.approx(exact.interval_s[0])
    assert chain._state.run[0].over_bytes == 0
    assert len(chain._state.chips) == 3
    assert chain._state.chips["weight_bytes"].max() <= 14000


def test_where_nothing_costs_anything_nothing_moves() -> None:
    graph, target = toy_graph(), small_mcm(2)
    tables, order = cost_tables(graph, target), np.arange(graph.num_ops, dtype=np.int32)
    free = tables._replace(
        measured_s=np.zeros_like(tables.measured_s), host_in_s_per_byte=0.0, host_out_s_per_byte=0.0
    )
    problem = placement_problem(graph, target)
    start = np.zeros(graph.num_ops, np.int32)
    found = anneal(AnnealingProblem(free, problem, order, order, "adjacent"), start, moves=500, seed=0)
    assert found.objective_s == 0.0
    assert (found.placement == 0).all()
