"""Shapes and windows go with a graph through every format, and are no part of its fingerprint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import onnx
import pytest

from go_opt import from_networkx, from_onnx, to_networkx
from go_opt.errors import GraphError
from go_opt.model.axes import Shape, batch_of, common_shape, keeps_batch, row_axis
from go_opt.model.builder import GraphBuilder
from go_opt.model.codecs.graph_json import graph_from_dict, graph_to_dict
from go_opt.model.codecs.wire import graph_from_proto, graph_to_proto
from go_opt.model.graph import SAME_ROW, Graph, Heads, Window
from tests.exports import info, integers, model, node, weight
from tests.transformers import encoder

CONVOLUTION = model(
    [
        node("Conv", "x w", "c", "conv", strides=[2, 1], dilations=[2, 1], pads=[1, 0, 2, 0]),
        node("Dropout", "c", "d", "same"), node("Flatten", "d", "f", "flat"), node("Relu", "f", "y", "relu"),
        node("Relu", "x", "z", "other"),
    ],
    [info("x", (1, 2, 9, 4))], [info("y", (1, 24)), info("z", (1, 2, 9, 4))], [weight("w", 3, 2, 3, 3)],
)  # fmt: skip


def test_of_a_model() -> None:
    """A tensor whose rows readers do not all see has no shape that is known."""
    graph = from_onnx(CONVOLUTION)
    assert graph.shapes == {"x": (1, 2, 9, 4), "w": (3, 2, 3, 3), "y": (1, 24), "z": (1, 2, 9, 4)}
    assert graph.windows == {"conv": Window(5, 2, 1), "other": SAME_ROW}
    assert replace(graph, shapes={}, windows={}).fingerprint == graph.fingerprint


@pytest.mark.parametrize(
    "through",
    [
        lambda graph: graph_from_dict(graph_to_dict(graph)),
        lambda graph: graph_from_proto(graph_to_proto(graph)),
        lambda graph: from_networkx(to_networkx(graph)),
    ],
)
def test_through_every_format(through: Callable[[Graph], Graph]) -> None:
    for graph in (from_onnx(CONVOLUTION), from_onnx(encoder(1, 3, 8, 2, weights=False))):
        back = through(graph)
        assert (back.shapes, back.windows, back.heads) == (graph.shapes, graph.windows, graph.heads)
        assert back.fingerprint == graph.fingerprint


def test_heads_by_hand() -> None:
    """3 tokens, 2 heads of 4: heads are 4 elements apart before a Transpose, 12 behind it."""
    graph = from_onnx(encoder(1, 3, 8, 2, causal=True, weights=False))
    assert graph.heads["l0k_turn"] == Heads(2, {"l0k": 4, "l0kt": 12})
    assert graph.heads["l0_scores"] == Heads(2, {"l0qt": 12, "l0kt": 12, "l0s": 9})
    assert graph.heads["l0_masked"] == Heads(2, {"l0f": 9, "l0fm": 9}), "the mask has no heads"
    assert graph.heads["l0_back"] == Heads(2, {"l0c": 12, "l0ct": 4})
    kept = [f"l0{name}" for name in ("q_turn", "k_turn", "v_turn", "_scaled", "_softmax", "_context")]
    assert graph.heads.keys() == {*kept, "l0k_turn", "l0_scores", "l0_masked", "l0_back"}


@pytest.mark.parametrize("axis", [1, -1])
def test_what_mixes_heads_passes_none_on(axis: int) -> None:
    sizes = (1, 2, 3, 3)
    nodes = [
        node("Relu", "x", "r", "relu"),
        node("MatMul", "r x", "s", "scores"),
        node("Softmax", "s", "y", "op", axis=axis),
    ]
    graph = from_onnx(model(nodes, [info("x", sizes)], [info("y", sizes)]))
    assert ("op" in graph.heads, graph.heads["scores"].number) == (axis == -1, 2)


def heads_of_conv(number: int, tensor: str) -> dict:
    return {"conv": {"number": number, "behind": {tensor: 1}}}


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("shapes", {"x": [9, 9]}, "tensor 'x': shape [9, 9] has not its 72 elements."),
        ("shapes", {"x": "1x72"}, "tensor 'x': shape must be a list of whole numbers, not '1x72'."),
        (
            "heads",
            {"conv": {"number": 5, "behind": {"c": 1}}},
            "op 'conv': heads: tensor 'c' has no 5 heads like that.",
        ),
        (
            "heads",
            {"conv": {"number": 2, "behind": {"x": 1}}},
            "op 'conv': heads: what it writes has no 2 heads like that.",
        ),
        (
            "heads",
            {"conv": {"number": 0, "behind": {"c": 1}}},
            "op 'conv': heads: numbers must be whole numbers of at least 1.",
        ),
        ("windows", {"conv": [3, 1]}, "op 'conv': window must be size, stride and padding, not [3, 1]."),
        ("windows", {"conv": [3, 0, 1]}, "op 'conv': window: stride must be a whole number of at least 1."),
    ],
)
def test_refused(field: str, value: object, sentence: str) -> None:
    with pytest.raises(GraphError) as caught:
        graph_from_dict(graph_to_dict(from_onnx(CONVOLUTION)) | {field: value})
    assert str(caught.value) == sentence


def test_a_view_of_unknown_shape_leaves_its_source_without_one() -> None:
    b = GraphBuilder("view")
    b.add_tensor("x", (2, 3), "float32", "input")
    b.add_view("v", "x")
    b.add_op(
        "op", "Relu", "vector", flops=6, dtype="float32", reads=[("v", None)], writes=[("y", (6,), "float32")]
    )
    assert b.build().shapes == {"y": (6,)}


@pytest.mark.parametrize(
    ("views", "shape"),
    [
        ([(1, 2, 9, 4)], (1, 2, 9, 4)),
        ([(1, 136, 28, 28), (1, 4, 34, 28, 28)], (136, 28, 28)),  # channels in groups
        ([(1, 50, 768), (1, 50, 12, 64), (50, 768)], (50, 768)),  # tokens, with heads and without
        ([(1, 12, 1), (1, 12)], ()),
        ([(2, 8, 3), (16, 3)], ()),  # a batch of tokens, then all tokens
        ([(8, 3), (4, 6)], ()),
        ([(4, 1), (4, 5)], ()),  # a broadcast
    ],
)
def test_axes_that_all_views_have(views: list[Shape], shape: Shape) -> None:
    assert common_shape(views) == shape
    for view in views if shape else ():
        axis = row_axis(view, shape)
        assert axis is not None
        assert view[axis] == shape[-2]


ROWS = info("x", (2, 6, 4))
KEPT = {
    "a normalised row": (node("LayerNormalization", "x s", "y", "op"), True),
    "all of a normalised image": (node("LayerNormalization", "x w", "y", "op", axis=1), False),
    "a distribution over columns": (node("Softmax", "x", "y", "op"), True),
    "a distribution over rows": (node("Softmax", "x", "y", "op", axis=1), False),
    "a mean that stays": (node("ReduceMean", "x last", "y", "op"), True),
    "a mean of rows": (node("ReduceMean", "x rows", "y", "op"), False),
    "a mean that goes": (node("ReduceMean", "x last", "y", "op", keepdims=0), False),
    "rows of another axis": (node("Transpose", "x", "y", "op", perm=[1, 0, 2]), False),
    "the same rows": (node("Transpose", "x", "y", "op", perm=[0, 1, 2]), None),
    "a figure per channel": (node("BatchNormalization", "x c c c c", "y", "op"), False),
    "columns beside": (node("Concat", "x x", "y", "op", axis=-1), True),
    "rows behind": (node("Concat", "x x", "y", "op", axis=1), False),
    "a weight with rows": (node("Add", "x w", "y", "op"), True),
    "a weight for all rows": (node("Add", "x b", "y", "op"), True),
}


@pytest.mark.parametrize("case", KEPT)
def test_ops_that_keep_rows_apart(case: str) -> None:
    op, is_kept = KEPT[case]
    weights = [weight("s", 4), weight("c", 6), weight("w", 6, 4), weight("b", 1, 4)]
    proto = model(
        [op, node("Relu", "y", "z", "last")],
        [ROWS], [], [*weights, integers("last", -1), integers("rows", 1)],
    )  # fmt: skip
    proto.graph.output.append(onnx.ValueInfoProto(name="z"))
    graph = from_onnx(proto)
    assert graph.windows.get("op") == (SAME_ROW if is_kept else None)


def test_a_distribution_of_an_older_operator_set_is_over_all_axes() -> None:
    for opset, is_kept in ((12, False), (13, True)):
        nodes = [node("Softmax", "x", "y", "op", axis=1 if opset == 12 else 2)]
        graph = from_onnx(model(nodes, [ROWS], [info("y", (2, 6, 4))], opset=opset))
        assert ("op" in graph.windows) == is_kept


@pytest.mark.parametrize(
    ("inputs", "batch"),
    [
        ([(8, 3, 9, 9)], 8),
        ([(8, 3, 9, 9), (8, 9, 9, 1)], 8),
        ([(7, 3, 9, 9)], 0),  # too few
        ([(8, 3, 9, 9), (16, 3, 9, 9)], 0),
        ([(8, 3, 9, 9), (8, 20)], 0),  # no images
        ([(12, 64, 64)], 0),  # heads
        ([], 0),
    ],
)
def test_batches_by_hand(inputs: list[tuple[int, ...]], batch: int) -> None:
    assert batch_of(inputs) == batch


@pytest.mark.parametrize(
    ("op_type", "operands", "output", "is_kept"),
    [
        ("Conv", [(8, 3, 9, 9)], (8, 4, 9, 9), True),
        ("Add", [(8, 3, 9, 9), (1, 3, 1, 1)], (8, 3, 9, 9), True),
        ("Add", [(8, 8, 9, 9), (8, 1, 1)], (8, 8, 9, 9), False),  # the second has channels first
        ("Add", [(1, 3, 9, 9)], (8, 3, 9, 9), False),  # nothing to divide
        ("ReduceSum", [(8, 3, 9, 9)], (8, 3), True),
        ("ReduceSum", [(8, 8, 9, 9)], (8, 9, 9), False),  # over which of the two?
        ("Concat", [(8, 3, 9, 9), (8, 2, 9, 9)], (8, 5, 9, 9), True),
        ("Concat", [(4, 3, 9, 9), (8, 3, 9, 9)], (12, 3, 9, 9), False),
        ("Transpose", [(8, 3, 9, 8)], (8, 3, 9, 8), False),
    ],
)
def test_what_keeps_a_batch_by_hand(
    op_type: str, operands: list[tuple[int, ...]], output: tuple[int, ...], is_kept: bool
) -> None:
    assert keeps_batch(op_type, operands, output) is is_kept
