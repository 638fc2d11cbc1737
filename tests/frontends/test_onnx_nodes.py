"""What became of every node of an ONNX model that is no op of the graph."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from go_opt import from_onnx
from go_opt.model.codecs.graph_json import graph_from_dict, graph_to_dict
from go_opt.model.graph import Graph

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
FLOAT = TensorProto.FLOAT


def info(name: str, shape: Sequence[int], elem_type: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem_type, shape)


def node(op_type: str, reads: Sequence[str], name: str, **attributes: object) -> onnx.NodeProto:
    """A node whose output has its name."""
    return helper.make_node(op_type, reads, [name], name=name, **attributes)


def constant(name: str, values: object) -> onnx.NodeProto:
    return node("Constant", [], name, value=numpy_helper.from_array(np.asarray(values)))


def imported(nodes: Sequence[onnx.NodeProto], outputs: Sequence[onnx.ValueInfoProto]) -> Graph:
    """Nodes that read an input ``x`` of 4 by 4 and a weight ``w`` of 8 by 8."""
    weight = numpy_helper.from_array(np.ones((8, 8), np.float32), "w")
    graph = helper.make_graph(nodes, "model", [info("x", [4, 4])], outputs, [weight])
    return from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


def fates(graph: Graph) -> dict[str, tuple[str, str | None]]:
    assert len({row.name for row in graph.nodes_without_op}) == len(graph.nodes_without_op)
    return {row.name: (row.became, row.op) for row in graph.nodes_without_op}


def test_constants_views_and_dead_nodes() -> None:
    graph = imported(
        [
            constant("sizes", np.array([2, 8])),
            constant("axes", np.array([1])),
            constant("scale", np.float32([2.0])),
            node("Reshape", ["x", "sizes"], "reshape"),
            node("Transpose", ["w"], "turn", perm=[1, 0]),
            node("MatMul", ["reshape", "turn"], "product"),
            node("Identity", ["product"], "same"),
            node("Dropout", ["same"], "dropout"),
            node("Mul", ["dropout", "scale"], "scaled"),
            node("Add", ["scaled", "scale"], "shifted"),
            node("ReduceSum", ["shifted", "axes"], "sum"),
            node("Exp", ["product"], "nobody"),
            node("Identity", ["nobody"], "reads"),
        ],
        [info("sum", [2, 1])],
    )
    assert graph.op_names == ("product", "scaled", "shifted", "sum")
    assert fates(graph) == {
        "sizes": ("folded", None),  # decides a shape, and is read by no op
        "axes": ("folded", "sum"),  # part of the kernel
        "scale": ("folded", None),  # two ops read it
        "reshape": ("view", None),  # of the model's input
        "turn": ("folded", "product"),  # the weight as it is
        "same": ("view", "product"),
        "dropout": ("view", "product"),
        "nobody": ("unused", None),
        "reads": ("view", None),  # of what no op produces any more
    }


def branch(name: str) -> onnx.GraphProto:
    return helper.make_graph([node("Exp", ["x"], name)], name, [], [info(name, [4, 4])])


def test_branches_of_an_if() -> None:
    decided = [
        constant("yes", np.array(True)),
        node("If", ["yes"], "if", then_branch=branch("hot"), else_branch=branch("cold")),
        node("Relu", ["if"], "relu"),
    ]
    graph = imported(decided, [info("relu", [4, 4])])
    assert graph.op_names == ("if/hot", "relu")
    assert fates(graph) == {"yes": ("folded", None), "if": ("inlined", None)}
    open_one = [
        node("ReduceMax", ["x"], "most", keepdims=0),
        node("Cast", ["most"], "is_some", to=TensorProto.BOOL),
        node("If", ["is_some"], "if", then_branch=branch("hot"), else_branch=branch("cold")),
    ]
    graph = imported(open_one, [info("if", [4, 4])])
    assert graph.op_names == ("most", "is_some", "if")
    assert fates(graph) == {"if/0/cold": ("merged", "if"), "if/1/hot": ("merged", "if")}


def test_a_call_of_a_function_is_inlined() -> None:
    twice = helper.make_function(
        "mine", "Twice", ["a"], ["b"], [node("Add", ["a", "a"], "b")], [helper.make_opsetid("", 17)]
    )
    call = node("Twice", ["x"], "call", domain="mine")
    graph = helper.make_graph([call], "model", [info("x", [4])], [info("call", [4])])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    model = helper.make_model(graph, functions=[twice], opset_imports=opsets)
    assert fates(from_onnx(model)) == {"call": ("inlined", None)}


@pytest.mark.parametrize("name", ["shufflenet", "densenet121", "inception_v1", "resnet50"])
def test_every_node_of_a_model_is_an_op_or_has_a_fate(name: str) -> None:
    path = LIGHT / f"light_{name}.onnx"
    graph = from_onnx(path)
    named = {
        node.name or f"{node.op_type}_{next(filter(None, node.output))}"
        for node in onnx.load(path).graph.node
    }
    absent = fates(graph)
    assert named == set(graph.op_names) | set(absent)
    assert not set(graph.op_names) & set(absent)
    assert {op for _, op in absent.values()} - {None} <= set(graph.op_names)
    assert absent


def test_json_keeps_it_and_the_fingerprint_does_not_depend_on_it() -> None:
    graph = imported([node("Relu", ["x"], "relu"), node("Identity", ["relu"], "y")], [info("y", [4, 4])])
    data = json.loads(json.dumps(graph_to_dict(graph)))
    assert data["nodes_without_op"] == [{"name": "y", "became": "view", "op": "relu"}]
    assert graph_from_dict(data).nodes_without_op == graph.nodes_without_op
    del data["nodes_without_op"]  # as files of before have it
    assert graph_from_dict(data).nodes_without_op == ()
    assert graph_from_dict(data).fingerprint == graph.fingerprint
