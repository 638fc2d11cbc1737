"""What rules say of shapes, rows and heads; rules go with a graph through every format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import onnx
import pytest

from go_opt import from_networkx, from_onnx, to_networkx
from go_opt.errors import GraphError
from go_opt.model.codecs.graph_json import graph_from_dict, graph_to_dict
from go_opt.model.codecs.wire import graph_from_proto, graph_to_proto
from go_opt.model.graph import Graph, common_shape, row_axis
from go_opt.model.rule import Shape
from go_opt.search.splits.rows import batch_of, row_shapes
from tests.exports import info, integers, model, node, weight
from tests.shaped import SAME_ROW, ShapedBuilder, Window, heads_of, shapes_of, windows_of
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
    graph = from_onnx(CONVOLUTION)
    # The output of the convolution is seen flat by its reader, so its rows are no axis for all.
    assert shapes_of(graph) == {"x": (1, 2, 9, 4), "w": (3, 2, 3, 3), "y": (1, 24), "z": (1, 2, 9, 4)}
    assert windows_of(graph) == {"other": {SAME_ROW}}
    assert replace(graph, op_rules=()).fingerprint == graph.fingerprint


def test_a_window_by_hand() -> None:
    """Three rows, every second one of five: strides of 2, and padding before."""
    proto = model(
        [node("Conv", "x w", "y", "conv", strides=[2, 1], dilations=[2, 1], pads=[1, 0, 2, 0])],
        [info("x", (1, 2, 9, 4))], [info("y", (1, 3, 4, 2))], [weight("w", 3, 2, 3, 3)],
    )  # fmt: skip
    assert windows_of(from_onnx(proto)) == {"conv": {Window(5, 2, 1)}}


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
        assert back.op_rules == graph.op_rules
        assert all(graph.op_rules)
        assert back.fingerprint == graph.fingerprint


def test_heads_by_hand() -> None:
    """3 tokens, 4 heads of 2: heads are 2 elements apart before a Transpose, 6 behind it."""
    heads = heads_of(from_onnx(encoder(1, 3, 8, 4, causal=True, weights=False)))
    assert heads["l0k_turn"] == (4, {"l0k": 2, "l0kt": 6})
    assert heads["l0_scores"] == (4, {"l0qt": 6, "l0kt": 6, "l0s": 9})
    assert heads["l0_masked"] == (4, {"l0f": 9, "l0fm": 9}), "the mask has no heads"
    assert heads["l0_back"] == (4, {"l0c": 6, "l0ct": 2})
    kept = [f"l0{name}" for name in ("q_turn", "k_turn", "v_turn", "_scaled", "_softmax", "_context")]
    attention = {name: one for name, one in heads.items() if one[0] == 4}
    assert attention.keys() == {*kept, "l0k_turn", "l0_scores", "l0_masked", "l0_back"}


def changed_rule(change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """The graph as JSON, with another rule of its convolution."""
    data = graph_to_dict(from_onnx(CONVOLUTION))
    change(next(op["rule"] for op in data["ops"] if op["name"] == "conv"))
    return data


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda rule: rule["factors"][0].update(size=1), "op 'conv': rule: the size of factor 'c' must be"),
        (lambda rule: rule["factors"][0].update(kind="some"), "op 'conv': rule: factors: 'kind' must be one"),
        (lambda rule: rule["factors"][0].update(name="o"), "op 'conv': rule has no factor 'c'"),
        (lambda rule: rule["operands"][0].update(tensor="no"), "op 'conv': rule names an operand that"),
        (
            lambda rule: rule["operands"][0].update(dimensions=3),
            "op 'conv': rule: 'dimensions' must be a list",
        ),
        (
            lambda rule: next(one for one in rule["factors"] if one["name"] == "o").update(size=4),
            "op 'conv': rule: a result has not its 24 elements.",
        ),
        (
            lambda rule: rule["results"][0]["dimensions"].append(["o"]),
            "op 'conv': rule: a factor occurs twice",
        ),
        (
            lambda rule: rule["results"].append(rule["results"][0]),
            "op 'conv': rule must have the results",
        ),
        (lambda rule: rule.pop("factors"), "op 'conv': rule lacks the field 'factors'"),
        (
            lambda rule: rule["operands"][0]["dimensions"][2][0].update(stride=0),
            "op 'conv': rule: stride, dilation and size of a window must be",
        ),
        (
            lambda rule: rule["operands"][0]["dimensions"][2][0].update(before=0.5),
            "op 'conv': rule: window: 'before' must be a whole number",
        ),
    ],
)
def test_refused(change: Callable[[dict[str, Any]], Any], sentence: str) -> None:
    with pytest.raises(GraphError) as caught:
        graph_from_dict(changed_rule(change))
    assert str(caught.value).startswith(sentence)


def test_a_message_with_a_wrong_rule_is_refused() -> None:
    for change in (
        lambda message: setattr(message.ops[0], "rule", 99),
        lambda message: message.ops[0].operands.append(10**6),
        lambda message: setattr(message.rules[0].factors[0], "kind", 0),
        lambda message: setattr(message.rules[0].results[0].dimensions[1].pieces[0], "factor", 77),
    ):
        message = graph_to_proto(from_onnx(CONVOLUTION))
        change(message)
        with pytest.raises(GraphError, match="rule"):
            graph_from_proto(message)


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
    assert windows_of(graph).get("op") == ({SAME_ROW} if is_kept else None)


def test_a_distribution_of_an_older_operator_set_is_over_all_axes() -> None:
    for opset, is_kept in ((12, False), (13, True)):
        nodes = [node("Softmax", "x", "y", "op", axis=1 if opset == 12 else 2)]
        graph = from_onnx(model(nodes, [ROWS], [info("y", (2, 6, 4))], opset=opset))
        assert ("op" in windows_of(graph)) == is_kept


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
    ("op_type", "attributes", "operands", "output", "is_kept"),
    [
        ("Conv", {}, [(8, 3, 9, 9), (4, 3, 1, 1)], (8, 4, 9, 9), True),
        ("Conv", {"pads": [1, 1, 1, 1]}, [(8, 3, 9, 9), (4, 3, 3, 3)], (8, 4, 9, 9), True),
        ("Add", {}, [(8, 3, 9, 9), (1, 3, 1, 1)], (8, 3, 9, 9), True),
        ("Add", {}, [(8, 8, 9, 9), (8, 1, 1)], (8, 8, 9, 9), True),  # the second has channels first
        ("ReduceSum", {"axes": [2, 3]}, [(8, 3, 9, 9)], (8, 3), True),
        ("ReduceSum", {"axes": [0]}, [(8, 8, 9, 9)], (8, 9, 9), False),
        ("ReduceSum", {"axes": [1]}, [(8, 8, 9, 9)], (8, 9, 9), True),
        ("Concat", {"axis": 1}, [(8, 3, 9, 9), (8, 2, 9, 9)], (8, 5, 9, 9), True),
        ("Concat", {"axis": 0}, [(8, 3, 9, 9), (8, 3, 9, 9)], (16, 3, 9, 9), False),
        ("Transpose", {"perm": [3, 1, 2, 0]}, [(8, 3, 9, 8)], (8, 3, 9, 8), False),
    ],
)
def test_what_keeps_a_batch_by_hand(
    op_type: str, attributes: dict[str, Any], operands: list[Shape], output: Shape, is_kept: bool
) -> None:
    b = ShapedBuilder("batch")
    for i, shape in enumerate(operands):
        kind = "input" if len(shape) > 3 and shape[0] == 8 else "weight"
        b.add_tensor(f"t{i}", shape, "float32", kind)
    b.add_op(
        "op", op_type, "matrix" if op_type == "Conv" else "vector", flops=1.0, dtype="float32",
        reads=[(f"t{i}", None) for i in range(len(operands))], writes=[("y", output, "float32")],
        attributes=attributes,
    )  # fmt: skip
    graph = b.build()
    images = {k for k, shape in row_shapes(graph).items() if shape[0] == 8}
    assert windows_of(graph).get("op", set()) == ({SAME_ROW} if is_kept else set())
    assert {graph.tensor_index["t0"]} <= images
