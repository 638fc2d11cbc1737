"""Messages of any kind, made from their descriptors: boundaries, nonsense, and what is almost right."""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Callable
from typing import Any, Final, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

from tests.service.fuzz.targets import toml_texts

Draw = Callable[[st.SearchStrategy[Any]], Any]
M = TypeVar("M", bound=Message)

BOMB_FILE: Final = "bomb-went-off"  # in the working directory of the service
_MARK: Final = "\x7fnot text\x7f"  # becomes bytes that are no UTF-8
_MOST_CHANGES: Final = 3
_FLOATS: Final = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-300, 5e-324, 1e30, 1.7e308, math.inf, -math.inf, math.nan)
_SIZES: Final = (0, 1, 2, 3, 17, 300)


class _Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (BOMB_FILE,)


BOMB: Final = pickle.dumps(_Bomb(), protocol=0)  # plain ASCII, so that it is text as well

_NAMES: Final = (
    "",
    "a",
    "x",
    "default",
    "none",
    "mcm-2x2",
    "gpu-2",
    "float32",
    "operations",
    "operations/x",
    "state=RUNNING",
    "../canary.toml",
    "canary.toml",
    "fifo.toml",
    "./fifo.toml",
    "/etc/passwd",
    "/dev/zero",
    "/proc/self/mem",
    "file:///etc/passwd",
    "..",
    ".",
    "~",
    "a/../b",
    "a\0b",
    "\n\r\t\x1b[31m",
    "%s%n{0}",
    "$(touch x)",
    "'; DROP TABLE jobs; --",
    "\ufeffa",
    "\U0010ffff",
    "127.0.0.1:1",
    "[::1]:0",
    "unix:/tmp/x",
    BOMB.decode("ascii"),
    _MARK,
)


def messages(kind: type[M], depth: int = 4) -> st.SearchStrategy[M]:
    """Messages of the kind: each field is there or not, with any value that its type holds."""

    @st.composite
    def made(draw: Draw) -> M:
        message = kind()
        for field in kind.DESCRIPTOR.fields:
            if draw(st.booleans()):
                _fill(draw, message, field, depth)
        return message

    return made()


def mutations(example: M) -> st.SearchStrategy[M]:
    """The example with a few of its fields, however deep, changed, left out or said again."""

    @st.composite
    def changed(draw: Draw) -> M:
        message = type(example)()
        message.CopyFrom(example)
        for _ in range(draw(st.integers(0, _MOST_CHANGES))):
            _change(draw, message)
        return message

    return changed()


def wire(message: Message) -> bytes:
    """Its bytes; texts that hold the mark are no UTF-8 in them."""
    broken = b"\xff" * len(_MARK)
    return message.SerializeToString().replace(_MARK.encode("ascii"), broken)


def spoiled(data: bytes) -> st.SearchStrategy[bytes]:
    """Bytes that are nearly those: cut, overwritten, sent twice; or any others."""
    places = st.integers(0, max(0, len(data) - 1))
    noise = st.binary(min_size=1, max_size=8)
    return st.one_of(
        places.map(lambda at: data[:at]),
        st.tuples(places, noise).map(lambda p: data[: p[0]] + p[1] + data[p[0] + len(p[1]) :]),
        st.tuples(places, noise).map(lambda p: data[: p[0]] + p[1] + data[p[0] :]),
        st.just(data + data),
        st.binary(max_size=60),
        st.just(BOMB),
        st.sampled_from((b"\xff" * 11, b"\x0a\xff\xff\xff\xff\x0f", b"\x0b" * 50_000, b"\x08\x01" * 50_000)),
    )


def _fill(draw: Draw, message: Message, field: FieldDescriptor, depth: int) -> None:
    """Give a field a value, or so many as it takes."""
    if _is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        for _ in range(draw(st.integers(0, 2))):
            held, at = getattr(message, field.name), draw(_scalars(key))
            if value.message_type is None:
                held[at] = draw(_scalars(value))
            elif depth > 0:
                held[at].CopyFrom(draw(messages(type(held[at]), depth - 1)))
    elif field.message_type is not None:
        if depth == 0:
            return
        parts = [getattr(message, field.name)]
        if field.is_repeated:
            parts = [parts[0].add() for _ in range(draw(st.integers(1, 3)))]
        else:
            parts[0].SetInParent()
        for part in parts:
            part.CopyFrom(draw(messages(type(part), depth - 1)))
    elif field.is_repeated:
        values = draw(st.lists(_scalars(field), min_size=1, max_size=4))
        is_text = field.cpp_type == FieldDescriptor.CPPTYPE_STRING  # which may be long already
        getattr(message, field.name).extend(values * draw(st.sampled_from(_SIZES[:4] if is_text else _SIZES)))
    else:
        setattr(message, field.name, draw(_scalars(field)))


def _change(draw: Draw, message: Message) -> None:
    """Change one field of the message, or of a message in it."""
    fields = message.DESCRIPTOR.fields
    if not fields:
        return
    there = [field for field, _ in message.ListFields()]
    field = draw(st.sampled_from([*fields, *there, *there]))
    inner = field.message_type is not None and not _is_map(field) and field in there
    if inner and draw(st.integers(0, 3)):
        part = getattr(message, field.name)
        if not field.is_repeated:
            _change(draw, part)
            return
        how = draw(st.sampled_from(("change", "change", "repeat", "drop", "swap")))
        at = draw(st.integers(0, len(part) - 1))
        if how == "change":
            _change(draw, part[at])
        elif how == "repeat":
            part.add().CopyFrom(part[at])
        elif how == "drop":
            del part[at]
        else:
            part.add().CopyFrom(part[0])
            del part[0]
        return
    if field.is_repeated and not inner and field in there and field.message_type is None:
        values = getattr(message, field.name)
        values[draw(st.integers(0, len(values) - 1))] = draw(_scalars(field))
        return
    message.ClearField(field.name)
    if draw(st.integers(0, 3)):
        _fill(draw, message, field, 2)


def _scalars(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        texts = toml_texts() if field.name == "toml" else _texts()
        return texts.map(str.encode) if field.type == FieldDescriptor.TYPE_BYTES else texts
    if field.cpp_type in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return st.sampled_from(_FLOATS) | st.floats()
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return st.booleans()
    bits = 63 if field.cpp_type == FieldDescriptor.CPPTYPE_INT64 else 31
    return st.sampled_from(_integers(bits)) | st.integers(-(2**bits), 2**bits - 1)


def _integers(bits: int) -> tuple[int, ...]:
    edges = (0, 1, 2, 3, 4, 5, 63, 64, 1000, 2**16, 2**53, 2**53 + 1, 2**62, 2**bits - 2, 2**bits - 1)
    limit = 2**bits
    return (-limit, *(n for edge in edges for n in (edge, -edge) if -limit <= n < limit))


def _texts() -> st.SearchStrategy[str]:
    names = st.sampled_from(_NAMES)
    repeats = st.sampled_from((1, 1, 1, 1, 100, 20_000))
    long = st.tuples(names, repeats).map(lambda pair: pair[0] * pair[1])
    return long | st.text(st.characters(exclude_categories=("Cs",)), max_size=20)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry
