"""``go-opt inspect``: what a model consists of, before any target and before its dimensions are bound."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import helper

import go_opt
from go_opt.errors import ModelError
from tests.cli.conftest import Cli, graph_file, mlp_file, onnx_file, weight

WEIGHT_BYTES = 2 * 64 * 256 * 4


def test_a_model_with_dimensions_to_bind(cli: Cli) -> None:
    model = mlp_file(Path("mlp.onnx"))
    found = cli("inspect", model, "--json").json
    assert found["unbound"] == ["batch", "seq"]
    assert found["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["batch", "seq", 64]}]
    assert found["op_types"][0] == {"op_type": "MatMul", "ops": 2, "flops": None}
    assert (found["ops"], found["flops"], found["weight_bytes"]) == (None, None, WEIGHT_BYTES)
    text = cli("inspect", model).out
    assert "to bind batch, seq; such as: go-opt inspect mlp.onnx --dim 'batch=1' --dim 'seq=1'" in " ".join(
        text.split()
    )
    half = cli("inspect", model, "--dim", "batch=3", "--json").json
    assert half["unbound"] == ["seq"]
    assert half["inputs"][0]["shape"] == [3, "seq", 64]


def test_a_model_with_all_dimensions(cli: Cli) -> None:
    model = mlp_file(Path("mlp.onnx"))
    found = cli("inspect", model, "--dim", "batch=1", "--dim", "seq=8", "--json").json
    assert found["unbound"] == []
    assert found["dims"] == {"batch": 1, "seq": 8}
    assert found["inputs"] == [{"name": "x", "dtype": "float32", "shape": [1, 8, 64]}]
    assert found["outputs"] == [{"name": "y", "dtype": "float32", "shape": [1, 8, 64]}]
    assert found["op_types"] == [
        {"op_type": "MatMul", "ops": 2, "flops": 2 * 2 * 8 * 64 * 256},
        {"op_type": "Relu", "ops": 1, "flops": 8 * 256},
    ]
    assert found["flops"] == sum(row["flops"] for row in found["op_types"])
    assert found["weight_bytes"] == WEIGHT_BYTES
    text = cli("inspect", model, "--dim", "batch=1", "--dim", "seq=8").out
    assert "inputs      x float32 [1, 8, 64]" in text


def test_unknown_ops_and_layers(cli: Cli) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="/enc/0/up"),
        helper.make_node("Frobnicate", ["h"], ["r"], name="/enc/1/odd", domain="my.domain"),
        helper.make_node("Relu", ["h"], ["y"], name="/dec/act"),
    ]
    model = onnx_file(Path("m.onnx"), nodes[::2], [2, 64], [weight("w", 64, 256)])
    found = cli("inspect", model, "--json").json
    assert [(row["name"], row["ops"], row["weight_bytes"]) for row in found["layers"]] == [
        ("enc/0", 1, 64 * 256 * 4),
        ("dec", 1, 0),
    ]
    by_name = {"name": "odd", "op_type": "Frobnicate", "flops": 5.0}
    graph = go_opt.load(graph_file(Path("g.json"), lambda data: data.update(unknown_ops=[by_name])))
    assert [op.name for op in go_opt.inspect(graph).unknown_ops] == ["odd"]
    assert "unknown     1 op of type 'Frobnicate'" in cli("inspect", "g.json").out


def test_every_kind_of_model(cli: Cli) -> None:
    found = cli("inspect", "zoo:resnet50", "--json").json
    graph = go_opt.load("zoo:resnet50")
    assert found["ops"] == graph.num_ops
    assert sum(layer["ops"] for layer in found["layers"]) == graph.num_ops
    assert sum(layer["flops"] for layer in found["layers"]) == pytest.approx(graph.op_flops.sum())
    assert sum(layer["weight_bytes"] for layer in found["layers"]) == found["weight_bytes"]
    assert {"resnet50/conv1_pad", "resnet50/conv1_conv"} <= {layer["name"] for layer in found["layers"]}
    names = [layer["name"] for layer in cli("inspect", "zoo:bert_base", "--json").json["layers"]]
    assert 1 < len(names) <= 24
    assert cli("inspect", graph_file(Path("g.json"))).code == 0


def test_mistakes_are_one_sentence(cli: Cli) -> None:
    model = mlp_file(Path("mlp.onnx"))
    cli("inspect", model, "--dim", "bach=1").is_refused("dimension 'bach'")
    cli("inspect", "none.onnx").is_refused("'none.onnx' does not exist")
    Path("bad.onnx").write_bytes(b"\x08\x07" * 40)
    cli("inspect", "bad.onnx").is_refused("bad")
    with pytest.raises(ModelError, match="no symbolic dimension 'n'"):
        go_opt.inspect("zoo:resnet50", dims={"n": 1})
