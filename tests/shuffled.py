"""Graphs and plans as messages, with their ops in any order; nothing but the protos is needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from go_opt.proto import graph_pb2, plan_pb2

PER_OP = ("placement", "fusion_group", "replication", "op_provenance")


def shuffled(graph: graph_pb2.Graph, order: Sequence[int]) -> graph_pb2.Graph:
    """The same graph with op ``order[i]`` at place i."""
    place = {old: new for new, old in enumerate(order)}
    turned = graph_pb2.Graph()
    turned.CopyFrom(graph)
    del turned.ops[:]
    turned.ops.extend(graph.ops[i] for i in order)
    for tensor in turned.tensors:
        if tensor.HasField("producer"):
            tensor.producer = place[tensor.producer]
        for reader in tensor.readers:
            reader.op = place[reader.op]
    return turned


def by_name(plan: plan_pb2.Plan) -> dict[str, Any]:
    """What a plan decides, in names alone."""
    names = list(plan.op_names)
    kernels: dict[int, list[str]] = {}
    for op in plan.order:
        kernels.setdefault(plan.fusion_group[op], []).append(names[op])
    return {
        "order": [names[op] for op in plan.order],
        "kernels": list(kernels.values()),
        "chips": dict(zip(names, zip(plan.placement, plan.replication, strict=True), strict=True)),
        "origins": dict(zip(names, (plan.provenance[i] for i in plan.op_provenance), strict=True)),
        "relays": sorted((relay.tensor, tuple(relay.chips)) for relay in plan.relays),
    }


def in_order(plan: plan_pb2.Plan, names: Sequence[str]) -> plan_pb2.Plan:
    """The same plan for a graph whose ops have these names in this order."""
    place = {name: i for i, name in enumerate(names)}
    old = [list(plan.op_names).index(name) for name in names]
    turned = plan_pb2.Plan()
    turned.CopyFrom(plan)
    for field in PER_OP:
        values = list(getattr(plan, field))
        getattr(turned, field)[:] = [values[i] for i in old]
    turned.order[:] = [place[plan.op_names[op]] for op in plan.order]
    turned.op_names[:] = names
    return turned
