"""Typed access to the fields of untrusted mappings (JSON objects, networkx attributes); bindings in them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from go_opt.errors import GraphError, InvalidInputError
from go_opt.model.bindings import Bindings
from go_opt.model.dtypes import DTYPES, dtype_code
from go_opt.model.graph import MAX_ELEMENTS

_REQUIRED: Final = object()


@dataclass(frozen=True)
class Fields:
    """A mapping with typed access to its values; a bad value raises a GraphError that names the field."""

    where: str  # the name of the mapping in messages, such as "op 'conv1'"
    values: Mapping[Any, Any]

    def text(self, key: str, default: Any = _REQUIRED) -> str:
        value = self._value(key, default)
        if not isinstance(value, str) or not is_encodable(value):
            raise self._wrong(key, "a string", value)
        return value

    def integer(self, key: str) -> int:
        return as_integer(self._value(key, _REQUIRED), f"{self.where}: {key!r}")

    def number(self, key: str, default: Any = _REQUIRED) -> float:
        return as_number(self._value(key, default), f"{self.where}: {key!r}")

    def flag(self, key: str, default: Any = _REQUIRED) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool | np.bool_):
            raise self._wrong(key, "true or false", value)
        return bool(value)

    def dtype(self, key: str, default: Any = _REQUIRED) -> str:
        """The full name of a numeric type; aliases such as ``bf16`` are resolved."""
        name = self.text(key, default)
        try:
            return DTYPES[dtype_code(name, field=f"{self.where}: {key!r}")]
        except InvalidInputError as error:
            raise GraphError(str(error), field=key) from None

    def texts(self, key: str, default: Any = _REQUIRED) -> list[str]:
        value = self._value(key, default)
        if not is_list(value) or not all(isinstance(entry, str) and is_encodable(entry) for entry in value):
            raise self._wrong(key, "a list of strings", value)
        return list(value)

    def objects(self, key: str, default: Any = _REQUIRED) -> list[Mapping[Any, Any]]:
        value = self._value(key, default)
        if not is_list(value) or not all(isinstance(entry, Mapping) for entry in value):
            raise self._wrong(key, "a list of objects", value)
        return list(value)

    def table(self, key: str, default: Any = _REQUIRED) -> Fields:
        """A mapping from names to values."""
        value = self._value(key, default)
        if not isinstance(value, Mapping):
            raise self._wrong(key, "an object", value)
        if not all(isinstance(name, str) and is_encodable(name) for name in value):
            raise self._wrong(key, "an object whose keys are strings", value)
        return Fields(f"{self.where}: {key!r}", value)

    def integers(self, key: str, default: Any = _REQUIRED) -> dict[str, int]:
        table = self.table(key, default)
        return {name: table.integer(name) for name in table.values}

    def numbers(self, key: str, default: Any = _REQUIRED) -> dict[str, float]:
        table = self.table(key, default)
        return {name: table.number(name) for name in table.values}

    def _value(self, key: str, default: Any) -> Any:
        value = self.values.get(key, default)
        if value is _REQUIRED:
            raise GraphError(f"{self.where} lacks the field {key!r}.", field=key)
        return value

    def _wrong(self, key: str, wanted: str, value: Any) -> GraphError:
        return GraphError(f"{self.where}: {key!r} must be {wanted}, not {shown(value)}.", field=key)


def as_integer(value: Any, what: str) -> int:
    """A count of at most 2**53; whole floats are accepted (JSON writes 1e6)."""
    is_whole = isinstance(value, float | np.floating) and float(value).is_integer()
    if isinstance(value, bool) or not (is_whole or isinstance(value, int | np.integer)):
        raise GraphError(f"{what} must be a whole number, not {shown(value)}.", field=what)
    if not 0 <= int(value) <= MAX_ELEMENTS:
        raise GraphError(f"{what} must be between 0 and {MAX_ELEMENTS:.4g}, not {shown(value)}.", field=what)
    return int(value)


def as_number(value: Any, what: str) -> float:
    """A finite, non-negative number."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise GraphError(f"{what} must be a number, not {shown(value)}.", field=what)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not 0 <= number < math.inf:
        raise GraphError(f"{what} must be finite and not negative, not {shown(value)}.", field=what)
    return number


def shown(value: Any) -> str:
    """A value as error messages print it, shortened if long."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def is_list(value: Any) -> bool:
    """Whether a value is a list of any kind, and no text."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def is_encodable(text: str) -> bool:
    """Whether ``text`` has a UTF-8 form; a lone surrogate from a JSON escape has none."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def bindings_to_dict(bindings: Bindings) -> dict[str, Any]:
    """The bindings as JSON types; all but dimensions only where there are any."""
    values = {name: list(numbers) for name, numbers in bindings.values.items()}
    rows = {"values": values, "trips": dict(bindings.trips), "bound_states": dict(bindings.states)}
    return {"dims": dict(bindings.dims), **{name: row for name, row in rows.items() if row}}


def bindings_from(data: Mapping[Any, Any], where: str, error: type[InvalidInputError]) -> Bindings:
    """The validated bindings among the fields of ``where``; raises ``error`` with the name of the field."""
    fields, field = Fields(where, data), "dims"
    try:
        dims = fields.integers(field, {})
        field = "trips"
        trips = fields.integers(field, {})
        field = "bound_states"
        pairs = fields.table(field, {})
        states = {name: pairs.text(name) for name in pairs.values}
        field = "values"
        table = fields.table(field, {})
        values = {name: _numbers(name, given, table.where) for name, given in table.values.items()}
        return Bindings(dims, values, trips, states)
    except GraphError as problem:
        raise error(str(problem), field=field) from None


def _numbers(name: str, given: object, where: str) -> tuple[float, ...]:
    is_list = isinstance(given, list | tuple) and set(map(type, given)) <= {int, float}
    try:
        numbers = tuple(map(float, given)) if is_list else ()  # type: ignore[call-overload]
    except OverflowError:
        numbers = ()
    if not numbers or not all(map(math.isfinite, numbers)):
        raise GraphError(f"{where}: {name!r} must be a list of finite numbers, not {shown(given)}.")
    return numbers
