"""Protobuf's wire format, as far as a request can be taken apart without parsing it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError, Message

BYTES: Final = 2  # the wire type of texts, bytes and messages
_VARINT, _FIXED64, _FIXED32 = 0, 1, 5
_MOST_FIELDS: Final = 1000  # in pure Python, millions would hold up all other threads
_MOST_BYTES_OF_VARINT: Final = 10


class WireField(NamedTuple):
    """Where a field is in the bytes of its message."""

    tag: int  # its number << 3, and its wire type
    start: int
    content: int  # where its value starts
    end: int


def wire_fields(data: bytes) -> Iterator[WireField]:
    """The fields of a message, as sent.

    Raises:
      DecodeError: the bytes are no message, or of too many fields.
    """
    start = 0
    for _ in range(_MOST_FIELDS):
        if start == len(data):
            return
        tag, content = _varint(data, start)
        kind = tag & 7
        if kind == _VARINT:
            end = _varint(data, content)[1]
        elif kind == BYTES:
            size, content = _varint(data, content)
            end = content + size
        elif kind in (_FIXED64, _FIXED32):
            end = content + (8 if kind == _FIXED64 else 4)
        else:  # groups, which no message of go-opt has
            raise DecodeError(f"wire type {kind} at {start}.")
        if end > len(data):
            raise DecodeError(f"the field at {start} is cut.")
        yield WireField(tag, start, content, end)
        start = end
    if start < len(data):
        raise DecodeError(f"more than {_MOST_FIELDS} fields.")


def broken_field(kind: type[Message], data: bytes) -> str:
    """The field that keeps the bytes from being a message; the message's name where it is none of them."""
    try:
        for field in wire_fields(data):
            known = kind.DESCRIPTOR.fields_by_number.get(field.tag >> 3)
            if known is not None and not _is_parsed(kind, data[field.start : field.end]):
                return str(known.name)
    except DecodeError:
        pass
    return str(kind.DESCRIPTOR.full_name)


def _is_parsed(kind: type[Message], data: bytes) -> bool:
    try:
        kind.FromString(data)
    except DecodeError:
        return False
    return True


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that starts at ``at``, and where it ends."""
    number = 0
    for i, byte in enumerate(data[at : at + _MOST_BYTES_OF_VARINT]):
        number |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return number, at + i + 1
    raise DecodeError(f"no number ends after {at}.")
