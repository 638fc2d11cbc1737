"""A graph builder for tests that knows shapes and gives ops the rules of their types; rules by name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from go_opt.env.copies.pieces import reach_of
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.model.op_costs import OpSignature
from go_opt.model.rule import Affine, places
from go_opt.model.rules.table import rule_of
from go_opt.model.shapes import tensor_shapes
from go_opt.search.splits.rows import row_shapes, rows_by_op

Shape = tuple[int, ...]


class ShapedBuilder(GraphBuilder):
    """Tensors are given with shapes; a number of elements leaves ops that read or write it without a rule."""

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self._shapes: dict[str, Shape] = {}

    def add_tensor(self, name: str, elements: int | Shape, dtype: str, kind: str) -> None:
        super().add_tensor(name, self._sized(name, elements), dtype, kind)

    def add_op(
        self,
        name: str,
        op_type: str,
        op_class: str,
        *,
        reads: Iterable[tuple[str, int | None]],
        writes: Sequence[tuple[str, int | Shape, str]],
        attributes: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        reads = list(reads)
        sized = [(tensor, self._sized(tensor, size), dtype) for tensor, size, dtype in writes]
        super().add_op(name, op_type, op_class, reads=reads, writes=sized, **options)
        tensors = [tensor for tensor, _ in reads]
        shapes = [self._shapes.get(tensor) for tensor in (*tensors, *(tensor for tensor, _, _ in writes))]
        known = [shape for shape in shapes if shape is not None]
        if len(known) == len(shapes):
            inputs, outputs = tuple(known[: len(tensors)]), tuple(known[len(tensors) :])
            rule = rule_of(OpSignature(op_type, inputs, outputs, attributes or {}))
            if rule is not None:
                self.set_rule(name, rule, tensors)

    def add_view(self, name: str, source: str, shape: Shape | None = None) -> None:
        super().add_view(name, source)
        if shape is not None:
            self._shapes[name] = shape

    def _sized(self, name: str, size: int | Shape) -> int:
        if isinstance(size, int):
            return size
        self._shapes[name] = size
        return math.prod(size)


def shapes_of(graph: Graph) -> dict[str, Shape]:
    """The shapes that all ops see, by tensor."""
    return {graph.tensor_names[k]: shape for k, shape in tensor_shapes(graph).items()}


class Window(NamedTuple):
    """Row ``i`` of a result needs ``size`` rows of an operand from ``i * stride - before`` on."""

    size: int
    stride: int
    before: int  # rows of padding


SAME_ROW = Window(size=1, stride=1, before=0)


def windows_of(graph: Graph) -> dict[str, set[Window]]:
    """The windows over rows of operands, by op that can be split by rows."""
    found: dict[str, set[Window]] = {}
    shapes = row_shapes(graph)
    for op, factor in rows_by_op(graph).items():
        row = graph.rule_of(op)
        assert row is not None
        for k, access in zip(row.operands, row.rule.operands, strict=True):
            shape = shapes.get(k, ())
            rows = (math.prod(shape[:-2]), *shape[-2:-1])
            for place in places(row.rule, access):
                if (place.blocks, place.size) != rows:
                    continue
                piece, window = place.piece, SAME_ROW
                if isinstance(piece, Affine):
                    window = Window(reach_of(row.rule, piece), piece.stride, piece.before)
                if factor == (piece.factor if isinstance(piece, Affine) else piece):
                    found.setdefault(graph.op_names[op], set()).add(window)
    return found
