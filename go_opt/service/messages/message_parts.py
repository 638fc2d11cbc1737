"""How many messages and texts a message is made of, counted before it is parsed.

An empty part takes two bytes on the wire and some fifty times that once parsed, so that a
request within its limit of bytes could take all memory.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from numba import njit
from numpy.typing import NDArray

from go_opt.errors import InvalidInputError

MOST_PARTS: Final = 8 * 2**20  # a graph of 100,000 ops has about a sixth
_UNCOUNTED_BYTES: Final = 2**20  # no message of so few is worth the while
_LEAF: Final = -1  # a field that is no message
_MAX_DEPTH: Final = 16


def check_parts(message_type: type[Message], data: bytes) -> None:
    """Raise InvalidInputError for bytes of a message of too many parts; any others pass."""
    if len(data) <= _UNCOUNTED_BYTES:
        return
    if _num_parts(np.frombuffer(data, np.uint8), _kinds(message_type.DESCRIPTOR), MOST_PARTS) > MOST_PARTS:
        name = message_type.DESCRIPTOR.full_name
        raise InvalidInputError(f"{name}: more than {MOST_PARTS} messages and texts in it.", field=name)


@lru_cache(maxsize=64)
def _kinds(descriptor: Descriptor) -> NDArray[np.int32]:
    """[kinds, field number] the kind of message that a field holds, itself of kind 0."""
    found = [descriptor]
    rows: list[dict[int, int]] = []
    while len(rows) < len(found):
        row = {}
        for field in found[len(rows)].fields:
            if field.message_type is not None:
                if field.message_type not in found:
                    found.append(field.message_type)
                row[field.number] = found.index(field.message_type)
        rows.append(row)
    most = max((number for row in rows for number in row), default=0)
    kinds = np.full((len(rows), most + 1), _LEAF, dtype=np.int32)
    for kind, row in enumerate(rows):
        for number, child in row.items():
            kinds[kind, number] = child
    return kinds


@njit(cache=True, nogil=True)
def _num_parts(data: NDArray[np.uint8], kinds: NDArray[np.int32], most: int) -> int:
    """Fields of messages, texts and bytes, at any depth; it stops where there are more than ``most``.

    Bytes that are no message end the count: the parser says so.
    """
    ends = np.zeros(_MAX_DEPTH, dtype=np.int64)
    kind_at = np.zeros(_MAX_DEPTH, dtype=np.int32)
    ends[0] = len(data)
    depth, at, parts = 0, 0, 0
    while depth >= 0 and parts <= most:
        if at >= ends[depth]:
            depth -= 1
            continue
        tag, at = _varint(data, at)
        wire_type = tag & 7
        if wire_type == 2:
            size, at = _varint(data, at)
            if size < 0 or size > ends[depth] - at:
                return parts
            parts += 1
            number, kind = tag >> 3, kind_at[depth]
            child = kinds[kind, number] if 0 <= number < kinds.shape[1] else _LEAF
            if child == _LEAF or depth + 1 == _MAX_DEPTH:
                at += size
            else:
                depth += 1
                ends[depth], kind_at[depth] = at + size, child
        elif wire_type == 0:
            _, at = _varint(data, at)
        elif wire_type == 1:
            at += 8
        elif wire_type == 5:
            at += 4
        else:
            return parts
    return parts


@njit(cache=True, nogil=True)
def _varint(data: NDArray[np.uint8], at: int) -> tuple[int, int]:
    """The number at ``at``, and where it ends: the end of the data where it is cut."""
    number = 0
    for i in range(10):
        if at >= len(data):
            return 0, len(data)
        byte = int(data[at])
        at += 1
        if i < 9:
            number |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return number, at
    return 0, len(data)
