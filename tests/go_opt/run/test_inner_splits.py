"""Ops split by the inner dimension, and blocks behind columns, as nodes: they give what the model gives."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from go_opt import from_onnx
from go_opt.env.copies.columns import inner_of
from go_opt.env.copies.splits import split_graph
from go_opt.errors import ModelError
from go_opt.model.graph import Graph
from go_opt.model.plan import Split
from go_opt.run.export.exporting import export
from go_opt.run.pipeline.running import run_plan
from go_opt.search.splits.inner_ways import blocks_of, is_open, splits_of_blocks
from go_opt.solver.verify.splits import broken_splits
from tests.exports import check_stages, info, integers, model, node, saved, weight
from tests.go_opt.run.test_random_stages import with_random_weights
from tests.go_opt.run.test_splits import split_plan
from tests.transformers import encoder

X, TOKENS = info("x", (4, 8)), info("x", (2, 5, 8))


def behind_relu(nodes: list[onnx.NodeProto], x: object, size: tuple[int, ...], *used: object) -> object:
    return model([node("Relu", "x", "r", "relu"), *nodes], [x], [info("y", size)], list(used))


CASES = {
    "MatMul": behind_relu([node("MatMul", "r w", "y", "op")], X, (4, 12), weight("w", 8, 12)),
    "MatMul of tokens": behind_relu(
        [node("MatMul", "r w", "y", "op")], TOKENS, (2, 5, 12), weight("w", 8, 12)
    ),
    "MatMul by a weight on the left": behind_relu(
        [node("MatMul", "w r", "y", "op")], X, (12, 8), weight("w", 12, 4)
    ),
    "MatMul by a batch of weights": behind_relu(
        [node("MatMul", "r w", "y", "op")], X, (3, 4, 12), weight("w", 3, 8, 12)
    ),
    "MatMul of a view by a folded weight": behind_relu(
        [node("Transpose", "w", "t", "t", perm=[1, 0]), node("Reshape", "r sizes", "v", "v"),
         node("MatMul", "v t", "y", "op")],
        TOKENS, (10, 12), weight("w", 12, 8), integers("sizes", 10, 8),
    ),
    "Gemm": behind_relu(
        [node("Gemm", "r w b", "y", "op", alpha=0.5, beta=2.0)], X, (4, 12),
        weight("w", 8, 12), weight("b", 12),
    ),
    "Gemm, both turned": behind_relu(
        [node("Gemm", "r w b", "y", "op", transA=1, transB=1)], X, (8, 12), weight("w", 12, 4), weight("b", 1)
    ),
    "Gemm by a weight on the left": behind_relu(
        [node("Gemm", "w r", "y", "op", transA=1)], X, (12, 8), weight("w", 4, 12)
    ),
}  # fmt: skip


@pytest.mark.parametrize("parts", [2, 3, 4])
@pytest.mark.parametrize("case", CASES)
def test_sums_of_parts_give_what_the_op_gives(case: str, parts: int, tmp_path: Path) -> None:
    path, splits = saved(CASES[case], tmp_path), (Split("op", "inner", parts),)
    plan = split_plan(path, *splits)
    check_stages(path, plan, tmp_path / "out")
    assert from_onnx(tmp_path / "out" / "annotated.onnx").fingerprint == plan.graph_fingerprint
    graph = from_onnx(path)
    assert list(broken_splits(graph, split_graph(graph, splits), splits)) == []


def gated(rows: int) -> object:
    """A gated block: two products by columns, element-wise ops and a bias, and the product of their terms."""
    up = [weight("wu", 8, 12), weight("wg", 8, 12), weight("b", 12), weight("v", 12, 6), weight("c", 6)]
    nodes = [
        node("MatMul", "r wu", "u", "up"), node("MatMul", "r wg", "g", "gate"),
        node("Add", "u b", "h", "bias"), node("Gelu", "h", "e", "gelu"), node("Mul", "e g", "m", "mul"),
    ]  # fmt: skip
    nodes.append(node("Gemm", "m v c", "y", "down"))
    return behind_relu(nodes, info("x", (rows, 8)), (rows, 6), *up)


def in_blocks(graph: Graph, parts: int) -> tuple[Split, ...]:
    """All blocks of a graph that can be divided like that."""
    blocks = [block for block in blocks_of(graph) if is_open(graph, block, parts)]
    return tuple(splits_of_blocks(graph, blocks, parts))


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("parts", [2, 3, 5])
def test_a_gated_block_is_joined_once(parts: int, rows: int, tmp_path: Path) -> None:
    path = saved(gated(rows), tmp_path)
    splits = in_blocks(from_onnx(path), parts)
    by_columns = dict.fromkeys(("up", "gate", "bias", "gelu", "mul"), "columns")
    assert {split.op: split.kind for split in splits} == by_columns | {"down": "inner"}
    plan = split_plan(path, *splits)
    check_stages(path, plan, tmp_path / "out")
    assert from_onnx(tmp_path / "out" / "annotated.onnx").fingerprint == plan.graph_fingerprint
    if parts == 3:
        assert run_plan(path, plan, inferences=2).difference < 1e-5


def test_columns_that_a_view_divides_are_refused(tmp_path: Path) -> None:
    """The element-wise op sees 12 columns as 3 by 4; its parts would have to be seen anew."""
    nodes = [
        node("MatMul", "r w", "h", "up"), node("Reshape", "h sizes", "s", "s"),
        node("Gelu", "s", "g", "gelu"), node("Reshape", "g back", "b", "b"),
        node("MatMul", "b v", "y", "down"),
    ]  # fmt: skip
    used = weight("w", 8, 12), weight("v", 12, 6), integers("sizes", 5, 3, 4), integers("back", 5, 12)
    path = saved(behind_relu(nodes, info("x", (5, 8)), (5, 6), *used), tmp_path)
    splits = in_blocks(from_onnx(path), 2)
    assert len(splits) == 3
    with pytest.raises(ModelError, match="op 'gelu' cannot be split: it sees its columns as several axes"):
        export(path, split_plan(path, *splits), tmp_path / "out")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("parts", [2, 3, 4])
def test_blocks_of_an_encoder(parts: int, causal: bool, tmp_path: Path) -> None:
    """Feed-forward layers as blocks, attention by heads, and a product alone by the inner dimension."""
    path = saved(encoder(2, 13, 24, 6, causal=causal), tmp_path)
    graph = from_onnx(path)
    splits = in_blocks(graph, parts)
    by_heads = ["l0o_product", "l1o_product"] if parts < 4 else []  # a part has two heads at least
    assert {one.op for one in splits if one.kind == "inner"} == {"l0d_product", "l1d_product", *by_heads}
    if parts == 4:
        splits = (*splits, Split("l0o_product", "inner", 3), Split("l1_softmax", "rows", 2))
        splits = (*splits, Split("l1q_product", "columns", 2))
    plan = split_plan(path, *splits, seed=1)
    assert list(broken_splits(graph, split_graph(graph, splits), splits)) == []
    check_stages(path, plan, tmp_path / "out")
    assert from_onnx(tmp_path / "out" / "annotated.onnx").fingerprint == plan.graph_fingerprint


def test_a_weight_that_is_divided_both_ways_is_refused(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", "r w", "h", "one"),
        node("Gelu", "h", "g", "gelu"),
        node("MatMul", "g w", "y", "two"),
    ]
    path = saved(behind_relu(nodes, info("x", (3, 8)), (3, 8), weight("w", 8, 8)), tmp_path)
    splits = Split("one", "columns", 2), Split("two", "inner", 2)
    check_stages(path, split_plan(path, *splits), tmp_path / "out")  # slices of both kinds have own names


def test_parts_without_a_bias_need_a_newer_operator_set(tmp_path: Path) -> None:
    path = with_random_weights("light_bvlc_alexnet", tmp_path)
    graph = from_onnx(path)
    op = next(op for op in range(graph.num_ops) if inner_of(graph, op))
    plan = split_plan(path, Split(graph.op_names[op], "inner", 3))
    with pytest.raises(ModelError, match="before operator set 11 a Gemm has a bias"):
        export(path, plan, tmp_path / "out")
