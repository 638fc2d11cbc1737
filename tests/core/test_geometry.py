"""Shapes and windows go with a graph through every format, and are no part of its fingerprint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from go_opt.errors import GraphError
from go_opt.frontends import from_networkx, from_onnx, to_networkx
from go_opt.model.builder import GraphBuilder
from go_opt.model.codecs.graph_json import graph_from_dict, graph_to_dict
from go_opt.model.codecs.wire import graph_from_proto, graph_to_proto
from go_opt.model.graph import Graph, Window
from tests.exports import info, model, node, weight

CONVOLUTION = model(
    [
        node("Conv", "x w", "c", "conv", strides=[2, 1], dilations=[2, 1], pads=[1, 0, 2, 0]),
        node("Dropout", "c", "d", "same"), node("Flatten", "d", "f", "flat"), node("Relu", "f", "y", "relu"),
        node("Relu", "x", "z", "other"),
    ],
    [info("x", (1, 2, 9, 4))], [info("y", (1, 24)), info("z", (1, 2, 9, 4))], [weight("w", 3, 2, 3, 3)],
)  # fmt: skip


def test_of_a_model() -> None:
    """A tensor that readers see in two shapes has none that is known."""
    graph = from_onnx(CONVOLUTION)
    assert graph.shapes == {"x": (1, 2, 9, 4), "w": (3, 2, 3, 3), "y": (1, 24), "z": (1, 2, 9, 4)}
    assert graph.windows == {"conv": Window(5, 2, 1)}
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
    graph = from_onnx(CONVOLUTION)
    back = through(graph)
    assert (back.shapes, back.windows) == (graph.shapes, graph.windows)
    assert back.fingerprint == graph.fingerprint


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("shapes", {"x": [9, 9]}, "tensor 'x': shape [9, 9] has not its 72 elements."),
        ("shapes", {"x": "1x72"}, "tensor 'x': shape must be a list of whole numbers, not '1x72'."),
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
