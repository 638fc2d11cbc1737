"""Fusion by priorities: the defaults where neutral, legal always, and equal to a slow twin."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from go_opt.common.arrays import FloatArray, IntArray
from go_opt.env import greedy_fusion, is_one_loop, load_zoo, loop_roles, priority_fusion
from go_opt.model.graph import Graph
from tests.strategies import examples, random_graph, seeds, toy_graph


def fuse(graph: Graph, priority: FloatArray) -> IntArray:
    roles = loop_roles(graph)
    default = greedy_fusion(roles, np.arange(graph.num_ops, dtype=np.int32))
    return priority_fusion(graph, roles, default, priority)


@pytest.mark.parametrize(
    ("priorities", "group"),
    [
        ({}, [0, 1, 1, 2, 2, 3]),  # the default
        ({"relu": -2.0}, [0, 1, 2, 3, 3, 4]),  # relu leaves dense
        ({"add": -2.0}, [0, 1, 1, 2, 3, 4]),  # add leaves mix
        # relu -> mix scores 1 as the default edges do, and dense -> relu comes first: two matrix ops.
        ({"mix": 2.0}, [0, 1, 1, 2, 2, 3]),
        # Now it scores 2, before them: relu goes with mix, and dense is left alone.
        ({"mix": 3.0}, [0, 1, 2, 2, 2, 3]),
        # embed moves data; logits is another loop.
        ({"dense": 9.0, "logits": 9.0}, [0, 1, 1, 2, 2, 3]),
    ],
)
def test_toy_by_hand(priorities: dict[str, float], group: list[int]) -> None:
    graph = toy_graph()
    priority = np.zeros(graph.num_ops)
    for name, value in priorities.items():
        priority[graph.op_index[name]] = value
    assert fuse(graph, priority).tolist() == group


@settings(max_examples=examples(200))
@given(seed=seeds, num_ops=st.integers(1, 40))
def test_neutral_priorities_give_the_default(seed: int, num_ops: int) -> None:
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, num_ops)
    default = greedy_fusion(loop_roles(graph), np.arange(num_ops, dtype=np.int32))
    np.testing.assert_array_equal(fuse(graph, rng.uniform(-0.99, 0.99, num_ops)), default)


@settings(max_examples=examples(200))
@given(seed=seeds, num_ops=st.integers(1, 30), spread=st.sampled_from([1.0, 3.0, 10.0]))
def test_equal_to_the_twin_and_legal(seed: int, num_ops: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, num_ops, kinds=("chip",))
    priority = spread * rng.standard_normal(num_ops)
    group = fuse(graph, priority)
    assert partition(group) == twin(graph, priority)
    assert_legal(graph, group)


def test_legal_on_the_zoo() -> None:
    graph = load_zoo("unet_segmentation")
    rng = np.random.default_rng(0)
    for spread in (0.0, 2.0):
        assert_legal(graph, fuse(graph, 3.0 + spread * rng.standard_normal(graph.num_ops)))


def assert_legal(graph: Graph, group: IntArray) -> None:
    """One loop each; numbered along an order of the contraction, so it is acyclic."""
    roles = loop_roles(graph)
    for kernel in range(group.max() + 1):
        assert is_one_loop(roles, np.flatnonzero(group == kernel))
    assert (group[graph.edge_src] <= group[graph.edge_dst]).all()


def twin(graph: Graph, priority: FloatArray) -> set[frozenset[int]]:
    """Edge by edge: join the kernels of its ends where the verifier's rules allow it."""
    roles = loop_roles(graph)
    default = greedy_fusion(roles, np.arange(graph.num_ops, dtype=np.int32))
    edges = [(int(u), int(v)) for u, v in zip(graph.edge_src, graph.edge_dst, strict=True)]
    score = {(u, v): priority[v] + (1.0 if default[u] == default[v] else -1.0) for u, v in edges}
    group = np.arange(graph.num_ops)
    for u, v in sorted((e for e in edges if score[e] > 0), key=lambda e: (-score[e], e[1], -e[0])):
        joined = np.where(group == group[v], group[u], group)
        contracted = nx.DiGraph((joined[a], joined[b]) for a, b in edges if joined[a] != joined[b])
        members = np.flatnonzero(joined == group[u])
        if is_one_loop(roles, members) and nx.is_directed_acyclic_graph(contracted):
            group = joined
    return partition(group)


def partition(group: NDArray[np.integer]) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(group == kernel).tolist()) for kernel in np.unique(group)}
