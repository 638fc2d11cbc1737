"""What splits mean: the graph in which each op that is split is its parts, and what joins them.

Splitting a product of an activation and a weight by *columns* (output features of MatMul and Gemm,
output channels of Conv) gives every part a slice of the weight's columns and of the bias; each part
reads the whole activation and writes a slice of the output. A ``Concat`` of the parts takes the op's
name and writes its tensor, so readers see no difference. Where the output may stay in parts there is
no ``Concat``: the host puts the slices side by side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

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
JOIN: Final = "Concat"


class Columns(NamedTuple):
    """What splitting an op by columns divides."""

    number: int  # of columns of the product
    output: int  # tensor
    weights: tuple[int, ...]  # tensors with a slice for each part; the others are read whole


def part_name(name: str, part: int, parts: int) -> str:
    """The op that is a part of the op ``name``, or its slice of the tensor ``name``."""
    return f"{name}/part {part + 1} of {parts}"


def columns_of(graph: Graph, op: int) -> Columns | None:
    """What can be divided of ``op`` by columns; None where it cannot be split.

    A graph has no shapes. Those of a product follow from its flops and elements
    (:mod:`go_opt.env.cost.shapes`), and where they do not divide evenly the op is not split.
    """
    if graph.op_types[op] not in SPLITTABLE or graph.op_class[op] != MATRIX:
        return None
    if any(not np.isnan(seconds[op]) for seconds in graph.measured_s.values()):
        return None  # what its parts would take is not known
    outputs = _row(graph.op_outputs, op)
    reads = [(int(graph.reader_tensor[r]), int(graph.reader_elements[r])) for r in _row(graph.op_reads, op)]
    weights = [k for k, touched in reads if _is_whole_weight(graph, k, touched)]
    if len(outputs) != 1 or not weights or len(weights) == len(reads) or graph.op_flops[op] <= 0:
        return None
    output = int(outputs[0])
    elements = int(graph.tensor_elements[output])
    inner = graph.op_flops[op] / (2.0 * elements)
    main = max(weights, key=lambda k: int(graph.tensor_elements[k]))
    count = round(int(graph.tensor_elements[main]) / inner)
    if count < 2 or elements % count or int(graph.tensor_elements[main]) % count:
        return None
    divided = [
        k for k in weights if int(graph.tensor_elements[k]) in (int(graph.tensor_elements[main]), count)
    ]
    return Columns(count, output, tuple(divided))


def stays_in_parts(graph: Graph, columns: Columns) -> bool:
    """Whether the host alone reads the output, so that it need not be joined."""
    k = columns.output
    return bool(graph.tensor_is_output[k]) and graph.reader_ptr[k] == graph.reader_ptr[k + 1]


def split_sizes(count: int, parts: int) -> list[int]:
    """Columns of each part: as equal as they can be, the larger first."""
    return [count // parts + (part < count % parts) for part in range(parts)]


def _is_whole_weight(graph: Graph, tensor: int, touched: int) -> bool:
    return graph.tensor_kind[tensor] == WEIGHT and touched == graph.tensor_elements[tensor]


def _row(rows: tuple[np.ndarray, np.ndarray], i: int) -> np.ndarray:
    pointers, values = rows
    return values[pointers[i] : pointers[i + 1]]


@lru_cache(maxsize=32)
def split_graph(graph: Graph, splits: tuple[Split, ...]) -> Graph:
    """``graph`` with the ops that ``splits`` name as their parts.

    Raises:
      PlanError: an op is not there, named twice, or cannot be split like that.
    """
    by_op = {_op_of(graph, split): split for split in splits}
    if len(by_op) < len(splits):
        raise PlanError("splits: an op is split twice.", field="splits")
    divided = {op: _checked(graph, op, split) for op, split in by_op.items()}
    builder = GraphBuilder(graph.name, precision=graph.precision, dims=graph.dims)
    slices: dict[str, int] = {}
    whole = np.ones(len(graph.tensor_producer), dtype=np.bool_)  # not: weights that are read in slices alone
    for columns in divided.values():
        for k in columns.weights:
            readers = _row((graph.reader_ptr, graph.reader_op), k)
            whole[k] = any(
                other not in divided or k not in divided[other].weights for other in readers.tolist()
            )
    for k in np.flatnonzero((graph.tensor_producer == NO_PRODUCER) & whole).tolist():
        _add_tensor(builder, graph, k, graph.tensor_names[k], int(graph.tensor_elements[k]))
    for op in range(graph.num_ops):
        if op in by_op:
            _add_parts(builder, graph, op, by_op[op], divided[op], slices)
        else:
            _add_op(builder, graph, op)
    in_parts = {divided[op].output: by_op[op] for op in by_op if not by_op[op].joined}
    for k in np.flatnonzero(graph.tensor_is_output).tolist():
        name = graph.tensor_names[k]
        names = [name] if k not in in_parts else _part_names(name, in_parts[k].parts)
        for one in names:
            builder.mark_output(one)
    return replace(builder.build(), nodes_without_op=graph.nodes_without_op)


def planned_graph(graph: Graph, plan: Plan) -> Graph:
    """The graph that ``plan`` places: ``graph`` itself, or with the parts of the ops that it splits.

    Raises:
      PlanError: an op that the plan splits is not there, or cannot be split like that.
    """
    if not plan.splits or graph.fingerprint == plan.graph_fingerprint:
        return graph
    return split_graph(graph, plan.splits)


def _op_of(graph: Graph, split: Split) -> int:
    if split.op not in graph.op_index:
        raise PlanError(f"splits: the graph has no op {split.op!r}.", field="splits")
    return graph.op_index[split.op]


def _checked(graph: Graph, op: int, split: Split) -> Columns:
    columns = columns_of(graph, op)
    where = f"splits: op {split.op!r}"
    if columns is None or split.kind != "columns":
        raise PlanError(f"{where} cannot be split by {split.kind}.", field="splits")
    if not 2 <= split.parts <= columns.number:
        raise PlanError(f"{where} has {columns.number} columns for {split.parts} parts.", field="splits")
    if not split.joined and not stays_in_parts(graph, columns):
        raise PlanError(f"{where} is read by others than the host, which need it whole.", field="splits")
    return columns


def _part_names(name: str, parts: int) -> list[str]:
    return [part_name(name, part, parts) for part in range(parts)]


def _add_tensor(builder: GraphBuilder, graph: Graph, k: int, name: str, elements: int) -> None:
    kind = TENSOR_KINDS[graph.tensor_kind[k]]
    assert graph.tensor_kind[k] in (WEIGHT, INPUT)
    builder.add_tensor(name, elements, DTYPES[graph.tensor_dtype[k]], kind)


def _add_op(builder: GraphBuilder, graph: Graph, op: int) -> None:
    reads = [
        (graph.tensor_names[graph.reader_tensor[r]], int(graph.reader_elements[r]))
        for r in _row(graph.op_reads, op)
    ]
    writes = [
        (graph.tensor_names[k], int(graph.tensor_elements[k]), DTYPES[graph.tensor_dtype[k]])
        for k in _row(graph.op_outputs, op)
    ]
    builder.add_op(
        graph.op_names[op],
        graph.op_types[op],
        OP_CLASSES[graph.op_class[op]],
        flops=float(graph.op_flops[op]),
        dtype=DTYPES[graph.op_dtype[op]],
        reads=reads,
        writes=writes,
        measured_s=_by_kind(graph.measured_s, op),
        excluded_kinds=[kind for kind, excluded in graph.excluded.items() if excluded[op]],
    )


def _by_kind(measured: Mapping[str, np.ndarray], op: int) -> dict[str, float]:
    return {kind: float(seconds[op]) for kind, seconds in measured.items() if not np.isnan(seconds[op])}


def _add_parts(
    builder: GraphBuilder, graph: Graph, op: int, split: Split, columns: Columns, weights: dict[str, int]
) -> None:
    """The parts of an op; ``weights`` are the slices of weights so far, which others may read too."""
    parts, name = split.parts, graph.op_names[op]
    output = graph.tensor_names[columns.output]
    dtype = DTYPES[graph.tensor_dtype[columns.output]]
    elements = int(graph.tensor_elements[columns.output])
    slices = []
    for part, size in enumerate(split_sizes(columns.number, parts)):
        reads = []
        for r in _row(graph.op_reads, op):
            k = int(graph.reader_tensor[r])
            if k not in columns.weights:
                reads.append((graph.tensor_names[k], int(graph.reader_elements[r])))
                continue
            part_of = part_name(graph.tensor_names[k], part, parts)
            slice_elements = int(graph.tensor_elements[k]) // columns.number * size
            if part_of not in weights:
                weights[part_of] = slice_elements
                _add_tensor(builder, graph, k, part_of, slice_elements)
            elif weights[part_of] != slice_elements:
                raise PlanError(f"splits: ops divide {graph.tensor_names[k]!r} differently.", field="splits")
            reads.append((part_of, slice_elements))
        slices.append((part_name(output, part, parts), elements // columns.number * size, dtype))
        builder.add_op(
            part_name(name, part, parts),
            graph.op_types[op],
            OP_CLASSES[graph.op_class[op]],
            flops=float(graph.op_flops[op]) * size / columns.number,
            dtype=DTYPES[graph.op_dtype[op]],
            reads=reads,
            writes=[slices[-1]],
            excluded_kinds=[kind for kind, excluded in graph.excluded.items() if excluded[op]],
        )
    if split.joined:
        builder.add_op(
            name, JOIN, "data_movement", flops=0.0, dtype=dtype,
            reads=[(one, count) for one, count, _ in slices], writes=[(output, elements, dtype)],
        )  # fmt: skip
