"""Types of StableHLO values, and the ops that cannot be read."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from go_opt.errors import ModelError

_MOST_NESTED: Final = 256
MAX_TEXT_BYTES: Final = 256 * 2**20  # constants are digits in it
_MOST_STRINGS: Final = 2**22  # each takes half a microsecond
# Comments and strings; an open one ends with its line, where the parser stops.
_OPAQUE: Final = re.compile(rb'//[^\n]*|"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"?')
_OPENING, _CLOSING = b"([{<", b">}])"
_NO_BRACKETS: Final = bytes(set(range(256)) - set(_OPENING + _CLOSING))
_CHUNK: Final = 2**20  # brackets
# Of a location: a file, a name, a place or a call in it, brackets. A name stands before where it comes from.
_LOCATION: Final = re.compile(r'"[^"]*":|"([^"]*)"|(loc\(|callsite\()|([(\[])|([)\]])')
# Custom calls that change only where data lies; those of shards do so where the shapes stay.
_MARKS: Final = ("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement")
# Their regions only say how elements combine or compare.
_COMBINERS: Final = ("map", "reduce", "reduce_window", "scatter", "select_and_scatter", "sort")
# Of a program that each of several devices runs on its part.
_COLLECTIVES: Final = (
    "all_gather", "all_reduce", "all_to_all", "async_start", "collective_broadcast", "collective_permute",
    "cross-replica-sum", "partition_id", "recv", "reduce_scatter", "replica_id", "send",
)  # fmt: skip


def check_text(text: str) -> None:
    """Refuse text that is too long for the parser, or nested deeper than its stack allows.

    Raises:
      ModelError: more than 256 MiB or 4,194,304 strings, or brackets or signs nested more than 256 deep.
    """
    data = text.encode("utf-8", "replace")
    if len(data) > MAX_TEXT_BYTES:
        raise _unreadable(f"is larger than {MAX_TEXT_BYTES // 2**20} MiB")
    if data.count(b'"') // 2 + data.count(b"//") > _MOST_STRINGS:
        raise _unreadable(f"has more than {_MOST_STRINGS} strings and comments")
    bare = _OPAQUE.sub(b"", data).translate(None, b" \t\r\n\v\f")
    if b"-" * _MOST_NESTED in bare or _depth(bare) > _MOST_NESTED:
        raise _unreadable(f"is nested more than {_MOST_NESTED} deep")


def _depth(bare: bytes) -> int:
    """How deep brackets are nested in text without spaces, strings and comments."""
    brackets = bare.replace(b"->", b"").replace(b">=", b"").translate(None, _NO_BRACKETS)
    step = np.zeros(256, np.int64)
    step[list(_OPENING)], step[list(_CLOSING)] = 1, -1
    depth = deepest = 0
    for begin in range(0, len(brackets), _CHUNK):
        chunk = np.frombuffer(brackets[begin : begin + _CHUNK], np.uint8)
        depths = depth + np.cumsum(step[chunk])
        depths -= np.minimum(np.minimum.accumulate(depths), 0)  # what closes nothing does not count
        depth, deepest = int(depths[-1]), max(deepest, int(depths.max()))
    return deepest


def _unreadable(what: str) -> ModelError:
    return ModelError(f"the StableHLO text cannot be read: it {what}.")


def check_readable(kind: str, op: Any, stack: str) -> None:
    """Refuse an op that holds a program which is not read, or that works on a part of what the model does."""
    is_call = kind == "custom_call"
    target = op.attributes["call_target_name"].value if is_call else kind
    name = f"{stack}/{target}".lstrip("/")
    shapes = [aval_of(value).shape for value in (*op.operands, *op.results)] if target in _MARKS else []
    if kind in _COLLECTIVES or len(set(shapes)) > 1:
        raise ModelError(
            f"op {name!r}: the program is one device's part of a program for several, so its costs are not "
            "those of the model; lower the function without shard_map or pmap."
        )
    if is_call and target not in _MARKS:
        raise ModelError(f"op {name!r}: the custom call {target!r} has no cost.")
    attributes = [op.attributes[i].attr for i in range(len(op.attributes))]
    calls = any(type(value).__name__ == "FlatSymbolRefAttr" for value in attributes)
    if calls or (len(op.regions) > 0 and kind not in _COMBINERS):
        raise ModelError(f"op {name!r}: {op.name!r} holds a program that is not read.")


def name_stack(op: Any) -> str:
    """The scopes of an op from ``debug_info``, without calls: ``mlp`` for ``jit(f)/mlp/add``."""
    scopes, is_hidden = list[str](), list[bool]()
    for name, place, opened, closed in _LOCATION.findall(str(op.location)):
        if closed:
            is_hidden.pop()
            continue
        if name and not any(is_hidden):
            scopes[:0] = name.split("/")[:-1]  # the callers of an op that was inlined follow it
        if place or opened:
            is_hidden.append(not place)
    return "/".join(part for part in scopes if not part.startswith(("jit(", "pjit(")))


def aval_of(value: Any) -> SimpleNamespace:
    """Shape and type of a value, which must be a tensor of known shape."""
    text = str(value.type)
    match = re.fullmatch(r"tensor<((?:[0-9]+x)*)([a-z][^,>]*>?)(?:, .*)?>", text)
    if match is None:
        raise ModelError(f"a value has the type {text[:80]}, which has no size that is known.")
    shape = tuple(int(size) for size in match[1].split("x")[:-1])
    return SimpleNamespace(shape=shape, dtype=_dtype(match[2]))


def _dtype(element: str) -> str:
    if element == "i1":
        return "bool"
    if element.startswith("complex"):
        return "complex128" if "f64" in element else "complex64"
    if element.startswith("ui"):
        return f"uint{element[2:]}"
    if element.startswith("f8"):
        return "float8_e5m2" if "E5M2" in element else "float8_e4m3"
    return {"i4": "int4"}.get(element, element)
