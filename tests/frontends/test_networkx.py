"""networkx graphs: minimal ones with defaults, exact round trips, refusals by name."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from go_opt.errors import GraphError
from go_opt.frontends.networkx_frontend import from_networkx, from_node_link, to_networkx
from go_opt.model.codecs.graph_json import graph_from_dict, graph_to_dict
from go_opt.model.graph import DATA_MOVEMENT, MATRIX, VECTOR, WEIGHT


def _chain() -> nx.DiGraph:
    """load -> mul -> end, where mul multiplies by a weight."""
    g = nx.DiGraph(name="chain")
    g.add_node("load", flops=0, outputs=8)
    g.add_node("mul", op_type="MatMul", flops=128.0, outputs={"y": 8, "z": 2}, weight_elements=64)
    g.add_node("end", op_type="Concat")
    g.add_edge("load", "mul")
    g.add_edge("mul", "end", tensors=["y"])
    return g


def test_defaults_of_a_minimal_graph() -> None:
    graph = from_networkx(_chain())
    assert graph.name == "chain"
    assert graph.op_names == ("load", "mul", "end")
    assert graph.op_types == ("Unknown", "MatMul", "Concat")
    assert graph.op_class.tolist() == [VECTOR, MATRIX, DATA_MOVEMENT]
    assert graph.op_flops.tolist() == [0.0, 128.0, 0.0]
    by_name = dict(zip(graph.tensor_names, graph.tensor_elements.tolist(), strict=True))
    assert by_name == {"mul.weight": 64, "load": 8, "y": 8, "z": 2, "end": 0}
    assert graph.tensor_kind[graph.tensor_names.index("mul.weight")] == WEIGHT
    # Only the sink's tensor leaves: z has no reader, and says nothing of being an output.
    outputs = [name for name, out in zip(graph.tensor_names, graph.tensor_is_output, strict=True) if out]
    assert outputs == ["end"]
    assert graph.edge_src.tolist() == [0, 1]
    assert graph.edge_dst.tolist() == [1, 2]


def test_a_type_whose_cost_needs_shapes_has_a_class() -> None:
    g = nx.DiGraph()
    for op_type in ("Einsum", "GroupQueryAttention", "MoE"):
        g.add_node(op_type, op_type=op_type, outputs=8)
    assert from_networkx(g).op_class.tolist() == [MATRIX] * 3


def test_numpy_numbers_and_other_keys_are_welcome() -> None:
    g = nx.DiGraph()
    g.add_node(0, flops=np.float32(2.0), outputs=np.int64(3))
    g.add_node((1, 2), flops=np.int32(5))
    g.add_edge(0, (1, 2))
    graph = from_networkx(g, name="n", precision="as-is")
    assert (graph.name, graph.precision) == ("n", "as-is")
    assert graph.op_names == ("0", "(1, 2)")
    assert graph.op_flops.tolist() == [2.0, 5.0]


def test_export_follows_the_contract() -> None:
    g = to_networkx(from_networkx(_chain()))
    assert list(g) == ["load", "mul", "end"]
    mul = g.nodes["mul"]
    assert (mul["op_type"], mul["op_class"], mul["flops"], mul["dtype"]) == (
        "MatMul", "matrix", 128.0, "float32",
    )  # fmt: skip
    assert mul["outputs"] == {"y": 8, "z": 2}
    assert mul["weights"] == {"mul.weight": {"elements": 64, "dtype": "float32", "touched": 64}}
    assert g.edges["mul", "end"]["tensors"] == ["y"]


@st.composite
def _digraphs(draw: st.DrawFn) -> nx.DiGraph:
    """DAGs with shared weights, partial reads, several outputs and measured ops."""
    num_ops = draw(st.integers(1, 6))
    g = nx.DiGraph(name="random", precision=draw(st.sampled_from(["native", "as-is"])), dims={"B": 2})
    for i in draw(st.permutations(range(num_ops))):
        g.add_node(
            f"op{i}",
            op_type=draw(st.sampled_from(["Add", "MatMul", "Mine"])),
            flops=draw(st.floats(0, 1e20)),
            dtype=draw(st.sampled_from(["float32", "bf16", "int8"])),
            outputs={f"t{i}.{j}": draw(st.integers(0, 100)) for j in range(draw(st.integers(1, 3)))},
            output_dtypes={f"t{i}.0": draw(st.sampled_from(["bool", "int64"]))},
        )
        if draw(st.booleans()):
            g.nodes[f"op{i}"]["weights"] = {"table": {"elements": 90, "touched": draw(st.integers(0, 90))}}
            g.nodes[f"op{i}"]["dtype"] = "float32"
        if draw(st.booleans()):
            g.nodes[f"op{i}"].update(
                {"measured_s": {"gpu": draw(st.floats(0, 1.0))}, "excluded_kinds": ["npu"]}
            )
        if draw(st.booleans()):
            g.nodes[f"op{i}"]["graph_outputs"] = [f"t{i}.0"]
    for i in range(num_ops):
        for j in range(i + 1, num_ops):
            if draw(st.booleans()):
                g.add_edge(f"op{i}", f"op{j}")
                if draw(st.booleans()):
                    g.edges[f"op{i}", f"op{j}"].update({"tensors": [f"t{i}.0"], "touched": {f"t{i}.0": 1}})
    return g


@settings(max_examples=60, deadline=None)
@given(_digraphs())
def test_round_trips_keep_the_fingerprint(g: nx.DiGraph) -> None:
    graph = from_networkx(g)
    exported = to_networkx(graph)
    again = from_networkx(exported)
    assert again.fingerprint == graph.fingerprint
    assert (again.name, again.precision, again.bindings.dims) == ("random", graph.precision, {"B": 2})
    for edges in ("links", "edges"):
        text = json.dumps(nx.node_link_data(exported, edges=edges))
        assert from_node_link(json.loads(text)).fingerprint == graph.fingerprint
    assert graph_from_dict(graph_to_dict(graph)).fingerprint == graph.fingerprint


def _with(**attributes: Any) -> nx.DiGraph:
    g = _chain()
    g.nodes["mul"].update(attributes)
    return g


def _edge_with(**attributes: Any) -> nx.DiGraph:
    g = _chain()
    g.edges["mul", "end"].update(attributes)
    return g


def _cycle() -> nx.DiGraph:
    g = _chain()
    g.add_edge("end", "mul")
    return g


def _twins() -> nx.DiGraph:
    g = nx.DiGraph()
    g.add_nodes_from([1, "1"])
    return g


def _shared(elements: int) -> nx.DiGraph:
    g = _chain()
    g.nodes["load"]["weights"] = {"mul.weight": {"elements": elements}}
    return g


@pytest.mark.parametrize(
    ("g", "words"),
    [
        (_with(flops=float("nan")), "op 'mul': 'flops' must be finite"),
        (_with(flops=-1), "op 'mul': 'flops' must be finite"),
        (_with(flops=float("inf")), "op 'mul': 'flops' must be finite"),
        (_with(flops=10**400), "op 'mul': 'flops' must be finite"),
        (_with(flops="many"), "op 'mul': 'flops' must be a number"),
        (_with(dtype="float7"), "op 'mul': 'dtype': unknown dtype 'float7'"),
        (_with(output_dtypes={"y": "float7"}), "op 'mul': 'output_dtypes': 'y': unknown dtype 'float7'"),
        (_with(op_class="magic"), "op 'mul': op_class"),
        (_with(outputs={"y": -1}), "op 'mul': 'outputs': 'y'"),
        (_with(outputs=[3]), "op 'mul': 'outputs'"),
        (_with(outputs={3: 3}), "op 'mul': 'outputs'"),
        (_with(outputs={"load": 3}), "tensor 'load' is defined twice"),
        (_with(weight_elements=float("nan")), "op 'mul': 'weight_elements'"),
        (_with(weights={"w": 3}), "op 'mul': 'weights': 'w' must be an object"),
        (_with(weights={"w": {}}), "'w' lacks the field 'elements'"),
        (_with(graph_outputs=["q"]), "op 'mul': 'graph_outputs' names 'q'"),
        (_edge_with(tensors=["q"]), "edge from op 'mul' to op 'end' carries tensor 'q'"),
        (_edge_with(tensors=[]), "carries no tensor"),
        (_edge_with(touched={"y": -1}), "edge from op 'mul' to op 'end': 'touched': 'y'"),
        (_cycle(), "cycle: 'mul' -> 'end' -> 'mul'|cycle: 'end' -> 'mul' -> 'end'"),
        (_twins(), "op '1' is defined twice"),
        (_shared(63), "ops 'load' and 'mul' disagree"),
        (nx.DiGraph(), "has no nodes"),
        (nx.Graph([(1, 2)]), "not Graph"),
        (nx.MultiDiGraph([(1, 2)]), "not MultiDiGraph"),
        ({"a": 1}, "needs an nx.DiGraph"),
    ],
)  # fmt: skip
def test_refusals_name_the_op(g: Any, words: str) -> None:
    with pytest.raises(GraphError, match=words) as caught:
        from_networkx(g)
    assert "\n" not in str(caught.value)


def test_a_shared_weight_is_one_tensor() -> None:
    graph = from_networkx(_shared(64))
    k = graph.tensor_names.index("mul.weight")
    assert graph.reader_op[graph.reader_ptr[k] : graph.reader_ptr[k + 1]].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "must be a JSON object"),
        ({"nodes": [{"id": "a"}]}, "lacks the field 'links'"),
        ({"nodes": [{}], "links": []}, "node number 0: 'id'"),
        ({"nodes": [{"id": "a"}, {"id": "a"}], "links": []}, "op 'a' is defined twice"),
        ({"nodes": [{"id": "a"}], "links": [{"source": "a", "target": "b"}]}, "names op 'b'"),
        ({"nodes": [{"id": "a"}], "links": [{"source": "a"}]}, "edge number 0: 'target'"),
        ({"directed": False, "nodes": [], "links": []}, "must be directed"),
        ({"multigraph": True, "nodes": [], "links": []}, "no multigraph"),
        ({"nodes": [], "links": []}, "has no nodes"),
    ],
)
def test_malformed_node_link_is_named(data: Any, words: str) -> None:
    with pytest.raises(GraphError, match=words):
        from_node_link(data)


def test_importing_the_package_is_light() -> None:
    code = (
        "import sys, go_opt as f; f.__dir__(); "
        "sys.exit(any(m in sys.modules for m in ('jax', 'onnx', 'networkx')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
