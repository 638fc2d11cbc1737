"""Ways to split by the rows of a batch, for the makespan: the same images of all ops on one chip."""

from __future__ import annotations

import itertools
from typing import Final

import numpy as np

from go_opt.env import Target, cost_tables
from go_opt.env.copies.pieces import part_name
from go_opt.model.graph import INPUT, NO_PRODUCER, Graph
from go_opt.model.plan import Split
from go_opt.model.start import OpStart, Start
from go_opt.search.splits.row_ways import PARTS
from go_opt.search.splits.rows import LEAST_BATCH, Rows, reads_rows, row_shapes, split_along, steps_of

SHARES: Final = (1.0, 0.8, 0.5)  # of the seconds of all ops, in the ops that are divided


def has_batch(graph: Graph) -> bool:
    """Whether the rows of all inputs are those of one batch."""
    shapes = [row_shapes(graph).get(k, ()) for k, kind in enumerate(graph.tensor_kind) if kind == INPUT]
    is_batch = all(len(shape) == 2 and shape[0] == shapes[0][0] >= LEAST_BATCH for shape in shapes)
    return bool(shapes) and is_batch


def batch_ways(graph: Graph, target: Target, rows: Rows) -> list[tuple[Split, ...]]:
    """Ops of ``rows`` in as many parts as there are chips, at most 8, and in fewer: all, and the first ones.

    What follows the first ones stays whole: its branches may keep the chips busy, at less cost.
    """
    ways = []
    for parts, end in itertools.product(PARTS[::-1], _ends(graph, target)):
        divided = {op: one for op, one in rows.items() if op <= end and steps_of(graph, op, one) >= 2 * parts}
        if parts <= target.num_chips:
            ways.append(
                tuple(
                    split_along(graph, op, factor, parts, joined=not _goes_on(graph, divided, op))
                    for op, factor in divided.items()
                )
            )
    return [way for way in dict.fromkeys(ways) if way]


def _ends(graph: Graph, target: Target) -> list[int]:
    """Ops behind which about each of ``SHARES`` of the seconds is done, and one tensor is alive."""
    made = np.flatnonzero(graph.tensor_producer != NO_PRODUCER)
    made = made[graph.reader_ptr[made + 1] > graph.reader_ptr[made]]
    begun = np.bincount(graph.tensor_producer[made], minlength=graph.num_ops)
    ended = np.bincount(graph.reader_op[graph.reader_ptr[made + 1] - 1], minlength=graph.num_ops)
    ends = np.append(np.flatnonzero(np.cumsum(begun - ended) == 1), graph.num_ops - 1)
    op_s = cost_tables(graph, target).kernel_floor_s().min(axis=0)
    done = (np.cumsum(op_s) / op_s.sum())[ends]
    return [
        int(ends[np.argmin(np.abs(done - share))]) if share < 1.0 else graph.num_ops - 1 for share in SHARES
    ]


def _goes_on(graph: Graph, rows: Rows, op: int) -> bool:
    """Whether parts of other ops read the parts of an op."""
    k = graph.outputs_of(op)[0]
    return any(reads_rows(graph, rows, reader, k) for reader in graph.readers_of(k))


def start_by_batch(split: Graph, way: tuple[Split, ...]) -> Start:
    """Part i of each op on chip i; ``split`` is the graph with the parts of ``way``."""
    names = [(part_name(one.op, part, one.parts), part) for one in way for part in range(one.parts)]
    ops = {name: OpStart(part, rank=split.op_index[name]) for name, part in names}
    return Start(ops, method="parts of a batch")
