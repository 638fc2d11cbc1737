"""Towers: large parts of a graph that only its last ops join, as the two encoders of a contrastive model.

On a ring each tower may have chips of its own, one tower after the other. The results of all but the last one
then pass chips, which the adjacent rule forbids; the longest-path form of the triangle rule allows it, since
no other path of chips leads where they go. Axis ``N`` ops.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray
from go_opt.env import CostTables
from go_opt.model.graph import Graph

LARGE: Final = 0.05  # share of the work: smaller parts are no towers


def towers(graph: Graph, tables: CostTables) -> tuple[IntArray, CostTables, IntArray] | None:
    """Returns an order by towers of ``graph``, and what slicing along it asks for; ``None`` without two.

    Returns:
      [N] one tower after the other, then all other ops; the tables without what readers outside a tower take
      from all towers but the last; [2, T - 1] the last op of a tower and the first op of the next one, which
      share no chip.
    """
    tower, num_towers = _tower_of(graph, np.where(tables.can_run, tables.op_s, np.inf).min(axis=0))
    if num_towers < 2:
        return None
    order = np.argsort(tower, kind="stable").astype(np.int32)
    ends = np.cumsum(np.bincount(tower))[: num_towers - 1]
    producer = tables.tensor_producer[tables.reader_tensor]
    keeps = (
        (producer < 0) | (tower[producer] == tower[tables.reader_op]) | (tower[producer] >= num_towers - 1)
    )
    return order, tables.with_reads(keeps), np.stack([order[ends - 1], order[ends]])


def _tower_of(graph: Graph, work_s: FloatArray) -> tuple[LongArray, int]:
    """Returns the number [N] of each op's tower, of all other ops the number of towers; and that number.

    Ops join the parts that they read, one after the other; an op that would join two large parts does not,
    nor do its descendants.
    """
    ptr, source = graph.predecessors
    part, part_s = list(range(graph.num_ops)), work_s.tolist()
    is_apart = np.zeros(graph.num_ops, np.bool_)
    least_s = LARGE * work_s.sum()
    for op in range(graph.num_ops):
        read = source[ptr[op] : ptr[op + 1]]
        roots = {_root(part, before) for before in read.tolist()}
        is_apart[op] = is_apart[read].any() or sum(part_s[root] >= least_s for root in roots) > 1
        for root in set() if is_apart[op] else roots:
            part[root] = op
            part_s[op] += part_s[root]
    root_of = np.array([_root(part, op) for op in range(graph.num_ops)])
    is_apart |= np.array(part_s)[root_of] < least_s
    large = np.unique(root_of[~is_apart])
    return np.searchsorted(large, np.where(is_apart, graph.num_ops, root_of)), len(large)


def _root(part: list[int], op: int) -> int:
    while part[op] != op:
        part[op] = part[part[op]]
        op = part[op]
    return op
