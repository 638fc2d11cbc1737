"""Defines splits: the graph in which parts, and their join, replace each split op.

:mod:`~go_opt.env.copies.column_parts` makes the parts of ops split by columns or along the inner dimension,
:mod:`~go_opt.env.copies.row_parts` those of ops split by rows. The op that joins or adds parts has the name
of the op and writes its tensor, so readers see no difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np

from go_opt.env.copies.column_parts import ColumnParts
from go_opt.env.copies.columns import Columns, Inner, held_columns, inner_of
from go_opt.env.copies.part_names import part_name
from go_opt.env.copies.row_parts import RowParts, Span
from go_opt.env.copies.rows import Rows, rows_of
from go_opt.errors import PlanError
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import INPUT, NO_PRODUCER, Graph
from go_opt.model.plan import Plan, Split


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
    columns = held_columns(graph, by_op)
    divided = {op: _checked(graph, op, split, columns.get(op)) for op, split in by_op.items()}
    by_rows = {op: (by_op[op], one) for op, one in divided.items() if isinstance(one, Rows)}
    parts = ColumnParts(
        graph, {op: (by_op[op], one) for op, one in divided.items() if not isinstance(one, Rows)}
    )
    row_parts = RowParts(graph, by_rows, parts.make)
    ops = [
        row for op in range(graph.num_ops) for row in (row_parts.of(op) if op in by_rows else parts.of(op))
    ]
    builder = GraphBuilder(graph.name, precision=graph.precision, bindings=graph.bindings)
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

    A graph that has the parts already is returned as it is.

    Raises:
      PlanError: an op that the plan splits is not in the graph, or cannot be split like that.
    """
    if not plan.splits:
        return graph
    if graph.fingerprint != plan.graph_fingerprint:
        return split_graph(graph, plan.splits)
    for split in plan.splits:
        last = part_name(split.op, split.parts - 1, split.parts)
        if last not in graph.op_index:
            raise PlanError(f"splits: the graph of the plan has no op {last[:120]!r}.", field="splits")
    return graph


def _op_of(graph: Graph, split: Split) -> int:
    if split.op not in graph.op_index:
        raise PlanError(f"splits: the graph has no op {split.op!r}.", field="splits")
    return graph.op_index[split.op]


def _checked(graph: Graph, op: int, split: Split, columns: Columns | None) -> Columns | Inner | Rows:
    found = {"rows": rows_of, "inner": inner_of}
    divided = columns or (found[split.kind](graph, op) if split.kind in found else None)
    where = f"splits: op {split.op!r}"
    if divided is None:
        what = "the inner dimension" if split.kind == "inner" else split.kind
        raise PlanError(f"{where} cannot be split by {what}.", field="splits")
    if not 2 <= split.parts <= divided.number:
        what = "terms" if isinstance(divided, Inner) else split.kind
        raise PlanError(f"{where} has {divided.number} {what} for {split.parts} parts.", field="splits")
    if isinstance(divided, Inner) and not split.joined:
        raise PlanError(f"{where} has partial results, which must be joined.", field="splits")
    return divided
