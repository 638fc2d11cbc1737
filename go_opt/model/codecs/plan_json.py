"""Plans from untrusted fields, each of which is checked, the exact JSON form of a plan, and plan files.

Checks that need the graph or the target (existing chips, a legal order) are left to
:mod:`go_opt.solver.verify.verifier`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, cast, get_args

import numpy as np

from go_opt.common.arrays import IntArray, frozen
from go_opt.common.files import read_json, write_atomically
from go_opt.common.outputs import PLAN
from go_opt.errors import PlanError
from go_opt.model.bindings import Bindings
from go_opt.model.codecs.fields import bindings_from, bindings_to_dict, is_encodable, shown
from go_opt.model.graph import Graph, Precision, Rewrite
from go_opt.model.plan import Plan, Relay, Split, number_by_first_place

FORMAT: Final = PLAN.json_format
# What files lack that have none of it, and older files.
_ABSENT: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("forwards", "host_states", "splits", "rewrites"), ()),
    "values": {},
    "trips": {},
    "bound_states": {},
    "model": "",
    "sequences": 1,
}
_OUTDATED: Final = frozenset({"clones"})  # older files have it
_REQUIRED: Final = frozenset({"format", "dims", *(field.name for field in fields(Plan))}) - {
    *_ABSENT,
    "bindings",
}
_OBJECTIVES: Final = ("throughput", "latency")
_STATUSES: Final = ("OPTIMAL", "FEASIBLE", "HEURISTIC")
_SEED_MAX: Final = 2**64 - 1
# What the plan itself does not need: names, and claims about the search.
_FACTS: Final = frozenset(
    (
        *("op_names", "stages", "kernels", "nodes_without_op", "unknown_ops", "objective", "status"),
        *("lower_bound_s", "gap", "seed", "version", "costs"),
    )
)
_INT32_MAX: Final = 2**31 - 1
_Check = Callable[[str, object], Any]  # of a field's name and value, which it returns
_TEXTS: Final = ("graph_fingerprint", "target_fingerprint", "target", "model")


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """The plan as JSON types; :func:`plan_from_dict` gives the same plan back."""
    rows: dict[str, Any] = {"format": FORMAT}
    for field in fields(Plan):
        value = getattr(plan, field.name)
        if isinstance(value, Bindings):
            rows |= bindings_to_dict(value)
        elif isinstance(value, np.ndarray):
            rows[field.name] = value.tolist()
        elif field.name == "model" or value != _ABSENT.get(field.name, MISSING):
            rows[field.name] = list(map(_entry, value)) if isinstance(value, tuple) else value
    return rows


def _entry(value: Any) -> Any:
    """An element of a list in a plan, as JSON types."""
    if isinstance(value, str | int):
        return value
    row = value._asdict() if hasattr(value, "_asdict") else asdict(value)
    return {name: list(one) if isinstance(one, tuple) else one for name, one in row.items()}


def plan_from_dict(data: object) -> Plan:
    """The validated plan from the form of :func:`plan_to_dict`.

    Raises:
      PlanError: one sentence that names the faulty field.
    """
    if not isinstance(data, Mapping):
        raise PlanError("plan: must be a JSON object.")
    if data.get("objective") == "step":
        commands = "evaluate, verify, explain without an op, and trace"
        raise PlanError(f"plan: it is of a training step, which is for {commands}.", field="objective")
    if data.get("form") == "ranges":
        raise PlanError("plan: it is of ranges of layers, which is for evaluate and verify.", field="form")
    if "models" in data:
        problem = "give all of them, or one and its plan as FILE#/models/0/plan"
        raise PlanError(f"plan: it is of models that take turns; {problem}.", field="models")
    for name in sorted(_REQUIRED - set(data)):
        raise PlanError(f"plan: {name} is missing.", field=name)
    for name in data:
        if name not in _REQUIRED | _ABSENT.keys() | _OUTDATED | _FACTS:
            raise PlanError(f"plan: unknown field {str(name)[:40]!r}.", field=str(name)[:40])
    if data["format"] != FORMAT:
        raise PlanError(f"plan: format must be {FORMAT!r}.", field="format")
    refuse_clones(data.get("clones"))
    plan = plan_from_fields({**_ABSENT, **data})
    _check_facts(data, plan)
    return plan


def save_plan(plan: Plan, path: str | Path, facts: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Write a plan file atomically.

    Args:
      facts: further entries of the file: those of :func:`names_to_dict`, and facts about the search.

    Raises:
      InvalidInputError: the path cannot be written to.
    """
    write_atomically(path, json.dumps(plan_to_dict(plan) | dict(facts), ensure_ascii=False) + "\n")


def load_plan(path: str | Path) -> Plan:
    """The plan of a file written by :func:`save_plan`.

    Raises:
      PlanError: the file is missing, is not JSON, or is not a plan.
    """
    data = read_json(path, "plan file", PlanError)
    try:
        return plan_from_dict(data)
    except PlanError as error:
        raise PlanError(f"plan file {str(path)!r}: {error}", field=error.field) from None


