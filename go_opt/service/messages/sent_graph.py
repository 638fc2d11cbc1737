"""A graph with the op order of its sender; plans to and from the sender use that order.

The graph stores its ops in a topological order, which differs if the ops were sent unsorted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from go_opt.common.arrays import IntArray
from go_opt.env.copies.splits import planned_graph
from go_opt.errors import PlanError
from go_opt.model.codecs.wire import graph_from_proto, plan_from_proto, plan_to_proto
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.model.start import Start
from go_opt.proto import graph_pb2, plan_pb2

PER_OP: Final = ("placement", "order", "fusion_group", "replication", "op_provenance")
Rows = IntArray


@dataclass(frozen=True, eq=False)
class SentGraph:
    """A graph and the order of its ops as sent."""

    graph: Graph
    stored: Rows | None = None  # [N] graph index of each sent op; None: sent in the graph's order

    @staticmethod
    def from_proto(message: graph_pb2.Graph) -> SentGraph:
        """The validated graph in a message.

        Raises:
          GraphError: one sentence that names the op, tensor or field at fault.
        """
        graph = graph_from_proto(message)
        names = tuple(op.name for op in message.ops)
        if names == graph.op_names:
            return SentGraph(graph)
        return SentGraph(graph, np.array([graph.op_index[name] for name in names], dtype=np.int32))

    @cached_property
    def op_names(self) -> tuple[str, ...]:
        """[N] op names in the order sent."""
        names = self.graph.op_names
        return names if self.stored is None else tuple(names[i] for i in self.stored.tolist())

    def plan_from_proto(self, message: plan_pb2.Plan, target_fingerprint: str) -> Plan:
        """The plan that the caller sent for this graph.

        Raises:
          PlanError: the plan is malformed, or has another graph, target or op order.
        """
        plan = plan_from_proto(message)
        return self.of_plan(plan)._own_plan(plan, message.op_names, target_fingerprint)

    def of_plan(self, plan: Plan) -> SentGraph:
        """The graph that a plan places; with split ops it has their parts, in the graph's own order."""
        return SentGraph(planned_graph(self.graph, plan)) if plan.splits else self

    def _own_plan(self, plan: Plan, op_names: Sequence[str], target_fingerprint: str) -> Plan:
        plan.check_belongs_to(self.graph, target_fingerprint)
        if problem := self.names_problem(op_names):
            raise PlanError(f"plan: op_names {problem}.", field="op_names")
        if len(plan.placement) != self.graph.num_ops:
            return plan  # the verifier refuses it
        return self.stored_plan(plan)

    def plan_to_proto(self, plan: Plan) -> plan_pb2.Plan:
        """The message for the caller: every per-op list in the order sent, with the op names."""
        return self.of_plan(plan)._message(plan)

    def _message(self, plan: Plan) -> plan_pb2.Plan:
        sent = plan
        if self.stored is not None:
            # Stored op i is sent op `_rank[i]`.
            rows: dict[str, Any] = {name: getattr(plan, name)[self.stored] for name in PER_OP}
            sent = replace(plan, **(rows | {"order": self._rank[plan.order]}))
        message = plan_to_proto(sent)
        message.op_names.extend(self.op_names)
        return message

    def stored_plan(self, plan: Plan) -> Plan:
        """Converts a caller's plan to the graph's op order."""
        rows: dict[str, Any] = {name: self.stored_rows(name, getattr(plan, name)) for name in PER_OP}
        return replace(plan, **rows)

    def stored_start(self, start: Start | None) -> Start | None:
        """Converts a start with a plan for this graph to the graph's op order."""
        plan = None if start is None else start.plan
        if start is None or plan is None or plan.graph_fingerprint != self.graph.fingerprint:
            return start
        return replace(start, plan=self.stored_plan(plan)) if tuple(start.ops) == self.op_names else start

    def stored_rows(self, name: str, rows: Rows) -> Rows:
        """Converts the field ``name`` of the caller's plans ([N] or [B, N]) to the graph's op order."""
        if self.stored is None:
            return rows
        return self.stored[rows] if name == "order" else rows[..., self._rank]

    def names_problem(self, names: Sequence[str]) -> str:
        """The problem with a plan's ``op_names``; empty if they match this graph or are absent."""
        if not names or tuple(names) == self.op_names:
            return ""
        if len(names) != self.graph.num_ops:
            return f"has {len(names)} entries, the graph {self.graph.num_ops} ops"
        i = next(i for i, name in enumerate(self.op_names) if names[i] != name)
        return f"has {names[i][:100]!r} at {i}, where the graph was sent with {self.op_names[i][:100]!r}"

    @cached_property
    def _rank(self) -> Rows:
        """[N] index in the order sent of each op of the graph."""
        return np.argsort(np.asarray(self.stored)).astype(np.int32)
