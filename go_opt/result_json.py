"""Results as the JSON objects that ``--json`` prints (design section 9)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from go_opt.env import Metrics
from go_opt.env.model.metrics import STALL_CAUSES, Simulation
from go_opt.errors import InfeasibleError
from go_opt.model.codecs.plan_json import names_to_dict
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.result import OptimizeResult
from go_opt.solver import Violation


def result_to_dict(graph: Graph, result: OptimizeResult) -> dict[str, Any]:
    """The answer to ``optimize`` with the field names of the Python result."""
    plan = result.plan
    return {
        "model": graph.name,
        "target": plan.target,
        "objective": result.objective,
        "status": result.status,
        "method": result.method,
        **metrics_to_dict(result.metrics),
        "simulated_interval_s": _finite_or_none(result.simulated_interval_s),
        "simulated_makespan_s": _finite_or_none(result.simulated_makespan_s),
        "simulation_note": result.simulation_note,
        "lower_bound_s": result.lower_bound_s,
        "bound_reason": result.bound_reason,
        "gap": finite(result.gap),
        "reference_s": finite(result.reference_s),
        "chips_used": plan.chips_used,
        "evaluations": result.evaluations,
        "wall_s": result.wall_s,
        "ops": graph.num_ops,
        "seed": result.seed,
        "version": result.version,
        **decisions_to_dict(plan),
        **names_to_dict(graph, plan),
        "history": [
            {
                "method": step.method,
                "objective_s": finite(step.objective_s),
                "best_s": finite(step.best_s),
                "evaluations": step.evaluations,
                "elapsed_s": step.elapsed_s,
            }
            for step in result.history
        ],
    }


def _finite_or_none(seconds: float | None) -> float | None:
    return None if seconds is None else finite(seconds)


def plan_facts(graph: Graph, result: OptimizeResult) -> dict[str, Any]:
    """What a plan file says of its plan beside the plan itself."""
    return {
        "objective": result.objective,
        "status": result.status,
        "lower_bound_s": result.lower_bound_s,
        "gap": finite(result.gap),
        "seed": result.seed,
        "version": result.version,
        **names_to_dict(graph, result.plan),
    }


def decisions_to_dict(plan: Plan) -> dict[str, Any]:
    """What the plan decides; lists are in op order."""
    return {
        "placement": plan.placement.tolist(),
        "order": plan.order.tolist(),
        "fusion_group": plan.fusion_group.tolist(),
        "replication": plan.replication.tolist(),
        "relays": [{"tensor": relay.tensor, "chips": list(relay.chips)} for relay in plan.relays],
        "clones": [{"op": clone.op, "chip": clone.chip} for clone in plan.clones],
        "splits": [asdict(split) for split in plan.splits],
        "forwards": list(plan.forwards),
    }


def metrics_to_dict(metrics: Metrics) -> dict[str, Any]:
    """Every term of an evaluation."""
    return {
        "interval_s": finite(metrics.interval_s),
        "throughput_per_s": finite(metrics.throughput_per_s),
        "latency_s": finite(metrics.latency_s),
        "makespan_s": finite(metrics.makespan_s),
        "bottleneck": metrics.bottleneck,
        "compute_s": metrics.compute_s.tolist(),
        "link_s": metrics.link_s.tolist(),
        "stream_bytes": metrics.stream_bytes.tolist(),
        "peak_bytes": metrics.peak_bytes.tolist(),
        "weight_bytes": metrics.weight_bytes.tolist(),
        "valid": metrics.valid,
        "reason": metrics.reason,
        "simulation": None if metrics.simulation is None else simulation_to_dict(metrics.simulation),
    }


def simulation_to_dict(simulation: Simulation) -> dict[str, Any]:
    """What the simulator saw beside the metrics; waiting by cause."""
    stalls = zip(STALL_CAUSES, simulation.stall_s.T.tolist(), strict=True)
    return {
        "utilisation": simulation.utilisation.tolist(),
        "stall_s": dict(stalls),
        "link_utilisation": simulation.link_utilisation.tolist(),
        "link_wait_s": simulation.link_wait_s.tolist(),
        "period": simulation.period,
        "inferences": simulation.inferences,
    }


def infeasible_to_dict(error: InfeasibleError) -> dict[str, Any]:
    """The answer to ``optimize`` where there is no plan."""
    status = "INFEASIBLE" if error.is_proven else "NONE_FOUND"
    return {"status": status, "reason": str(error), "conflict": list(error.conflict)}


def violations_to_dict(violations: Sequence[Violation]) -> dict[str, Any]:
    """The answer to ``verify``."""
    rows = [{"constraint": v.constraint, "message": v.message} for v in violations]
    return {"valid": not violations, "violations": rows}


def finite(value: float) -> float | None:
    """JSON has no infinity: ``None`` stands for it."""
    return value if math.isfinite(value) else None
