"""The graph of a request, as the bytes it came as.

A request is small but for its graph. Left as bytes, the graph need not be parsed to route a
call, and can be recognised by its digest.
"""

from __future__ import annotations

from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from go_opt.service.calls.calls import not_a_message, parsed
from go_opt.service.messages.wire_format import BYTES, wire_fields

_GRAPH_TAG: Final = 1 << 3 | BYTES  # `graph` is field 1 of every request that has one
_M = TypeVar("_M", bound=Message)


def split_graph(message_type: type[_M], data: bytes) -> tuple[_M, bytes]:
    """A request without its graph, and the bytes of the graph's message.

    One that was sent in pieces is, joined, the merged message.

    Raises:
      InvalidInputError: the bytes are no such message.
    """
    rest: list[bytes] = []
    graph: list[bytes] = []
    try:
        for field in wire_fields(data):
            if field.tag == _GRAPH_TAG:
                graph.append(data[field.content : field.end])
            else:
                rest.append(data[field.start : field.end])
    except DecodeError:
        raise not_a_message(message_type, data) from None
    return parsed(message_type, b"".join(rest)), b"".join(graph)
