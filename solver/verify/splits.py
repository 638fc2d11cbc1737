"""Rechecks a split by definition: the parts together equal the op, and all other ops are unchanged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from go_opt.model.graph import WEIGHT, Graph
from go_opt.model.plan import Split
from go_opt.solver.verify.column_spans import ColumnSpans
from go_opt.solver.verify.row_spans import NamedOp, RowSpans, part_name


def broken_splits(whole: Graph, split: Graph, splits: Sequence[Split]) -> Iterator[str]:
    """Yields the errors of ``split``, which must be ``whole`` with the ops of ``splits`` in parts."""
    before, after = _ops(whole), _ops(split)
    columns = ColumnSpans(whole, before, after, splits)
    after = {name: op for name, op in after.items() if name not in columns.moves}
    spans = RowSpans(whole, before, after, splits)
    after = {name: op for name, op in after.items() if name not in spans.moves}
    yield from (f"op {name!r} does not have the rows that its name says." for name in spans.wrong_moves)
    outputs = {whole.tensor_names[k] for k in np.flatnonzero(whole.tensor_is_output)}
    for one in splits:
        names = [part_name(one.op, i, one.parts) for i in range(one.parts)]
        if one.op not in before or any(name not in after for name in names):
            yield f"op {one.op!r} does not have the {one.parts} parts that the plan says."
            return
        parts, joined = [after.pop(name) for name in names], after.pop(one.op, None)
        op = before.pop(one.op)
        wrong = list(_wrong_parts(one, op, parts))
        if one.kind == "rows":
            wrong += spans.wrong_reads(one.op, op, parts) if not wrong else []
        else:
            wrong += columns.wrong(one.op)
        yield from (f"op {one.op!r}, {problem}." for problem in wrong)
        written = [part.writes[0] for part in parts]
        is_read = any(name == op.writes[0][0] for other in after.values() for name, _, _ in other.reads)
        if one.kind == "inner":
            continue  # its sum was compared
        is_join = joined is not None and one.kind == "rows"
        if is_join or (one.joined and (one.kind != "rows" or is_read)):
            reads = Counter((name, elements, False) for name, elements, _ in written)
            if joined is None or joined.reads != reads or joined.writes != op.writes or joined.flops:
                yield f"op {one.op!r}: no op joins its parts."
        else:
            if op.writes[0][0] in outputs:
                outputs = outputs - {op.writes[0][0]} | {name for name, _, _ in written}
            if joined is not None:
                yield f"op {one.op!r} is in the graph together with its parts."
    changed = next((name for name in before if after.get(name) != before[name]), None)
    if changed is not None or len(before) != len(after):
        yield f"op {changed or next(iter(after.keys() - before.keys()))!r} was changed."
    if outputs != {split.tensor_names[k] for k in np.flatnonzero(split.tensor_is_output)}:
        yield "the outputs of the model are not as they were."


def _wrong_parts(one: Split, op: NamedOp, parts: Sequence[NamedOp]) -> Iterator[str]:
    """Every part does its share of the work and writes a slice of the output, or a partial result."""
    results = one.parts if one.kind == "inner" else 1
    if any(part.kind != op.kind for part in parts):
        yield "a part is of another type"
    if abs(sum(part.flops for part in parts) - op.flops) > 1e-9 * op.flops:
        yield "the parts do not have its flops"
    if sum(part.writes[0][1] for part in parts) != results * op.writes[0][1] or any(
        len(part.writes) != 1 or part.writes[0][2] != op.writes[0][2] for part in parts
    ):
        yield "the parts do not write its output"


def _ops(graph: Graph) -> dict[str, NamedOp]:
    found = {}
    for op, name in enumerate(graph.op_names):
        reads = Counter(
            (graph.tensor_names[k], touched, bool(graph.tensor_kind[k] == WEIGHT))
            for k, touched in graph.reads_of(op)
        )
        writes = tuple(
            (graph.tensor_names[k], int(graph.tensor_elements[k]), int(graph.tensor_dtype[k]))
            for k in graph.outputs_of(op)
        )
        kind = graph.op_types[op], int(graph.op_class[op]), int(graph.op_dtype[op])
        found[name] = NamedOp(kind, float(graph.op_flops[op]), reads, writes)
    return found
