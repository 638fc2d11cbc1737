"""Down-sets and the exact dynamic program on a ring: by hand, and against every placement."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.env import CostTables, Target, cost_tables
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import INPUT, Graph
from go_opt.solver import PlacementProblem, placement_problem
from go_opt.solver.exact.down_sets import DownSetOptimum, cheapest_chain, down_set_optimum
from go_opt.solver.exact.lattice import DownSets, all_down_sets, prefix_sets
from go_opt.solver.exact.ring import ring_problem
from go_opt.solver.problem.passing import Passing
from tests.solver.brute_force import all_placements, evaluate_placements, plenty_of_memory
from tests.strategies import chip_kind, examples, random_graph, random_target, seeds, small_mcm, toy_graph

MANY = 100_000


def members(sets: DownSets, num_units: int) -> list[frozenset[int]]:
    bits = np.unpackbits(sets.words.view(np.uint8), axis=1, bitorder="little")[:, :num_units]
    return [frozenset(np.flatnonzero(row).tolist()) for row in bits]


def closed_sets(units: PlacementProblem) -> set[frozenset[int]]:
    """Every set of units that holds what its units read, by trying all sets."""
    reads = [
        set(units.predecessor[units.predecessor_ptr[u] : units.predecessor_ptr[u + 1]].tolist())
        for u in range(units.num_units)
    ]
    return {
        frozenset(chosen)
        for size in range(units.num_units + 1)
        for chosen in itertools.combinations(range(units.num_units), size)
        if all(reads[u] <= set(chosen) for u in chosen)
    }


def measured(seconds: Sequence[float], edges: Sequence[tuple[int, int, int]]) -> Graph:
    """Ops of measured seconds; an edge carries so many bytes of its own."""
    b = GraphBuilder("measured")
    for op, op_s in enumerate(seconds):
        b.add_op(
            f"op{op}", "Add", "vector", flops=0, dtype="int8",
            reads=[(f"t{i}", None) for i, edge in enumerate(edges) if edge[1] == op],
            writes=[(f"t{i}", size, "int8") for i, (source, _, size) in enumerate(edges) if source == op],
            measured_s={"chip": op_s},
        )  # fmt: skip
    return b.build()


def best_s(tables: CostTables, graph: Graph, passing: Passing) -> float:
    """Over all placements of ops in which no edge leads back, or (adjacent) past a chip."""
    placements = all_placements(graph, tables)
    span = placements[:, graph.edge_dst] - placements[:, graph.edge_src]
    legal = (span >= 0).all(axis=1)
    if passing == "adjacent":
        legal &= (span <= 1).all(axis=1)
    ops = np.arange(graph.num_ops, dtype=np.int32)
    return float(evaluate_placements(tables, placements[legal], ops, ops).interval_s.min())


@settings(max_examples=examples(100))
@given(seed=seeds)
def test_all_down_sets(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, int(rng.integers(1, 11)))
    units = placement_problem(graph, small_mcm())
    sets = all_down_sets(units, MANY)
    assert sets is not None
    found = members(sets, units.num_units)
    assert len(found) == len(set(found))
    assert set(found) == closed_sets(units)
    assert [len(f) for f in found] == sorted(len(f) for f in found)
    for i, here in enumerate(found):
        row = slice(sets.cover_ptr[i], sets.cover_ptr[i + 1])
        after = {found[j] for j in sets.cover[row]}
        assert after == {f for f in found if len(f) == len(here) + 1 and here < f}
        assert [found[j] - here for j in sets.cover[row]] == [{u} for u in sets.cover_unit[row]]
    assert all_down_sets(units, sets.num_sets) is not None
    assert all_down_sets(units, sets.num_sets - 1) is None


def test_there_is_room_for_more_than_fit_at_first() -> None:
    # 70 ops in a row beside 70 in a row: 71 x 71 down-sets, of more than one word each.
    edges = [(i, i + 1, 0) for i in range(139) if i != 69]
    units = placement_problem(measured([1.0] * 140, edges), small_mcm())
    sets = all_down_sets(units, MANY)
    assert sets is not None
    assert sets.num_sets == 71 * 71
    assert all_down_sets(units, 71 * 71 - 1) is None


def test_prefixes_of_an_order() -> None:
    sets = prefix_sets(np.array([2, 0, 1], np.int32))
    assert members(sets, 3) == [set(), {2}, {0, 2}, {0, 1, 2}]
    assert list(sets.cover_unit) == [2, 0, 1]
    assert list(sets.cover) == [1, 2, 3]


def on_ring(graph: Graph, target: Target, passing: Passing, upper_s: float = np.inf) -> DownSetOptimum:
    problem = ring_problem(cost_tables(graph, target), placement_problem(graph, target), passing=passing)
    found = down_set_optimum(problem, max_ideals=MANY, upper_s=upper_s)
    assert found is not None
    return found


def test_two_rows_by_hand() -> None:
    # x1 (4 s) -> x2 (3 s) and y1 (1 s) -> y2 (2 s); the edges take 1 s and 2 s over a link.
    graph = measured([4, 3, 1, 2], [(0, 1, 10**8), (2, 3, 2 * 10**8)])
    # {x1, y1} and {x2, y2} are 5 s each; the default order is no better than {x1}, {x2, y1, y2}.
    best = on_ring(graph, small_mcm(2), "free")
    assert best.objective_s == pytest.approx(5.0)
    assert list(best.placement) == [0, 1, 0, 1]
    problem = ring_problem(
        cost_tables(graph, small_mcm(2)), placement_problem(graph, small_mcm(2)), passing="free"
    )
    assert cheapest_chain(problem, prefix_sets(np.arange(4, dtype=np.int32))).objective_s == pytest.approx(6)
    # Summed, that is 8 s with what crosses; {x1}, {x2, y1, y2} is 7 s.
    assert on_ring(graph, small_mcm(2, overlap=False), "free").objective_s == pytest.approx(7.0)


def test_a_residual_by_hand() -> None:
    # a -> b -> c of 2 s each, and a -> c: on three chips it passes chip 1.
    graph = measured([2, 2, 2], [(0, 1, 0), (1, 2, 0), (0, 2, 10**8)])
    assert on_ring(graph, small_mcm(3), "free").objective_s == pytest.approx(2.0)
    assert on_ring(graph, small_mcm(3), "adjacent").objective_s == pytest.approx(4.0)
    # Summed, chip 1 takes the tensor and sends it on: 2 + 1 + 1 s; so do two chips, 4 + 1 s.
    summed = small_mcm(3, overlap=False)
    assert on_ring(graph, summed, "free").objective_s == pytest.approx(4.0)
    assert on_ring(graph, summed, "adjacent").objective_s == pytest.approx(5.0)


def test_a_bound_from_elsewhere_is_proven_or_beaten() -> None:
    graph, target = toy_graph(), small_mcm(3)
    best = on_ring(graph, target, "free")
    assert on_ring(graph, target, "free", best.objective_s).placement is None
    again = on_ring(graph, target, "free", best.objective_s * 1.001)
    assert again.objective_s == best.objective_s
    problem = ring_problem(cost_tables(graph, target), placement_problem(graph, target), passing="free")
    assert down_set_optimum(problem, max_ideals=3) is None


def test_what_the_ring_does_not_know() -> None:
    tables = cost_tables(toy_graph(), small_mcm())
    units = placement_problem(toy_graph(), small_mcm())
    with pytest.raises(ValueError, match="relays"):
        ring_problem(tables, units, passing="relayed")
    kinds = [chip_kind("a"), chip_kind("b")]
    with pytest.raises(ValueError, match="one kind"):
        ring_problem(cost_tables(toy_graph(), small_mcm(kinds=kinds)), units, passing="free")


@settings(max_examples=examples(200))
@given(seed=seeds)
def test_ring_against_every_placement(seed: int) -> None:
    rng = np.random.default_rng(seed)
    topology = ("ring", "chain")[int(rng.integers(2))]
    target = random_target(
        rng, topology=topology, num_kinds=1, num_chips=int(rng.integers(1, 4)), overlap=bool(rng.integers(2))
    )
    graph = random_graph(rng, int(rng.integers(1, 7)))
    tables = plenty_of_memory(cost_tables(graph, target))
    units = placement_problem(graph, target)
    ops = np.arange(graph.num_ops, dtype=np.int32)
    passings: tuple[Passing, ...] = ("free", "adjacent")
    for passing in passings:
        truth = best_s(tables, graph, passing)
        problem = ring_problem(tables, units, passing=passing)
        found = down_set_optimum(problem, max_ideals=MANY)
        assert found is not None
        assert found.placement is not None
        assert found.objective_s <= truth * (1 + 1e-9)
        readers = np.diff(tables.reader_ptr)[tables.tensor_kind == INPUT]
        if tables.overlap or (readers <= 1).all():
            assert found.objective_s == pytest.approx(truth, rel=1e-9)
            cost = evaluate_placements(tables, found.placement[None], ops, ops).interval_s[0]
            assert cost == pytest.approx(truth, rel=1e-9)
        span = found.placement[graph.edge_dst] - found.placement[graph.edge_src]
        assert (span >= 0).all()
        assert passing == "free" or (span <= 1).all()
        along = cheapest_chain(problem, prefix_sets(units.topological))
        assert along.objective_s >= found.objective_s * (1 - 1e-9)
