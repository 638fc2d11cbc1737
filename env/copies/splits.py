"""Defines splits: the graph in which parts, and their join, replace each split op.

Splitting a product of an activation and a weight by *columns* (output features of MatMul and Gemm,
output channels of Conv) gives every part a slice of the weight's columns and of the bias; each part
reads the whole activation and writes a slice of the output. A ``Concat`` of the parts takes the op's
name and writes its tensor, so readers see no difference. If the output may stay in parts, there is
no ``Concat``: the host puts the slices side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from go_opt.env.copies.part_names import part_name
from go_opt.env.copies.row_parts import JOIN, RowParts, Span
from go_opt.env.copies.rows import Rows, rows_of
from go_opt.errors import PlanError
from go_opt.model.builder import GraphBuilder
from go_opt.model.dtypes import DTYPES
from go_opt.model.graph import (
    INPUT,
    MATRIX,
    NO_PRODUCER,
    OP_CLASSES,
    TENSOR_KINDS,
    WEIGHT,
    Graph,
)
from go_opt.model.plan import Plan, Split

SPLITTABLE: Final = ("Conv", "Gemm", "MatMul")

_Read = tuple[str, int]  # tensor, elements touched
_Write = tuple[str, int, str]  # tensor, elements, dtype


class Columns(NamedTuple):
    """The columns of an op, for splitting it."""

    number: int  # of columns of the product
    output: int  # tensor
    weights: tuple[int, ...]  # tensors with a slice for each part; the others are read whole


def columns_of(graph: Graph, op: int) -> Columns | None:
    """The columns of ``op``; None if it cannot be split by columns.

    A graph may lack shapes, so the shape of a product follows from its flops and elements
    (:mod:`go_opt.env.cost.shapes`). If they do not divide evenly, the op cannot be split.
    """
    if graph.op_types[op] not in SPLITTABLE or graph.op_class[op] != MATRIX:
        return None
    if any(not np.isnan(seconds[op]) for seconds in graph.measured_s.values()):
        return None  # the seconds of its parts are not known
    outputs = _row(graph.op_outputs, op)
    reads = [(int(graph.reader_tensor[r]), int(graph.reader_elements[r])) for r in _row(graph.op_reads, op)]
    weights = [k for k, touched in reads if _is_whole_weight(graph, k, touched)]
    if len(outputs) != 1 or not weights or len(weights) == len(reads) or graph.op_flops[op] <= 0:
        return None
    output = int(outputs[0])
    elements = int(graph.tensor_elements[output])
    if elements == 0:
        return None
    inner = int(graph.op_flops[op] // (2 * elements))  # rounded down: the flops of a bias are a fraction
    most = max(int(graph.tensor_elements[k]) for k in weights)
    number, rest = divmod(most, max(inner, 1))
    if number < 2 or rest or elements % number:
        return None
    divided = [k for k in weights if int(graph.tensor_elements[k]) in (most, number)]
    return Columns(number, output, tuple(divided))


def stays_in_parts(graph: Graph, columns: Columns) -> bool:
    """Whether only the host reads the output, so that it need not be joined."""
    k = columns.output
    return bool(graph.tensor_is_output[k]) and graph.reader_ptr[k] == graph.reader_ptr[k + 1]


def split_sizes(count: int, parts: int) -> list[int]:
    """Columns of each part: as equal as possible, the larger first."""
    return [count // parts + (part < count % parts) for part in range(parts)]


def _is_whole_weight(graph: Graph, tensor: int, touched: int) -> bool:
    return graph.tensor_kind[tensor] == WEIGHT and touched == graph.tensor_elements[tensor]


def _row(rows: tuple[np.ndarray, np.ndarray], i: int) -> np.ndarray:
    pointers, values = rows
    return values[pointers[i] : pointers[i + 1]]


KINDS: Final[Mapping[str, Callable[[Graph, int], Columns | Rows | None]]] = {
    "columns": columns_of,
    "rows": rows_of,
}


def split_graph(graph: Graph, splits: tuple[Split, ...]) -> Graph:
    """``graph`` with the ops that ``splits`` name in parts.

    Raises:
      PlanError: an op is not in the graph, is named twice, or cannot be split like that.
    """
    return _split(graph, splits)[0]


def row_spans(graph: Graph, splits: tuple[Split, ...]) -> Mapping[str, Span]:
    """Spans of the tensors of :func:`split_graph` that are some rows of a tensor of ``graph``, by name."""
    return _split(graph, splits)[1]


@lru_cache(maxsize=32)
def _split(graph: Graph, splits: tuple[Split, ...]) -> tuple[Graph, Mapping[str, Span]]:
    by_op = {_op_of(graph, split): split for split in splits}
    if len(by_op) < len(splits):
        raise PlanError("splits: an op is split twice.", field="splits")
    divided = {op: _checked(graph, op, split) for op, split in by_op.items()}
    by_columns = {op: (by_op[op], one) for op, one in divided.items() if isinstance(one, Columns)}
    by_rows = {op: (by_op[op], one) for op, one in divided.items() if isinstance(one, Rows)}
    parts = _Parts(graph, by_columns)
    row_parts = RowParts(graph, by_rows, parts.make)
    ops = [
        row for op in range(graph.num_ops) for row in (row_parts.of(op) if op in by_rows else parts.rows(op))
    ]
    builder = GraphBuilder(graph.name, precision=graph.precision, dims=graph.dims)
    read = {name for row in ops for name, _ in row["reads"]}
    for k in np.flatnonzero(graph.tensor_producer == NO_PRODUCER).tolist():
        is_whole = graph.tensor_kind[k] == INPUT or graph.reader_ptr[k] == graph.reader_ptr[k + 1]
        if not is_whole and graph.tensor_names[k] not in read:
            continue  # a weight of which only slices are read
        parts.add_tensor(builder, k, graph.tensor_names[k], int(graph.tensor_elements[k]))
    for name, (k, elements) in (parts.slices | row_parts.slices).items():
        parts.add_tensor(builder, k, name, elements)
    for row in ops:
        builder.add_op(**row)
    in_parts = {one.output: by_op[op] for op, one in divided.items() if not by_op[op].joined}
    for name in _outputs(graph, in_parts):
        builder.mark_output(name)
    return replace(builder.build(), nodes_without_op=graph.nodes_without_op), row_parts.spans


def _outputs(graph: Graph, in_parts: Mapping[int, Split]) -> Iterator[str]:
    """Names of the tensors that the host reads."""
    for k in np.flatnonzero(graph.tensor_is_output).tolist():
        name = graph.tensor_names[k]
        parts = in_parts[k].parts if k in in_parts else 0
        yield from (part_name(name, part, parts) for part in range(parts)) if parts else (name,)


def planned_graph(graph: Graph, plan: Plan) -> Graph:
    """The graph that ``plan`` places: ``graph`` itself, or with its split ops in parts.

    Raises:
      PlanError: an op that the plan splits is not in the graph, or cannot be split like that.
    """
    if not plan.splits or graph.fingerprint == plan.graph_fingerprint:
        return graph
    return split_graph(graph, plan.splits)


def _op_of(graph: Graph, split: Split) -> int:
    if split.op not in graph.op_index:
        raise PlanError(f"splits: the graph has no op {split.op!r}.", field="splits")
    return graph.op_index[split.op]


def _checked(graph: Graph, op: int, split: Split) -> Columns | Rows:
    divided = KINDS[split.kind](graph, op) if split.kind in KINDS else None
    where = f"splits: op {split.op!r}"
    if divided is None:
        raise PlanError(f"{where} cannot be split by {split.kind}.", field="splits")
    if not 2 <= split.parts <= divided.number:
        raise PlanError(f"{where} has {divided.number} {split.kind} for {split.parts} parts.", field="splits")
    if isinstance(divided, Columns) and not split.joined and not stays_in_parts(graph, divided):
        raise PlanError(f"{where} is read by others than the host, which need it whole.", field="splits")
    return divided


class _Parts:
    """The ops of a graph as arguments of :meth:`GraphBuilder.add_op`, some in parts."""

    def __init__(self, graph: Graph, divided: Mapping[int, tuple[Split, Columns]]) -> None:
        self._graph, self._divided = graph, divided
        self.slices: dict[str, tuple[int, int]] = {}  # of weights: tensor of the graph, elements

    def rows(self, op: int) -> Iterator[dict[str, Any]]:
        """One op, or its parts and their join."""
        graph = self._graph
        if op not in self._divided:
            measured = {kind: float(s[op]) for kind, s in graph.measured_s.items() if not np.isnan(s[op])}
            reads = [self._read(*read) for read in self._reads(op)]
            yield self.make(op, graph.op_names[op], float(graph.op_flops[op]), reads, self._writes(op)) | {
                "measured_s": measured
            }
            return
        split, columns = self._divided[op]
        ((output, elements, dtype),) = self._writes(op)
        slices = []
        for part, size in enumerate(split_sizes(columns.number, split.parts)):
            reads = [
                self._slice(k, columns, part, split.parts, size)
                if k in columns.weights
                else self._read(k, touched)
                for k, touched in self._reads(op)
            ]
            slices.append((part_name(output, part, split.parts), elements // columns.number * size, dtype))
            flops = float(graph.op_flops[op]) * size / columns.number
            yield self.make(op, part_name(split.op, part, split.parts), flops, reads, slices[-1:])
        if split.joined:
            joins = self.make(op, split.op, 0.0, [one[:2] for one in slices], [(output, elements, dtype)])
            yield joins | {"op_type": JOIN, "op_class": "data_movement"}

    def add_tensor(self, builder: GraphBuilder, k: int, name: str, elements: int) -> None:
        """Add a weight or input, or a slice of a weight."""
        graph = self._graph
        builder.add_tensor(name, elements, DTYPES[graph.tensor_dtype[k]], TENSOR_KINDS[graph.tensor_kind[k]])

    def make(
        self, op: int, name: str, flops: float, reads: list[_Read], writes: list[_Write]
    ) -> dict[str, Any]:
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

    def _reads(self, op: int) -> list[tuple[int, int]]:
        graph = self._graph
        rows = _row(graph.op_reads, op)
        return list(
            zip(graph.reader_tensor[rows].tolist(), graph.reader_elements[rows].tolist(), strict=True)
        )

    def _writes(self, op: int) -> list[_Write]:
        graph = self._graph
        return [
            (graph.tensor_names[k], int(graph.tensor_elements[k]), DTYPES[graph.tensor_dtype[k]])
            for k in _row(graph.op_outputs, op)
        ]

    def _read(self, k: int, touched: int) -> _Read:
        return self._graph.tensor_names[k], touched

    def _slice(self, k: int, columns: Columns, part: int, parts: int, size: int) -> _Read:
        """A slice of a weight, which other ops may read too."""
        name = part_name(self._graph.tensor_names[k], part, parts)
        elements = int(self._graph.tensor_elements[k]) // columns.number * size
        if self.slices.setdefault(name, (k, elements)) != (k, elements):
            whole = self._graph.tensor_names[k]
            raise PlanError(f"splits: ops divide {whole!r} differently.", field="splits")
        return name, elements
