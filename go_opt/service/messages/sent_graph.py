"""A graph and the order in which its caller sent the ops, which plans to and from that caller follow.

The graph stores its ops in a topological order: another one where they were not sent sorted.
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
    """A graph as its caller sent it."""

    graph: Graph
    stored: Rows | None = None  # [N] index in the graph of each op as sent; None: sent in its order

    @staticmethod
    def from_proto(message: graph_pb2.Graph) -> SentGraph:
        """The validated graph of a message.

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
        """[N] as sent."""
        names = self.graph.op_names
        return names if self.stored is None else tuple(names[i] for i in self.stored.tolist())

    def plan_from_proto(self, message: plan_pb2.Plan, target_fingerprint: str) -> Plan:
        """The plan for this graph that its caller sent.

        Raises:
          PlanError: it is malformed, of another graph or target, or of another order of the ops.
        """
        plan = plan_from_proto(message)
        return self.of_plan(plan)._own_plan(plan, message.op_names, target_fingerprint)

    def of_plan(self, plan: Plan) -> SentGraph:
        """The graph that a plan places: with the parts of ops that it splits, which have no order as sent."""
        return SentGraph(planned_graph(self.graph, plan)) if plan.splits else self

    def _own_plan(self, plan: Plan, op_names: Sequence[str], target_fingerprint: str) -> Plan:
        plan.check_belongs_to(self.graph, target_fingerprint)
        if problem := self.names_problem(op_names):
            raise PlanError(f"plan: op_names {problem}.", field="op_names")
        if len(plan.placement) != self.graph.num_ops:
            return plan  # which the verifier refuses
        return self.stored_plan(plan)

    def plan_to_proto(self, plan: Plan) -> plan_pb2.Plan:
        """The message for the caller: every list in the order of the ops as sent, with their names."""
        return self.of_plan(plan)._message(plan)

    def _message(self, plan: Plan) -> plan_pb2.Plan:
        sent = plan
        if self.stored is not None:
            # By rank: op i as stored is op `rank[i]` as sent.
            rows: dict[str, Any] = {name: getattr(plan, name)[self.stored] for name in PER_OP}
            sent = replace(plan, **(rows | {"order": self._rank[plan.order]}))
        message = plan_to_proto(sent)
        message.op_names.extend(self.op_names)
        return message

    def stored_plan(self, plan: Plan) -> Plan:
        """A plan of the caller's, in the order of the graph."""
        rows: dict[str, Any] = {name: self.stored_rows(name, getattr(plan, name)) for name in PER_OP}
        return replace(plan, **rows)

    def stored_start(self, start: Start | None) -> Start | None:
        """What a search begins with: a plan for this graph, too, in the order of the graph."""
        plan = None if start is None else start.plan
        if start is None or plan is None or plan.graph_fingerprint != self.graph.fingerprint:
            return start
        return replace(start, plan=self.stored_plan(plan)) if tuple(start.ops) == self.op_names else start

    def stored_rows(self, name: str, rows: Rows) -> Rows:
        """The field ``name`` of plans of the caller's ([N] or [B, N]), in the order of the graph."""
        if self.stored is None:
            return rows
        return self.stored[rows] if name == "order" else rows[..., self._rank]

    def names_problem(self, names: Sequence[str]) -> str:
        """What is wrong with a plan's ``op_names``; empty where they are this graph's, or absent."""
        if not names or tuple(names) == self.op_names:
            return ""
        if len(names) != self.graph.num_ops:
            return f"has {len(names)} entries, the graph {self.graph.num_ops} ops"
        i = next(i for i, name in enumerate(self.op_names) if names[i] != name)
        return f"has {names[i][:100]!r} at {i}, where the graph was sent with {self.op_names[i][:100]!r}"

    @cached_property
    def _rank(self) -> Rows:
        """[N] place as sent of each op of the graph."""
        return np.argsort(np.asarray(self.stored)).astype(np.int32)
