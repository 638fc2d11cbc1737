"""Graphs as callers sent them: decoded, cached, and plans between their op order and the graph's.

The graph stores its ops in a topological order, which differs if the ops were sent unsorted.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Generic, TypeVar

import numpy as np
from google.protobuf.message import DecodeError

from go_opt.common.arrays import IntArray
from go_opt.env.copies.splits import planned_graph
from go_opt.errors import GraphError, ModelError, PlanError
from go_opt.frontends.onnx_frontend import OnnxModel
from go_opt.model.codecs.wire import (
    bindings_from_proto,
    graph_from_proto,
    plan_from_proto,
    plan_to_proto,
    precision_from_proto,
)
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.model.start import Start
from go_opt.proto import graph_pb2, optimizer_pb2, plan_pb2
from go_opt.service.messages.requests import check_parts, request_part

_V = TypeVar("_V")
PER_OP: Final = ("placement", "order", "fusion_group", "replication", "op_provenance")
Rows = IntArray
_MAX_BYTES: Final = 32 * 2**20  # of messages; a graph is about as large as its message


class SizedCache(Generic[_V]):
    """Keeps the most recently used values, up to a number of bytes; thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._values: OrderedDict[bytes, tuple[_V, int]] = OrderedDict()
        self.size_bytes = 0  # of the values kept
        self.hits = 0

    def get(self, key: bytes) -> _V | None:
        """The value for the key, if it is in the cache."""
        with self._lock:
            if key not in self._values:
                return None
            self.hits += 1
            self._values.move_to_end(key)
            return self._values[key][0]

    def put(self, key: bytes, value: _V, size_bytes: int) -> None:
        """Store a value; drop the least recently used values if there is no room."""
        if size_bytes > self._max_bytes:
            return
        with self._lock:
            if key in self._values:
                self.size_bytes -= self._values.pop(key)[1]
            self._values[key] = value, size_bytes
            self.size_bytes += size_bytes
            while self.size_bytes > self._max_bytes:
                self.size_bytes -= self._values.popitem(last=False)[1][1]


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
        """The graph that a plan places; with rewrites or split ops, in the graph's own order."""
        changes = plan.splits or plan.rewrites
        return SentGraph(planned_graph(self.graph, plan), None if changes else self.stored)

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


class DecodedGraphs:
    """Decodes graph messages and caches recent graphs by digest; thread-safe."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._graphs: SizedCache[SentGraph] = SizedCache(max_bytes)

    def get(self, data: bytes) -> SentGraph:
        """The validated graph of a message's bytes.

        Raises:
          GraphError: one sentence that names the op, tensor or field at fault.
        """
        return self._known(data, lambda: _decoded(data))

    def of_onnx(
        self, model: optimizer_pb2.OnnxModel, checkpoint: Callable[[], None] = lambda: None
    ) -> SentGraph:
        """The graph of an ONNX file, as from :meth:`OnnxModel.graph`.

        Raises:
          InvalidInputError: one sentence that names the op, tensor, dimension or field at fault.
        """
        # Deterministic, because maps have no order. The prefix keeps these keys apart from graph messages.
        return self._known(
            b"onnx" + model.SerializeToString(deterministic=True), lambda: _imported(model, checkpoint)
        )

    def _known(self, data: bytes, decode: Callable[[], SentGraph]) -> SentGraph:
        digest = hashlib.sha256(data).digest()
        graph = self._graphs.get(digest)
        if graph is None:
            graph = decode()
            self._graphs.put(digest, graph, len(data))
        return graph


def _imported(model: optimizer_pb2.OnnxModel, checkpoint: Callable[[], None]) -> SentGraph:
    import onnx

    with request_part("onnx", optimizer_pb2.OnnxModel):
        check_parts(onnx.ModelProto, model.file)
        precision = precision_from_proto(model.precision, ModelError)
        bindings = bindings_from_proto(model, "the model", ModelError)
        return SentGraph(OnnxModel(model.file, **vars(bindings), precision=precision).graph(checkpoint))


def _decoded(data: bytes) -> SentGraph:
    with request_part("graph", graph_pb2.Graph):
        check_parts(graph_pb2.Graph, data)
        try:
            message = graph_pb2.Graph.FromString(data)
        except DecodeError:
            raise GraphError("the graph is no go_opt.v1.Graph message.") from None
        return SentGraph.from_proto(message)
