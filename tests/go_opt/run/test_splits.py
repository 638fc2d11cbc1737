"""Ops in parts as nodes: they give what the whole gives, and the importer sees the split graph in them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import assume, given, settings

from go_opt import from_onnx
from go_opt.env.copies.divisions import divisible_factors
from go_opt.env.copies.splits import split_graph
from go_opt.errors import ModelError, PlanError
from go_opt.model.graph import Graph
from go_opt.model.plan import Split
from go_opt.run.export.exporting import export
from go_opt.run.manifest import Manifest
from go_opt.run.pipeline.running import run_plan
from go_opt.solver.verify.splits import broken_splits
from tests.exports import INT64, check_stages, info, integers, model, node, saved, split_plan, weight
from tests.go_opt.run.test_random_stages import Drawing, with_random_weights
from tests.strategies import examples, seeds
from tests.transformers import encoder


def check(
    path: Path, splits: Sequence[Split], folder: Path, *, is_seen: bool = True, seed: int = 0
) -> Manifest:
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
    op = node(op_type, names, "t", "op", **given)
    return model([node("Relu", "x", "r", "r"), op, node("Neg", "t", "y", "n")], [x], [info("y", sizes)], used)


W, V = weight("w", 12, 6), weight("v", 6, 12)
CASES = {
    "MatMul": one("MatMul", X, (4, 6), W),
    "MatMul of tokens": one("MatMul", TOKENS, (2, 13, 6), W),
    "MatMul by a weight on the left": one("MatMul", X, (6, 12), weight("w", 6, 4), reads="w r"),
    "MatMul of a batch of weights": one("MatMul", X, (3, 4, 6), weight("w", 3, 12, 6)),
    "MatMul of heads": one("MatMul", info("x", (3, 12, 12)), (3, 12, 12), reads="r r"),
    "Gemm": one("Gemm", X, (4, 6), W, weight("b", 6), alpha=0.5, beta=2.0),
    "Gemm, both turned, one bias": one(
        "Gemm", X, (12, 6), weight("w", 6, 4), weight("b", 1), transA=1, transB=1
    ),
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
    "Conv of each channel": one(
        "Conv", IMAGE, (2, 8, 13, 12), weight("w", 8, 1, 3, 3), group=4, pads=[1] * 4
    ),
    "Conv of points": one("Conv", IMAGE, (2, 6, 13, 12), weight("w", 6, 4, 1, 1), weight("b", 6)),
    "Conv of the whole image": one(
        "Conv", IMAGE, (2, 6, 1, 1), weight("w", 6, 4, 13, 12), kernel_shape=[13, 12]
    ),
    "Conv of a line": one("Conv", TOKENS, (2, 6, 6), weight("w", 6, 13, 3), strides=[2], pads=[1, 1]),
    "Conv of a volume": one(
        "Conv", info("x", (1, 2, 5, 6, 7)), (1, 4, 5, 6, 7), weight("w", 4, 2, 3, 3, 3), pads=[1] * 6
    ),
    "ConvTranspose": one("ConvTranspose", IMAGE, (2, 6, 15, 14), weight("w", 4, 3, 3, 3), group=2),
    "MaxPool": one("MaxPool", IMAGE, (2, 4, 6, 6), kernel_shape=[2, 2], strides=[2, 2]),
    "MaxPool rounded up": one(
        "MaxPool", IMAGE, (2, 4, 7, 6), kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1
    ),
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
    "InstanceNormalization": one(
        "InstanceNormalization", IMAGE, (2, 4, 13, 12), weight("s", 4), weight("b", 4)
    ),
    "GroupNormalization": model(
        [
            node("Relu", "x", "r", "r"),
            node("GroupNormalization", "r s b", "t", "op", num_groups=2),
            node("Neg", "t", "y", "n"),
        ],
        [IMAGE],
        [info("y", (2, 4, 13, 12))],
        [weight("s", 4), weight("b", 4)],
        opset=21,
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
    "Pad": one("Pad", TOKENS, (2, 13, 14), integers("pads", 0, 0, 1, 0, 0, 1)),
    "Tile": one("Tile", TOKENS, (2, 26, 12), integers("repeats", 1, 2, 1)),
    "Gather of places": one("Gather", TOKENS, (2, 3, 12), integers("at", 5, 0, 12), axis=1),
    "DepthToSpace": one("DepthToSpace", info("x", (2, 8, 3, 4)), (2, 2, 6, 8), blocksize=2),
    "SpaceToDepth": one("SpaceToDepth", info("x", (2, 2, 6, 8)), (2, 8, 3, 4), blocksize=2),
    "CumSum": one("CumSum", TOKENS, (2, 13, 12), integers("axis", 1)),
    "TopK": model(
        [
            node("Relu", "x", "r", "r"),
            node("TopK", "r k", "t u", "op"),
            node("Neg", "t", "y", "n"),
            node("Neg", "u", "z", "m"),
        ],
        [TOKENS],
        [info("y", (2, 13, 3)), info("z", (2, 13, 3), INT64)],
        [integers("k", 3)],
    ),
    "Split": model(
        [
            node("Relu", "x", "r", "r"),
            node("Split", "r", "s t", "op", axis=2, num_outputs=2),
            node("Sub", "s t", "y", "n"),
        ],
        [TOKENS],
        [info("y", (2, 13, 6))],
    ),
    "Attention": model(
        [
            node("Relu", "x", "r", "r"),
            node("Attention", "r r r", "t", "op", q_num_heads=4, kv_num_heads=4),
            node("Neg", "t", "y", "n"),
        ],
        [TOKENS],
        [info("y", (2, 13, 12))],
        opset=23,
    ),
    "table of embeddings": model(
        [node("Gather", "w i", "s", "op"), node("Neg", "s", "y", "n")],
        [info("i", (3, 5), INT64)],
        [info("y", (3, 5, 6))],
        [weight("w", 12, 6)],
    ),
}
CASES["GroupNormalization"].graph.value_info.append(info("t", (2, 4, 13, 12)))
CASES["BatchNormalization"].graph.initializer.append(
    onnx.numpy_helper.from_array(np.ones(4, np.float32), "one")
)


NOT_SEEN = "table of embeddings"  # of the table, a part with fewer indices than it has rows touches fewer


def ways(path: Path) -> Iterator[Split]:
    """The op in two or three parts along each factor."""
    graph = from_onnx(path)
    least = 2 if graph.op_types[graph.op_index["op"]] == "Transpose" else 1  # one step of it would be a view
    for name, (size, _) in factors_of(graph, graph.op_index["op"]).items():
        yield from (Split("op", name, parts) for parts in (2, 3) if least * parts <= size)


@pytest.mark.parametrize("case", CASES)
def test_parts_give_what_the_op_gives(case: str, tmp_path: Path) -> None:
    path = saved(CASES[case], tmp_path)
    found = list(ways(path))
    assert found
    for i, split in enumerate(found):
        check(path, [split], tmp_path / f"{i}", is_seen=case != NOT_SEEN)


@pytest.mark.parametrize("case", CASES)
def test_two_factors_of_one_op_at_once(case: str, tmp_path: Path) -> None:
    path = saved(CASES[case], tmp_path)
    for i, (one, other) in enumerate(itertools.combinations(ways(path), 2)):
        if one.factor != other.factor and one.parts != other.parts:
            check(path, [one, other], tmp_path / f"{i}", is_seen=case != NOT_SEEN)


def alone(case: str) -> onnx.ModelProto:
    """The op of a case, whose result is the model's."""
    proto = onnx.ModelProto()
    proto.CopyFrom(CASES[case])
    *_, last = proto.graph.node
    assert last.op_type == "Neg"
    proto.graph.node.remove(last)
    next(one for one in proto.graph.node if one.name == "op").output[0] = "y"
    return proto


