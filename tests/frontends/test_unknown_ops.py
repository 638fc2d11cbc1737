"""Ops whose types no rule has: named, from every frontend, with what they were taken to cost."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import jax
import jax.extend
import networkx as nx
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import go_opt
from go_opt.frontends.torch.program import read_program
from go_opt.model.codecs.graph_json import graph_from_dict, graph_to_dict
from go_opt.model.graph import Graph, UnknownOp
from tests.torch_programs import FOLDER


def onnx_model(trips: int | None = None) -> onnx.ModelProto:
    """Relu, then an op of a domain of one's own on [4, 8], or a loop of it."""
    own = helper.make_node("Wobble", ["r"], ["y"], name="own", domain="mine")
    nodes, values = [helper.make_node("Relu", ["x"], ["r"], name="relu"), own], []
    if trips is None:
        values = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 8])]
    else:
        types = (("i", TensorProto.INT64, []), ("c", TensorProto.BOOL, []), ("s", TensorProto.FLOAT, [4, 8]))
        inputs = [helper.make_tensor_value_info(*of) for of in types]
        inner = helper.make_node("Wobble", ["s"], ["t"], name="own", domain="mine")
        outputs = [helper.make_tensor_value_info(*of) for of in (types[1], ("t", TensorProto.FLOAT, [4, 8]))]
        body = helper.make_graph([inner], "body", inputs, outputs)
        count = helper.make_tensor("n", TensorProto.INT64, [], [trips])
        nodes[1:] = [
            helper.make_node("Constant", [], ["n"], value=count),
            helper.make_node("Loop", ["n", "", "r"], ["y"], name="loop", body=body),
        ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 8])
    graph = helper.make_graph(nodes, "g", [x], [y], value_info=values)
    sets = [helper.make_opsetid("", 20), helper.make_opsetid("mine", 1)]
    return helper.make_model(graph, opset_imports=sets)


def jax_graph(in_branch: bool) -> Graph:
    wobble = jax.extend.core.Primitive("wobble")
    wobble.def_abstract_eval(lambda x: x)
    x = jax.ShapeDtypeStruct((4, 8), np.float32)
    if in_branch:
        return go_opt.from_jax(lambda x, p: jax.lax.cond(p, wobble.bind, jax.numpy.abs, x), x, True)
    return go_opt.from_jax(wobble.bind, x, name="own")


def torch_graph(tmp_path: Path) -> Graph:
    """The stored MLP with another library's operator in place of its GELU, on [3, 16]."""
    program: Any = read_program(FOLDER / "mlp.pt2")
    for node in program["graph_module"]["graph"]["nodes"]:
        node["target"] = node["target"].replace(
            "torch.ops.aten.gelu.default", "torch.ops.mine.wobble.default"
        )
    with zipfile.ZipFile(tmp_path / "own.pt2", "w") as file:
        file.writestr("own/models/model.json", json.dumps(program))
    return go_opt.load(tmp_path / "own.pt2")


def networkx_graph() -> Graph:
    g = nx.DiGraph()
    g.add_node("own", op_type="Wobble", outputs=32)
    g.add_node("given", op_type="Wobble", outputs=32, flops=7.0)
    g.add_node("timed", op_type="Wobble", outputs=32, measured_s={"mcm-die": 1e-6})
    g.add_node("known", op_type="Relu", outputs=32)
    return go_opt.from_networkx(g)


@pytest.mark.parametrize("frontend", ["onnx", "onnx loop", "jax", "jax branch", "torch", "networkx"])
def test_unknown_ops_are_named_with_their_cost(frontend: str, tmp_path: Path) -> None:
    graph, named = {
        "onnx": (lambda: go_opt.from_onnx(onnx_model()), ("own", "Wobble", 32.0)),
        "onnx loop": (lambda: go_opt.from_onnx(onnx_model(5)), ("loop/own", "Wobble", 160.0)),
        "jax": (lambda: jax_graph(False), ("wobble", "wobble", 32.0)),
        "jax branch": (lambda: jax_graph(True), ("cond/wobble", "wobble", 32.0)),
        "torch": (lambda: torch_graph(tmp_path), ("1/mine.wobble", "mine.wobble", 48.0)),
        "networkx": (networkx_graph, ("own", "Wobble", 0.0)),
    }[frontend]
    found = graph()
    assert found.unknown_ops == (UnknownOp(*named),)
    assert graph_from_dict(json.loads(json.dumps(graph_to_dict(found)))).unknown_ops == found.unknown_ops
    assert go_opt.from_networkx(go_opt.to_networkx(found)).unknown_ops == found.unknown_ops
    again = io.StringIO(json.dumps(graph_to_dict(found)).replace("unknown_ops", "of_a_later_version"))
    assert graph_from_dict(json.load(again)).unknown_ops == ()


def test_known_models_have_none() -> None:
    assert all(go_opt.load(FOLDER / f"{name}.pt2").unknown_ops == () for name in ("cnn", "decoder", "odd"))
