"""The facts of a plan file that the plan itself does not need: names, and claims about the search."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from go_opt.errors import PlanError
from go_opt.model.codecs.fields import shown
from go_opt.model.plan import Plan

_OBJECTIVES: Final = ("throughput", "latency")
_STATUSES: Final = ("OPTIMAL", "FEASIBLE", "HEURISTIC")
_SEED_MAX: Final = 2**64 - 1
FACTS: Final = frozenset(
    {
        "op_names",
        "stages",
        "kernels",
        "nodes_without_op",
        "unknown_ops",
        "objective",
        "status",
        "lower_bound_s",
        "gap",
        "seed",
        "version",
        "costs",
    }
)


def check_facts(data: Mapping[str, Any], plan: Plan) -> None:
    """Check the facts that a plan file has; each may be missing.

    Raises:
      PlanError: one is malformed, or contradicts the plan; the message names it.
    """
    names: Any = data.get("op_names")
    _check("op_names", names, _are_texts(names) and len(set(names)) == len(names) == len(plan.order))
    stages, kernels = data.get("stages"), data.get("kernels")
    # A stage of a billion chips is not listed to compare it.
    is_listed = names is not None and plan.replication.max() <= len(json.dumps(stages))
    if stages is not None and not (is_listed and stages == stage_rows(names, plan)):
        raise _contradicted("stages", "placement, replication and order")
    if kernels is not None and (names is None or kernels != kernel_names(names, plan)):
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


def stage_rows(op_names: Sequence[str], plan: Plan) -> list[dict[str, Any]]:
    """The chips of each stage and its ops in execution order, sorted by first chip."""
    ops: dict[tuple[int, int], list[str]] = {}
    for op in plan.order.tolist():
        ops.setdefault((int(plan.placement[op]), int(plan.replication[op])), []).append(op_names[op])
    return [
        {"chips": list(range(first, first + size)), "ops": names}
        for (first, size), names in sorted(ops.items())
    ]


def kernel_names(op_names: Sequence[str], plan: Plan) -> list[list[str]]:
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
