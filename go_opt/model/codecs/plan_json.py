"""The exact JSON form of a plan, and plan files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

from go_opt.common.files import read_json, write_atomically
from go_opt.common.outputs import PLAN
from go_opt.errors import PlanError
from go_opt.model.codecs.bindings import bindings_to_dict
from go_opt.model.codecs.plan_facts import FACTS, check_facts, kernel_names, stage_rows
from go_opt.model.codecs.plan_fields import (
    plan_from_fields,
    refuse_clones,
    refuse_split_kinds,
    relay_from_fields,
    rewrite_from_fields,
    split_from_fields,
)
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
_SPLIT: Final = ("op", "factor", "parts", "joined", "collective", "bucket", "level")
_OF_EARLIER_SPLITS: Final = {"collective": False, "bucket": 0, "level": 0}
_Row = TypeVar("_Row")


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
    for name in sorted(_REQUIRED - set(data)):
        raise PlanError(f"plan: {name} is missing.", field=name)
    for name in data:
        if name not in _REQUIRED | _OPTIONAL | _OUTDATED | FACTS:
            raise PlanError(f"plan: unknown field {str(name)[:40]!r}.", field=str(name)[:40])
    if data["format"] != FORMAT:
        raise PlanError(f"plan: format must be {FORMAT!r}.", field="format")
    refuse_clones(data.get("clones"))
    splits = data.get("splits", [])
    refuse_split_kinds(
        isinstance(splits, list) and any(isinstance(one, Mapping) and "kind" in one for one in splits)
    )
    parsed = {
        "relays": _rows("relays", data["relays"], ("tensor", "chips"), relay_from_fields),
        "rewrites": _rows("rewrites", data.get("rewrites", []), ("rule", "ops"), rewrite_from_fields),
        "splits": _rows("splits", splits, _SPLIT, split_from_fields, _OF_EARLIER_SPLITS),
    }
    plan = plan_from_fields(
        {"model": "", "forwards": (), "sequences": 1, "host_states": (), **data, **parsed}
    )
    check_facts(data, plan)
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


def _rows(
    field: str,
    value: object,
    keys: tuple[str, ...],
    row_from_fields: Callable[..., _Row],
    missing: Mapping[str, object] = MappingProxyType({}),  # what rows of older files lack
) -> tuple[_Row, ...]:
    if not isinstance(value, list | tuple):
        raise PlanError(f"plan: {field} must be a list.", field=field)
    rows = []
    for i, row in enumerate(value):
        if not isinstance(row, Mapping) or {*row, *missing} != set(keys):
            name = f"{field}[{i}]"
            parts = f"{', '.join(keys[:-1])} and {keys[-1]}"
            raise PlanError(f"plan: {name} must be an object of {parts}.", field=name)
        rows.append(row_from_fields(i, *({**missing, **row}[key] for key in keys)))
    return tuple(rows)


def names_to_dict(graph: Graph, plan: Plan) -> dict[str, Any]:
    """Op names that a plan's lists index, its stages and kernels, and the model's nodes without an op."""
    return {
        "op_names": list(graph.op_names),
        "stages": stage_rows(graph.op_names, plan),
        "kernels": kernel_names(graph.op_names, plan),
        "nodes_without_op": [node._asdict() for node in graph.nodes_without_op],
        "unknown_ops": [op._asdict() for op in graph.unknown_ops],
    }
