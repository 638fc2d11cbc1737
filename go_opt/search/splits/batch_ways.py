"""Ways to split by the rows of a batch, for the makespan: the same images of all ops on one chip."""

from __future__ import annotations

from collections.abc import Mapping

from go_opt.env import Target
from go_opt.env.copies.part_names import part_name
from go_opt.env.copies.rows import Rows
from go_opt.model.graph import INPUT, Graph
from go_opt.model.plan import Split
from go_opt.model.row_axes import LEAST_BATCH
from go_opt.model.start import OpStart, Start
from go_opt.search.splits.row_ways import PARTS


def has_batch(graph: Graph) -> bool:
    """Whether the rows of all inputs are those of one batch."""
    names = [name for name, kind in zip(graph.tensor_names, graph.tensor_kind, strict=True) if kind == INPUT]
    shapes = [graph.shapes.get(name, ()) for name in names]
    is_batch = all(len(shape) == 2 and shape[0] == shapes[0][0] >= LEAST_BATCH for shape in shapes)
    return bool(shapes) and is_batch


def batch_ways(graph: Graph, target: Target, rows: Mapping[int, Rows]) -> list[tuple[Split, ...]]:
    """All ops of ``rows`` in as many parts as there are chips, at most 8, and in fewer."""
    ways = [
        tuple(
            Split(graph.op_names[op], "rows", parts, joined=not _goes_on(graph, rows, op))
            for op, one in rows.items()
            if one.number >= 2 * parts
        )
        for parts in PARTS[::-1]
        if parts <= target.num_chips
    ]
    return [way for way in ways if way]


def _goes_on(graph: Graph, rows: Mapping[int, Rows], op: int) -> bool:
    """Whether parts of other ops read the parts of an op."""
    k = rows[op].output
    readers = graph.reader_op[graph.reader_ptr[k] : graph.reader_ptr[k + 1]].tolist()
    by_rows = any(reader in rows and k in rows[reader].windows for reader in readers)
    return by_rows and not graph.tensor_is_output[k]


def start_by_batch(split: Graph, way: tuple[Split, ...]) -> Start:
    """Part i of each op on chip i; ``split`` is the graph with the parts of ``way``."""
    names = [(part_name(one.op, part, one.parts), part) for one in way for part in range(one.parts)]
    ops = {name: OpStart(part, rank=split.op_index[name]) for name, part in names}
    return Start(ops, method="parts of a batch")
