"""Ops of a model as they are recorded, before the dead ones are dropped and the graph is built."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from go_opt.model.builder import GraphBuilder

Read = tuple[str, int | None]  # tensor and elements touched; None: all of it


@dataclass(frozen=True)
class RecordedOp:
    """The arguments of :meth:`GraphBuilder.add_op`."""

    name: str
    op_type: str
    op_class: str
    flops: float
    dtype: str
    reads: tuple[Read, ...]
    writes: tuple[tuple[str, int, str], ...]  # (tensor, elements, dtype)


def live_ops(
    ops: Sequence[RecordedOp], wanted: Iterable[str], resolve: Callable[[str], str] = str
) -> list[RecordedOp]:
    """The ops on which the wanted tensors depend, in their order.

    Args:
      resolve: the tensor that a name stands for.
    """
    needed = set(map(resolve, wanted))
    live = []
    for op in reversed(ops):
        if any(tensor in needed for tensor, _, _ in op.writes):
            live.append(op)
            needed.update(resolve(tensor) for tensor, _ in op.reads)
    return live[::-1]


def add_ops(builder: GraphBuilder, ops: Iterable[RecordedOp]) -> None:
    """Hand the ops to the builder."""
    for op in ops:
        builder.add_op(
            op.name,
            op.op_type,
            op.op_class,
            flops=op.flops,
            dtype=op.dtype,
            reads=op.reads,
            writes=op.writes,
        )
