"""The bytes of an ONNX file in place of a graph."""

from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from go_opt import OnnxModel
from go_opt.errors import (
    CancelledError,
    ExhaustedError,
    GraphError,
    InvalidInputError,
    ModelError,
    ServiceError,
)
from go_opt.proto import optimizer_pb2
from go_opt.service.client.client import Client
from go_opt.service.client.local_client import LocalClient
from go_opt.service.messages import convert, graphs, requests
from go_opt.service.messages.graphs import DecodedGraphs, SentGraph
from go_opt.service.workers import optimizer
from tests.frontends import state_models


def linear(*, location: str = "", rows: int | str = "batch") -> onnx.ModelProto:
    """y = relu(x · w), for ``rows`` inputs; the weights in an external file where there is a location."""
    weight = helper.make_tensor("w", TensorProto.FLOAT, (4, 2), [0.5] * 8)
    if location:
        weight.ClearField("float_data")
        weight.data_location = TensorProto.EXTERNAL
        weight.external_data.add(key="location", value=location)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "product"),
        helper.make_node("Relu", ["h"], ["y"], "relu"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (rows, 4))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (rows, 2))
    graph = helper.make_graph(nodes, "linear", [x], [y], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def test_an_onnx_file_has_the_answer_of_its_graph(address: str) -> None:
    model = OnnxModel(linear().SerializeToString(), {"batch": 3}, "as-is")
    graph = model.graph()
    assert graph.op_names == ("product", "relu")
    assert graph.op_flops[0] == 2 * 3 * 4 * 2
    with Client(address) as client:
        answer = client.optimize(model, "mcm-2x2", budget_s=1)
        assert answer.plan.graph_fingerprint == graph.fingerprint
        assert client.evaluate(graph, "mcm-2x2", answer.plan).interval_s == 2.0
        *_, last = client.optimize_stream(model, "mcm-2x2", budget_s=1)
        assert last.plan.bindings.dims == {"batch": 3}


def test_an_answer_has_the_names_of_the_ops_and_what_became_of_other_nodes() -> None:
    from go_opt.service.workers.optimizer import LocalOptimizer, SearchControl

    model = linear(rows=2)
    model.graph.node.append(helper.make_node("Identity", ["y"], ["z"], "same"))
    request = optimizer_pb2.OptimizeRequest(max_evaluations=3)
    request.target.name = "mcm-2x2"
    request.onnx.file = model.SerializeToString()
    answer, _ = LocalOptimizer().optimize(request.SerializeToString(), SearchControl())
    assert list(answer.plan.op_names) == ["product", "relu"]
    assert [(node.name, node.op) for node in answer.nodes_without_op] == [("same", "relu")]


def test_pairs_of_states_travel_with_the_file() -> None:
    case = state_models.FOUND[0]
    for states in ({"past_key_values.0.*": "present.0.*:model"}, {"*": ""}):
        model = OnnxModel(case.proto.SerializeToString(), states=states)
        sent = DecodedGraphs().of_onnx(convert.onnx_to_proto(model)).graph
        assert sent.fingerprint == model.graph().fingerprint
        assert (sent.states, sent.bindings.states) == (model.graph().states, states)
    assert sent.fingerprint != OnnxModel(case.proto.SerializeToString()).graph().fingerprint


def test_the_client_of_this_process_takes_it_too(tmp_path: Path) -> None:
    model = OnnxModel(linear().SerializeToString(), {"batch": 3})
    with LocalClient(folder=tmp_path) as client:
        answer = client.optimize(model, "mcm-2x2", max_evaluations=3, policy=None)
    assert answer.plan.graph_fingerprint == model.graph().fingerprint


BROKEN: dict[str, tuple[bytes, dict[str, int], type[InvalidInputError], str]] = {
    "no file": (b"", {"batch": 1}, ModelError, "no nodes"),
    "no ONNX": (b"\xff\xff", {"batch": 1}, ModelError, "truncated or not an ONNX model"),
    "cut": (linear().SerializeToString()[:-9], {"batch": 1}, ModelError, "truncated or not an ONNX model"),
    "an unbound dimension": (linear().SerializeToString(), {}, ModelError, "batch"),
    "a dimension it has not": (linear(rows=2).SerializeToString(), {"batch": 1}, ModelError, "batch"),
    "a file elsewhere": (
        linear(location="/etc/passwd").SerializeToString(), {"batch": 1}, ModelError, "'w': its external",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_wrong_with_a_file_is_named(address: str, case: str) -> None:
    file, dims, error, words = BROKEN[case]
    with Client(address) as client, pytest.raises(error, match=words) as raised:
        client.optimize(OnnxModel(file, dims), "mcm-2x2", budget_s=1)
    assert type(raised.value) is error
    assert raised.value.field.startswith("onnx")


def test_an_op_at_fault_is_named(address: str) -> None:
    model = linear()
    model.graph.node[1].input[0] = "nowhere"
    with Client(address) as client, pytest.raises(GraphError, match="'relu' reads tensor 'nowhere'"):
        client.optimize(OnnxModel(model.SerializeToString(), {"batch": 1}), "mcm-2x2", budget_s=1)


def test_no_file_of_the_service_is_opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # The shape that Reshape gives lies in a file, in the very folder the service works in.
    (tmp_path / "shape").write_bytes(b"\x08" + 7 * b"\0")
    monkeypatch.chdir(tmp_path)
    model = linear(rows=2, location="shape")
    shape = helper.make_tensor("s", TensorProto.INT64, (1,), [8])
    shape.ClearField("int64_data")
    shape.data_location = TensorProto.EXTERNAL
    shape.external_data.add(key="location", value="shape")
    model.graph.initializer.append(shape)
    model.graph.node.append(helper.make_node("Reshape", ["x", "s"], ["z"], "reshape"))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    with pytest.raises(InvalidInputError):
        OnnxModel(model.SerializeToString()).graph()


def test_a_request_has_one_model(address: str, graph: Any) -> None:
    from go_opt.model.codecs.wire import graph_to_proto
    from go_opt.service.workers.optimizer import LocalOptimizer, SearchControl

    request = optimizer_pb2.OptimizeRequest(graph=graph_to_proto(graph), budget_s=1)
    request.target.name = "mcm-2x2"
    request.onnx.file = linear().SerializeToString()
    with pytest.raises(InvalidInputError, match="not both") as error:
        LocalOptimizer().optimize(request.SerializeToString(), SearchControl())
    assert error.value.field == "onnx"


def test_a_file_is_imported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = DecodedGraphs()
    message = optimizer_pb2.OnnxModel(file=linear().SerializeToString(), dims={"batch": 3})
    other = optimizer_pb2.OnnxModel(file=message.file, dims={"batch": 4})
    first = decoded.of_onnx(message)
    assert decoded.of_onnx(other) is not first
    monkeypatch.setattr(graphs, "_imported", None)
    assert decoded.of_onnx(message) is first


def test_a_file_of_too_many_parts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MOST_PARTS", 1000)
    file = onnx.ModelProto(graph=onnx.GraphProto(node=[onnx.NodeProto()])).SerializeToString()
    many = b"\x3a\x04\x0a\x00\x0a\x00"  # a graph of two empty nodes, to be merged with the others
    with pytest.raises(InvalidInputError, match="more than 1000 messages"):
        DecodedGraphs().of_onnx(optimizer_pb2.OnnxModel(file=file + 400 * many))


def test_functions_that_call_each_other_twice_each_are_refused_before_they_are_put_in_place() -> None:
    model = linear(rows=2)
    for i in range(40):
        inner = f"f{i + 1}" if i < 39 else "Relu"
        domain = "mine" if i < 39 else ""
        body = [
            helper.make_node(inner, ["a"], ["b"], domain=domain),
            helper.make_node(inner, ["b"], ["c"], domain=domain),
        ]
        model.functions.append(
            helper.make_function("mine", f"f{i}", ["a"], ["c"], body, [helper.make_opsetid("", 17)])
        )
    model.graph.node[1].op_type, model.graph.node[1].domain = "f0", "mine"
    with pytest.raises(ModelError, match="make more than 13200 nodes of 82"):
        OnnxModel(model.SerializeToString()).graph()


def repeated(calls: int, nodes: int) -> bytes:
    """A file of ``calls`` calls of one function of ``nodes`` nodes."""
    names = ["x", *(f"t{i}" for i in range(1, nodes)), "y"]
    body = [helper.make_node("Relu", [a], [b]) for a, b in itertools.pairwise(names)]
    function = helper.make_function("mine", "f", ["x"], ["y"], body, [helper.make_opsetid("", 17)])
    names = ["x", *(f"c{i}" for i in range(1, calls)), "y"]
    main = [helper.make_node("f", [a], [b], domain="mine") for a, b in itertools.pairwise(names)]
    given, result = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (4,)) for name in "xy")
    graph = helper.make_graph(main, "repeated", [given], [result])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    data: bytes = helper.make_model(graph, functions=[function], opset_imports=opsets).SerializeToString()
    return data


@pytest.mark.parametrize("limit", ["the deadline", "the budget"])
def test_an_import_of_minutes_ends_with_the_deadline_and_with_the_budget(
    address: str, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(optimizer, "DEFAULT_BUDGET_S", 0.5)
    file = repeated(100, 3000 if limit == "the deadline" else 500)
    assert len(file) < 100_000
    timeout_s, budget_s = (5.0, 60.0) if limit == "the deadline" else (None, 1.0)
    # Functions are inlined in one step: on a loaded machine the deadline may pass within it.
    error = ServiceError if limit == "the deadline" else ExhaustedError
    begin_s = time.monotonic()
    with (
        Client(address, timeout_s=timeout_s) as client,
        pytest.raises(error, match=r"the import of|within the time"),
    ):
        client.optimize(OnnxModel(file), "mcm-2x2", budget_s=budget_s)
    assert time.monotonic() - begin_s < 30


def test_an_import_ends_once_nobody_waits() -> None:
    control = optimizer.SearchControl()
    threading.Timer(0.5, control.stop.set).start()
    request = optimizer_pb2.OptimizeRequest(budget_s=60)
    request.target.name = "mcm-2x2"
    request.onnx.file = repeated(100, 500)
    with pytest.raises(CancelledError):
        optimizer.LocalOptimizer().optimize(request.SerializeToString(), control)


def test_the_import_is_part_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    budgets_s = []

    class Api:
        def optimize(self, *_: Any, budget_s: float, **__: Any) -> None:
            budgets_s.append(budget_s)
            raise InvalidInputError("searched")

    class Slow(DecodedGraphs):
        def of_onnx(self, *arguments: Any) -> SentGraph:
            time.sleep(0.3)
            return super().of_onnx(*arguments)

    monkeypatch.setattr(optimizer, "DecodedGraphs", Slow)
    for budget_s in (60.0, 0.2):
        request = optimizer_pb2.OptimizeRequest(budget_s=budget_s)
        request.target.name = "mcm-2x2"
        request.onnx.file = linear(rows=2).SerializeToString()
        with pytest.raises(InvalidInputError, match="searched"):
            optimizer.LocalOptimizer(Api()).optimize(request.SerializeToString(), optimizer.SearchControl())
    assert 6 < budgets_s[0] <= 59.7
    assert budgets_s[1] == pytest.approx(0.02)


def test_a_function_that_calls_itself_is_refused() -> None:
    model = linear(rows=2)
    body = [helper.make_node("f", ["a"], ["b"], domain="mine")]
    model.functions.append(helper.make_function("mine", "f", ["a"], ["b"], body, []))
    model.graph.node[1].op_type, model.graph.node[1].domain = "f", "mine"
    with pytest.raises(ModelError, match="'f' calls itself"):
        OnnxModel(model.SerializeToString()).graph()
