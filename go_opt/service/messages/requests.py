"""Requests as bytes: parsed, taken apart, or refused with the field that is wrong.

gRPC itself answers bytes that are no message with UNKNOWN. And an empty part takes two bytes on
the wire and some fifty times that once parsed, so that a request within its limit of bytes could
take all memory: its parts are counted first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message

from go_opt.errors import InvalidInputError

MOST_PARTS: Final = 8 * 2**20  # a graph of 100,000 ops has about a sixth
_MOST_FIELDS: Final = 1000  # of a request: in pure Python, millions would hold up all other threads
_MOST_LOOKS: Final = 2**20  # at single fields of a message, seconds; what follows has as many parts as it may
_MOST_DEPTH: Final = 100  # which no parser goes beyond
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types; texts and messages are bytes
_GRAPH_TAG: Final = 1 << 3 | _BYTES  # `graph` is field 1 of every request that has one
_BYTES_TAGS: Final = bytes(byte for byte in range(256) if byte & 7 == _BYTES)  # as they begin
_M = TypeVar("_M", bound=Message)


class _Field(NamedTuple):
    """Where a field is in the bytes of its message."""

    tag: int  # its number << 3, and its wire type
    start: int
    content: int  # where its value starts
    end: int


def parsed(message_type: type[_M], data: bytes) -> _M:
    """The message of the bytes; InvalidInputError where they are none, or of too many parts."""
    check_parts(message_type, data)
    try:
        message: _M = message_type.FromString(data)
    except DecodeError:
        raise not_a_message(message_type, data) from None
    return message


def split_graph(message_type: type[_M], data: bytes) -> tuple[_M, bytes]:
    """A request without its graph, and the bytes of the graph's message.

    Left as bytes, the graph need not be parsed to route a call, and is recognised by its
    digest. One that was sent in pieces is, joined, the merged message.

    Raises:
      InvalidInputError: the bytes are no such message.
    """
    rest, graph = [], []
    try:
        for field in _request_fields(data):
            if field.tag == _GRAPH_TAG:
                graph.append(data[field.content : field.end])
            else:
                rest.append(data[field.start : field.end])
    except DecodeError:
        raise not_a_message(message_type, data) from None
    return parsed(message_type, b"".join(rest)), b"".join(graph)


def check_parts(message_type: type[Message], data: bytes) -> None:
    """Raise InvalidInputError for bytes of a message of too many texts and messages, at any depth."""
    if _most_parts(data) <= MOST_PARTS:
        return
    parts, looks = 0, 0
    open_messages = [(message_type.DESCRIPTOR, _fields(data, 0, len(data)))]
    try:
        while open_messages and parts <= MOST_PARTS:
            kind, fields = open_messages[-1]
            for field in fields:
                looks += 1
                if looks > _MOST_LOOKS:
                    parts += _most_parts(data[field.start :])
                    open_messages.clear()
                    break
                if field.tag & 7 != _BYTES:
                    continue
                parts += 1
                known = kind.fields_by_number.get(field.tag >> 3)
                inner = None if known is None else known.message_type
                if inner is not None and len(open_messages) < _MOST_DEPTH:
                    open_messages.append((inner, _fields(data, field.content, field.end)))
                    break
            else:
                open_messages.pop()
    except DecodeError:
        raise not_a_message(message_type, data) from None
    if parts > MOST_PARTS:
        name = message_type.DESCRIPTOR.full_name
        raise InvalidInputError(f"{name}: more than {MOST_PARTS} messages and texts in it.", field=name)


def _most_parts(data: bytes) -> int:
    """Bytes that texts and messages might begin with."""
    return len(data) - len(data.translate(None, _BYTES_TAGS))


def not_a_message(message_type: type[Message], data: bytes) -> InvalidInputError:
    """What to raise for bytes that are no such message; it names the field that is broken, if one is."""
    name = field = message_type.DESCRIPTOR.full_name
    with suppress(DecodeError):
        for each in _request_fields(data):
            known = message_type.DESCRIPTOR.fields_by_number.get(each.tag >> 3)
            if known is not None and not _is_parsed(message_type, data[each.start : each.end]):
                field = known.name
                break
    return InvalidInputError(f"the request is no {name} message.", field=field)


@contextmanager
def request_part(path: str, kind: type[Message] | None = None) -> Iterator[None]:
    """Whatever is wrong in here is wrong with the field at ``path``, or with a field in it.

    Readers of graphs, plans and targets name what is at fault in their own words: an op, a
    key of a file. What of it is no field of a message stays in the sentence alone.

    Args:
      kind: of the message at the path, where readers name fields of it.
    """
    try:
        yield
    except InvalidInputError as error:
        name = error.field.partition(".")[0].partition("[")[0]
        is_field = kind is not None and name in kind.DESCRIPTOR.fields_by_name
        error.field = f"{path}.{error.field}" if is_field else path
        raise


def _is_parsed(message_type: type[Message], data: bytes) -> bool:
    try:
        message_type.FromString(data)
    except DecodeError:
        return False
    return True


def _request_fields(data: bytes) -> Iterator[_Field]:
    for number, field in enumerate(_fields(data, 0, len(data))):
        if number == _MOST_FIELDS:
            raise DecodeError(f"more than {_MOST_FIELDS} fields.")
        yield field


def _fields(data: bytes, start: int, end_of_all: int) -> Iterator[_Field]:
    """The fields of the message between two places of the data; DecodeError where it is none."""
    while start < end_of_all:
        tag, content = _varint(data, start)
        kind = tag & 7
        if kind == _VARINT:
            end = _varint(data, content)[1]
        elif kind == _BYTES:
            size, content = _varint(data, content)
            end = content + size
        elif kind in (_FIXED64, _FIXED32):
            end = content + (8 if kind == _FIXED64 else 4)
        else:  # groups, which no message of go-opt has
            raise DecodeError(f"wire type {kind} at {start}.")
        if end > end_of_all:
            raise DecodeError(f"the field at {start} is cut.")
        yield _Field(tag, start, content, end)
        start = end


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that starts at ``at``, and where it ends."""
    if at < len(data) and data[at] < 0x80:  # most are one byte
        return data[at], at + 1
    number = 0
    for i, byte in enumerate(data[at : at + 10]):
        number |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return number, at + i + 1
    raise DecodeError(f"no number ends after {at}.")
