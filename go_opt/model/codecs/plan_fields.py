"""Builds a :class:`Plan` from untrusted fields and checks each of them.

Checks that need the graph or the target (existing chips, a legal order) are left to
:mod:`go_opt.solver.verify.verifier`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeGuard, cast, get_args

import numpy as np

from go_opt.common.arrays import IntArray, frozen
from go_opt.errors import PlanError
from go_opt.model.codecs.fields import bindings_from, shown
from go_opt.model.graph import Precision, Rewrite
from go_opt.model.plan import Plan, Relay, Split, number_by_first_place

_INT32_MAX: Final = 2**31 - 1
_Check = Callable[[str, object], Any]  # of a field's name and value, which it returns
_TEXTS: Final = ("graph_fingerprint", "target_fingerprint", "target", "model")


def plan_from_fields(fields: Mapping[str, Any]) -> Plan:
    """The plan with these field values; rows of ``relays``, ``splits`` and ``rewrites`` are mappings.

    Raises:
      PlanError: one sentence that names the faulty field.
    """
    placement = int_array("placement", fields["placement"], 0, _INT32_MAX)
    num_ops = len(placement)
    if num_ops == 0:
        raise _error("placement", "has no ops")
    order = _permutation(fields["order"], num_ops)
    groups = _per_op("fusion_group", fields["fusion_group"], num_ops, 0, _INT32_MAX)
    origins = _texts("provenance", fields["provenance"])
    others: dict[str, Any] = {name: text(name, fields[name]) for name in _TEXTS}
    others |= {name: _rows(name, fields[name]) for name in _ROWS}
    return Plan(
        placement=placement,
        order=order,
        fusion_group=frozen(number_by_first_place(groups, order)),
        replication=_per_op("replication", fields["replication"], num_ops, 1, _INT32_MAX),
        sequences=_number(1)("sequences", fields["sequences"]),
        host_states=_names("host_states", fields["host_states"]),
        forwards=_numbers("forwards", fields["forwards"]),
        provenance=origins,
        op_provenance=_per_op("op_provenance", fields["op_provenance"], num_ops, 0, len(origins) - 1),
        bindings=bindings_from(fields, "plan", PlanError),
        precision=_precision(fields["precision"]),
        **others,
    )


def _rows(field: str, value: object) -> tuple[Any, ...]:
    """The rows of a field, each checked."""
    make, checks = _ROWS[field]
    if not isinstance(value, list | tuple):
        raise _error(field, "must be a list")
    rows = []
    for i, row in enumerate(value):
        where, given = f"{field}[{i}]", _OF_EARLIER.get(field, {}) | (row if isinstance(row, dict) else {})
        if field == "splits" and "kind" in given:
            raise _error(field, "of an earlier version are no longer read: search for another plan")
        if given.keys() != checks.keys():
            *first, last = checks
            raise _error(where, f"must be an object of {', '.join(first)} and {last}")
        rows.append(make(**{name: check(f"{where}.{name}", given[name]) for name, check in checks.items()}))
    return tuple(rows)


def refuse_clones(clones: object) -> None:
    """Raise if a plan of an earlier version computes ops on several chips; others list none."""
    if clones:
        raise _error("clones", "are no longer supported: search for another plan")


def int_array(field: str, values: object, low: int, high: int) -> IntArray:
    """Integers between ``low`` and ``high``; a bool or a float is not an integer."""
    if not isinstance(values, list | tuple) or not set(map(type, values)) <= {int}:
        raise _error(field, "must hold integers only")
    try:
        array = np.array(values, dtype=np.int64)
        is_within = not len(array) or (low <= array.min() and array.max() <= high)
    except OverflowError:
        is_within = False
    if not is_within:
        i, value = next((i, v) for i, v in enumerate(values) if not low <= v <= high)
        raise _error(field, f"must hold integers between {low} and {high}, not {shown(value)} at {i}")
    return frozen(array, np.int32)


def text(field: str, value: object) -> str:
    """A string that UTF-8 can encode."""
    if not _is_utf8(value):
        raise _error(field, "must be text that UTF-8 can hold")
    return value


def _number(low: int, high: int = _INT32_MAX) -> _Check:
    return lambda field, value: int(int_array(field, [value], low, high)[0])


def _numbers(field: str, values: object) -> tuple[int, ...]:
    return tuple(int_array(field, values, 0, _INT32_MAX).tolist())


def _flag(field: str, value: object) -> bool:
    if type(value) is not bool:
        raise _error(field, "must be true or false")
    return value


def _per_op(field: str, values: object, num_ops: int, low: int, high: int) -> IntArray:
    array = int_array(field, values, low, high)
    if len(array) != num_ops:
        raise _error(field, f"has {len(array)} entries, placement has {num_ops}")
    return array


def _permutation(order: object, num_ops: int) -> IntArray:
    array = _per_op("order", order, num_ops, 0, num_ops - 1)
    times = np.bincount(array, minlength=num_ops)
    if (times != 1).any():
        missing = int(np.flatnonzero(times == 0)[0])
        raise _error("order", f"must hold every op once, op {missing} is missing")
    return array


def _texts(field: str, values: object) -> tuple[str, ...]:
    if not values:
        raise _error(field, "is empty")
    return _names(field, values)


def _names(field: str, values: object) -> tuple[str, ...]:
    if not isinstance(values, list | tuple):
        raise _error(field, "must be a list of texts")
    return tuple(text(f"{field}[{i}]", value) for i, value in enumerate(values))


def _precision(value: object) -> Precision:
    if value not in get_args(Precision):
        raise _error("precision", f"must be one of {', '.join(get_args(Precision))}")
    return cast("Precision", value)


def _is_utf8(value: object) -> TypeGuard[str]:
    # A JSON escape can be a lone surrogate, which UTF-8 cannot encode.
    return isinstance(value, str) and (value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value))


def _error(field: str, problem: str) -> PlanError:
    return PlanError(f"plan: {field} {problem}.", field=field)


# What the rows of a field become, and how each of their own fields is checked.
_ROWS: Final[Mapping[str, tuple[Callable[..., Any], Mapping[str, _Check]]]] = {
    "relays": (Relay, {"tensor": text, "chips": _numbers}),
    "splits": (
        Split,
        {
            "op": text,
            "factor": text,
            "parts": _number(2),
            "joined": _flag,
            "collective": _flag,
            "bucket": _number(0),
            "level": _number(0, 1),
        },
    ),
    "rewrites": (Rewrite, {"rule": text, "ops": _texts}),
}
_OF_EARLIER: Final = {
    "splits": {"collective": False, "bucket": 0, "level": 0}
}  # what rows of older files lack
