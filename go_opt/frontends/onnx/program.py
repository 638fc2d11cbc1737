"""Ops lowered from a model, before the dead ones are dropped and the graph is frozen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from go_opt.frontends.onnx.inference.values import Value
from go_opt.frontends.recording.recorder import RecordedOp, add_ops, live_ops
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import OP_CLASSES, Graph, NamedState, NodeWithoutOp, UnknownOp


@dataclass(frozen=True)
class AbsentNode:
    """A node that was lowered to no op."""

    name: str
    became: str  # see NodeWithoutOp
    tensors: tuple[str, ...] = ()  # the tensors of its outputs
    op: str = ""  # the op that contains it


@dataclass
class Program:
    """Ops in a topological order, with the views and constants they refer to."""

    ops: list[RecordedOp] = field(default_factory=list)
    views: dict[str, str] = field(default_factory=dict)  # alias -> tensor
    constants: dict[str, tuple[int, str]] = field(default_factory=dict)  # name -> (elements, dtype)
    absent: list[AbsentNode] = field(default_factory=list)
    readers: dict[str, set[str]] = field(default_factory=dict)  # tensor -> ops that read or contain it
    values: dict[tuple[str, str], Value] = field(default_factory=dict)  # (prefix of its graph, name)

    @property
    def flops(self) -> float:
        return sum(op.flops for op in self.ops)

    @property
    def op_class(self) -> str:
        """The class of the most demanding op; data movement if there are only views."""
        present = {op.op_class for op in self.ops}
        return next((name for name in OP_CLASSES if name in present), OP_CLASSES[-1])

    def resolve(self, name: str) -> str:
        while name in self.views:
            name = self.views[name]
        return name

    def external_reads(self) -> dict[str, int | None]:
        """Tensors that ops read and none of them writes -> elements touched by all reads."""
        written = {name for op in self.ops for name, _, _ in op.writes}
        reads: dict[str, int | None] = {}
        for op in self.ops:
            for name, touched in op.reads:
                source = self.resolve(name)
                if source not in written:
                    before = reads.get(source, 0)
                    reads[source] = None if touched is None or before is None else before + touched
        return reads

    def add_part(self, part: Program, op: str) -> None:
        """Record that the nodes of a body are part of an op; the body's ops are not kept."""
        self.constants |= part.constants
        self.values |= part.values
        names = [*(node.name for node in part.absent), *(inner.name for inner in part.ops)]
        self.absent += [AbsentNode(name, "merged", op=op) for name in names]

    def nodes_without_op(self, graph: Graph) -> tuple[NodeWithoutOp, ...]:
        """The nodes that are not ops of the graph built from this program, and why."""
        producer = {name: op.name for op in self.ops for name, _, _ in op.writes}
        rows = []
        for node in self.absent:
            if node.became == "view":
                ops = {producer.get(self.resolve(name), "") for name in node.tensors}
            elif node.became == "folded":
                ops = set().union(*(self.readers.get(name, ()) for name in node.tensors))
            else:
                ops = {node.op}
            ops &= graph.op_index.keys()
            rows.append(NodeWithoutOp(node.name, node.became, ops.pop() if len(ops) == 1 else None))
        dead = (op.name for op in self.ops if op.name not in graph.op_index)
        return (*rows, *(NodeWithoutOp(name, "unused", None) for name in dead))

    def emit(
        self, builder: GraphBuilder, outputs: Sequence[str], states: Sequence[NamedState]
    ) -> tuple[UnknownOp, ...]:
        """Add constants, views, states and the ops that outputs depend on; returns ops that no rule knows.

        Next values of states are among the outputs, but are not sent to the host.
        """
        for name, (elements, dtype) in self.constants.items():
            builder.add_tensor(name, elements, dtype, "weight")
        unknown = add_ops(builder, live_ops(self.ops, outputs, self.resolve))
        for name, source in self.views.items():
            builder.add_view(name, source)
        for state in states:
            builder.add_state(*state)
        kept = {state.next for state in states}
        for output in outputs:
            if output not in kept:
                builder.mark_output(output)
        return unknown
