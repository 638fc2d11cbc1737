"""Messages of too many parts, told before they are parsed."""

from __future__ import annotations

import numpy as np
import pytest

from go_opt.errors import InvalidInputError
from go_opt.model.codecs.wire import graph_to_proto
from go_opt.model.graph import Graph
from go_opt.proto import environment_pb2, graph_pb2, optimizer_pb2
from go_opt.service.messages import message_parts
from go_opt.service.messages.message_parts import MOST_PARTS, check_parts


def num_parts(message: graph_pb2.Graph | optimizer_pb2.OptimizeRequest) -> int:
    data = np.frombuffer(message.SerializeToString(), np.uint8)
    return int(message_parts._num_parts(data, message_parts._kinds(message.DESCRIPTOR), 10**9))


def test_parts_of_a_graph(graph: Graph) -> None:
    message = graph_to_proto(graph)
    ops, tensors = len(message.ops), len(message.tensors)
    reads = sum(len(tensor.readers) for tensor in message.tensors)
    # The name and a dimension with its own; name, type and dtype of each op; name and dtype of each tensor.
    parts = 1 + 2 + 4 * ops + 3 * tensors + reads
    assert num_parts(message) == parts
    request = optimizer_pb2.OptimizeRequest(graph=message, policy="none")
    assert num_parts(request) == parts + 2


@pytest.mark.parametrize(
    "part",
    [b"\x1a\x00", b"\x12\x00", b"\x1a\x02\x32\x00"],
    ids=["tensors", "ops", "tensors with a reader"],
)
def test_too_many_parts_are_refused(part: bytes) -> None:
    data = part * (MOST_PARTS + 1)
    with pytest.raises(InvalidInputError, match=rf"go_opt\.v1\.Graph: more than {MOST_PARTS}") as error:
        check_parts(graph_pb2.Graph, data)
    assert error.value.field == "go_opt.v1.Graph"


def test_parts_of_parts_count() -> None:
    readers = b"\x32\x00" * (MOST_PARTS + 1)
    tensor = graph_pb2.Tensor(name="x" * 2**21).SerializeToString()
    for inner in (tensor, readers):
        size = len(inner)
        length = bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14 & 0x7F | 0x80, size >> 21])
        graph = b"\x1a" + length + inner
        if inner is tensor:
            check_parts(graph_pb2.Graph, graph)  # one long name is one part
        else:
            with pytest.raises(InvalidInputError):
                check_parts(graph_pb2.Graph, graph)


@pytest.mark.parametrize(
    "data", [b"\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x0b", b"\x0a" + b"\x80" * 9 + b"\x01"]
)
def test_bytes_that_are_no_message_are_the_parsers_to_refuse(data: bytes) -> None:
    check_parts(environment_pb2.CreateSessionRequest, data * 2**20)
