"""Ops in parts as nodes: they give what the whole gives, and the importer sees the split graph in them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import assume, given, settings

from go_opt import from_onnx
from go_opt.env import load_target
from go_opt.env.copies.divisions import column_factor, divisible_factors, inner_factor
from go_opt.env.copies.splits import split_graph
from go_opt.errors import ModelError, PlanError
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan, Split
from go_opt.run.export.exporting import export
from go_opt.run.manifest import Manifest
from go_opt.run.pipeline.running import run_plan
from go_opt.solver.verify.splits import broken_splits
from tests.exports import INT64, check_stages, info, integers, model, node, saved, weight
from tests.go_opt.run.test_random_stages import Drawing, with_random_weights
from tests.strategies import examples, seeds
from tests.transformers import encoder


def split_plan(path: Path, *splits: Split, chips: int = 4, seed: int = 0) -> Plan:
    """Each op and part is a kernel of its own, on a chip of the first few."""
    graph, target = split_graph(from_onnx(path), splits), load_target("gpu-8")
    each = np.arange(graph.num_ops)
    plan = Plan.create(
        graph,
        "gpu-8",
        target.fingerprint,
        placement=np.random.default_rng(seed).integers(0, chips, graph.num_ops),
        order=each,
        fusion_group=each,
        replication=np.ones(graph.num_ops, dtype=np.int32),
        provenance="test",
    )
    return replace(plan, splits=splits)


def check(path: Path, splits: Sequence[Split], folder: Path, *, is_seen: bool = True, seed: int = 0) -> Manifest:
    """The stages give what the model gives, and what is imported of them is the split graph."""
    plan, graph = split_plan(path, *splits, seed=seed), from_onnx(path)
    assert list(broken_splits(graph, split_graph(graph, tuple(splits)), splits)) == []
    manifest = check_stages(path, plan, folder)
    if is_seen:
        assert from_onnx(folder / "annotated.onnx").fingerprint == plan.graph_fingerprint
    return manifest


def factors_of(graph: Graph, op: int) -> dict[str, tuple[int, bool]]:
    """The factors along which an op can be divided: their sizes, and whether they are summed."""
    row = graph.rule_of(op)
    found = [row.rule.factors[i] for i in divisible_factors(graph)[op]] if row is not None else []
    return {one.name: (one.size, one.kind == "reduction") for one in found}


X, IMAGE, TOKENS = info("x", (4, 12)), info("x", (2, 4, 13, 12)), info("x", (2, 13, 12))
FILTER = [weight("w", 6, 4, 3, 3), weight("b", 6)]


def one(
    op_type: str, x: object, sizes: tuple[int, ...], *used: onnx.TensorProto, reads: str = "", **given: object
) -> onnx.ModelProto:
    """An op on ``x``, or what ``reads`` says, between two others."""
    names = reads or " ".join(["r", *(tensor.name for tensor in used)])
    op = node(op_type, names, "s", "op", **given)
    return model([node("Relu", "x", "r", "r"), op, node("Neg", "s", "y", "n")], [x], [info("y", sizes)], used)


W, V = weight("w", 12, 6), weight("v", 6, 12)
CASES = {
    "MatMul": one("MatMul", X, (4, 6), W),
    "MatMul of tokens": one("MatMul", TOKENS, (2, 13, 6), W),
    "MatMul by a weight on the left": one("MatMul", X, (6, 12), weight("w", 6, 4), reads="w r"),
    "MatMul of a batch of weights": one("MatMul", X, (3, 4, 6), weight("w", 3, 12, 6)),
    "MatMul of heads": one("MatMul", info("x", (3, 12, 12)), (3, 12, 12), reads="r r"),
    "Gemm": one("Gemm", X, (4, 6), W, weight("b", 6), alpha=0.5, beta=2.0),
    "Gemm, both turned, one bias": one("Gemm", X, (12, 6), weight("w", 6, 4), weight("b", 1), transA=1, transB=1),
    "Gemm by a weight on the left": one("Gemm", X, (6, 12), weight("w", 4, 6), reads="w r", transA=1),
    "Gemm with a bias of rows": one("Gemm", X, (4, 6), weight("w", 6, 12), weight("b", 4, 1), transB=1),
    "Einsum": one("Einsum", TOKENS, (2, 13, 13), reads="r r", equation="btd,bsd->bts"),
    "Conv": one("Conv", IMAGE, (2, 6, 13, 12), *FILTER, pads=[1, 1, 1, 1]),
    "Conv of every second place": one("Conv", IMAGE, (2, 6, 6, 5), *FILTER, strides=[2, 2]),
    "Conv with holes": one("Conv", IMAGE, (2, 6, 13, 12), *FILTER, dilations=[2, 2], pads=[2] * 4),
    "Conv with uneven pads": one("Conv", IMAGE, (2, 6, 13, 12), *FILTER, pads=[2, 0, 0, 2]),
    "Conv padded above": one("Conv", IMAGE, (2, 6, 13, 12), *FILTER, auto_pad="SAME_UPPER"),
    "Conv padded below": one("Conv", IMAGE, (2, 6, 7, 6), *FILTER, strides=[2, 2], auto_pad="SAME_LOWER"),
    "Conv in groups": one("Conv", IMAGE, (2, 8, 11, 10), weight("w", 8, 2, 3, 3), weight("b", 8), group=2),
    "Conv of each channel": one("Conv", IMAGE, (2, 8, 13, 12), weight("w", 8, 1, 3, 3), group=4, pads=[1] * 4),
    "Conv of points": one("Conv", IMAGE, (2, 6, 13, 12), weight("w", 6, 4, 1, 1), weight("b", 6)),
    "Conv of the whole image": one("Conv", IMAGE, (2, 6, 1, 1), weight("w", 6, 4, 13, 12), kernel_shape=[13, 12]),
    "Conv of a line": one("Conv", TOKENS, (2, 6, 6), weight("w", 6, 13, 3), strides=[2], pads=[1, 1]),
    "Conv of a volume": one(
        "Conv", info("x", (1, 2, 5, 6, 7)), (1, 4, 5, 6, 7), weight("w", 4, 2, 3, 3, 3), pads=[1] * 6
    ),
    "ConvTranspose": one("ConvTranspose", IMAGE, (2, 6, 15, 14), weight("w", 4, 3, 3, 3), group=2),
    "MaxPool": one("MaxPool", IMAGE, (2, 4, 6, 6), kernel_shape=[2, 2], strides=[2, 2]),
    "MaxPool rounded up": one("MaxPool", IMAGE, (2, 4, 7, 6), kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
    "AveragePool": one("AveragePool", IMAGE, (2, 4, 13, 12), kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    "AveragePool that counts padding": one(
        "AveragePool", IMAGE, (2, 4, 12, 11), kernel_shape=[4, 4], pads=[1] * 4, count_include_pad=1
    ),
    "GlobalAveragePool": one("GlobalAveragePool", IMAGE, (2, 4, 1, 1)),
    "Softmax": one("Softmax", TOKENS, (2, 13, 12), axis=-1),
    "LayerNormalization": one("LayerNormalization", TOKENS, (2, 13, 12), weight("s", 12), weight("b", 12)),
    "BatchNormalization": one(
        "BatchNormalization", IMAGE, (2, 4, 13, 12), *(weight(name, 4) for name in "sbm"), reads="r s b m one"
    ),
    "InstanceNormalization": one("InstanceNormalization", IMAGE, (2, 4, 13, 12), weight("s", 4), weight("b", 4)),
    "GroupNormalization": model(
        [node("Relu", "x", "r", "r"), node("GroupNormalization", "r s b", "t", "op", num_groups=2),
         node("Neg", "t", "y", "n")],
        [IMAGE], [info("y", (2, 4, 13, 12))], [weight("s", 4), weight("b", 4)], opset=21,
    ),
    "Gelu": one("Gelu", TOKENS, (2, 13, 12)),
    "Add of a weight with rows": one("Add", TOKENS, (2, 13, 12), weight("w", 13, 12)),
    "Mul of a column of each row": one("Mul", TOKENS, (2, 13, 12), weight("w", 13, 1)),
    "ReduceSum": one("ReduceSum", TOKENS, (2, 13, 1), integers("axes", -1)),
    "ReduceSum of two axes": one("ReduceSum", TOKENS, (13,), integers("axes", 0, 2), keepdims=0),
    "ReduceMax": one("ReduceMax", TOKENS, (2, 13, 1), integers("axes", -1)),
    "ReduceMin": one("ReduceMin", TOKENS, (2, 12), integers("axes", 1), keepdims=0),
    "ReduceMean": one("ReduceMean", TOKENS, (2, 13, 1), integers("axes", -1)),
    "Transpose": one("Transpose", IMAGE, (4, 2, 12, 13), perm=[1, 0, 3, 2]),
    "Concat": one("Concat", IMAGE, (2, 8, 13, 12), reads="r r", axis=1),
    "Slice": one("Slice", TOKENS, (2, 5, 12), *map(integers, ("from", "to", "axes"), (2, 7, 1))),
    "Pad": one("Pad", TOKENS, (2, 13, 14), integers("pads", 0, 0, 1, 0, 0, 1)),
    "Tile": one("Tile", TOKENS, (2, 26, 12), integers("repeats", 1, 2, 1)),
    "Gather of places": one("Gather", TOKENS, (2, 3, 12), integers("at", 5, 0, 12), axis=1),
    "DepthToSpace": one("DepthToSpace", info("x", (2, 8, 3, 4)), (2, 2, 6, 8), blocksize=2),
    "SpaceToDepth": one("SpaceToDepth", info("x", (2, 2, 6, 8)), (2, 8, 3, 4), blocksize=2),
    "CumSum": one("CumSum", TOKENS, (2, 13, 12), integers("axis", 1)),
    "TopK": model(
        [node("Relu", "x", "r", "r"), node("TopK", "r k", "t -", "op"), node("Neg", "t", "y", "n")],
        [TOKENS], [info("y", (2, 13, 3))], [integers("k", 3)],
    ),
    "Split": model(
        [node("Relu", "x", "r", "r"), node("Split", "r", "s t", "op", axis=2, num_outputs=2),
         node("Sub", "s t", "y", "n")],
        [TOKENS], [info("y", (2, 13, 6))],
    ),
    "Attention": model(
        [node("Relu", "x", "r", "r"),
         node("Attention", "r r r", "t", "op", q_num_heads=4, kv_num_heads=4), node("Neg", "t", "y", "n")],
        [TOKENS], [info("y", (2, 13, 12))], opset=23,
    ),
    "table of embeddings": model(
        [node("Gather", "w i", "s", "op"), node("Neg", "s", "y", "n")],
        [info("i", (3, 5), INT64)], [info("y", (3, 5, 6))], [weight("w", 12, 6)],
    ),
}  # fmt: skip
CASES["BatchNormalization"].graph.initializer.append(onnx.numpy_helper.from_array(np.ones(4, np.float32), "one"))


def ways(case: str, path: Path) -> Iterator[tuple[str, int, bool]]:
    graph = from_onnx(path)
    yield from ((name, *of) for name, of in factors_of(graph, graph.op_index["op"]).items())


@pytest.mark.parametrize("case", CASES)
def test_parts_give_what_the_op_gives(case: str, tmp_path: Path) -> None:
    path = saved(CASES[case], tmp_path)
    for name, size, _ in ways(case, path):
        for parts in sorted({2, min(3, size)}):
            check(path, [Split("op", name, parts)], tmp_path / f"{name}{parts}")


@pytest.mark.parametrize("case", CASES)
def test_two_factors_of_one_op_at_once(case: str, tmp_path: Path) -> None:
    path = saved(CASES[case], tmp_path)
    for (one, *_), (other, *_) in itertools.combinations(ways(case, path), 2):
        check(path, [Split("op", one, 2), Split("op", other, 2)], tmp_path / f"{one} and {other}")
