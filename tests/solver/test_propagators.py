"""Each propagator alone: it keeps every valid placement, and its rule follows where it must."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.model.builder import GraphBuilder
from go_opt.solver.problem.problem import placement_problem
from go_opt.solver.propagation import search
from go_opt.solver.propagation.propagators.tables import rule_tables
from go_opt.solver.propagation.search import Solver
from tests.solver.placements import (
    RULES,
    capacity_holds,
    holds,
    no_skip_holds,
    random_problem,
    triangle_holds,
    valid_placements,
)
from tests.strategies import examples, seeds, small_mcm


def chain_graph(edges: list[tuple[int, int]]):
    """Ops o0, o1, …, and an edge for each pair."""
    b = GraphBuilder("by hand")
    for op in range(max(itertools.chain(*edges)) + 1):
        reads = [(f"t{source}", None) for source, reader in edges if reader == op]
        b.add_op(
            f"o{op}", "Relu", "vector", flops=1, dtype="int8", reads=reads, writes=[(f"t{op}", 1, "int8")]
        )  # fmt: skip
    return b.build()


def tables_by_hand(edges, num_chips, **rules):
    return rule_tables(placement_problem(chain_graph(edges), small_mcm(num_chips, **rules)))


@pytest.mark.parametrize("rules", RULES)
@given(seed=seeds)
@settings(max_examples=examples(10))
def test_implied_rules_hold_in_every_valid_placement(rules, seed: int) -> None:
    tables = rule_tables(random_problem(np.random.default_rng(seed), rules))
    for placement in valid_placements(tables):
        chips = np.array(placement, np.int32)
        source, reader = tables.edges()
        assert (chips[reader] - chips[source] <= tables.succ_span).all()
        edge = np.repeat(np.arange(len(tables.succ)), np.diff(tables.between_ptr))
        ends = np.stack([chips[tables.succ_source[edge]], chips[tables.succ[edge]]])
        assert (chips[tables.between] == ends).any(axis=0).all()


def test_span_by_hand() -> None:
    # o0 -> o1 -> o3 and o0 -> o2 -> o3. Beside o0 -> o1 only o2 may fill a chip: span 2.
    tables = tables_by_hand([(0, 1), (1, 3), (0, 2), (2, 3)], 4)
    spans = {(int(u), int(v)): int(s) for u, v, s in zip(*tables.edges(), tables.succ_span, strict=True)}
    assert spans == {(0, 1): 2, (0, 2): 2, (1, 3): 2, (2, 3): 2}


def test_span_counts_units_between_unless_the_triangle_forbids_them() -> None:
    edges = [(0, 1), (1, 2), (0, 2)]
    assert list(tables_by_hand(edges, 4).succ_span) == [1, 1, 1]
    assert list(tables_by_hand(edges, 4, triangle="off").succ_span) == [1, 2, 1]
    assert list(tables_by_hand(edges, 4, no_skip="off", triangle="off").succ_span) == [3, 3, 3]


def test_between_by_hand() -> None:
    # o0 -> o1 -> o2 -> o4 with o0 -> o4; o3 -> o4 is free to fill the chip in between.
    tables = tables_by_hand([(0, 1), (1, 2), (2, 4), (0, 4), (3, 4)], 3)
    solver = Solver(tables)
    solver.set_domain(4, 2)
    solver.set_domain(0, 0)
    assert list(solver.get_domain(1)) == [0, 2]
    assert list(solver.get_domain(3)) == [1]


def test_a_chip_that_one_unit_can_fill_takes_it() -> None:
    solver = Solver(tables_by_hand([(0, 1), (1, 2)], 3, no_skip="all"))
    assert list(solver.placement) == [0, 1, 2]
    assert solver.is_complete


def test_two_chips_need_two_units() -> None:
    # With o0 on chip 0 and o3 on chip 3, chips 1 and 2 are open to o1 alone: each has a unit to
    # fill it, together they have not.
    tables = tables_by_hand([(0, 1), (1, 3), (2, 3)], 4, triangle="off")
    solver = Solver(tables)
    assert solver.set_domain(0, 0) == 1
    assert solver.set_domain(2, 0) == 2
    assert solver.set_domain(3, 3) == 2
    assert list(solver.get_domain(3)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("rule", "placement", "is_valid"),
    [
        # o0 -> o1 -> o2 -> o3 and o0 -> o3.
        ("longest_path", [0, 1, 2, 3], False),
        ("three_chip", [0, 1, 2, 3], True),  # no third chip is next to both ends
        ("three_chip", [0, 0, 1, 2], False),
        ("longest_path", [0, 0, 1, 1], True),
        ("adjacent", [0, 0, 1, 2], False),
        ("off", [0, 1, 2, 3], True),
    ],
)
def test_triangle_by_hand(rule: str, placement: list[int], is_valid: bool) -> None:
    tables = tables_by_hand([(0, 1), (1, 2), (2, 3), (0, 3)], 4, triangle=rule)
    chips = np.array(placement, np.int32)
    assert triangle_holds(tables, chips) == is_valid
    assert holds(tables, chips) == search.holds(tables, chips) == is_valid


def test_rules_by_hand() -> None:
    tables = tables_by_hand([(0, 1)], 3)
    for check in (holds, search.holds):
        assert check(tables, np.array([0, 1], np.int32))
        assert not check(tables, np.array([1, 0], np.int32))
        assert not check(tables, np.array([0, 2], np.int32))
    assert not no_skip_holds(tables, np.array([0, 2], np.int32))


@pytest.mark.parametrize("looks_far", [True, False])
@given(seed=seeds)
@settings(max_examples=examples(20))
def test_looking_less_far_finds_the_same(looks_far: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tables = rule_tables(random_problem(rng))
    nothing = np.zeros(len(tables.between_ptr), np.int64)
    none = np.zeros(0, np.int64)
    around = np.zeros(tables.num_units + 1, np.int64)
    less = tables._replace(
        looks_far=looks_far, between_ptr=nothing, between=none, around_ptr=around, around=none
    )
    assert by_lowest_first(less) == valid_placements(tables)


@given(seed=seeds)
@settings(max_examples=examples(40))
def test_capacity_with_shared_weights(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tables = rule_tables(random_problem(rng))
    rows = [rng.choice(4, int(rng.integers(0, 3)), replace=False) for _ in range(tables.num_units)]
    most = float(rng.integers(2, 12))
    limited = tables._replace(
        limit_chip=np.array([0, 1], np.int64),
        limit_most=np.array([most, np.inf]),
        limit_least=np.array([0.0, float(rng.integers(0, 4))]),
        limit_amount=rng.integers(0, 3, (2, tables.num_units)).astype(np.float64),
        limit_shares=np.array([True, bool(rng.integers(2))]),
        item_ptr=np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64),
        item=np.concatenate([np.zeros(0, np.int64), *rows]).astype(np.int64),
        item_amount=rng.integers(0, 6, 4).astype(np.float64),
    )
    found = by_lowest_first(limited)
    assert found == valid_placements(limited)
    assert all(capacity_holds(limited, np.array(row, np.int32)) for row in found)


def by_lowest_first(tables):
    solver, found = Solver(tables), set()
    while not solver.is_exhausted:
        if solver.is_complete:
            found.add(tuple(int(chip) for chip in solver.placement))
            solver.reject()
        else:
            unit = int(np.flatnonzero(solver.store.size > 1)[0])
            solver.set_domain(unit, int(solver.get_domain(unit)[0]))
    return found