@pytest.mark.parametrize("case", ["MatMul of tokens", "Gemm", "Conv with uneven pads", "MaxPool", "Softmax"])
def test_the_host_joins_outputs(case: str, tmp_path: Path) -> None:
    path = saved(alone(case), tmp_path)
    graph = from_onnx(path)
    of = factors_of(graph, graph.op_index["op"])
    each = [replace(split, joined=False) for split in ways(path) if not of[split.factor][1]]
    pairs = [
        pair
        for pair in itertools.combinations(each, 2)
        if pair[0].factor != pair[1].factor and pair[0].parts != pair[1].parts
    ]
    for i, splits in enumerate([*([split] for split in each), *pairs]):
        manifest = check(path, splits, tmp_path / f"{i}", is_seen=False)
        assert [(output.name, output.stage) for output in manifest.outputs] == [("y", None)]
        assert manifest.host is not None
        assert len(manifest.host.inputs) == math.prod(split.parts for split in splits)


@pytest.mark.parametrize("factor", ["o", "y0"])
def test_the_host_joins_what_outputs_are_views_of(factor: str, tmp_path: Path) -> None:
    """One is what the parts make up, one a view of it, and one is whole."""
    nodes = [
        node("Conv", "x w", "c", "op", pads=[1, 1, 1, 1]),
        node("Reshape", "c sizes", "y", "view"),
        node("Neg", "x", "z", "neg"),
    ]
    outputs = [info("y", (2, 78, 12)), info("z", (2, 4, 13, 12)), info("c", (2, 6, 13, 12))]
    path = saved(model(nodes, [IMAGE], outputs, [*FILTER[:1], integers("sizes", 2, 78, 12)]), tmp_path)
    split = Split("op", factor, 2, joined=False)
    manifest = check(path, [split], tmp_path / "out", is_seen=False)
    assert [output.stage is None for output in manifest.outputs] == [True, False, True]


