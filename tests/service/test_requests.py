"""Requests as bytes: taken apart as the parser would, counted before they are parsed, refused by name."""

from __future__ import annotations

import time
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from go_opt.errors import GraphError, InfeasibleError, InvalidInputError, PlanError
from go_opt.model.codecs.wire import graph_to_proto
from go_opt.model.graph import Graph
from go_opt.proto import environment_pb2, graph_pb2, optimizer_pb2, plan_pb2
from go_opt.service.messages import requests
from go_opt.service.messages.requests import check_parts, parsed, request_part, split_graph

REQUEST = optimizer_pb2.OptimizeRequest


def whole_request() -> optimizer_pb2.OptimizeRequest:
    request = REQUEST(seed=7, policy="mine", budget_s=0.5, graph=graph_pb2.Graph(name="g"))
    request.target.name = "mcm-6x6"
    request.graph.ops.add(name="a", flops=1.5)
    return request


def test_a_request_is_its_graph_and_the_rest() -> None:
    request = whole_request()
    rest, graph = split_graph(REQUEST, request.SerializeToString())
    assert graph_pb2.Graph.FromString(graph) == request.graph
    request.ClearField("graph")
    assert rest == request


def test_a_graph_in_pieces_is_one_graph() -> None:
    request = whole_request()
    data = request.SerializeToString() + REQUEST(graph=graph_pb2.Graph(name="h")).SerializeToString()
    graph = graph_pb2.Graph.FromString(split_graph(REQUEST, data)[1])
    assert graph == REQUEST.FromString(data).graph
    assert (graph.name, len(graph.ops)) == ("h", 1)


def test_a_request_without_a_graph_has_an_empty_one() -> None:
    assert split_graph(REQUEST, b"") == (REQUEST(), b"")


def test_millions_of_fields_take_no_time() -> None:
    start_s = time.process_time()
    assert split_graph(REQUEST, b"\x30\x01" * 10_000_000) == (REQUEST(seed=1), b"")
    assert time.process_time() - start_s < 5


@settings(max_examples=300)
@given(st.binary(max_size=60) | st.just(whole_request().SerializeToString()), st.data())
def test_any_bytes_are_read_as_the_parser_reads_them(data: bytes, changes: st.DataObject) -> None:
    changed = bytearray(data)
    for _ in range(changes.draw(st.integers(0, 2)) if data else 0):
        changed[changes.draw(st.integers(0, len(data) - 1))] = changes.draw(st.integers(0, 255))
    try:
        rest, graph = split_graph(REQUEST, bytes(changed))
        rest.graph.MergeFromString(graph)
    except (InvalidInputError, DecodeError):
        return
    whole = REQUEST.FromString(bytes(changed))
    rest.graph.SetInParent()
    whole.graph.SetInParent()
    assert rest.SerializeToString(deterministic=True) == whole.SerializeToString(deterministic=True)


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"\x62\x01\xff", "policy"),  # no UTF-8
        (b"\x30\x01\x0a\x02\x12\x7f", "graph"),  # an op that is cut
        (b"\x30", "go_opt.v1.OptimizeRequest"),
        (b"\xff", "go_opt.v1.OptimizeRequest"),
        (b"\xff" * 11, "go_opt.v1.OptimizeRequest"),  # an endless number
        (b"\x0a\x05a", "go_opt.v1.OptimizeRequest"),  # a cut text
        (b"\x21\x00", "go_opt.v1.OptimizeRequest"),  # a cut double
    ],
)
def test_what_is_broken_is_named(data: bytes, field: str) -> None:
    with pytest.raises(InvalidInputError, match="is no go_opt") as error:
        parsed(REQUEST, data)
    assert error.value.field == field


