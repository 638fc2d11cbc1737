"""Bindings in plans, graphs and messages: the fields ``dims``, ``values``, ``trips`` and ``states``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from go_opt.errors import GraphError, InvalidInputError
from go_opt.model.bindings import Bindings
from go_opt.model.codecs.fields import Fields, shown


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
