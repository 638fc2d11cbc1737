"""Rewritten models compute what the models do."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from go_opt import from_onnx, verify
from go_opt.env.rewrites.applying import possible_rewrites
from go_opt.errors import ModelError
from go_opt.model.graph import Rewrite
from go_opt.model.plan import Split
from tests.exports import check_stages, info, model, node, saved, weight
from tests.rewritten import MODELS, attention, branches, heads, rewritten_plan


@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_the_same(name: str, tmp_path: Path) -> None:
    path = saved(MODELS[name](), tmp_path)
    graph = from_onnx(path)
    rewrites = possible_rewrites(graph)
    plan = rewritten_plan(graph, rewrites)
    assert rewrites
    assert verify(path, None, plan) == []
    check_stages(path, plan, tmp_path / "stages")


def test_nodes_are_those_of_the_rewritten_graph(tmp_path: Path) -> None:
    path = saved(branches(), tmp_path)
    graph = from_onnx(path)
    check_stages(path, rewritten_plan(graph, possible_rewrites(graph)), tmp_path / "stages")
    written = onnx.load(tmp_path / "stages" / "annotated.onnx").graph
    assert [one.op_type for one in written.node] == ["Relu", "Conv", "Relu", "Split", "Concat"]
    assert [one.name for one in written.node if one.op_type == "Conv"] == ["conv1 and 2 more"]
    shapes = {one.name: list(one.dims) for one in written.initializer}
    assert shapes["conv1 and 2 more/operand 1"] == [9, 3, 1, 1]
    assert not {"w1", "w2", "g2", "conv2/folded weight"} & shapes.keys()


@pytest.mark.parametrize("opset", [11, 13, 18])
def test_split_of_every_operator_set(opset: int, tmp_path: Path) -> None:
    path = saved(attention(opset), tmp_path)
    graph = from_onnx(path)
    check_stages(path, rewritten_plan(graph, possible_rewrites(graph, ("merge",))), tmp_path / "stages")


def test_transposes_stay_before_the_first_einsum(tmp_path: Path) -> None:
    path = saved(heads(opset=11), tmp_path)
    graph = from_onnx(path)
    with pytest.raises(ModelError, match="op 'scores' cannot take over Transposes: before operator set 12"):
        check_stages(path, rewritten_plan(graph, possible_rewrites(graph)), tmp_path / "stages")


@pytest.mark.parametrize("factor", ["b0", "b1", "i", "j", "k"])
def test_products_that_took_over_transposes_are_split(factor: str, tmp_path: Path) -> None:
    path = saved(heads(), tmp_path)
    graph = from_onnx(path)
    parts = 3 if factor == "k" else 2
    plan = rewritten_plan(graph, possible_rewrites(graph), (Split("scores", factor, parts),))
    assert verify(path, None, plan) == []
    check_stages(path, plan, tmp_path / "stages")


def test_rewritten_ops_are_split(tmp_path: Path) -> None:
    path = saved(attention(), tmp_path)
    graph = from_onnx(path)
    plan = rewritten_plan(graph, possible_rewrites(graph), (Split("matmul_q and 2 more", "j", 4),))
    assert verify(path, None, plan) == []
    check_stages(path, plan, tmp_path / "stages")


def test_views_between_ops_go_with_them(tmp_path: Path) -> None:
    proto = model(
        [
            node("Conv", "x w", "a", "conv"),
            node("Identity", "a", "b", "same"),
            node("Mul", "b s", "y", "mul"),
        ],
        [info("x", [1, 2, 3, 3])],
        [info("y", [1, 4, 3, 3])],
        [weight("w", 4, 2, 1, 1), weight("s", 4, 1, 1)],
    )
    path = saved(proto, tmp_path)
    graph = from_onnx(path)
    plan = rewritten_plan(graph, (Rewrite("fold", ("conv", "mul")),))
    check_stages(path, plan, tmp_path / "stages")
    written = onnx.load(tmp_path / "stages" / "annotated.onnx").graph
    assert [one.name for one in written.node] == ["conv"]
