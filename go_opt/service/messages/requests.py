"""Parses and splits requests in bytes, or refuses them with the field at fault.

gRPC itself answers malformed bytes with UNKNOWN. An empty part takes two bytes on the wire and
about fifty times that once parsed. So a request within the size limit could use up all memory,
and the parts are counted first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

from google.protobuf import wrappers_pb2
from google.protobuf.message import DecodeError, Message

from go_opt.errors import InvalidInputError

MOST_PARTS: Final = 8 * 2**20  # a graph of 100,000 ops has about a sixth of this
_MOST_FIELDS: Final = 1000  # in which a broken one is looked for, in pure Python
_MOST_LOOKS: Final = 2**20  # fields to visit, which takes seconds; the rest counts as all parts
_MOST_DEPTH: Final = 100  # the limit of every parser
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types; strings and messages are bytes
_BYTES_TAGS: Final = bytes(byte for byte in range(256) if byte & 7 == _BYTES)  # first bytes of such fields
_M = TypeVar("_M", bound=Message)


class _Field(NamedTuple):
    """The position of a field in the bytes of its message."""

    tag: int  # its number << 3, and its wire type
    start: int
    content: int  # start of its value
    end: int


def parsed(message_type: type[_M], data: bytes) -> _M:
    """Parses a message; InvalidInputError if it is malformed or has too many parts."""
    check_parts(message_type, data)
    try:
        message: _M = message_type.FromString(data)
    except DecodeError:
        raise not_a_message(message_type, data) from None
    return message


def split_graph(message_type: type[_M], data: bytes) -> tuple[_M, bytes]:
    """Returns a request without its graph, and the bytes of the graph's message.

    So routing a call does not parse the graph, and its digest can be a cache key. ``graph`` is field 1 of
    every request that has one, and an inner message looks like a ``bytes`` field.

    Raises:
      InvalidInputError: the bytes are not such a message.
    """
    try:
        split = wrappers_pb2.BytesValue.FromString(data)
    except DecodeError:
        raise not_a_message(message_type, data) from None
    graph, size = split.value, split.ByteSize()
    split.ClearField("value")  # what is left are unknown fields
    if size == len(data):
        return parsed(message_type, split.SerializeToString()), graph
    # The graph is in several pieces, which the parser merges.
    message: Any = parsed(message_type, data)
    graph = message.graph.SerializeToString()
    message.ClearField("graph")
    return message, graph


def check_parts(message_type: type[Message], data: bytes) -> None:
    """Raise InvalidInputError if a message has too many strings and messages, at any depth."""
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
    """An upper bound on the parts: the bytes that may start a string or message."""
    return len(data) - len(data.translate(None, _BYTES_TAGS))


def not_a_message(message_type: type[Message], data: bytes) -> InvalidInputError:
    """The error for bytes that are not such a message; names the broken field if one is found."""
    name = field = message_type.DESCRIPTOR.full_name
    with suppress(DecodeError):
        for each in islice(_fields(data, 0, len(data)), _MOST_FIELDS):
            known = message_type.DESCRIPTOR.fields_by_number.get(each.tag >> 3)
            if known is not None and not _is_parsed(message_type, data[each.start : each.end]):
                field = known.name
                break
    return InvalidInputError(f"the request is no {name} message.", field=field)


@contextmanager
def request_part(path: str, kind: type[Message] | None = None) -> Iterator[None]:
    """Makes errors in the block name the field at ``path``, or a field inside it.

    Readers of graphs, plans and targets name the fault in their own terms, such as an op or a key
    of a file. A name that is not a message field stays only in the sentence.

    Args:
      kind: the message type at the path, if readers name its fields.
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


def _fields(data: bytes, start: int, end_of_all: int) -> Iterator[_Field]:
    """The fields of the message between two offsets of the data; DecodeError if it is malformed."""
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
        else:  # groups, which go-opt's messages do not use
            raise DecodeError(f"wire type {kind} at {start}.")
        if end > end_of_all:
            raise DecodeError(f"the field at {start} is cut.")
        yield _Field(tag, start, content, end)
        start = end


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at offset ``at``, and the offset of its end."""
    if at < len(data) and data[at] < 0x80:  # most numbers are one byte
        return data[at], at + 1
    number = 0
    for i, byte in enumerate(data[at : at + 10]):
        number |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return number, at + i + 1
    raise DecodeError(f"no number ends after {at}.")
