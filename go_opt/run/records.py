"""Decodes JSON values into frozen dataclasses and checks their types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from go_opt.errors import InvalidInputError
from go_opt.model.codecs.fields import shown

_Record = TypeVar("_Record")
_CALLED = {str: "text", int: "a whole number", float: "a number", type(None): "null"}


def record_from_json(kind: type[_Record], value: Any, where: str) -> _Record:
    """A dataclass of type ``kind``, with strings, numbers, tuples, integer mappings or dataclasses as fields.

    Raises:
      InvalidInputError: a field is missing, unknown or of the wrong type; the message names it.
    """
    if not isinstance(value, Mapping):
        raise _wrong(where, "an object", value)
    hints = get_type_hints(kind)
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    for name in sorted(names ^ value.keys()):
        problem = "is missing" if name in names else "is unknown"
        raise InvalidInputError(f"{where}.{name[:40]} {problem}.", field=name[:40])
    return kind(**{name: _decoded(hints[name], value[name], f"{where}.{name}") for name in names})


def _decoded(kind: Any, value: Any, where: str) -> Any:
    if is_dataclass(kind) and isinstance(kind, type):
        return record_from_json(kind, value, where)
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise _wrong(where, "a list", value)
        return tuple(_decoded(get_args(kind)[0], entry, f"{where}[{i}]") for i, entry in enumerate(value))
    if get_origin(kind) is UnionType:
        return None if value is None else _decoded(get_args(kind)[0], value, where)
    if get_origin(kind) is not None:
        if not isinstance(value, Mapping):
            raise _wrong(where, "an object", value)
        return {
            str(key): _decoded(get_args(kind)[1], entry, f"{where}.{key}") for key, entry in value.items()
        }
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise _wrong(where, _CALLED[kind], value)
    return value


def _wrong(where: str, wanted: str, value: Any) -> InvalidInputError:
    return InvalidInputError(f"{where} must be {wanted}, not {shown(value)}.", field=where)