def test_the_host_joins_as_processes_run(tmp_path: Path) -> None:
    path = saved(alone("Gemm"), tmp_path)
    plan = split_plan(path, Split("op", "j", 3, joined=False), chips=3, seed=1)
    ran = run_plan(path, plan, inferences=3)
    assert (list(ran.outputs), ran.is_equal) == (["y"], True)


def test_a_stage_has_the_slices_of_its_parts_alone(tmp_path: Path) -> None:
    nodes = [node("Transpose", "w", "t", "t", perm=[1, 0]), node("MatMul", "x t", "y", "op")]
    path = saved(model(nodes, [info("x", (4, 8))], [info("y", (4, 12))], [weight("w", 12, 8)]), tmp_path)
    plan = split_plan(path, Split("op", "j", 3), chips=1)
    spread = replace(plan, placement=np.array([0, 1, 2, 2], dtype=np.int32))
    manifest = export(path, spread, tmp_path / "out")
    assert [stage.weight_bytes for stage in manifest.stages] == [4 * 8 * 4] * 3


def gated(rows: int) -> onnx.ModelProto:
    """A gated block: two products by columns, element-wise ops and a bias, and the product of their terms."""
    used = [weight("wu", 8, 12), weight("wg", 8, 12), weight("b", 12), weight("v", 12, 6), weight("c", 6)]
    nodes = [
        node("Relu", "x", "r", "relu"),
        node("MatMul", "r wu", "u", "up"),
        node("MatMul", "r wg", "g", "gate"),
        node("Add", "u b", "h", "bias"),
        node("Gelu", "h", "e", "gelu"),
        node("Mul", "e g", "m", "mul"),
        node("Gemm", "m v c", "y", "down"),
    ]
    return model(nodes, [info("x", (rows, 8))], [info("y", (rows, 6))], used)


def in_parts(splits: Sequence[Split], last: str) -> list[Split]:
    """The splits, with no result joined but that of the last op."""
    return [replace(split, joined=split.op == last) for split in splits]


