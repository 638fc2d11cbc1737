"""Results as the JSON objects that ``--json`` prints (design section 9)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from go_opt.env import Metrics
from go_opt.env.model.metrics import STALL_CAUSES, Simulation
from go_opt.errors import InfeasibleError
from go_opt.model.codecs.plan_json import names_to_dict, plan_to_dict
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.model.states import sized_states
from go_opt.result import OptimizeResult
from go_opt.solver import Violation

if TYPE_CHECKING:
    from go_opt.explanations import OpExplanation, PlanExplanation


FACTS: Final = ("objective", "status", "lower_bound_s", "gap", "seed", "version")  # that plan files have, too


def result_to_dict(graph: Graph, result: OptimizeResult, native_dtype: str | None = None) -> dict[str, Any]:
    """The answer to ``optimize`` with the field names of the Python result.

    Args:
      native_dtype: of the target, in which states are counted; the model's own types by default.
    """
    plan, decided = result.plan, {"plan", "metrics", "states", "unpaired_states", "unknown_ops"}
    facts = {field.name: as_json(getattr(result, field.name)) for field in fields(result)}
    return {
        "model": graph.name,
        "target": plan.target,
        **{name: value for name, value in facts.items() if name not in decided},
        **metrics_to_dict(result.metrics),
        "chips_used": plan.chips_used,
        "sequences": plan.sequences,
        "ops": graph.num_ops,
        **decisions_to_dict(plan),
        **names_to_dict(graph, plan),
        "states": [state._asdict() for state in sized_states(graph, native_dtype)],
        "unpaired_states": list(graph.unpaired_states),
    }


def plan_facts(graph: Graph, result: OptimizeResult) -> dict[str, Any]:
    """The facts about a plan that its plan file stores besides the plan."""
    return {name: as_json(getattr(result, name)) for name in FACTS} | names_to_dict(graph, result.plan)


def decisions_to_dict(plan: Plan) -> dict[str, Any]:
    """The decisions of a plan; per-op lists are in op order."""
    made = plan_to_dict(plan)
    decided = ("placement", "order", "fusion_group", "replication", "relays")
    rest = {
        "rewrites": made.get("rewrites", []),
        "splits": as_json(plan.splits),
        "forwards": list(plan.forwards),
    }
    return {name: made[name] for name in decided} | rest


def metrics_to_dict(metrics: Metrics) -> dict[str, Any]:
    """Every term of an evaluation."""
    values = {field.name: as_json(getattr(metrics, field.name)) for field in fields(metrics)}
    return values | {"simulation": metrics.simulation and simulation_to_dict(metrics.simulation)}


def simulation_to_dict(simulation: Simulation) -> dict[str, Any]:
    """The figures that only the simulator gives; stalls are split by cause."""
    values = {field.name: as_json(getattr(simulation, field.name)) for field in fields(simulation)}
    return values | {"stall_s": dict(zip(STALL_CAUSES, simulation.stall_s.T.tolist(), strict=True))}


def infeasible_to_dict(error: InfeasibleError) -> dict[str, Any]:
    """The answer to ``optimize`` if there is no plan."""
    status = "INFEASIBLE" if error.is_proven else "NONE_FOUND"
    return {"status": status, "reason": str(error), "conflict": list(error.conflict)}


def violations_to_dict(violations: Sequence[Violation]) -> dict[str, Any]:
    """The answer to ``verify``."""
    rows = [{"constraint": v.constraint, "message": v.message} for v in violations]
    return {"valid": not violations, "violations": rows}


def explanation_to_dict(explanation: PlanExplanation | OpExplanation) -> dict[str, Any]:
    """The answer to ``explain`` with the field names of the Python result."""
    return {field.name: as_json(getattr(explanation, field.name)) for field in fields(explanation)}


def as_json(value: Any) -> Any:
    """Converts dataclasses, arrays and lists to JSON types."""
    if isinstance(value, Metrics):
        return metrics_to_dict(value)
    if is_dataclass(value):
        return {field.name: as_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, tuple | list):
        return [as_json(item) for item in value]
    return finite(value) if isinstance(value, float) else value


def finite(value: float) -> float | None:
    """Replaces infinity and NaN, which JSON lacks, by ``None``."""
    return value if math.isfinite(value) else None
