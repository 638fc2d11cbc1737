"""The ops that replace an op split by columns or along the inner dimension: parts, and their join or sum.

Splitting a product by *columns* (output features of MatMul and Gemm, output channels of Conv) gives every
part a slice of the weight's columns and of the bias; each part reads the whole activation and writes a slice
of the output. A ``Concat`` joins them. If they are not joined, the host puts the slices side by side, or the
parts of other ops read them.

Along the *inner dimension* every part has a slice of the activation and of the weight, and writes a partial
result of the size of the output. They are added one after the other, so that a link carries one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import numpy as np

from go_opt.env.copies.columns import Columns, Inner, split_sizes
from go_opt.env.copies.part_names import inner_name, part_name, sum_name
from go_opt.env.copies.row_parts import JOIN, TAKE, Row
from go_opt.errors import PlanError
from go_opt.model.builder import GraphBuilder
from go_opt.model.dtypes import DTYPES
from go_opt.model.graph import OP_CLASSES, TENSOR_KINDS, Graph
from go_opt.model.plan import Split

SUM: Final = "Add"

_Read = tuple[str, int | None]  # tensor, elements touched
_Write = tuple[str, int, str]  # tensor, elements, dtype
_Namer = Callable[[str, int, int], str]


class ColumnParts:
    """The ops of a graph as arguments of :meth:`GraphBuilder.add_op`, some in parts.

    Args:
      divided: the split of each op that is split by columns or the inner dimension, and what it divides.
    """

    def __init__(self, graph: Graph, divided: Mapping[int, tuple[Split, Columns | Inner]]) -> None:
        self._graph, self._divided = graph, divided
        self.slices: dict[str, tuple[int, int]] = {}  # of weights: tensor of the graph, elements
        self._taken: set[str] = set()  # slices of activations that an op made
        rows = [row for row in divided.values() if isinstance(row[1], Columns)]
        self._held = {one.output: split.parts for split, one in rows if not split.joined}

    def of(self, op: int) -> Iterator[Row]:
        """One op, or its parts and their join or sum."""
        graph = self._graph
        if op not in self._divided:
            measured = {kind: float(s[op]) for kind, s in graph.measured_s.items() if not np.isnan(s[op])}
            reads = [self._read(*read) for read in self._graph.reads_of(op)]
            yield self.make(op, graph.op_names[op], float(graph.op_flops[op]), reads, self._writes(op)) | {
                "measured_s": measured
            }
            return
        split, divided = self._divided[op]
        if isinstance(divided, Columns):
            yield from self._columns(op, split, divided)
        else:
            yield from self._inner(op, split, divided)

    def add_tensor(self, builder: GraphBuilder, k: int, name: str, elements: int) -> None:
        """Add a weight or input, or a slice of a weight."""
        graph = self._graph
        builder.add_tensor(name, elements, DTYPES[graph.tensor_dtype[k]], TENSOR_KINDS[graph.tensor_kind[k]])

    def make(self, op: int, name: str, flops: float, reads: list[_Read], writes: list[_Write]) -> Row:
        graph = self._graph
        return {
            "name": name,
            "op_type": graph.op_types[op],
            "op_class": OP_CLASSES[graph.op_class[op]],
            "flops": flops,
            "dtype": DTYPES[graph.op_dtype[op]],
            "reads": reads,
            "writes": writes,
            "excluded_kinds": [kind for kind, excluded in graph.excluded.items() if excluded[op]],
        }

    def _columns(self, op: int, split: Split, columns: Columns) -> Iterator[Row]:
        ((output, elements, dtype),) = self._writes(op)
        slices = []
        for part, size in enumerate(split_sizes(columns.number, split.parts)):
            reads = [
                self._slice(k, columns.number, part, split.parts, size)
                if k in columns.weights
                else (part_name(self._graph.tensor_names[k], part, split.parts), None)
                if k in columns.activations
                else self._read(k, touched)
                for k, touched in self._graph.reads_of(op)
            ]
            slices.append((part_name(output, part, split.parts), elements // columns.number * size, dtype))
            flops = float(self._graph.op_flops[op]) * size / columns.number
            yield self.make(op, part_name(split.op, part, split.parts), flops, reads, slices[-1:])
        if split.joined:
            joins = self.make(op, split.op, 0.0, [one[:2] for one in slices], [(output, elements, dtype)])
            yield joins | {"op_type": JOIN, "op_class": "data_movement"}

    def _inner(self, op: int, split: Split, inner: Inner) -> Iterator[Row]:
        ((output, elements, dtype),) = self._writes(op)
        parts = split.parts
        once_flops = float(self._graph.op_flops[op]) - 2.0 * elements * inner.number  # of a bias
        before = part_name(output, 0, parts)
        for part, size in enumerate(split_sizes(inner.number, parts)):
            taken = part_name(self._graph.tensor_names[inner.activation], part, parts)
            if inner.activation not in self._held:
                taken = inner_name(self._graph.tensor_names[inner.activation], part, parts)
                yield from self._take(inner, taken, size)
            reads = [
                self._slice(k, inner.number, part, parts, size, inner_name)
                if k == inner.weight
                else (taken, None)
                if k == inner.activation
                else self._read(k, touched)
                for k, touched in self._graph.reads_of(op)
                if part == 0 or k not in inner.once
            ]
            flops = 2.0 * elements * size + (0.0 if part else once_flops)
            partial = part_name(output, part, parts)
            yield self.make(op, part_name(split.op, part, parts), flops, reads, [(partial, elements, dtype)])
            if part == 0:
                continue
            is_last = part == parts - 1
            name = split.op if is_last else sum_name(split.op, part, parts)
            written = output if is_last else sum_name(output, part, parts)
            reads = [(before, None), (partial, None)]
            sums = self.make(op, name, float(elements), reads, [(written, elements, dtype)])
            yield sums | {"op_type": SUM, "op_class": "vector"}
            before = written

    def _take(self, inner: Inner, name: str, size: int) -> Iterator[Row]:
        """A slice of an activation, once for all ops that read it."""
        if name in self._taken:
            return
        self._taken.add(name)
        graph, k = self._graph, inner.activation
        dtype, elements = DTYPES[graph.tensor_dtype[k]], int(graph.tensor_elements[k]) // inner.number * size
        yield {
            "name": name, "op_type": TAKE, "op_class": "data_movement", "flops": 0.0, "dtype": dtype,
            "reads": [(graph.tensor_names[k], elements)], "writes": [(name, elements, dtype)],
        }  # fmt: skip

    def _writes(self, op: int) -> list[_Write]:
        graph = self._graph
        return [
            (graph.tensor_names[k], int(graph.tensor_elements[k]), DTYPES[graph.tensor_dtype[k]])
            for k in graph.outputs_of(op)
        ]

    def _read(self, k: int, touched: int) -> _Read:
        return self._graph.tensor_names[k], touched

    def _slice(
        self, k: int, number: int, part: int, parts: int, size: int, named: _Namer = part_name
    ) -> _Read:
        """A slice of a weight, which other ops may read too."""
        name = named(self._graph.tensor_names[k], part, parts)
        elements = int(self._graph.tensor_elements[k]) // number * size
        if self.slices.setdefault(name, (k, elements)) != (k, elements):
            whole = self._graph.tensor_names[k]
            raise PlanError(f"splits: ops divide {whole!r} differently.", field="splits")
        return name, elements