def last_factor(graph: Graph, name: str) -> str:
    """The factor along the last axis of a result."""
    row = graph.rule_of(graph.op_index[name])
    assert row is not None
    return row.rule.factors[row.rule.results[0][-1][-1]].name


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("parts", [2, 3, 5])
def test_a_gated_block_is_joined_once(parts: int, rows: int, tmp_path: Path) -> None:
    path = saved(gated(rows), tmp_path)
    graph = from_onnx(path)
    splits = [Split(op, last_factor(graph, op), parts) for op in ("up", "gate", "bias", "gelu", "mul")]
    splits.append(Split("down", "k", parts))
    splits = in_parts(splits, "down")
    check(path, splits, tmp_path / "out")
    assert not {"Concat", "Slice"} & set(split_graph(graph, tuple(splits)).op_types)
    if parts == 3:
        assert run_plan(path, split_plan(path, *splits), inferences=2).difference < 1e-5


def residual_block() -> onnx.ModelProto:
    """A residual block with a view in it, and a pooling behind it."""
    filters = np.random.default_rng(0).normal(0, 1 / 6, (4, 4, 3, 3)).astype(np.float32)
    used = [onnx.numpy_helper.from_array(filters, "w"), weight("b", 4)]
    return model(
        [
            node("Conv", "x w b", "c", "first", pads=[1, 1, 1, 1]),
            node("Relu", "c", "r", "relu"),
            node("Dropout", "r", "d", "same"),
            node("Conv", "d w b", "e", "second", pads=[1, 1, 1, 1]),
            node("Add", "e c", "s", "sum"),
            node("MaxPool", "s", "y", "pool", kernel_shape=[2, 2], strides=[2, 2]),
        ],
        [info("x", (1, 4, 13, 14))],
        [info("y", (1, 4, 6, 7))],
        used,
    )


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("parts", [2, 3])
def test_a_block_stays_in_parts_of_an_image(parts: int, axis: int, tmp_path: Path) -> None:
    path = saved(residual_block(), tmp_path)
    factors = {
        "first": f"y{axis}",
        "relu": f"d{axis + 2}",
        "second": f"y{axis}",
        "sum": f"d{axis + 2}",
        "pool": f"y{axis}",
    }
    splits = in_parts([Split(op, factor, parts) for op, factor in factors.items()], "pool")
    graph = split_graph(from_onnx(path), tuple(splits))
    assert factors.keys() & graph.op_index.keys() == {"pool"}  # no other is joined
    check(path, splits, tmp_path / "out")
    assert run_plan(path, split_plan(path, *splits), inferences=2).difference < 1e-5


def test_a_batch_stays_in_parts(tmp_path: Path) -> None:
    """All ops of a small network are of six images each; only what leaves it is joined."""
    used = [weight("w", 4, 4, 3, 3), weight("b", 4), weight("s", 8, 1, 1), weight("z", 8, 5)]
    nodes = [
        node("Conv", "x w b", "c", "conv", pads=[1, 1, 1, 1]),
        node("Relu", "c", "r", "relu"),
        node("Concat", "r c", "d", "both", axis=1),
        node("Add", "d s", "e", "scaled"),
        node("GlobalAveragePool", "e", "g", "mean"),
        node("Flatten", "g", "f", "flat"),
        node("MatMul", "f z", "y", "product"),
    ]
    path = saved(model(nodes, [info("x", (12, 4, 13, 6))], [info("y", (12, 5))], used), tmp_path)
    first = {"conv": "n", "relu": "d0", "both": "d0", "scaled": "d0", "mean": "d0", "product": "i"}
    splits = tuple(in_parts([Split(op, factor, 2) for op, factor in first.items()], "product"))
    op_types = split_graph(from_onnx(path), splits).op_types
    assert (op_types.count("Slice"), op_types.count("Concat")) == (2, 3)  # of the input; two of the model
    check(path, splits, tmp_path / "out")


