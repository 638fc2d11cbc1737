"""Generated graphs: valid, the same for the same seed, sliceable, unlike each other."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from go_opt.agents.generator import FAMILIES, FEWEST_OPS, MOST_OPS, Dag, draw_structure, generate_graph
from go_opt.bench.rivals import RIVALS, Limits, compete, pose
from go_opt.env import depth, load_target
from go_opt.model.graph import DATA_MOVEMENT, MATRIX, VECTOR, Graph
from go_opt.solver import most_chips_adjacent, placement_problem
from go_opt.solver.verify.verifier import verify
from tests.zoo_recipes.similarity import NEAR_DUPLICATE, cost_profile, similarity

SEEDS_PER_FAMILY = 4


@cache
def sample() -> tuple[Graph, ...]:
    """Graphs of all families."""
    return tuple(
        generate_graph(seed, family=family) for family in FAMILIES for seed in range(SEEDS_PER_FAMILY)
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_every_structure_is_connected_with_one_sink(family: str) -> None:
    for seed in range(10):
        num_ops = int(np.random.default_rng(seed).integers(FEWEST_OPS, 300))
        dag = draw_structure(np.random.default_rng(seed), family, num_ops)
        assert len(dag.parents) == len(dag.octave) == len(dag.weight_group) == num_ops
        assert dag.sinks() == [num_ops - 1]
        assert all(parent < op for op, parents in enumerate(dag.parents) for parent in parents)


def test_a_full_dag_stays_as_it_is() -> None:
    dag = Dag(2)
    assert [dag.add(), dag.run(0, 5)] == [0, 1]
    assert dag.parents == [(), (0,)]


def test_same_seed_same_graph() -> None:
    assert generate_graph(5).fingerprint == generate_graph(5).fingerprint
    assert generate_graph(5).fingerprint != generate_graph(6).fingerprint


def test_sizes_and_names() -> None:
    for seed in range(20):
        graph = generate_graph(seed)
        assert FEWEST_OPS <= graph.num_ops <= MOST_OPS
        assert graph.name.endswith(f"_{graph.num_ops}_{seed}")
    assert generate_graph(0, family="cells", num_ops=77).num_ops == 77


def test_a_slicing_of_the_default_order_fits() -> None:
    target = load_target("mcm-6x6")
    for graph in sample():
        problem = pose(graph, target, relays=False)
        plan = compete(RIVALS["slice"], problem, Limits(evaluations=1), 0).plan
        assert plan is not None, graph.name
        assert verify(graph, target, plan) == []


def test_ops_are_mixed_as_in_real_graphs() -> None:
    shares = np.array([np.bincount(graph.op_class, minlength=3) / graph.num_ops for graph in sample()])
    middle = np.median(shares, axis=0)
    # The middle 80 % of the training graphs: 0.09 - 0.32, 0.40 - 0.79, 0 - 0.36.
    assert 0.2 < middle[MATRIX] < 0.5
    assert 0.35 < middle[VECTOR] < 0.7
    assert 0.05 < middle[DATA_MOVEMENT] < 0.3


def test_shapes_differ() -> None:
    target = load_target("mcm-6x6")
    width, length, chips = [], [], []
    for graph in sample():
        levels = depth(graph).astype(np.int64)
        width.append(int(np.bincount(levels).max()))
        length.append(int(levels.max()) + 1)
        chips.append(most_chips_adjacent(placement_problem(graph, target)))
    assert min(width) == 1
    assert max(width) > 30
    assert min(length) < 50
    assert max(length) > 500
    assert min(chips) < 15
    assert sum(count == target.num_chips for count in chips) > len(chips) / 3


def test_no_near_duplicates() -> None:
    profiles = [cost_profile(graph) for graph in sample()]
    nearest = [similarity(a, b) for i, a in enumerate(profiles) for b in profiles[:i]]
    assert max(nearest) < NEAR_DUPLICATE