@pytest.fixture
def few_parts(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(requests, "MOST_PARTS", 1000)
    return requests.MOST_PARTS


@pytest.mark.parametrize("is_request", [False, True])
def test_parts_are_those_of_all_depths(
    graph: Graph, monkeypatch: pytest.MonkeyPatch, is_request: bool
) -> None:
    message: Any = graph_to_proto(graph)
    reads = sum(len(tensor.readers) for tensor in message.tensors)
    # The name and a dimension with its own; name, type and dtype of each op; name and dtype of each tensor.
    parts = 1 + 2 + 4 * len(message.ops) + 3 * len(message.tensors) + reads
    if is_request:  # and its graph and its policy
        message, parts = REQUEST(graph=message, policy="none"), parts + 2
    asked, data = type(message), message.SerializeToString()
    monkeypatch.setattr(requests, "MOST_PARTS", parts)
    check_parts(asked, data)
    monkeypatch.setattr(requests, "MOST_PARTS", parts - 1)
    with pytest.raises(InvalidInputError, match=f"more than {parts - 1} messages and texts"):
        check_parts(asked, data)


@pytest.mark.parametrize(
    "part",
    [b"\x1a\x00", b"\x12\x00", b"\x1a\x02\x32\x00"],
    ids=["tensors", "ops", "tensors with a reader"],
)
def test_too_many_parts_are_refused(few_parts: int, part: bytes) -> None:
    with pytest.raises(InvalidInputError, match=rf"go_opt\.v1\.Graph: more than {few_parts}") as error:
        parsed(graph_pb2.Graph, part * (few_parts + 1))
    assert error.value.field == "go_opt.v1.Graph"


def test_a_long_text_is_one_part(few_parts: int) -> None:
    text = "*" * (few_parts + 1)  # each letter might begin a part
    check_parts(graph_pb2.Graph, graph_pb2.Graph(tensors=[graph_pb2.Tensor(name=text)]).SerializeToString())


def test_of_millions_of_fields_the_last_are_not_looked_at(
    few_parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = b"\x0a\x01a" * (few_parts - 100)
    parsed(graph_pb2.Graph, data + b"\x0a\x7f" + b"*" * 127)
    monkeypatch.setattr(requests, "_MOST_LOOKS", 10)
    with pytest.raises(InvalidInputError, match="more than"):
        parsed(graph_pb2.Graph, data + b"\x0a\x7f" + b"*" * 127)


def test_parts_in_parts_in_parts(few_parts: int) -> None:
    deep = b""
    for _ in range(few_parts):  # lists of lists, which no parser reads to their end
        size = len(deep)
        deep = b"\x0a" + bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14]) + deep
    with pytest.raises(InvalidInputError):
        parsed(optimizer_pb2.ExplainResponse, deep + b"\x0a\x00" * few_parts)


@pytest.mark.parametrize(
    "data", [b"\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x0b", b"\x0a" + b"\x80" * 9 + b"\x01"]
)
def test_bytes_that_are_no_message_are_refused_as_such(few_parts: int, data: bytes) -> None:
    with pytest.raises(InvalidInputError, match="is no go_opt"):
        parsed(environment_pb2.CreateSessionRequest, data * 2000)


@pytest.mark.parametrize(
    ("field", "path"),
    [
        ("", "plan"),
        ("placement", "plan.placement"),
        ("relays[0].chips", "plan.relays[0].chips"),
        ("op 'a'", "plan"),
    ],
)
def test_a_field_of_the_message_is_named_by_its_path(field: str, path: str) -> None:
    with pytest.raises(PlanError, match="it is wrong") as error, request_part("plan", plan_pb2.Plan):
        raise PlanError("it is wrong.", field=field)
    assert error.value.field == path


def test_a_part_without_fields_is_named_itself() -> None:
    with pytest.raises(GraphError) as error, request_part("target"):
        raise GraphError("it is wrong.", field="name")
    assert error.value.field == "target"


def test_other_errors_pass() -> None:
    with pytest.raises(InfeasibleError), request_part("graph", graph_pb2.Graph):
        raise InfeasibleError("no plan.")
