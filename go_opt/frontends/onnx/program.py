"""Ops lowered from a model, before the dead ones are dropped and the graph is frozen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from go_opt.graph import OP_CLASSES
from go_opt.graph_builder import GraphBuilder


@dataclass(frozen=True)
class LoweredOp:
    """The arguments of :meth:`GraphBuilder.add_op`."""

    name: str
    op_type: str
    op_class: str
    flops: float
    dtype: str
    reads: tuple[tuple[str, int | None], ...]  # (tensor, elements touched; None: all)
    writes: tuple[tuple[str, int, str], ...]  # (tensor, elements, dtype)


@dataclass
class Program:
    """Ops in a topological order, with the views and constants they refer to."""

    ops: list[LoweredOp] = field(default_factory=list)
    views: dict[str, str] = field(default_factory=dict)  # name -> the tensor it is an alias of
    constants: dict[str, tuple[int, str]] = field(default_factory=dict)  # name -> (elements, dtype)

    @property
    def flops(self) -> float:
        return sum(op.flops for op in self.ops)

    @property
    def op_class(self) -> str:
        """The class of the most demanding op; nothing but views is data movement."""
        present = {op.op_class for op in self.ops}
        return next((name for name in OP_CLASSES if name in present), OP_CLASSES[-1])

    def resolve(self, name: str) -> str:
        while name in self.views:
            name = self.views[name]
        return name

    def external_reads(self) -> dict[str, int | None]:
        """What the ops read and none of them writes: tensor -> elements touched by all reads."""
        written = {name for op in self.ops for name, _, _ in op.writes}
        reads: dict[str, int | None] = {}
        for op in self.ops:
            for name, touched in op.reads:
                source = self.resolve(name)
                if source not in written:
                    before = reads.get(source, 0)
                    reads[source] = None if touched is None or before is None else before + touched
        return reads

    def live_ops(self, outputs: Iterable[str]) -> list[LoweredOp]:
        """The ops that some output depends on."""
        needed = {self.resolve(name) for name in outputs}
        live = []
        for op in reversed(self.ops):
            if any(name in needed for name, _, _ in op.writes):
                live.append(op)
                needed.update(self.resolve(name) for name, _ in op.reads)
        return live[::-1]

    def emit(self, builder: GraphBuilder, outputs: Sequence[str]) -> None:
        """Hand everything the outputs depend on to the builder."""
        live = self.live_ops(outputs)
        for name, (elements, dtype) in self.constants.items():
            builder.add_tensor(name, elements, dtype, "weight")
        for op in live:
            builder.add_op(
                op.name,
                op.op_type,
                op.op_class,
                flops=op.flops,
                dtype=op.dtype,
                reads=op.reads,
                writes=op.writes,
            )
        for name, source in self.views.items():
            builder.add_view(name, source)
        for output in outputs:
            builder.mark_output(output)
