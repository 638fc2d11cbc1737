"""Annealing on placements, against states made from scratch, the environment and brute force."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray

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
from go_opt.solver.annealing.columns import (
    ALL_OVER,
    CHIP,
    CHIP_COLUMNS,
    FIRST,
    FOLLOWING,
    HELD,
    LINK,
    NONE,
    NUM_LOADS,
    OVER,
    RELAYED,
    RELAYS,
    SECONDS,
    STREAM,
    WEIGHTS,
    AnnealingState,
)
from go_opt.solver.problem.passing import Passing
from tests.strategies import examples, make_plan, random_graph, random_target, seeds, small_mcm, toy_graph

IntArray = NDArray[np.int32]
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


def _state(
    tables: CostTables,
    problem: PlacementProblem,
    order: IntArray,
    group: IntArray,
    passing: Passing,
    units: NDArray,
) -> AnnealingState:
    placement = units[problem.unit_of_op]
    return Annealing(tables, problem, order, group, placement, passing=passing, moves=0, seed=0)._state


def _along_chips(state: AnnealingState) -> list[list[int]]:
    chains = []
    for chip in range(len(state.chips)):
        chains.append([])
        unit = state.chips[chip, FIRST]
        while unit != NONE:
            chains[-1].append(int(unit))
            unit = state.units[unit, FOLLOWING]
    return chains


@pytest.mark.parametrize("passing", PASSINGS)
@settings(max_examples=examples(30))
@given(seed=seeds)
def test_after_many_moves_the_state_is_that_from_scratch(passing: Passing, seed: int) -> None:
    rng = np.random.default_rng(seed)
    _, _, tables, order, group, problem = _case(rng, passing)
    chain = Annealing(
        tables, problem, order, group, np.zeros(len(order), np.int32), passing=passing, moves=2000, seed=seed
    )
    for _ in range(4):
        chain.run(500)
        moved = chain._state
        units = moved.units[:-1, CHIP]
        state = _state(tables, problem, order, group, passing, units)
        np.testing.assert_array_equal(moved.chips[:, :NUM_LOADS], state.chips[:, :NUM_LOADS])
        np.testing.assert_array_equal(moved.tensors, state.tensors)
        np.testing.assert_array_equal(moved.readers_on, state.readers_on)
        np.testing.assert_array_equal(moved.terms[SECONDS], state.terms[SECONDS])
        assert _along_chips(moved) == _along_chips(state)
        assert not broken_rules(problem, units[None].astype(np.int32))[0]
        best = chain.best
        best_units = np.zeros(problem.num_units, np.int32)
        best_units[problem.unit_of_op] = best.placement
        assert not broken_rules(problem, best_units[None])[0]
        if np.isfinite(best.objective_s):
            at_best = _state(tables, problem, order, group, passing, best_units)
            assert at_best.terms[SECONDS].max() == best.objective_s


@pytest.mark.parametrize("passing", ["adjacent", "free"])
@settings(max_examples=examples(60))
@given(seed=seeds)
def test_terms_are_those_of_the_environment(passing: Passing, seed: int) -> None:
    rng = np.random.default_rng(seed)
    _, _, tables, order, group, problem = _case(rng, passing)
    chain = Annealing(
        tables,
        problem,
        order,
        group,
        np.zeros(len(order), np.int32),
        passing=passing,
        moves=300,
        seed=seed,
        hot=5.0,
    )
    chain.run(300)
    state = chain._state
    placement = state.units[problem.unit_of_op, CHIP].astype(np.int32)
    exact = evaluate_batch(tables, placement[None], order[None], group[None])
    chips = len(state.chips)
    np.testing.assert_array_equal(state.chips[:, STREAM], exact.stream_bytes[0])
    np.testing.assert_array_equal(
        state.chips[:, OVER], np.maximum(exact.peak_bytes[0] - tables.sram_bytes, 0)
    )
    if tables.overlap:
        np.testing.assert_allclose(state.terms[SECONDS, :chips], exact.compute_s[0])
        np.testing.assert_allclose(state.terms[SECONDS, chips : 2 * chips - 1], exact.link_s[0, : chips - 1])
        np.testing.assert_allclose(state.terms[SECONDS, -2:], exact.link_s[0, -2:])
    np.testing.assert_allclose(state.terms[SECONDS].max(), exact.interval_s[0])
    if exact.fits[0]:
        assert chain.best.objective_s <= exact.interval_s[0] * (1 + 1e-12)


@settings(max_examples=examples(60))
@given(seed=seeds)
def test_relays_by_their_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph, target, tables, order, group, problem = _case(rng, "relayed")
    chain = Annealing(
        tables,
        problem,
        order,
        group,
        np.zeros(len(order), np.int32),
        passing="relayed",
        moves=300,
        seed=seed,
        hot=5.0,
    )
    chain.run(300)
    state = chain._state
    placement = state.units[problem.unit_of_op, CHIP]
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
    np.testing.assert_array_equal(state.chips[:, [RELAYED, RELAYS]], copies)
    np.testing.assert_array_equal(state.chips[:, HELD], held)
    np.testing.assert_array_equal(state.chips[:, LINK], links)
    # And by the environment, where the rules ask for a relay on every chip that is passed.
    relays = relays_of_arrays(graph, *needed_relays(tables, placement.astype(np.int32), "adjacent"))
    plan = replace(make_plan(graph, target, placement, order=order, fusion_group=group), relays=relays)
    metrics = evaluate_plan(graph, target, plan)
    np.testing.assert_array_equal(state.chips[:, STREAM], metrics.stream_bytes)
    over = np.maximum(metrics.peak_bytes - target.chip_sram_bytes, 0)
    np.testing.assert_array_equal(state.chips[:, OVER], over)
    np.testing.assert_allclose(state.terms[SECONDS].max(), metrics.interval_s)
    if tables.overlap:
        np.testing.assert_allclose(state.terms[SECONDS, : len(state.chips)], metrics.compute_s)


@pytest.mark.parametrize("passing", PASSINGS)
@settings(max_examples=examples(15))
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
        _state(tables, problem, order, order, passing, placement).terms[SECONDS].max() for placement in valid
    )
    found = anneal(
        tables,
        problem,
        order,
        order,
        np.zeros(graph.num_ops, np.int32),
        passing=passing,
        moves=4000,
        seed=seed,
    )
    assert found.objective_s == least_s
    assert found.moves == 4000


@pytest.mark.parametrize("passing", PASSINGS)
def test_same_seed_same_answer_in_slices_of_any_size(passing: Passing) -> None:
    rng = np.random.default_rng(7)
    _, _, tables, order, group, problem = _case(rng, passing, num_chips=5)
    start = np.zeros(len(order), np.int32)
    whole = anneal(tables, problem, order, group, start, passing=passing, moves=3000, seed=1)
    chain = Annealing(tables, problem, order, group, start, passing=passing, moves=3000, seed=1)
    for moves in (1, 999, 17, 1983):
        chain.run(moves)
    np.testing.assert_array_equal(chain.best.placement, whole.placement)
    assert chain.best.objective_s == whole.objective_s
    assert chain.best.moves == 3000


def test_chips_that_are_not_allowed_are_not_used() -> None:
    graph, target = toy_graph(), small_mcm(4, triangle="off")
    tables, order = cost_tables(graph, target), np.arange(graph.num_ops, dtype=np.int32)
    problem = placement_problem(graph, target)
    allowed = np.ones((graph.num_ops, 4), dtype=np.bool_)
    allowed[2] = [True, False, False, False]  # relu, and so all it reads, stays on chip 0
    allowed[5, 2] = False
    chain = Annealing(
        tables,
        problem,
        order,
        order,
        np.zeros(6, np.int32),
        passing="free",
        moves=1000,
        seed=0,
        hot=5.0,
        allowed=allowed,
    )
    seen = set()
    for _ in range(200):
        chain.run(5)
        placement = chain._state.units[:-1, CHIP]
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
    chain = Annealing(tables, problem, order, order, start, passing="free", moves=1000, seed=0, hot=5.0)
    used = set()
    for _ in range(300):
        chain.run(3)
        placement = chain._state.units[:-1, CHIP].astype(np.int32)
        assert not broken_rules(problem, placement[None])[0]
        used.add(tuple(np.unique(placement)))
    allowed = {"prefix": {(0,), (0, 1), (0, 1, 2)}, "all": {(0, 1, 2)}}
    assert used == allowed[no_skip] if no_skip != "off" else (0, 2) in used


def test_activations_that_do_not_fit_are_left_first() -> None:
    # All on one chip the activations need more than it has; on three they fit.
    graph, target = toy_graph(), small_mcm(3, triangle="off", sram_bytes=9000)
    tables, order = cost_tables(graph, target), np.arange(graph.num_ops, dtype=np.int32)
    problem = placement_problem(graph, target)
    chain = Annealing(tables, problem, order, order, np.zeros(6, np.int32), passing="free", moves=500, seed=0)
    chain.run(500)
    placement = chain.best.placement[None]
    exact = evaluate_batch(tables, placement, order[None], order[None])
    assert exact.fits[0]
    assert chain.best.objective_s == pytest.approx(exact.interval_s[0])
    assert chain._state.numbers[ALL_OVER] == 0
    assert chain._state.chips.shape == (3, CHIP_COLUMNS)
    assert chain._state.chips[:, WEIGHTS].max() <= 14000


def test_where_nothing_costs_anything_nothing_moves() -> None:
    graph, target = toy_graph(), small_mcm(2)
    tables, order = cost_tables(graph, target), np.arange(graph.num_ops, dtype=np.int32)
    free = tables._replace(
        measured_s=np.zeros_like(tables.measured_s), host_in_s_per_byte=0.0, host_out_s_per_byte=0.0
    )
    problem = placement_problem(graph, target)
    start = np.zeros(graph.num_ops, np.int32)
    found = anneal(free, problem, order, order, start, passing="adjacent", moves=500, seed=0)
    assert found.objective_s == 0.0
    assert (found.placement == 0).all()
