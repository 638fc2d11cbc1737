"""The JSON form of a graph restores it exactly and refuses anything malformed in one sentence."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from go_opt.errors import GraphError
from go_opt.model.bindings import Bindings
from go_opt.model.builder import GraphBuilder
from go_opt.model.codecs.graph_json import graph_from_dict, graph_to_dict
from go_opt.model.dtypes import DTYPES
from go_opt.model.graph import OP_CLASSES, Graph


def bindings() -> st.SearchStrategy[Bindings]:
    counts = st.dictionaries(st.text("BSN", min_size=1, max_size=2), st.integers(1, 99), max_size=2)
    return st.builds(Bindings, counts, st.just({"x": (0.5, -2.0)}) | st.just({}), counts)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Graphs whose ops were added in an order that is not topological."""
    num_ops = draw(st.integers(1, 6))
    builder = GraphBuilder(
        draw(st.text(max_size=5)),
        precision=draw(st.sampled_from(["native", "as-is"])),
        bindings=draw(bindings()),
    )
    dtype = st.sampled_from(DTYPES)
    for kind in ("weight", "input"):
        builder.add_tensor(kind, draw(st.integers(0, 2**40)), draw(dtype), kind)
    num_outputs = [draw(st.integers(0 if i else 1, 2)) for i in range(num_ops)]
    earlier: list[list[str]] = [["weight", "input"]]
    for i in range(num_ops):
        earlier.append([*earlier[-1], *(f"t{i}.{j}" for j in range(num_outputs[i]))])
    for i in draw(st.permutations(range(num_ops))):
        reads = draw(st.lists(st.sampled_from(earlier[i]), max_size=3))
        builder.add_op(
            f"op é{i}",
            draw(st.sampled_from(["MatMul", "Add", "mine"])),
            draw(st.sampled_from(OP_CLASSES)),
            flops=draw(st.floats(0, 1e29)),
            dtype=draw(dtype),
            reads=[(name, draw(st.none() | st.integers(0, 2**40))) for name in reads],
            writes=[(f"t{i}.{j}", draw(st.integers(0, 2**40)), draw(dtype)) for j in range(num_outputs[i])],
            measured_s=draw(st.dictionaries(st.sampled_from(["gpu", "tpu"]), st.floats(0, 1e3))),
            excluded_kinds=draw(st.lists(st.sampled_from(["gpu", "npu"]), unique=True)),
        )
        for name in draw(st.lists(st.sampled_from(earlier[i + 1]), max_size=2)):
            builder.mark_output(name)
    return builder.build()


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_round_trip_is_exact(graph: Graph) -> None:
    restored = graph_from_dict(json.loads(json.dumps(graph_to_dict(graph))))
    assert restored.fingerprint == graph.fingerprint
    assert (restored.name, restored.bindings) == (graph.name, graph.bindings)
    assert restored.precision == graph.precision
    assert restored.op_names == graph.op_names
    for kind, row in graph.measured_s.items():
        np.testing.assert_array_equal(restored.measured_s[kind], row)


def _example() -> dict[str, Any]:
    """x -> a -> b, where a multiplies by w and takes 1 ms on a GPU."""
    builder = GraphBuilder("example", bindings=Bindings({"B": 4}))
    builder.add_tensor("x", 8, "float32", "input")
    builder.add_tensor("w", 16, "bfloat16", "weight")
    builder.add_op(
        "a", "MatMul", "matrix", flops=64.0, dtype="float32", reads=[("x", None), ("w", 4)],
        writes=[("y", 8, "float32")], measured_s={"gpu": 1e-3}, excluded_kinds=["npu"],
    )  # fmt: skip
    builder.add_op(
        "b", "Relu", "vector", flops=8.0, dtype="float32", reads=[("y", None)], writes=[("z", 8, "float32")]
    )
    builder.mark_output("z")
    return graph_to_dict(builder.build())