def names_to_dict(graph: Graph, plan: Plan) -> dict[str, Any]:
    """Op names that a plan's lists index, its stages and kernels, and the model's nodes without an op."""
    return {
        "op_names": list(graph.op_names),
        "stages": _stage_rows(graph.op_names, plan),
        "kernels": _kernel_names(graph.op_names, plan),
        "nodes_without_op": [node._asdict() for node in graph.nodes_without_op],
        "unknown_ops": [op._asdict() for op in graph.unknown_ops],
    }


def _check_facts(data: Mapping[str, Any], plan: Plan) -> None:
    """Check the facts that a plan file has; each may be missing.

    Raises:
      PlanError: one is malformed, or contradicts the plan; the message names it.
    """
    names: Any = data.get("op_names")
    _check("op_names", names, _are_texts(names) and len(set(names)) == len(names) == len(plan.order))
    stages, kernels = data.get("stages"), data.get("kernels")
    # A stage of a billion chips is not listed to compare it.
    is_listed = names is not None and plan.replication.max() <= len(json.dumps(stages))
    if stages is not None and not (is_listed and stages == _stage_rows(names, plan)):
        raise _contradicted("stages", "placement, replication and order")
    if kernels is not None and (names is None or kernels != _kernel_names(names, plan)):
        raise _contradicted("kernels", "fusion_group and order")
    for field in ("nodes_without_op", "unknown_ops"):
        rows = data.get(field)
        _check(field, rows, isinstance(rows, list) and all(map(_is_named, rows)))
    _check("objective", data.get("objective"), data.get("objective") in _OBJECTIVES)
    _check("status", data.get("status"), data.get("status") in _STATUSES)
    for field in ("lower_bound_s", "gap"):
        _check(field, data.get(field), _is_number(data.get(field)))
    seed = data.get("seed")
    _check("seed", seed, type(seed) is int and 0 <= seed <= _SEED_MAX)
    _check("version", data.get("version"), isinstance(data.get("version"), str))
    costs: Any = data.get("costs")
    is_costs = isinstance(costs, dict) and costs.keys() == {"file", "fingerprint"}
    _check("costs", costs, is_costs and _are_texts(list(costs.values())))


def _stage_rows(op_names: Sequence[str], plan: Plan) -> list[dict[str, Any]]:
    """The chips of each stage and its ops in execution order, sorted by first chip."""
    ops: dict[tuple[int, int], list[str]] = {}
    for op in plan.order.tolist():
        ops.setdefault((int(plan.placement[op]), int(plan.replication[op])), []).append(op_names[op])
    return [
        {"chips": list(range(first, first + size)), "ops": names}
        for (first, size), names in sorted(ops.items())
    ]


def _kernel_names(op_names: Sequence[str], plan: Plan) -> list[list[str]]:
    """The ops of each kernel; kernels and ops are in execution order."""
    kernels: dict[int, list[str]] = {}
    for op in plan.order.tolist():
        kernels.setdefault(int(plan.fusion_group[op]), []).append(op_names[op])
    return list(kernels.values())


def _contradicted(field: str, origin: str) -> PlanError:
    return PlanError(
        f"plan: {field} contradicts op_names, {origin}: leave out {field!r}, which is derived from them.",
        field=field,
    )


def _check(field: str, value: object, is_right: bool) -> None:
    if value is not None and not is_right:
        raise PlanError(f"plan: {field} is malformed or contradicts the plan: {shown(value)}.", field=field)


def _are_texts(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _is_named(row: object) -> bool:
    if not isinstance(row, dict) or not isinstance(row.get("name"), str):
        return False
    return all(value is None or isinstance(value, str) or _is_number(value) for value in row.values())


def _is_number(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= cast(float, value) <= sys.float_info.max  # false for NaN


def plan_from_fields(given: Mapping[str, Any]) -> Plan:
    """The plan with these field values; rows of ``relays``, ``splits`` and ``rewrites`` are mappings.

    Raises:
      PlanError: one sentence that names the faulty field.
    """
    placement = int_array("placement", given["placement"], 0, _INT32_MAX)
    num_ops = len(placement)
    if num_ops == 0:
        raise _error("placement", "has no ops")
    order = _permutation(given["order"], num_ops)
    groups = _per_op("fusion_group", given["fusion_group"], num_ops, 0, _INT32_MAX)
    origins = _texts("provenance", given["provenance"])
    others: dict[str, Any] = {name: text(name, given[name]) for name in _TEXTS}
    others |= {name: _rows(name, given[name]) for name in _ROWS}
    return Plan(
        placement=placement,
        order=order,
        fusion_group=frozen(number_by_first_place(groups, order)),
        replication=_per_op("replication", given["replication"], num_ops, 1, _INT32_MAX),
        sequences=_number(1)("sequences", given["sequences"]),
        host_states=_names("host_states", given["host_states"]),
        forwards=_numbers("forwards", given["forwards"]),
        provenance=origins,
        op_provenance=_per_op("op_provenance", given["op_provenance"], num_ops, 0, len(origins) - 1),
        bindings=bindings_from(given, "plan", PlanError),
        precision=_precision(given["precision"]),
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
    if not isinstance(value, str) or not is_encodable(value):
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
