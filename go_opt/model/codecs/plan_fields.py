"""Builds a :class:`Plan` from untrusted fields and checks each of them.

Checks that need the graph or the target (existing chips, a legal order) are left to
:mod:`go_opt.solver.verify.verifier`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeGuard, cast, get_args

import numpy as np

from go_opt.common.arrays import IntArray, frozen
from go_opt.errors import PlanError
from go_opt.model.codecs.bindings import bindings_from
from go_opt.model.codecs.fields import shown
from go_opt.model.graph import Precision, Rewrite
from go_opt.model.plan import Plan, Relay, Split, number_by_first_place

_INT32_MAX: Final = 2**31 - 1
_TEXTS: Final = ("graph_fingerprint", "target_fingerprint", "target", "model")


def plan_from_fields(fields: Mapping[str, Any]) -> Plan:
    """The plan with these field values; ``relays``, ``splits`` and ``rewrites`` are parsed already.

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
    return Plan(
        placement=placement,
        order=order,
        fusion_group=frozen(number_by_first_place(groups, order)),
        replication=_per_op("replication", fields["replication"], num_ops, 1, _INT32_MAX),
        relays=fields["relays"],
        splits=fields["splits"],
        rewrites=fields["rewrites"],
        sequences=int(int_array("sequences", [fields["sequences"]], 1, _INT32_MAX)[0]),
        host_states=_names("host_states", fields["host_states"]),
        forwards=tuple(int_array("forwards", fields["forwards"], 0, _INT32_MAX).tolist()),
        provenance=origins,
        op_provenance=_per_op("op_provenance", fields["op_provenance"], num_ops, 0, len(origins) - 1),
        bindings=bindings_from(fields, "plan", PlanError),
        precision=_precision(fields["precision"]),
        **{name: text(name, fields[name]) for name in _TEXTS},
    )


def relay_from_fields(i: int, tensor: object, chips: object) -> Relay:
    """Relay ``i`` of a plan."""
    chip_ids = int_array(f"relays[{i}].chips", chips, 0, _INT32_MAX)
    return Relay(text(f"relays[{i}].tensor", tensor), tuple(chip_ids.tolist()))


def refuse_clones(clones: object) -> None:
    """Raise if a plan of an earlier version computes ops on several chips; others list none."""
    if clones:
        raise _error("clones", "are no longer supported: search for another plan")


def split_from_fields(
    i: int,
    op: object,
    factor: object,
    parts: object,
    joined: object,
    collective: object,
    bucket: object,
    level: object,
) -> Split:
    """Split ``i`` of a plan."""
    field = f"splits[{i}]"
    if type(joined) is not bool:
        raise _error(f"{field}.joined", "must be true or false")
    if type(collective) is not bool:
        raise _error(f"{field}.collective", "must be true or false")
    number = int(int_array(f"{field}.parts", [parts], 2, _INT32_MAX)[0])
    of_bucket = int(int_array(f"{field}.bucket", [bucket], 0, _INT32_MAX)[0])
    of_level = int(int_array(f"{field}.level", [level], 0, 1)[0])
    names = text(f"{field}.op", op), text(f"{field}.factor", factor)
    return Split(*names, number, joined, collective, of_bucket, of_level)


def rewrite_from_fields(i: int, rule: object, ops: object) -> Rewrite:
    """Rewrite ``i`` of a plan."""
    field = f"rewrites[{i}]"
    return Rewrite(text(f"{field}.rule", rule), _texts(f"{field}.ops", ops))


def refuse_split_kinds(kinds: object) -> None:
    """Raise if a plan of an earlier version says what kind a split is, instead of its factor."""
    if kinds:
        raise _error("splits", "of an earlier version are no longer read: search for another plan")


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
    return cast(Precision, value)


def _is_utf8(value: object) -> TypeGuard[str]:
    # A JSON escape can be a lone surrogate, which UTF-8 cannot encode.
    return isinstance(value, str) and (value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value))


def _error(field: str, problem: str) -> PlanError:
    return PlanError(f"plan: {field} {problem}.", field=field)
