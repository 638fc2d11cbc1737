"""The fusion rule clause by clause, and the default greedy fusion."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from go_opt.common.arrays import IntArray
from go_opt.env import fused_within_chips, greedy_fusion, is_one_loop, load_zoo, loop_roles
from go_opt.env.kernels.fusion import MAX_GROUP_OPS, are_one_loop
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from tests.strategies import examples, random_graph, random_order, seeds, toy_graph


@pytest.fixture(scope="module")
def ops() -> Graph:
    """Ops of one loop of 100 elements, and some that are not."""
    b = GraphBuilder("ops")
    b.add_tensor("in", 100, "bf16", "input")
    b.add_tensor("wide", 200, "bf16", "weight")

    def add(name: str, op_type: str, op_class: str, source: str, elements: int, **more: object) -> None:
        reads, writes = [(source, None)], [(name, elements, "bf16")]
        b.add_op(name, op_type, op_class, flops=1, dtype="bf16", reads=reads, writes=writes, **more)

    add("matmul", "MatMul", "matrix", "in", 100)
    add("relu", "Relu", "vector", "matmul", 100)
    add("exp", "Exp", "vector", "relu", 100)
    add("conv", "Conv", "matrix", "exp", 100)
    add("sum", "ReduceSum", "vector", "exp", 10)
    add("tanh", "Tanh", "vector", "sum", 10)
    add("max", "ReduceMax", "vector", "sum", 1)
    add("softmax", "Softmax", "vector", "exp", 100)
    add("log", "Log", "vector", "softmax", 100)
    add("transpose", "Transpose", "data_movement", "exp", 100)
    add("resize", "Resize", "vector", "exp", 100)
    add("measured", "Relu", "vector", "exp", 100, measured_s={"chip": 1e-6, "other": 1e-6})
    add("again", "Neg", "vector", "measured", 100, measured_s={"chip": 1e-6, "other": 1e-6})
    add("partly", "Neg", "vector", "measured", 100, measured_s={"other": 1e-6})
    add("scale", "Mul", "vector", "wide", 100)
    add("widen", "Relu", "vector", "exp", 200)
    for i in range(MAX_GROUP_OPS):
        add(f"chain{i}", "Neg", "vector", f"chain{i - 1}" if i else "exp", 100)
    return b.build()


CHAIN = [f"chain{i}" for i in range(MAX_GROUP_OPS)]


@pytest.mark.parametrize(
    ("names", "legal"),
    [
        (["matmul", "relu", "exp"], True),  # element-wise after a matrix op
        (["exp", "conv"], True),  # and before one
        (["relu", "exp", "sum"], True),  # a reduction over the loop, last
        (["matmul", "relu", "exp", "sum"], True),
        (["matmul", "relu", "exp", "conv"], False),  # two matrix ops
        (["relu", "widen"], False),  # another element count
        (["exp", "softmax", "log"], False),  # something after a reduction, of its size
        (["exp", "sum", "tanh"], False),  # or of another
        (["softmax", "sum"], False),  # two reductions
        (["exp", "max"], False),  # a reduction over another count
        (["exp", "transpose"], False),  # data movement
        (["exp", "resize"], False),  # a vector op without a common loop
        (["exp", "measured"], False),  # one measured, one not
        (["measured", "again"], True),  # both
        (["measured", "partly"], False),  # on other kinds
        (["scale", "exp"], True),  # a weight may be larger than the loop
        (CHAIN[:MAX_GROUP_OPS], True),
        (["exp", *CHAIN], False),  # 33 ops
    ],
)
def test_one_loop(ops: Graph, names: list[str], legal: bool) -> None:
    group = np.array([ops.op_index[name] for name in names], dtype=np.int32)
    assert is_one_loop(loop_roles(ops), group) == legal


def test_any_op_is_a_kernel_of_its_own(ops: Graph) -> None:
    assert all(is_one_loop(loop_roles(ops), np.array([op])) for op in range(ops.num_ops))


def test_greedy_fusion_of_the_toy() -> None:
    graph = toy_graph()
    # embed moves data; mix would be a second matrix op; logits has 1000 elements, add 500.
    assert _greedy(graph, np.arange(6, dtype=np.int32)).tolist() == [0, 1, 1, 2, 2, 3]


def test_kernels_end_where_chips_meet() -> None:
    """``toy_graph``: dense and relu, and mix and add, share kernels; a chip begins with relu."""
    order, placement = np.arange(6, dtype=np.int32), np.array([0, 0, 1, 1, 1, 1], dtype=np.int32)
    assert fused_within_chips(loop_roles(toy_graph()), order, placement).tolist() == [0, 1, 2, 3, 3, 4]


def test_greedy_fusion_does_not_glue_unrelated_branches() -> None:
    b = GraphBuilder("branches")
    b.add_tensor("in", 100, "bf16", "input")
    for name in ("a", "b"):
        reads, writes = [("in", None)], [(name, 100, "bf16")]
        b.add_op(name, "Relu", "vector", flops=1, dtype="bf16", reads=reads, writes=writes)
    assert _greedy(b.build(), np.arange(2, dtype=np.int32)).tolist() == [0, 1]


def test_greedy_fusion_stops_at_a_reduction(ops: Graph) -> None:
    group = _greedy(ops, np.arange(ops.num_ops, dtype=np.int32))
    of = {name: group[ops.op_index[name]] for name in ops.op_names}
    assert of["matmul"] == of["relu"] == of["exp"]
    assert len({of["conv"], of["sum"], of["tanh"], of["max"]}) == 4


def test_greedy_fusion_keeps_to_the_limit() -> None:
    b = GraphBuilder("chain")
    for i in range(MAX_GROUP_OPS + 5):
        reads, writes = [(f"t{i - 1}", None)] if i else [], [(f"t{i}", 100, "bf16")]
        b.add_op(f"op{i}", "Neg", "vector", flops=1, dtype="bf16", reads=reads, writes=writes)
    graph = b.build()
    assert np.bincount(_greedy(graph, np.arange(graph.num_ops, dtype=np.int32))).tolist() == [32, 5]


def test_convex_groups_alone_may_contract_to_a_cycle() -> None:
    # a1 -> b2 and b1 -> a2: {a1, a2} and {b1, b2} are convex, contracted they wait for each
    # other. In no order do both stand next to each other, so contiguous groups rule it out.
    edges = nx.DiGraph([("a1", "b2"), ("b1", "a2")])
    contracted = nx.quotient_graph(edges, [{"a1", "a2"}, {"b1", "b2"}])
    assert not nx.is_directed_acyclic_graph(contracted)
    for order in nx.all_topological_sorts(edges):
        places = {name: place for place, name in enumerate(order)}
        gaps = [abs(places["a1"] - places["a2"]), abs(places["b1"] - places["b2"])]
        assert max(gaps) > 1


@settings(max_examples=examples(300))
@given(seed=seeds, num_ops=st.integers(1, 40))
def test_greedy_fusion_is_legal(seed: int, num_ops: int) -> None:
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, num_ops, kinds=("chip",))
    order = random_order(rng, graph)
    assert_legal(graph, order, _greedy(graph, order))


def test_greedy_fusion_is_legal_on_the_zoo() -> None:
    graph = load_zoo("unet")
    order = np.arange(graph.num_ops, dtype=np.int32)
    group = _greedy(graph, order)
    assert_legal(graph, order, group)
    assert group.max() + 1 < 0.9 * graph.num_ops  # it does fuse


def assert_legal(graph: Graph, order: IntArray, group: IntArray) -> None:
    """One loop each, numbered along the order, contiguous, connected, acyclic when contracted."""
    roles = loop_roles(graph)
    steps = np.diff(group[order])
    assert set(steps.tolist()) <= {0, 1}
    assert group[order[0]] == 0
    pairs = list(zip(graph.edge_src.tolist(), graph.edge_dst.tolist(), strict=True))
    edges = nx.Graph()
    edges.add_nodes_from(range(graph.num_ops))
    edges.add_edges_from((u, v) for u, v in pairs if group[u] == group[v])
    assert nx.number_connected_components(edges) == group.max() + 1
    for kernel in range(group.max() + 1):
        assert is_one_loop(roles, order[group[order] == kernel])
    contracted = nx.DiGraph((int(group[u]), int(group[v])) for u, v in pairs if group[u] != group[v])
    assert nx.is_directed_acyclic_graph(contracted)


def _greedy(graph: Graph, order: IntArray) -> IntArray:
    return greedy_fusion(loop_roles(graph), order)


@settings(max_examples=examples(60), deadline=None)
@given(seed=seeds)
def test_stretches_of_an_order_are_judged_as_one_by_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, int(rng.integers(1, 30)))
    roles, order = loop_roles(graph), np.arange(graph.num_ops, dtype=np.int32)
    inner = np.flatnonzero(rng.random(graph.num_ops) < 0.5)
    starts = np.union1d([0], inner)
    stretches = np.split(order, starts[1:])
    assert are_one_loop(roles, order, starts).tolist() == [is_one_loop(roles, ops) for ops in stretches]
