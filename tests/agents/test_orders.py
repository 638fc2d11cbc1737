"""Orders worth slicing: topological, kernels together, the same for the same seed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.common.arrays import IntArray
from go_opt.env import CostTables, cost_tables, greedy_fusion, loop_roles
from go_opt.env.kernels.numbering import number_kernels
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.solver.orders import fixed_orders, kernel_features, random_orders
from tests.strategies import examples, random_graph, seeds, small_mcm, toy_graph


def random_case(seed: int, max_ops: int = 40) -> tuple[Graph, CostTables, IntArray]:
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, int(rng.integers(1, max_ops)))
    group = greedy_fusion(loop_roles(graph), np.arange(graph.num_ops, dtype=np.int32))
    return graph, cost_tables(graph, small_mcm()), group


def draw(seed: int, count: int, case: tuple[Graph, CostTables, IntArray]) -> list[IntArray]:
    return list(itertools.islice(random_orders(*case, seed), count))


@settings(max_examples=examples(200))
@given(seed=seeds)
def test_orders_are_topological_and_keep_kernels_together(seed: int) -> None:
    case = random_case(seed)
    graph, _, group = case
    named = list(fixed_orders(graph, group))
    assert [name for name, _ in named] == ["depth order", "height order"]
    for order in [*(order for _, order in named), *draw(seed, 3, case)]:
        place = np.empty(graph.num_ops, dtype=np.int64)
        place[order] = np.arange(graph.num_ops)
        np.testing.assert_array_equal(np.sort(order), np.arange(graph.num_ops))
        assert (place[graph.edge_src] < place[graph.edge_dst]).all()
        # As many stretches as groups: no group is torn apart.
        assert number_kernels(order, group).max() + 1 == len(np.unique(group))


def test_same_seed_same_orders() -> None:
    case = random_case(7)
    first, again, other = draw(1, 5, case), draw(1, 5, case), draw(2, 5, case)
    np.testing.assert_array_equal(first, again)
    assert any((a != b).any() for a, b in zip(first, other, strict=True))


def test_toy_orders_by_hand() -> None:
    # A chain in all but the residual, which adds nothing to the depth: one order.
    graph = toy_graph()
    one_each = np.arange(6, dtype=np.int32)
    for _, order in fixed_orders(graph, one_each):
        assert list(order) == [0, 1, 2, 3, 4, 5]


@settings(max_examples=examples(50))
@given(seed=seeds)
def test_orders_of_branches_are_topological(seed: int) -> None:
    graph, _, group = random_case(seed)
    for _, order in fixed_orders(graph, group, cuts_joins=True):
        place = np.argsort(order)
        assert (place[graph.edge_src] < place[graph.edge_dst]).all()


def test_what_joins_branches_is_with_the_longest() -> None:
    # The default order has the short branch last, and its product in a kernel with the sum.
    builder = GraphBuilder("block")
    builder.add_tensor("x", 100, "float32", "input")
    for name, reads, kind in (
        ("stem", "x", "Relu"),
        ("long1", "stem", "MatMul"),
        ("long2", "long1", "MatMul"),
        ("short", "stem", "MatMul"),
        ("sum", "long2 short", "Add"),
    ):
        matrix = kind == "MatMul"
        builder.add_op(
            name,
            kind,
            "matrix" if matrix else "vector",
            flops=100.0,
            dtype="float32",
            reads=[(one, 100) for one in reads.split()],
            writes=[(name, 100, "float32")],
        )
    builder.mark_output("sum")
    graph = builder.build()
    roles, default = loop_roles(graph), np.arange(5, dtype=np.int32)
    group = greedy_fusion(roles, default)
    assert number_kernels(default, group).tolist() == [0, 0, 1, 2, 2]
    (_, order), _ = fixed_orders(graph, group, cuts_joins=True)
    assert [graph.op_names[op] for op in order] == ["stem", "long1", "short", "long2", "sum"]
    assert number_kernels(order, greedy_fusion(roles, order)).tolist() == [0, 0, 2, 1, 2]


@settings(max_examples=examples(100))
@given(seed=seeds)
def test_features_are_standardised(seed: int) -> None:
    graph, tables, group = random_case(seed)
    kernel_of = number_kernels(np.arange(graph.num_ops, dtype=np.int32), group)
    features = kernel_features(graph, tables, kernel_of)
    assert features.shape == (kernel_of.max() + 1, 6)
    np.testing.assert_allclose(features.mean(axis=0), 0.0, atol=1e-9)
    # A feature all kernels share says nothing and is zero.
    spread = features.std(axis=0)
    assert all(value == pytest.approx(1.0) or value == pytest.approx(0.0, abs=1e-6) for value in spread)


def test_a_feature_all_kernels_share_is_zero() -> None:
    # Seven equal ops that share nothing: only the position differs, 0 … 6, of deviation 2.
    b = GraphBuilder("equals")
    for i in range(7):
        b.add_op(f"op{i}", "Relu", "vector", flops=2, dtype="int8", reads=[], writes=[(f"t{i}", 3, "int8")])
    graph = b.build()
    one_each = np.arange(7, dtype=np.int32)
    features = kernel_features(graph, cost_tables(graph, small_mcm()), one_each)
    np.testing.assert_allclose(features[:, 0], [-1.5, -1, -0.5, 0, 0.5, 1, 1.5])
    np.testing.assert_allclose(features[:, 1:], 0.0, atol=1e-12)