def test_the_form_is_readable() -> None:
    data = _example()
    assert data["format"] == "go_opt.v1.Graph"
    assert data["dims"] == {"B": 4}
    assert data["ops"][0] == {
        "name": "a",
        "op_type": "MatMul",
        "op_class": "matrix",
        "flops": 64.0,
        "dtype": "float32",
        "reads": [{"tensor": "x", "elements": 8}, {"tensor": "w", "elements": 4}],
        "measured_s": {"gpu": 1e-3},
        "excluded_kinds": ["npu"],
    }
    assert data["tensors"][2] == {
        "name": "y", "elements": 8, "dtype": "float32", "kind": "activation", "producer": "a",
        "is_output": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("format",), "go_opt.v2.Graph", "'format' must be"),
        (("name",), 3, "'name' must be a string"),
        (("precision",), "fp8", "'precision' must be"),
        (("dims",), {"B": -1}, "'B'"),
        (("dims",), [1], "'dims' must be an object"),
        (("trips",), {"loop": 1.5}, "'loop'"),
        (("values",), {"x": ["1"]}, "'x'"),
        (("ops",), {}, "'ops' must be a list"),
        (("ops",), [], "has no ops|is not an op"),
        (("tensors",), [3], "'tensors' must be a list of objects"),
        (("ops", 0, "flops"), float("nan"), "op 'a': 'flops'"),
        (("ops", 0, "flops"), 10**400, "op 'a': 'flops'"),
        (("ops", 0, "flops"), True, "op 'a': 'flops'"),
        (("ops", 0, "op_class"), "magic", "op 'a': op_class"),
        (("ops", 0, "dtype"), "float7", "op 'a': 'dtype': unknown dtype"),
        (("ops", 0, "reads"), [{}], "op 'a': 'reads' lacks the field 'tensor'"),
        (("ops", 0, "reads"), [{"tensor": "q"}], "op 'a' reads tensor 'q'"),
        (("ops", 0, "reads"), [{"tensor": "z"}], "cycle: .*'a' -> 'b'|cycle: .*'b' -> 'a'"),
        (("ops", 0, "measured_s"), {"gpu": float("inf")}, "op 'a': 'measured_s': 'gpu'"),
        (("ops", 0, "excluded_kinds"), "gpu", "op 'a': 'excluded_kinds'"),
        (("ops", 0, "name"), "\ud800", "op number 0: 'name'"),
        (("ops", 0, "name"), "b", "op 'b' is defined twice"),
        (("tensors", 0, "elements"), 1.5, "tensor 'x': 'elements' must be a whole number"),
        (("tensors", 0, "elements"), -1, "tensor 'x': 'elements'"),
        (("tensors", 0, "elements"), 10**400, "tensor 'x': 'elements'"),
        (("tensors", 0, "kind"), "constant", "tensor 'x': kind"),
        (("tensors", 0, "is_output"), True, "tensor 'x'"),
        (("tensors", 0, "name"), "w", "defined twice"),
        (("tensors", 2, "producer"), "q", "tensor 'y': its producer 'q'"),
        (("tensors", 2, "producer"), None, "tensor 'y': 'producer' must be a string"),
    ],
)  # fmt: skip
def test_malformed_fields_are_named(path: tuple[Any, ...], value: Any, words: str) -> None:
    data = _example()
    row: Any = data
    for step in path[:-1]:
        row = row[step]
    row[path[-1]] = value
    with pytest.raises(GraphError, match=words) as caught:
        graph_from_dict(data)
    assert str(caught.value).count("\n") == 0


_JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda children: (
        st.lists(children, max_size=2) | st.dictionaries(st.text(max_size=4), children, max_size=2)
    ),
    max_leaves=4,
)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_junk_anywhere_is_a_graph_error_or_a_graph(data: st.DataObject) -> None:
    form: Any = copy.deepcopy(_example())
    row, junk = form, data.draw(_JUNK)
    while True:
        keys = list(row) if isinstance(row, dict) else list(range(len(row)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(row[key], dict | list) or not row[key] or data.draw(st.booleans()):
            row[key] = junk
            break
        row = row[key]
    with suppress(GraphError):
        graph_from_dict(form)


@pytest.mark.parametrize("data", [None, [], "graph", 3])
def test_what_is_no_object_is_refused(data: Any) -> None:
    with pytest.raises(GraphError, match="must be a JSON object"):
        graph_from_dict(data)


def test_a_missing_field_is_named() -> None:
    data = _example()
    del data["ops"][1]["flops"]
    with pytest.raises(GraphError, match="op 'b' lacks the field 'flops'"):
        graph_from_dict(data)