def some_splits(graph: Graph, rng: np.random.Generator, chance: float, parts: int) -> tuple[Split, ...]:
    """Random ops in parts, some along two factors, as far as all of them have steps enough."""
    splits: list[Split] = []
    for op in np.flatnonzero(rng.random(graph.num_ops) < chance).tolist():
        factors = [name for name, (size, _) in factors_of(graph, op).items() if size >= parts]
        number = min(len(factors), 1 + int(rng.random() < 0.2))
        new = [Split(graph.op_names[op], str(name), parts) for name in rng.permutation(factors)[:number]]
        try:
            split_graph(graph, tuple(splits + new))
        except PlanError:
            continue
        splits += new
    return tuple(splits)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("causal", [False, True])
def test_an_encoder_in_random_parts(seed: int, causal: bool, tmp_path: Path) -> None:
    path = saved(encoder(2, 13, 24, 6, causal=causal), tmp_path)
    rng = np.random.default_rng(seed)
    splits = some_splits(from_onnx(path), rng, float(rng.random()), int(rng.integers(2, 4)))
    check(path, splits, tmp_path / "out", is_seen=False, seed=seed)


@pytest.mark.parametrize("parts", [2, 3])
def test_attention_by_heads_is_joined_once(parts: int, tmp_path: Path) -> None:
    path = saved(encoder(1, 13, 24, 6), tmp_path)
    graph = from_onnx(path)
    splits = [
        Split(f"l0{one}_{of}", last_factor(graph, f"l0{one}_{of}"), parts)
        for one in "qkv"
        for of in ("product", "bias")
    ]
    splits += [Split(f"l0{one}_turn", "d2", parts) for one in "qkv"]
    splits += [
        Split(f"l0_{one}", factor, parts)
        for one, factor in {
            "scores": "b1",
            "scaled": "d1",
            "softmax": "d1",
            "context": "b1",
            "back": "d1",
        }.items()
    ]
    splits = in_parts([*splits, Split("l0o_product", "k", parts)], "l0o_product")
    assert not {"Concat", "Slice"} & set(split_graph(graph, tuple(splits)).op_types)
    check(path, splits, tmp_path / "out")


@given(seed=seeds)
@settings(max_examples=examples(25), deadline=None)
def test_random_models(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    rng = np.random.default_rng(seed)
    folder = tmp_path_factory.mktemp("random")
    path = saved(Drawing(rng).model(int(rng.integers(3, 15))), folder)
    splits = some_splits(from_onnx(path), rng, 0.7, int(rng.integers(2, 4)))
    assume(splits)
    check(path, splits, folder / "out", is_seen=False, seed=seed)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ["light_squeezenet", "light_shufflenet"])
def test_real_models(name: str, seed: int, tmp_path: Path) -> None:
    path = with_random_weights(name, tmp_path)
    graph = from_onnx(path)
    found = some_splits(graph, np.random.default_rng(seed), 0.15, 3 - seed)
    is_product = {
        name: op_type == "Gemm" for name, op_type in zip(graph.op_names, graph.op_types, strict=True)
    }
    splits = [one for one in found if not (is_product[one.op] and one.factor == "k")]
    assert len({split.op for split in splits}) > 5
    check(path, splits, tmp_path / "out", is_seen=False)


def test_parts_without_a_bias_need_a_newer_operator_set(tmp_path: Path) -> None:
    proto = onnx.ModelProto()
    proto.CopyFrom(CASES["Gemm"])
    proto.opset_import[0].version = 10
    path = saved(proto, tmp_path)
    with pytest.raises(ModelError, match="before operator set 11 a Gemm has a bias"):
        export(path, split_plan(path, Split("op", "k", 3)), tmp_path / "out")


def test_padding_that_cannot_be_divided_is_refused(tmp_path: Path) -> None:
    attributes = {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1, "count_include_pad": 1}
    path = saved(one("AveragePool", IMAGE, (2, 4, 7, 6), **attributes), tmp_path)
    with pytest.raises(ModelError, match="it counts padding and rounds up"):
        export(path, split_plan(path, Split("op", "y0", 2)), tmp_path / "out")


