"""Graphs decoded once, and kept while there is room."""

from __future__ import annotations

import pytest

from go_opt.errors import GraphError
from go_opt.model.codecs.wire import graph_to_proto
from go_opt.model.graph import Graph
from go_opt.service.messages.graphs import DecodedGraphs


def encoded(graph: Graph, name: str) -> bytes:
    message = graph_to_proto(graph)
    message.name = name
    return message.SerializeToString()


def test_the_same_bytes_are_decoded_once(graph: Graph) -> None:
    graphs = DecodedGraphs()
    first = graphs.get(encoded(graph, "a"))
    assert first.graph.fingerprint == graph.fingerprint
    assert graphs.get(encoded(graph, "a")) is first
    assert graphs.get(encoded(graph, "b")).graph.name == "b"


def test_the_oldest_makes_room(graph: Graph) -> None:
    size_bytes = len(encoded(graph, "a"))
    graphs = DecodedGraphs(max_bytes=2 * size_bytes)
    first, second = (graphs.get(encoded(graph, name)) for name in "ab")
    assert graphs.get(encoded(graph, "a")) is first
    graphs.get(encoded(graph, "c"))
    assert graphs.get(encoded(graph, "a")) is first
    assert graphs.get(encoded(graph, "b")) is not second


def test_one_larger_than_all_the_room_is_not_kept(graph: Graph) -> None:
    graphs = DecodedGraphs(max_bytes=1)
    assert graphs.get(encoded(graph, "a")) is not graphs.get(encoded(graph, "a"))


@pytest.mark.parametrize("data", [b"\xff", b"\x12\x05a"])
def test_bytes_that_are_no_graph_are_refused(data: bytes) -> None:
    with pytest.raises(GraphError, match="is no go_opt") as error:
        DecodedGraphs().get(data)
    assert error.value.field == "graph"
