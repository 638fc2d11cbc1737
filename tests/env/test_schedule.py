"""List scheduling against a brute-force twin; levels against longest paths."""

from __future__ import annotations

import networkx as nx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from go_opt.common.arrays import FloatArray, IntArray
from go_opt.env import depth, greedy_fusion, height, list_schedule, loop_roles
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.model.plan import number_by_first_place
from tests.strategies import examples, random_graph, random_order, seeds, toy_graph

# embed -> dense -> relu -> mix -> add -> logits, and embed -> add.


def test_levels_of_the_toy() -> None:
    assert depth(toy_graph()).tolist() == [0, 1, 2, 3, 4, 5]
    assert height(toy_graph()).tolist() == [5, 4, 3, 2, 1, 0]


def test_highest_ready_kernel_is_next() -> None:
    graph = _two_chains()
    one_each = np.arange(4, dtype=np.int32)
    # Ready: a1, b1. b1 (2) before a1 (1); then b2 (0) or a1: a1; then a2 (9), b2.
    order = list_schedule(graph, one_each, np.array([1.0, 9.0, 2.0, 0.0]))
    assert [graph.op_names[op] for op in order] == ["b1", "a1", "a2", "b2"]


def test_ties_go_to_the_lower_kernel() -> None:
    graph = _two_chains()
    order = list_schedule(graph, np.arange(4, dtype=np.int32), np.zeros(4))
    assert [graph.op_names[op] for op in order] == ["a1", "a2", "b1", "b2"]


def test_ops_of_a_kernel_stay_together() -> None:
    graph = _two_chains()
    order = list_schedule(graph, np.array([0, 0, 1, 1], dtype=np.int32), np.array([0.0, 1.0]))
    assert [graph.op_names[op] for op in order] == ["b1", "b2", "a1", "a2"]


@settings(max_examples=examples(200))
@given(seed=seeds, num_ops=st.integers(1, 40))
def test_agrees_with_brute_force(seed: int, num_ops: int) -> None:
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, num_ops)
    along = random_order(rng, graph)
    group = number_by_first_place(greedy_fusion(loop_roles(graph), along), along)
    priority = rng.integers(0, 4, group.max() + 1).astype(np.float64)  # with ties
    order = list_schedule(graph, group, priority)
    assert order.tolist() == brute_force(graph, group, priority)
    place = np.argsort(order)
    assert (place[graph.edge_src] < place[graph.edge_dst]).all()


@settings(max_examples=examples(100))
@given(seed=seeds, num_ops=st.integers(1, 30))
def test_levels_are_longest_paths(seed: int, num_ops: int) -> None:
    graph = random_graph(np.random.default_rng(seed), num_ops)
    edges = nx.DiGraph()
    edges.add_nodes_from(range(graph.num_ops))
    edges.add_edges_from(zip(graph.edge_src.tolist(), graph.edge_dst.tolist(), strict=True))
    for op in edges:
        before = edges.subgraph(nx.ancestors(edges, op) | {op})
        after = edges.subgraph(nx.descendants(edges, op) | {op})
        assert depth(graph)[op] == nx.dag_longest_path_length(before)
        assert height(graph)[op] == nx.dag_longest_path_length(after)


def brute_force(graph: Graph, group: IntArray, priority: FloatArray) -> list[int]:
    """Of all kernels whose producers are done, the first of highest priority, again and again."""
    done: list[int] = []
    left = set(range(len(priority)))
    while left:
        ready = [
            kernel
            for kernel in left
            if all(
                u in done or group[u] == kernel
                for u, v in zip(graph.edge_src, graph.edge_dst, strict=True)
                if group[v] == kernel
            )
        ]
        kernel = min(ready, key=lambda m: (-priority[m], m))
        left.remove(kernel)
        done += np.flatnonzero(group == kernel).tolist()
    return done


def _two_chains() -> Graph:
    b = GraphBuilder("chains")
    for name in ("a", "b"):
        b.add_op(f"{name}1", "X", "vector", flops=1, dtype="bf16", reads=[], writes=[(name, 1, "bf16")])
        b.add_op(f"{name}2", "X", "vector", flops=1, dtype="bf16", reads=[(name, None)], writes=[])
    return b.build()
