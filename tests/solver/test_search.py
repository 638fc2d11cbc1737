"""The engine, driven from outside, finds every valid placement and no other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.errors import InvalidInputError
from go_opt.model.builder import GraphBuilder
from go_opt.solver.problem.problem import placement_problem
from go_opt.solver.propagation.propagators.tables import rule_tables
from go_opt.solver.propagation.search import EXHAUSTED, LIMIT_REACHED, Solver
from tests.solver.placements import RULES, random_problem, valid_placements
from tests.strategies import examples, random_graph, seeds, small_mcm, toy_graph


@pytest.mark.parametrize("rules", RULES)
@given(seed=seeds)
@settings(max_examples=examples(15))
def test_finds_every_valid_placement_and_no_other(rules, seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, rules)
    tables = rule_tables(problem)
    assert all_by_search(tables, rng) == valid_placements(tables)


def all_by_search(tables, rng):
    """Random decisions, of one chip or several; a solution is taken back like a contradiction."""
    solver = Solver(tables, max_decisions=tables.num_units * tables.num_chips)
    found = set()
    while not solver.is_exhausted:
        if solver.is_complete:
            placement = tuple(int(chip) for chip in solver.placement)
            assert placement not in found
            found.add(placement)
            solver.reject()
            continue
        unit = int(rng.choice(np.flatnonzero(solver.store.size > 1)))
        chips = solver.get_domain(unit)
        solver.set_domain(unit, rng.choice(chips, int(rng.integers(1, len(chips))), replace=False))
    return found


def test_the_ten_line_loop() -> None:
    rng = np.random.default_rng(1)
    tables = rule_tables(placement_problem(random_graph(rng, 40), small_mcm(6)))
    solver, order = Solver(tables), rng.permutation(40)
    place = 0
    while 0 <= place < len(order):
        unit = int(order[place])
        place = solver.set_domain(unit, int(rng.choice(solver.get_domain(unit))))
    assert solver.is_complete
    assert solver.num_decisions == 40


def test_a_contradiction_returns_to_the_open_decision() -> None:
    # embed -> … -> logits in a chain: with logits on chip 0 every op is on chip 0.
    tables = rule_tables(placement_problem(toy_graph(), small_mcm(2)))
    solver = Solver(tables)
    assert solver.set_domain(0, [0, 1]) == 1
    assert solver.set_domain(5, 0) == 2
    # Decisions 2 and 1 go back: not every op is on chip 0, and chip 1 alone is skipping.
    assert solver.set_domain(3, 1) == 2
    assert list(solver.get_domain(3)) == [0]
    assert solver.backtracks == 1


def test_reset_forgets_all_that_was_excluded() -> None:
    tables = rule_tables(placement_problem(toy_graph(), small_mcm(2)))
    solver = Solver(tables)
    before = [list(solver.get_domain(unit)) for unit in range(6)]
    while not solver.is_exhausted:
        unit = int(np.argmax(solver.store.size))
        if solver.is_complete:
            solver.reject()
        else:
            solver.set_domain(unit, int(solver.get_domain(unit)[0]))
    assert solver.set_domain(0, 0) == EXHAUSTED
    solver.reset()
    assert [list(solver.get_domain(unit)) for unit in range(6)] == before


def test_a_limit_on_backtracks_is_kept() -> None:
    tables = rule_tables(placement_problem(toy_graph(), small_mcm(2)))
    solver = Solver(tables, max_backtracks=0)
    solver.set_domain(5, 0)
    assert solver.set_domain(3, 1) == LIMIT_REACHED
    assert solver.backtracks == 0


def test_unknown_chips_are_an_error() -> None:
    solver = Solver(rule_tables(placement_problem(toy_graph(), small_mcm(2))))
    with pytest.raises(InvalidInputError, match="0 to 1"):
        solver.set_domain(0, 2)


def test_more_than_64_chips() -> None:
    chain = GraphBuilder("chain")
    for op in range(140):
        reads = [(f"t{op - 1}", None)] if op else []
        chain.add_op(
            f"o{op}", "Relu", "vector", flops=1, dtype="int8", reads=reads, writes=[(f"t{op}", 1, "int8")]
        )  # fmt: skip
    solver = Solver(rule_tables(placement_problem(chain.build(), small_mcm(130))))
    assert solver.set_domain(139, 129) == 1
    assert list(solver.get_domain(70)) == list(range(60, 71))
    place = 1
    while 0 <= place < 140:
        place = solver.set_domain(place, int(solver.get_domain(place)[-1]))
    assert solver.is_complete
    assert solver.backtracks == 0