def test_columns_that_a_view_divides(tmp_path: Path) -> None:
    """The element-wise op between two divided products sees 12 columns as 3 by 4."""
    nodes = [
        node("MatMul", "x w", "h", "up"),
        node("Reshape", "h sizes", "s", "s"),
        node("Gelu", "s", "g", "gelu"),
        node("Reshape", "g back", "b", "b"),
        node("MatMul", "b v", "y", "down"),
    ]
    used = weight("w", 8, 12), weight("v", 12, 6), integers("sizes", 5, 3, 4), integers("back", 5, 12)
    path = saved(model(nodes, [info("x", (5, 8))], [info("y", (5, 6))], list(used)), tmp_path)
    splits = Split("up", "j", 2), Split("down", "k", 2)
    check(path, splits, tmp_path / "joined")  # between them the columns are joined


def test_a_weight_that_two_products_see_differently(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", "x w", "h", "up"),
        node("Transpose", "w", "t", "t"),
        node("MatMul", "h t", "y", "down"),
    ]
    path = saved(model(nodes, [X], [info("y", (4, 12))], [W]), tmp_path)
    for i, (up, down) in enumerate(itertools.product("jk", repeat=2)):
        splits = Split("up", up, 2), Split("down", down, 2)
        check(path, splits, tmp_path / f"{i}", is_seen=up == down)


def test_operands_that_are_copied(tmp_path: Path) -> None:
    """Parts of an op see as many copies of an element as they need, also where keys have fewer heads."""
    nodes = [
        node("Expand", "x wide", "e", "e"),
        node("Concat", "e z", "c", "op", axis=2),
        node("Relu", "x", "r", "r"),
        node("Expand", "r groups", "g", "g"),
        node("Reshape", "g heads", "k", "k"),
        node("MatMul", "k q", "y", "scores"),
    ]
    used = [
        integers("wide", 4, 2, 1, 3),
        integers("groups", 4, 2, 5, 3),
        integers("heads", 1, 8, 5, 3),
        weight("q", 1, 8, 3, 7),
        weight("z", 4, 2, 6, 3),
    ]
    outputs = [info("c", (4, 2, 7, 3)), info("y", (1, 8, 5, 7))]
    path = saved(model(nodes, [info("x", (4, 1, 1, 3))], outputs, used), tmp_path)
    graph = from_onnx(path)
    for op in ("op", "scores"):
        for i, name in enumerate(factors_of(graph, graph.op_index[op])):
            check(path, [Split(op, name, 2)], tmp_path / f"{op}{i}")


EXCHANGES = {
    "AllReduce": [Split("first", "k", 2, collective=True), Split("act", "d1", 2, joined=False),
                  Split("second", "k", 2, collective=True)],
    "ReduceScatter": [Split("first", "k", 2, collective=True), Split("act", "d0", 2)],
    "AllGather": [Split("first", "j", 2, collective=True), Split("second", "j", 2)],
    "AllToAll": [Split("first", "j", 2, collective=True), Split("act", "d0", 2)],
}  # fmt: skip


@pytest.mark.parametrize("expected", EXCHANGES)
def test_collectives_give_what_the_model_gives(expected: str, tmp_path: Path) -> None:
    nodes = [
        node("MatMul", "x v", "h", "first"),
        node("Relu", "h", "a", "act"),
        node("MatMul", "a w", "y", "second"),
    ]
    used = [weight("v", 8, 12), weight("w", 12, 6)]
    path = saved(model(nodes, [info("x", (4, 8))], [info("y", (4, 6))], used), tmp_path)
    splits = EXCHANGES[expected]
    assert expected in split_graph(from_onnx(path), tuple(splits)).op_types
    for seed in range(3):
        check(path, splits, tmp_path / f"{seed}", is_seen=False, seed=seed)
    assert run_plan(path, split_plan(path, *splits, chips=2), inferences=2).difference < 1e-5
