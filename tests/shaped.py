"""A graph builder for tests that knows shapes and gives ops the rules of their types; rules by name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from go_opt.env.copies.pieces import reach_of
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import WEIGHT, Graph, tensor_shapes
from go_opt.model.op_costs import OpSignature
from go_opt.model.rule import Affine, places
from go_opt.model.rules.table import rule_of
from go_opt.search.splits.block_ways import blocks_of
from go_opt.search.splits.rows import row_shapes, rows_by_op

Shape = tuple[int, ...]


class Window(NamedTuple):
    """Input rows that an output row reads: ``size``, from ``i * stride - before`` on."""

    size: int
    stride: int
    before: int


SAME_ROW = Window(1, 1, 0)


class ShapedBuilder(GraphBuilder):
    """Tensors are given with shapes; a number of elements leaves ops that read or write it without a rule."""

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self._shapes: dict[str, Shape] = {}
        self._sources: dict[str, str] = {}  # view -> tensor

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
        sources = [self._sources.get(tensor, tensor) for tensor, _ in reads]
        read = [(source, touched) for source, (_, touched) in zip(sources, reads, strict=True)]
        super().add_op(name, op_type, op_class, reads=read, writes=sized, **options)
        tensors = [tensor for tensor, _ in reads]
        shapes = [self._shapes.get(tensor) for tensor in (*tensors, *(tensor for tensor, _, _ in writes))]
        known = [shape for shape in shapes if shape is not None]
        if len(known) == len(shapes):
            inputs, outputs = tuple(known[: len(tensors)]), tuple(known[len(tensors) :])
            rule = rule_of(OpSignature(op_type, inputs, outputs, attributes or {}))
            if rule is not None:
                self.set_rule(name, rule, sources)

    def add_view(self, name: str, source: str, shape: Shape | None = None) -> None:
        """Another name of a tensor, in another shape."""
        self._sources[name] = self._sources.get(source, source)
        if shape is not None:
            self._shapes[name] = shape

    def mark_output(self, name: str) -> None:
        super().mark_output(self._sources.get(name, name))

    def _sized(self, name: str, size: int | Shape) -> int:
        if isinstance(size, int):
            return size
        self._shapes[name] = size
        return math.prod(size)


def shapes_of(graph: Graph) -> dict[str, Shape]:
    """The shapes that all ops see, by tensor."""
    return {graph.tensor_names[k]: shape for k, shape in tensor_shapes(graph).items()}


def windows_of(graph: Graph) -> dict[str, set[Window]]:
    """The windows over rows of the ops that can be divided by rows, and read rows of all that they divide."""
    found: dict[str, set[Window]] = {}
    shapes = row_shapes(graph)
    for op, factor in rows_by_op(graph).items():
        row = graph.rule_of(op)
        assert row is not None
        windows = set[Window | None]()
        for k, access in zip(row.operands, row.rule.operands, strict=True):
            for place in places(row.rule, access):
                piece, shape = place.piece, shapes.get(k, ())
                if (piece.factor if isinstance(piece, Affine) else piece) != factor:
                    continue
                if len(shape) < 2 or (place.blocks, place.size) != (math.prod(shape[:-2]), shape[-2]):
                    windows.add(None)
                elif isinstance(piece, Affine):
                    windows.add(Window(reach_of(row.rule, piece), piece.stride, piece.before))
                else:
                    windows.add(SAME_ROW)
        if None not in windows:
            found[graph.op_names[op]] = {one for one in windows if one is not None}
    return found


def heads_of(graph: Graph) -> dict[str, tuple[int, dict[str, int]]]:
    """Heads that ops of blocks keep apart, but for products with weights: how many, elements behind one."""
    found: dict[str, tuple[int, dict[str, int]]] = {}
    for op, factor in (one for block in blocks_of(graph) for one in block):
        row = graph.rule_of(op)
        assert row is not None
        tensors = (*zip(row.operands, row.rule.operands, strict=True), (row.results[0], row.rule.results[0]))
        behind = {
            k: place.behind
            for k, access in tensors
            for place in places(row.rule, access)
            if place.piece == factor
        }
        if row.results[0] in behind and not any(graph.tensor_kind[k] == WEIGHT for k in behind):
            names = {graph.tensor_names[k]: each for k, each in behind.items()}
            found[graph.op_names[op]] = row.rule.factors[factor].size, names
    return found
