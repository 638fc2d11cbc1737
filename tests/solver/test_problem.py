"""The placement problem against its definitions, and the most chips against enumeration."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.env import greedy_fusion, load_target, load_zoo, loop_roles
from go_opt.errors import PlanError
from go_opt.solver.problem.problem import (
    NO_SKIP_ALL,
    NO_SKIP_PREFIX,
    TRIANGLE_ADJACENT,
    TRIANGLE_LONGEST_PATH,
    PlacementProblem,
    most_chips_adjacent,
    placement_problem,
    span_from_sources,
)
from tests.solver.adjacent_oracle import adjacent_placements, edges_of
from tests.strategies import (
    chip_kind,
    examples,
    kind_names,
    random_graph,
    random_order,
    random_target,
    seeds,
    small_mcm,
    toy_graph,
)


def test_toy_by_hand() -> None:
    """Residual: embed -> dense -> relu -> mix -> add -> logits, and embed -> add."""
    problem = placement_problem(toy_graph(), small_mcm(3, triangle="adjacent"))
    assert (problem.num_chips, problem.num_units, problem.num_edges) == (3, 6, 6)
    assert problem.unit_of_op.tolist() == [0, 1, 2, 3, 4, 5]
    assert problem.successor_ptr.tolist() == [0, 2, 3, 4, 5, 6, 6]
    assert problem.successor.tolist() == [1, 4, 2, 3, 4, 5]
    assert problem.predecessor_ptr.tolist() == [0, 0, 1, 2, 3, 5, 6]
    assert problem.predecessor.tolist() == [0, 1, 2, 0, 3, 4]
    assert problem.topological.tolist() == [0, 1, 2, 3, 4, 5]
    assert problem.component.tolist() == [0] * 6
    assert problem.acyclic
    assert problem.no_skip == NO_SKIP_PREFIX
    assert problem.triangle == TRIANGLE_ADJACENT
    # embed and add lie at most one chip apart, logits one further on.
    assert most_chips_adjacent(problem) == 3
    assert most_chips_adjacent(problem._replace(num_chips=9)) == 3


def test_kernels_are_numbered_along_the_ops() -> None:
    group = np.array([7, 2, 2, 2, 0, 7], dtype=np.int32)
    with pytest.raises(PlanError, match="reads its own result"):
        placement_problem(toy_graph(), small_mcm(), group)
    group[-1] = 5
    problem = placement_problem(toy_graph(), small_mcm(no_skip="all"), group)
    assert problem.unit_of_op.tolist() == [0, 1, 1, 1, 2, 3]
    assert problem.successor.tolist() == [1, 2, 2, 3]
    assert problem.no_skip == NO_SKIP_ALL
    assert problem.triangle == TRIANGLE_LONGEST_PATH


@settings(max_examples=examples(100))
@given(seed=seeds)
def test_arrays_are_what_they_say(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_target(rng, topology="ring")
    graph = random_graph(rng, int(rng.integers(1, 30)), kinds=kind_names(target))
    group = greedy_fusion(loop_roles(graph), random_order(rng, graph))
    problem = placement_problem(graph, target, group)
    unit = problem.unit_of_op
    assert all((group[a] == group[b]) == (unit[a] == unit[b]) for a in range(len(group)) for b in range(a))
    firsts = [int(np.flatnonzero(unit == u)[0]) for u in range(problem.num_units)]
    assert firsts == sorted(firsts)
    edges = edges_of(problem)
    wanted = {(unit[a], unit[b]) for a, b in zip(graph.edge_src, graph.edge_dst, strict=True)}
    assert edges == sorted((int(a), int(b)) for a, b in wanted if a != b)
    readers = np.repeat(np.arange(problem.num_units), np.diff(problem.predecessor_ptr))
    assert sorted(zip(problem.predecessor.tolist(), readers.tolist(), strict=True)) == edges
    place = np.argsort(problem.topological)
    assert sorted(problem.topological) == list(range(problem.num_units))
    assert all(place[a] < place[b] for a, b in edges)
    assert problem.component.tolist() == components_by_hand(problem.num_units, edges)
    for q, kind in enumerate(target.kinds):
        excluded = graph.excluded.get(kind.name, np.zeros(graph.num_ops, np.bool_))
        for u in range(problem.num_units):
            assert problem.can_run[q, u] == (not excluded[unit == u].any())


def components_by_hand(num_units: int, edges: list[tuple[int, int]]) -> list[int]:
    lowest = list(range(num_units))
    for _ in range(num_units):
        for a, b in edges:
            lowest[a] = lowest[b] = min(lowest[a], lowest[b])
    return [sorted(set(lowest)).index(low) for low in lowest]


@settings(max_examples=examples(150))
@given(seed=seeds)
def test_most_chips_is_the_most_of_all_placements(seed: int) -> None:
    problem = random_problem(seed, max_ops=7, max_chips=5)
    used = [len(np.unique(row)) for row in adjacent_placements(problem, no_skip=True)]
    assert most_chips_adjacent(problem) == max(used)


@settings(max_examples=examples(50))
@given(seed=seeds)
def test_spans_are_shortest_paths(seed: int) -> None:
    """Against Bellman and Ford on the constraint graph: 1 forward, 0 back."""
    problem = random_problem(seed, max_ops=25, max_chips=40)
    edges = edges_of(problem)
    distance = np.full((problem.num_units, problem.num_units), np.inf)
    np.fill_diagonal(distance, 0)
    for _ in range(problem.num_units):
        for a, b in edges:
            distance[:, b] = np.minimum(distance[:, b], distance[:, a] + 1)
            distance[:, a] = np.minimum(distance[:, a], distance[:, b])
    distance[np.isinf(distance)] = 0  # another component
    span = span_from_sources(problem)
    sources = np.diff(problem.predecessor_ptr) == 0
    assert (span[~sources] == -1).all()
    most = problem.num_chips - 1
    assert span[sources].tolist() == np.minimum(distance.max(axis=1), most)[sources].tolist()
    for c in range(problem.num_components):
        own = problem.component == c
        assert span[own].max() == min(distance[own].max(), most)


def test_components_lie_side_by_side() -> None:
    graph = random_graph(np.random.default_rng(0), 1)
    assert most_chips_adjacent(placement_problem(graph, small_mcm(4))) == 1
    problem = unconnected(5)
    assert problem.num_components == 5
    assert most_chips_adjacent(problem._replace(num_chips=4)) == 4
    assert most_chips_adjacent(problem._replace(num_chips=9)) == 5


@pytest.mark.parametrize(
    ("name", "most"), [("gpt2", 28), ("resnet50", 63), ("vit_b16", 31), ("bert_base", 13)]
)
def test_most_chips_of_shipped_graphs(name: str, most: int) -> None:
    problem = placement_problem(load_zoo(name), load_target("mcm-6x6"))
    assert most_chips_adjacent(problem._replace(num_chips=4096)) == most


def random_problem(seed: int, *, max_ops: int, max_chips: int) -> PlacementProblem:
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, int(rng.integers(1, max_ops + 1)))
    return placement_problem(graph, small_mcm(int(rng.integers(1, max_chips + 1))))


def unconnected(num_units: int) -> PlacementProblem:
    none = np.zeros(0, dtype=np.int32)
    units = np.arange(num_units, dtype=np.int32)
    problem = placement_problem(toy_graph(), small_mcm(kinds=[chip_kind()]))
    return problem._replace(
        unit_of_op=units,
        successor_ptr=np.zeros(num_units + 1, dtype=np.int64),
        successor=none,
        predecessor_ptr=np.zeros(num_units + 1, dtype=np.int64),
        predecessor=none,
        topological=units,
        component=units,
        num_components=num_units,
        can_run=np.ones((1, num_units), dtype=np.bool_),
    )
