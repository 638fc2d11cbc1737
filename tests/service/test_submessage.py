"""Requests taken apart: the graph as bytes, the rest parsed, as the parser itself would."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from go_opt.errors import InvalidInputError
from go_opt.proto import graph_pb2, optimizer_pb2
from go_opt.service.calls.submessage import split_graph

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


def test_millions_of_fields_are_refused_at_once() -> None:
    with pytest.raises(InvalidInputError, match="is no go_opt"):
        split_graph(REQUEST, b"\x30\x01" * 10_000_000)


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
