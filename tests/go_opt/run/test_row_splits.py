"""Ops split by rows as nodes: the parts give what the op gives, and the importer sees the split graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings

import go_opt
from go_opt import from_onnx
from go_opt.env.copies.rows import rows_of
from go_opt.env.copies.splits import split_graph
from go_opt.errors import ModelError, PlanError
from go_opt.model.axes import row_shapes
from go_opt.model.graph import Graph
from go_opt.model.plan import Split
from go_opt.run.export.exporting import export
from go_opt.run.pipeline.running import run_plan
from go_opt.search.splits.batch_ways import batch_ways
from go_opt.solver.verify.splits import broken_splits
from tests.exports import check_stages, info, integers, model, node, saved, weight
from tests.go_opt.run.test_random_stages import Drawing, with_random_weights
from tests.go_opt.run.test_splits import check_parts, split_plan
from tests.strategies import examples, seeds
from tests.transformers import encoder

IMAGE = info("x", (1, 4, 13, 6))
TOKENS = info("x", (2, 13, 8))
WEIGHTS = [weight("w", 4, 4, 3, 3), weight("b", 4)]


def one(op_type: str, sizes: tuple[int, ...], **attributes: object) -> object:
    """An op on an image, with a weight where it is a convolution."""
    reads = "x w b" if op_type == "Conv" else "x"
    used = WEIGHTS if op_type == "Conv" else []
    if attributes.get("group") == 2:
        used = [weight("w", 4, 2, 3, 3), weight("b", 4)]
    return model([node(op_type, reads, "y", "op", **attributes)], [IMAGE], [info("y", sizes)], used)


def one_of_batch(op_type: str, sizes: tuple[int, ...], **attributes: object) -> object:
    used = WEIGHTS if op_type == "Conv" else []
    reads = "x w b" if used else "x"
    op = node(op_type, reads, "y", "op", **attributes)
    return model([op], [info("x", (12, 4, 13, 6))], [info("y", sizes)], used)


CASES = {
    "Conv": one("Conv", (1, 4, 13, 6), pads=[1, 1, 1, 1]),
    "Conv of every second row": one("Conv", (1, 4, 6, 2), strides=[2, 2]),
    "Conv with holes": one("Conv", (1, 4, 13, 6), dilations=[2, 2], pads=[2] * 4),
    "Conv padded above": one("Conv", (1, 4, 13, 6), auto_pad="SAME_UPPER"),
    "Conv padded below": one("Conv", (1, 4, 7, 3), strides=[2, 2], auto_pad="SAME_LOWER"),
    "Conv in groups": one("Conv", (1, 4, 11, 4), group=2),
    "MaxPool rounded up": one("MaxPool", (1, 4, 7, 3), kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
    "MaxPool with rows left over": one("MaxPool", (1, 4, 6, 3), kernel_shape=[2, 2], strides=[2, 2]),
    "AveragePool": one("AveragePool", (1, 4, 13, 6), kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    "Conv of a batch": one_of_batch("Conv", (12, 4, 13, 6), pads=[1, 1, 1, 1]),
    "Conv of a batch, padded by itself": one_of_batch("Conv", (12, 4, 13, 6), auto_pad="SAME_UPPER"),
    "AveragePool of a batch": one_of_batch("AveragePool", (12, 4, 12, 5), kernel_shape=[4, 4], pads=[1] * 4),
    "GlobalAveragePool of a batch": one_of_batch("GlobalAveragePool", (12, 4, 1, 1)),
    "MatMul of tokens": model(
        [node("MatMul", "x w", "y", "op")],
        [info("x", (2, 9, 8))], [info("y", (2, 9, 12))], [weight("w", 8, 12)],
    ),
    "Gemm of a batch": model(
        [node("Gemm", "x w b", "y", "op", transB=1)],
        [info("x", (7, 8))], [info("y", (7, 12))], [weight("w", 12, 8), weight("b", 12)],
    ),
    "Concat": model(
        [node("Relu", "x", "r", "r"), node("Concat", "x r", "y", "op", axis=1)], [IMAGE],
        [info("y", (1, 8, 13, 6))],
    ),
    "Softmax": model([node("Softmax", "x", "y", "op", axis=-1)], [TOKENS], [info("y", (2, 13, 8))]),
    "LayerNormalization": model(
        [node("LayerNormalization", "x s b", "y", "op")],
        [TOKENS], [info("y", (2, 13, 8))], [weight("s", 8), weight("b", 8)],
    ),
    "ReduceMax": model(
        [node("ReduceMax", "x axes", "y", "op")], [TOKENS], [info("y", (2, 13, 1))], [integers("axes", -1)]
    ),
    "Transpose of an image": model(
        [node("Transpose", "x", "y", "op", perm=[1, 0, 2, 3])],
        [info("x", (2, 4, 13, 6))], [info("y", (4, 2, 13, 6))],
    ),
    "Add of a weight with rows": model(
        [node("Add", "x w", "y", "op")], [TOKENS], [info("y", (2, 13, 8))], [weight("w", 13, 8)]
    ),
    "Add of an activation for all columns": model(
        [node("ReduceMean", "x axes", "m", "m"), node("Sub", "x m", "y", "op")],
        [TOKENS], [info("y", (2, 13, 8))], [integers("axes", -1)],
    ),
    "MatMul of heads": model(
        [node("MatMul", "x z", "y", "op")],
        [info("x", (3, 13, 8)), info("z", (3, 8, 13))], [info("y", (3, 13, 13))],
    ),
    "MatMul of a batch by what has as many rows": model(
        [node("MatMul", "x z", "y", "op")],
        [info("x", (3, 13, 13)), info("z", (3, 13, 8))], [info("y", (3, 13, 8))],
    ),
}  # fmt: skip


@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize("parts", [2, 3, 6])
@pytest.mark.parametrize("case", CASES)
def test_parts_give_what_the_op_gives(case: str, parts: int, joined: bool, tmp_path: Path) -> None:
    check_parts(saved(CASES[case], tmp_path), Split("op", "rows", parts, joined), tmp_path / "out")


def block() -> object:
    """A residual block with a view in it, and a pooling behind it."""
    return model(
        [
            node("Conv", "x w b", "c", "first", pads=[1, 1, 1, 1]), node("Relu", "c", "r", "relu"),
            node("Dropout", "r", "d", "same"), node("Conv", "d w b", "e", "second", pads=[1, 1, 1, 1]),
            node("Add", "e c", "s", "sum"),
            node("MaxPool", "s", "y", "pool", kernel_shape=[2, 2], strides=[2, 2]),
        ],
        [IMAGE], [info("y", (1, 4, 6, 3))], WEIGHTS,
    )  # fmt: skip


@pytest.mark.parametrize("parts", [2, 3])
def test_a_block_stays_in_parts(parts: int, tmp_path: Path) -> None:
    path = saved(block(), tmp_path)
    names = ("first", "relu", "second", "sum", "pool")
    plan = split_plan(path, *(Split(name, "rows", parts, name == "pool") for name in names))
    check_stages(path, plan, tmp_path / "out")
    assert from_onnx(tmp_path / "out" / "annotated.onnx").fingerprint == plan.graph_fingerprint
    assert run_plan(path, plan, inferences=2).difference < 1e-5


def test_a_batch_stays_in_parts(tmp_path: Path) -> None:
    """All ops of a small network are of six images each; only what leaves it is joined."""
    path = saved(
        model(
            [
                node("Conv", "x w b", "c", "conv", pads=[1, 1, 1, 1]), node("Relu", "c", "r", "relu"),
                node("Concat", "r c", "d", "both", axis=1), node("Add", "d s", "e", "scaled"),
                node("GlobalAveragePool", "e", "g", "mean"), node("Flatten", "g", "f", "flat"),
                node("MatMul", "f z", "y", "product"),
            ],
            [info("x", (12, 4, 13, 6))], [info("y", (12, 5))],
            [*WEIGHTS, weight("s", 8, 1, 1), weight("z", 8, 5)],
        ),
        tmp_path,
    )  # fmt: skip
    graph = from_onnx(path)
    shapes = row_shapes(graph)
    assert set(shapes.values()) == {(12, graph.tensor_elements[k] // 12) for k in shapes}
    rows = {op: found for op in range(graph.num_ops) if (found := rows_of(graph, op))}
    assert len(rows) == graph.num_ops
    way, *_ = batch_ways(graph, go_opt.target("gpu-2"), rows)
    assert {split.op for split in way if split.joined} == {"product"}
    plan = split_plan(path, *way)
    assert sum(op_type == "Slice" for op_type in split_graph(graph, way).op_types) == 2  # of the input
    check_stages(path, plan, tmp_path / "out")
    assert from_onnx(tmp_path / "out" / "annotated.onnx").fingerprint == plan.graph_fingerprint


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("parts", [2, 3])
def test_an_encoder_stays_in_parts(parts: int, seed: int, tmp_path: Path) -> None:
    """Keys and values are joined; queries, scores, heads behind a view and the mask are in parts."""
    path = saved(encoder(2, 13, 16, 4, causal=True), tmp_path)
    graph = from_onnx(path)
    splits = every_row(graph, np.random.default_rng(seed), parts)
    assert {"l0q_turn", "l0_scores", "l0_masked", "l0_softmax", "l0_context", "l0_back"} <= {
        split.op for split in splits
    }
    plan = split_plan(path, *splits, seed=seed)
    assert list(broken_splits(graph, split_graph(graph, splits), splits)) == []
    check_stages(path, plan, tmp_path / "out")
    assert from_onnx(tmp_path / "out" / "annotated.onnx").fingerprint == plan.graph_fingerprint


def test_channels_are_shuffled_by_rows(tmp_path: Path) -> None:
    shuffle = [
        node("Conv", "x w b", "c", "conv", pads=[1, 1, 1, 1]), node("Reshape", "c groups", "g", "g"),
        node("Transpose", "g", "t", "op", perm=[0, 2, 1, 3, 4]), node("Reshape", "t image", "i", "i"),
        node("Relu", "i", "y", "relu"),
    ]  # fmt: skip
    sizes = [integers("groups", 1, 2, 2, 13, 6), integers("image", 1, 4, 13, 6)]
    path = saved(model(shuffle, [IMAGE], [info("y", (1, 4, 13, 6))], [*WEIGHTS, *sizes]), tmp_path)
    splits = [Split(name, "rows", 3, name == "relu") for name in ("conv", "op", "relu")]
    check_stages(path, split_plan(path, *splits), tmp_path / "out")


def test_rows_and_columns(tmp_path: Path) -> None:
    path = saved(block(), tmp_path)
    splits = Split("first", "rows", 3), Split("second", "columns", 2), Split("sum", "rows", 2)
    check_stages(path, split_plan(path, *splits), tmp_path / "out")


def test_padding_that_cannot_be_divided_is_refused(tmp_path: Path) -> None:
    attributes = {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1, "count_include_pad": 1}
    path = saved(one("AveragePool", (1, 4, 7, 3), **attributes), tmp_path)
    with pytest.raises(ModelError, match="it counts padding and rounds up"):
        export(path, split_plan(path, Split("op", "rows", 2)), tmp_path / "out")


def every_row(graph: Graph, rng: np.random.Generator, parts: int) -> tuple[Split, ...]:
    """All ops that can be split by rows; each is joined where it has to be, and some beside."""
    rows = {op: found for op in range(graph.num_ops) if (found := rows_of(graph, op))}
    splits = []
    for op, found in rows.items():
        k = found.output
        readers = graph.reader_op[graph.reader_ptr[k] : graph.reader_ptr[k + 1]].tolist()
        takes_parts = all(reader in rows and k in rows[reader].windows for reader in readers)
        joined = not takes_parts or bool(graph.tensor_is_output[k]) or bool(rng.random() < 0.2)
        splits.append(Split(graph.op_names[op], "rows", parts, joined))
    return tuple(splits)


@given(seed=seeds)
@settings(max_examples=examples(25), deadline=None)
def test_random_models(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    rng = np.random.default_rng(seed)
    folder = tmp_path_factory.mktemp("random")
    path = saved(Drawing(rng).model(int(rng.integers(3, 15))), folder)
    splits = every_row(from_onnx(path), rng, int(rng.integers(2, 5)))
    assume(splits)
    check_stages(path, split_plan(path, *splits, seed=seed), folder / "out")


def test_a_real_model(tmp_path: Path) -> None:
    """Joined here and there, so that parts have rows enough."""
    path = with_random_weights("light_squeezenet", tmp_path)
    graph = from_onnx(path)
    splits = every_row(graph, np.random.default_rng(2), 3)
    try:
        split_graph(graph, splits)
    except PlanError:
        splits = tuple(Split(one.op, "rows", 3) for one in splits)
    check_stages(path, split_plan(path, *splits), tmp_path / "out")
