"""The graph of a request, as the bytes it came as.

A request is small but for its graph. Left as bytes, the graph need not be parsed to route a
call, and can be recognised by its digest.
"""

from __future__ import annotations

from typing import Final, TypeVar

from google.protobuf.message import Message

from go_opt.errors import InvalidInputError
from go_opt.service.calls import parsed

_GRAPH: Final = 1  # the number of `graph` in every request that has one
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MOST_FIELDS: Final = 1000  # in pure Python, millions would hold up all other threads
_MOST_BYTES_OF_VARINT: Final = 10
_M = TypeVar("_M", bound=Message)


def split_graph(message_type: type[_M], data: bytes) -> tuple[_M, bytes]:
    """A request without its graph, and the bytes of the graph's message.

    Raises:
      InvalidInputError: the bytes are no such message.
    """
    try:
        rest, graph = _split(data)
    except IndexError:
        raise InvalidInputError(f"the request is no {message_type.DESCRIPTOR.full_name} message.") from None
    return parsed(message_type, rest), graph


def _split(data: bytes) -> tuple[bytes, bytes]:
    """What is not the graph, and the graph; one sent in pieces is, joined, the merged message."""
    rest: list[bytes] = []
    graph: list[bytes] = []
    start = 0
    while start < len(data):
        if len(rest) + len(graph) == _MOST_FIELDS:
            raise IndexError(start)
        tag, at = _varint(data, start)
        kind = tag & 7
        if kind == _VARINT:
            end = _varint(data, at)[1]
        elif kind == _BYTES:
            size, at = _varint(data, at)
            end = at + size
        elif kind in (_FIXED64, _FIXED32):
            end = at + (8 if kind == _FIXED64 else 4)
        else:  # groups, which no message of go-opt has
            raise IndexError(start)
        if end > len(data):
            raise IndexError(end)
        if tag == _GRAPH << 3 | _BYTES:
            graph.append(data[at:end])
        else:
            rest.append(data[start:end])
        start = end
    return b"".join(rest), b"".join(graph)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that starts at ``at``, and where it ends."""
    number = 0
    for i in range(_MOST_BYTES_OF_VARINT):
        byte = data[at + i]
        number |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return number, at + i + 1
    raise IndexError(at)
