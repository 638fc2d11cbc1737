"""The exact JSON form of a plan, and plan files."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, cast

from go_opt.common.files import read_json, write_atomically
from go_opt.common.outputs import PLAN
from go_opt.errors import PlanError
from go_opt.model.codecs.fields import bindings_to_dict, shown
from go_opt.model.codecs.plan_fields import plan_from_fields, refuse_clones
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan

FORMAT: Final = PLAN.json_format
_OPTIONAL: Final = frozenset(
    {"model", "splits", "forwards", "values", "trips", "bound_states", "sequences", "host_states", "rewrites"}
)  # older files lack them
_OUTDATED: Final = frozenset({"clones"})  # older files have it
_REQUIRED: Final = frozenset({"format", "dims", *(field.name for field in fields(Plan))}) - {
    *_OPTIONAL,
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


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """The plan as JSON types; :func:`plan_from_dict` gives the same plan back."""
    rewrites = [{"rule": one.rule, "ops": list(one.ops)} for one in plan.rewrites]
    return {
        "format": FORMAT,
        "placement": plan.placement.tolist(),
        "order": plan.order.tolist(),
        "fusion_group": plan.fusion_group.tolist(),
        "replication": plan.replication.tolist(),
        "relays": [{"tensor": relay.tensor, "chips": list(relay.chips)} for relay in plan.relays],
        "provenance": list(plan.provenance),
        "op_provenance": plan.op_provenance.tolist(),
        "graph_fingerprint": plan.graph_fingerprint,
        "target_fingerprint": plan.target_fingerprint,
        "target": plan.target,
        **bindings_to_dict(plan.bindings),
        "precision": plan.precision,
        "model": plan.model,
        **({"rewrites": rewrites} if rewrites else {}),
        **({"splits": [asdict(split) for split in plan.splits]} if plan.splits else {}),
        **({"forwards": list(plan.forwards)} if plan.forwards else {}),
        **({"sequences": plan.sequences} if plan.sequences > 1 else {}),
        **({"host_states": list(plan.host_states)} if plan.host_states else {}),
    }


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
        if name not in _REQUIRED | _OPTIONAL | _OUTDATED | _FACTS:
            raise PlanError(f"plan: unknown field {str(name)[:40]!r}.", field=str(name)[:40])
    if data["format"] != FORMAT:
        raise PlanError(f"plan: format must be {FORMAT!r}.", field="format")
    refuse_clones(data.get("clones"))
    missing = {
        "model": "",
        "sequences": 1,
        **dict.fromkeys(("forwards", "host_states", "splits", "rewrites"), ()),
    }
    plan = plan_from_fields({**missing, **data})
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
