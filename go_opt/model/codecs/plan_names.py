"""A plan in names, for readers that do not count ops: op names, stages with their chips, kernels."""

from __future__ import annotations

from typing import Any

from go_opt.model.graph import Graph
from go_opt.model.plan import Plan


def names_to_dict(graph: Graph, plan: Plan) -> dict[str, Any]:
    """What the lists of a plan index, its stages and kernels, and the nodes of the model that have no op."""
    return {
        "op_names": list(graph.op_names),
        "stages": _stages(graph, plan),
        "kernels": _kernels(graph, plan),
        "nodes_without_op": [node._asdict() for node in graph.nodes_without_op],
    }


def _stages(graph: Graph, plan: Plan) -> list[dict[str, Any]]:
    """By first chip: the chips of each stage and its ops in execution order."""
    ops: dict[tuple[int, int], list[str]] = {}
    for op in plan.order.tolist():
        ops.setdefault((int(plan.placement[op]), int(plan.replication[op])), []).append(graph.op_names[op])
    return [
        {"chips": list(range(first, first + size)), "ops": names}
        for (first, size), names in sorted(ops.items())
    ]


def _kernels(graph: Graph, plan: Plan) -> list[list[str]]:
    """The ops of each kernel; kernels and ops in execution order."""
    kernels: dict[int, list[str]] = {}
    for op in plan.order.tolist():
        kernels.setdefault(int(plan.fusion_group[op]), []).append(graph.op_names[op])
    return list(kernels.values())
