"""Which ops can be divided by rows, which rows the parts need, and where the parts end.

Rows lie along the second-to-last dimension of an output: the height of an image, tokens, or a batch of
vectors. A part of a convolution or pooling needs rows beyond its own, its halo. Parts are *skewed*: the same
part of a reader needs no rows of the next part. So rows pass only from a part to later ones, no row
is computed twice, and parts can follow each other along a ring. (Skewed tiling of loops: Wolf and Lam,
PLDI 1991.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, LongArray
from go_opt.env.copies.columns import only_output
from go_opt.errors import PlanError
from go_opt.model.axes import Window, row_shapes, row_windows
from go_opt.model.graph import WEIGHT, Graph
from go_opt.model.plan import Split


class Rows(NamedTuple):
    """The rows of an op, for splitting it."""

    number: int  # of rows of the output
    output: int  # tensor
    windows: Mapping[int, Window]  # tensor -> its rows that an output row needs; others are read whole


def rows_of(graph: Graph, op: int) -> Rows | None:
    """The rows of ``op``; None if it cannot be split by rows, or its rule is not known."""
    windows, output = row_windows(graph).get(op), only_output(graph, op)
    if windows is None or output is None or all(graph.tensor_kind[k] == WEIGHT for k in windows):
        return None
    if any(touched != graph.tensor_elements[k] for k, touched in graph.reads_of(op)):
        return None
    return Rows(row_shapes(graph)[output][-2], output, windows)


def rows_needed(window: Window, start: int, stop: int, number: int) -> tuple[int, int]:
    """The rows of an input, of ``number``, that output rows ``start`` to ``stop`` need, without padding."""
    first = start * window.stride - window.before
    return max(0, first), min(number, first + (stop - 1 - start) * window.stride + window.size)


def row_stops(graph: Graph, splits: Mapping[int, tuple[Split, Rows]]) -> dict[int, list[int]]:
    """The rows at which the parts of each op end (exclusive); empty if there are too few rows.

    Ops that read each other's unjoined parts are divided together: no part needs a row of the next part,
    and the parts have equal shares of their work.

    Args:
      splits: the split and rows of each op that is split by rows.

    Raises:
      PlanError: parts that are not joined are read only by ops that need them whole.
    """
    rows = {op: row for op, (_, row) in splits.items()}
    readers = {
        op: [] if split.joined else _part_readers(graph, op, splits) for op, (split, _) in splits.items()
    }
    stops: dict[int, list[int]] = {}
    for group in _groups(readers):
        stops |= _balanced(graph, group, rows, readers, splits[group[0]][0].parts)
    return stops


def _part_readers(graph: Graph, op: int, splits: Mapping[int, tuple[Split, Rows]]) -> list[int]:
    """The readers of an op that has parts like it; others take rows anew, or read it joined."""
    split, (_, output, _) = splits[op]
    readers = graph.readers_of(output)
    alike = [
        reader
        for reader in readers
        if reader in splits and splits[reader][0].parts == split.parts and output in splits[reader][1].windows
    ]
    if len(alike) < len(readers) and (graph.tensor_is_output[output] or not alike):
        raise PlanError(
            f"splits: op {split.op!r} is read by others than the host, which need it whole.", field="splits"
        )
    return alike


def _groups(readers: Mapping[int, list[int]]) -> Iterable[list[int]]:
    """Groups of ops that unjoined parts connect, each in topological order."""
    group_of = {op: [op] for op in readers}
    for op, found in readers.items():
        for reader in found:
            mine, other = group_of[op], group_of[reader]
            if mine is not other:
                mine += other
                group_of |= dict.fromkeys(other, mine)
    return {id(group): sorted(group) for group in group_of.values()}.values()


def _balanced(
    graph: Graph,
    group: list[int],
    rows: Mapping[int, Rows],
    readers: Mapping[int, list[int]],
    parts: int,
) -> dict[int, list[int]]:
    """Stops that give the parts equal FLOPs, as far as the rows of the last ops allow."""
    last = [op for op in group if not readers[op]]
    least = {op: 2 if graph.op_types[op] == "Transpose" else 1 for op in group}  # of one row it is a view
    finest = max(rows[op].number for op in last)
    share = np.arange(1, finest) / finest
    stop: dict[int, LongArray] = {}  # [shares] of each op
    work, all_work = np.zeros(len(share)), 0.0
    is_open: BoolArray = np.ones(len(share), np.bool_)
    for op in reversed(group):
        number = rows[op].number
        ends = [
            (stop[reader] - 1) * window.stride - window.before + window.size
            for reader in readers[op]
            for window in [rows[reader].windows[rows[op].output]]
        ]
        stop[op] = (
            np.minimum(number, np.max(ends, axis=0)) if ends else np.rint(share * number).astype(np.int64)
        )
        is_open &= (stop[op] >= least[op]) & (stop[op] <= number - least[op])
        work += graph.op_flops[op] * stop[op] / number
        all_work += graph.op_flops[op]
    chosen: list[int] = []
    for part in range(1, parts):
        far = np.abs(work - all_work * part / parts)
        for op in group if chosen else ():
            is_open &= stop[op] >= stop[op][chosen[-1]] + least[op]
        if not is_open.any():
            return {op: [] for op in group}
        chosen.append(int(np.argmin(np.where(is_open, far, np.inf))))
    return {op: [*stop[op][chosen].tolist(), rows[op].number] for op in group}
