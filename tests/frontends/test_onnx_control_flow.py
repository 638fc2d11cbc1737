"""If, Loop and Scan of ONNX models, with numbers worked by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from go_opt import OnnxModel, from_onnx
from go_opt.errors import ModelError
from go_opt.frontends.onnx_frontend import import_onnx
from go_opt.model.bindings import NO_BINDINGS
from go_opt.model.graph import WEIGHT, Graph

FLOAT, BOOL, INT64 = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64


def info(name: str, shape: Sequence[str | int | None] | None, elem_type: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem_type, shape)


def constant(name: str, value: int | bool, dtype: type) -> TensorProto:
    return numpy_helper.from_array(np.asarray(value, dtype=dtype), name)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Sequence[TensorProto] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "toy", inputs, outputs, initializer=list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def branches() -> dict[str, onnx.GraphProto]:
    """A cheap branch (Relu of 8) and a dear one (MatMul of [2, 4] and [4, 4])."""
    cheap = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["c"], name="op")], "c", [], [info("c", [2, 4])]
    )
    weight = TensorProto(name="w", dims=[4, 4], data_type=FLOAT)
    dear = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["d"], name="op")], "d", [], [info("d", [2, 4])], [weight]
    )
    return {"then_branch": dear, "else_branch": cheap}


def if_model(condition: bool | None) -> Graph:
    nodes = [
        helper.make_node("If", ["cond"], ["h"], name="choice", **branches()),
        helper.make_node("Exp", ["h"], ["y"], name="exp"),
    ]
    inputs = [info("x", [2, 4])] + ([info("cond", [], BOOL)] if condition is None else [])
    known = [] if condition is None else [constant("cond", condition, np.bool_)]
    return from_onnx(model(nodes, inputs, [info("y", [2, 4])], known))


def test_if_with_a_constant_condition_is_inlined() -> None:
    assert if_model(False).op_names == ("choice/op", "exp")
    graph = if_model(True)
    assert graph.op_types == ("MatMul", "Exp")
    assert graph.tensor_names[graph.tensor_kind.tolist().index(WEIGHT)] == "choice/w"


def test_if_costs_its_dearer_branch() -> None:
    graph = if_model(None)
    assert graph.op_types == ("If", "Exp")
    assert graph.op_flops.tolist() == [2 * 2 * 4 * 4, 8]
    reads = {
        graph.tensor_names[k] for k, op in zip(graph.reader_tensor, graph.reader_op, strict=True) if op == 0
    }
    assert reads == {"cond", "x", "choice/1/w"}


def loop_model(trips: int | None, body_nodes: list[onnx.NodeProto] | None = None) -> onnx.ModelProto:
    """state = state · w, and each state is also stacked; w is read from around the body."""
    nodes = body_nodes or [
        helper.make_node("MatMul", ["state", "w"], ["next"]),
        helper.make_node("Identity", ["next"], ["seen"]),
        helper.make_node("Identity", ["go"], ["again"]),
    ]
    body = helper.make_graph(
        nodes,
        "body",
        [info("i", [], INT64), info("go", [], BOOL), info("state", None)],
        [info("again", [], BOOL), info("next", None), info("seen", None)],
    )
    outer = [
        helper.make_node("Loop", ["trips", "", "x"], ["last", "all"], name="loop", body=body),
        helper.make_node("Relu", ["all"], ["y"], name="relu"),
    ]
    inputs = [info("x", [2, 4])] + ([info("trips", [], INT64)] if trips is None else [])
    known = [] if trips is None else [constant("trips", trips, np.int64)]
    weight = TensorProto(name="w", dims=[4, 4], data_type=FLOAT)
    return model(outer, inputs, [info("y", None), info("last", None)], [weight, *known])


def test_loop_is_one_op_of_body_times_trips() -> None:
    graph = from_onnx(loop_model(5))
    assert graph.op_names == ("loop", "relu")
    assert graph.op_flops.tolist() == [5 * 2 * 2 * 4 * 4, 5 * 8]
    elements = dict(zip(graph.tensor_names, graph.tensor_elements.tolist(), strict=True))
    assert elements == {"w": 16, "x": 8, "last": 8, "all": 40, "y": 40}


@pytest.mark.parametrize("trips", [None, 2**63 - 1])
def test_loop_without_a_constant_trip_count_is_refused(trips: int | None) -> None:
    with pytest.raises(ModelError, match=r"op 'loop' \(Loop\) has no constant trip count"):
        from_onnx(loop_model(trips))


def test_loop_with_a_growing_state_is_refused() -> None:
    growing = [
        helper.make_node("Concat", ["state", "state"], ["next"], axis=0),
        helper.make_node("Identity", ["next"], ["seen"]),
        helper.make_node("Identity", ["go"], ["again"]),
    ]
    with pytest.raises(ModelError, match=r"changes the shape of its state from \[2, 4\] to \[4, 4\]"):
        from_onnx(loop_model(5, growing))


def test_scan_runs_along_its_axis() -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["sum", "row"], ["next"]), helper.make_node("Identity", ["next"], ["out"])],
        "body",
        [info("sum", [4]), info("row", [4])],
        [info("next", [4]), info("out", [4])],
    )
    node = helper.make_node(
        "Scan",
        ["zero", "x"],
        ["total", "sums"],
        name="scan",
        body=body,
        num_scan_inputs=1,
        scan_input_axes=[1],
    )
    proto = model([node], [info("x", [4, 6]), info("zero", [4])], [info("total", [4]), info("sums", [6, 4])])
    graph = from_onnx(proto)
    assert graph.op_flops.tolist() == [6 * 4]
    assert graph.tensor_elements[graph.tensor_names.index("sums")] == 24


def nested(depth: int, decided: Sequence[TensorProto] = ()) -> onnx.ModelProto:
    """A Relu in ``depth`` bodies of If, each inside the next."""
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    for _ in range(depth):
        body = helper.make_graph(nodes, "body", [], [info("y", [2])])
        other = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "other", [], [info("y", [2])])
        nodes = [helper.make_node("If", ["cond"], ["y"], then_branch=body, else_branch=other)]
    inputs = [info("x", [2])] if decided else [info("x", [2]), info("cond", [], BOOL)]
    return model(nodes, inputs, [info("y", [2])], decided)


@pytest.mark.parametrize("decided", [(), (constant("cond", True, bool),)], ids=["unknown", "known"])
def test_a_body_is_walked_as_often_however_deep_it_lies(decided: tuple[TensorProto, ...]) -> None:
    def walked(depth: int) -> int:
        calls: list[int] = []
        source = nested(depth, decided)
        import_onnx(source, NO_BINDINGS, "native", lambda: calls.append(1))
        return len(calls)

    per_body = (walked(10) - walked(5)) / 5
    assert walked(30) == walked(10) + 20 * per_body


def _field(number: int, content: bytes) -> bytes:
    """A field of bytes on the wire."""
    size = len(content)
    digits = []
    while size >= 128:
        digits.append(size % 128 + 128)
        size //= 128
    return bytes([number << 3 | 2, *digits, size]) + content


def test_bodies_nested_deeper_than_a_parser_goes_are_refused(tmp_path: Path) -> None:
    graph = nested(1).graph.SerializeToString()
    for _ in range(10_000):  # NodeProto 1 of the graph, its attribute 5, whose graph is field 6
        graph = _field(1, _field(5, _field(6, graph)))
    path = tmp_path / "deep.onnx"
    path.write_bytes(_field(7, graph))
    with pytest.raises(ModelError, match="nested too deep"):
        from_onnx(path)
    with pytest.raises(ModelError, match="nested too deep"):
        OnnxModel(path.read_bytes()).graph()
