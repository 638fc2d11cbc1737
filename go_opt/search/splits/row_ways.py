"""Ways to split by rows: runs of ops whose parts follow each other on chips of their own.

Between runs one tensor alone is alive; it is joined there. The runs are those with the least estimate of a
sample's latency, found by dynamic programming: in a run the largest part of each op counts, and at its end
what joining sends over a link.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import Final, NamedTuple

import numpy as np

from go_opt.env import CostTables, Target, cost_tables
from go_opt.env.copies.part_names import part_name
from go_opt.env.copies.row_parts import JOIN
from go_opt.env.copies.rows import Rows, row_stops
from go_opt.env.op_memory import op_activation_bytes
from go_opt.model.graph import MATRIX, NO_PRODUCER, WEIGHT, Graph
from go_opt.model.plan import Split
from go_opt.model.start import OpStart, Start
from go_opt.solver.problem.allotment import allotted_chips

PARTS: Final = (2, 4, 8)
FILLED: Final = 3 / 4  # of a memory, at most, with the weights of a run or stage
# Of a link, at most, for what ends a run, in times the work of a chip when all share it.
LINK_SHARES: Final = (1.25, 2.0, math.inf)


class _Run(NamedTuple):
    start: int  # cut before it, by number
    parts: int  # 1: an op that stays whole
    latency_s: float  # to its end


def row_ways(graph: Graph, target: Target, rows: Mapping[int, Rows]) -> list[tuple[Split, ...]]:
    """For up to 2, 4 and 8 parts the runs with the least latency, with little and with more traffic.

    Ops that fit no chip are in parts that do; where that is not possible there is no way.

    Args:
      rows: of the ops that may be split by rows, what that divides.
    """
    choices = [_Runs(graph, target, rows, share) for share in LINK_SHARES]
    ways = [runs.cheapest(PARTS[: i + 1]) for i in range(len(PARTS)) for runs in choices]
    return [way for way in dict.fromkeys(ways) if way]


class _Runs:
    """Runs between cuts: cut ``i`` lies behind op ``self._cuts[i]``."""

    def __init__(self, graph: Graph, target: Target, rows: Mapping[int, Rows], link_share: float) -> None:
        tables = cost_tables(graph, target)
        self._graph, self._tables, self._rows = graph, tables, rows
        self._op_s = tables.kernel_floor_s().min(axis=0)
        self._filled = op_activation_bytes(graph, target) / float(tables.sram_bytes.max())  # of a memory
        link_s = tables.tensor_bytes * float(tables.link_s_per_byte.max(initial=0.0))
        limit_s = link_share * float(self._op_s.sum()) / tables.num_chips
        cuts = [(op, k) for op, k in _cuts(graph) if link_s[k] <= limit_s]
        self._cuts = [-1, *(op for op, _ in cuts), graph.num_ops - 1]
        self._join_s = [0.0, *(float(link_s[k]) for _, k in cuts), 0.0]
        self._latency_s = cache(self._estimated_s)

    def cheapest(self, menu: tuple[int, ...]) -> tuple[Split, ...]:
        best = [_Run(0, 1, 0.0)]
        for end in range(1, len(self._cuts)):
            best.append(min(self._candidates(best, end, menu), key=lambda run: run.latency_s))
        splits: list[Split] = []
        end = len(best) - 1 if math.isfinite(best[-1].latency_s) else 0
        while end > 0:
            start, parts, _ = best[end]
            if parts > 1:
                splits += self._splits(start, end, parts).values()
            end = start
        return tuple(sorted(splits, key=lambda split: self._graph.op_index[split.op]))

    def _candidates(self, best: list[_Run], end: int, menu: tuple[int, ...]) -> Iterator[_Run]:
        ops = range(self._cuts[end - 1] + 1, self._cuts[end] + 1)
        whole_s = float(self._op_s[ops].sum()) if (self._filled[ops] <= 1.0).all() else math.inf
        yield _Run(end - 1, 1, best[end - 1].latency_s + whole_s)
        for start in range(end - 1, -1, -1):
            found = [(parts, self._latency_s(start, end, parts)) for parts in menu]
            yield from (
                _Run(start, parts, best[start].latency_s + run_s)
                for parts, run_s in found
                if run_s is not None
            )
            if all(run_s is None for _, run_s in found):
                return  # nor can a longer run be split

    def _estimated_s(self, start: int, end: int, parts: int) -> float | None:
        """Of a run, about; None where it cannot be split like that."""
        ops = range(self._cuts[start] + 1, self._cuts[end] + 1)
        filled = FILLED * float(self._tables.sram_bytes.max())
        if any(op not in self._rows for op in ops) or _weight_bytes(self._graph, self._tables, ops) > filled:
            return None
        splits = self._splits(start, end, parts)
        stops = row_stops(self._graph, {op: (splits[op], self._rows[op]) for op in ops})
        if not all(stops.values()):
            return None
        largest = np.array([max(np.diff([0, *stops[op]])) / self._rows[op].number for op in ops])
        if (largest * self._filled[ops] > 0.5).any():
            return math.inf
        return float(largest @ self._op_s[ops]) + self._join_s[end] * (parts - 1) / parts

    def _splits(self, start: int, end: int, parts: int) -> dict[int, Split]:
        """The last op is joined: its output is the tensor that lives on."""
        last = self._cuts[end]
        return {
            op: Split(self._graph.op_names[op], "rows", parts, joined=op == last)
            for op in range(self._cuts[start] + 1, last + 1)
        }


def _cuts(graph: Graph) -> Iterator[tuple[int, int]]:
    """Ops behind which one tensor is alive, which they write and a product reads; and that tensor."""
    tensors = np.flatnonzero((graph.tensor_kind != WEIGHT) & (np.diff(graph.reader_ptr) > 0))
    last = graph.reader_op[graph.reader_ptr[tensors + 1] - 1]  # readers of a tensor ascend
    change = np.zeros(graph.num_ops + 1, np.int64)
    np.add.at(change, np.maximum(graph.tensor_producer[tensors], 0), 1)
    np.add.at(change, last, -1)
    alive = np.cumsum(change)
    for k, op in zip(tensors.tolist(), graph.tensor_producer[tensors].tolist(), strict=True):
        readers = graph.reader_op[graph.reader_ptr[k] : graph.reader_ptr[k + 1]]
        if op != NO_PRODUCER and alive[op] == 1 and (graph.op_class[readers] == MATRIX).any():
            yield op, k


def _weight_bytes(graph: Graph, tables: CostTables, ops: Collection[int]) -> float:
    read = np.unique(graph.reader_tensor[np.isin(graph.reader_op, list(ops))])
    return float(tables.stored_bytes[read[graph.tensor_kind[read] == WEIGHT]].sum())


def start_by_rows(
    graph: Graph, split: Graph, way: tuple[Split, ...], target: Target, *, replicates: bool
) -> Start:
    """A plan with a stage for each part of a run, and stages of other ops that fit a memory.

    Args:
      graph: of whole ops; ``split`` is that with the parts of ``way``.
      replicates: whether the chips of a stage are replicas; else they share its ops.
    """
    tables = cost_tables(split, target)
    stages = _stages(graph, split, {one.op: one for one in way}, tables)
    placed = Start({name: OpStart(stage, rank=split.op_index[name]) for name, stage in stages.items()})
    _, stage = np.unique(placed.on(split).chip, return_inverse=True)
    stage = np.minimum(stage, target.num_chips - 1)
    op_s = tables.kernel_floor_s().min(axis=0)
    sizes = allotted_chips(np.bincount(stage, weights=op_s).astype(np.float64), target.num_chips)
    size, chip = sizes[stage], (np.cumsum(sizes) - sizes)[stage]
    if not replicates:
        for here in (stage == number for number in range(len(sizes))):
            share = np.cumsum(op_s[here]) - op_s[here]
            chip[here] += (share / op_s[here].sum() * size[here]).astype(np.int64)
        size = np.ones_like(size)
    rows = zip(split.op_names, chip.tolist(), size.tolist(), strict=True)
    ops = {name: OpStart(first, count, rank=rank) for rank, (name, first, count) in enumerate(rows)}
    return Start(ops, method="parts by rows")


def _stages(graph: Graph, split: Graph, splits: Mapping[str, Split], tables: CostTables) -> dict[str, int]:
    """Of the ops that are whole or parts, and of what takes rows of the model's inputs."""
    stages: dict[str, int] = {}
    filled_bytes = FILLED * float(tables.sram_bytes.max())
    stage, held_bytes, is_open = 0, 0.0, False  # open: in a run, whose parts have the next stages
    for name in graph.op_names:
        one = splits.get(name)
        names = [name] if one is None else [part_name(name, part, one.parts) for part in range(one.parts)]
        by_rows = one is not None and one.kind == "rows"
        if by_rows != is_open and stages:
            stage, held_bytes = stage + 1, 0.0
        is_open = by_rows
        for part, each in enumerate(names):
            if not by_rows:
                weight_bytes = _weight_bytes(split, tables, [split.op_index[each]])
                if held_bytes + weight_bytes > filled_bytes:
                    stage, held_bytes = stage + 1, 0.0
                held_bytes += weight_bytes
            stages[each] = stage + part * by_rows
        if one is not None and by_rows and one.joined:
            stage, is_open = stage + one.parts - 1, False
    pointers, reads = split.op_reads
    out_pointers, readers = split.successors
    for op, name in enumerate(split.op_names):
        if name in graph.op_index or name in stages:
            continue
        if split.op_types[op] == JOIN:  # the rows that a part takes of several others
            found = readers[out_pointers[op] : out_pointers[op + 1]]
            stages[name] = min(stages[split.op_names[reader]] for reader in found)
        # Otherwise every chip that takes rows of the model's input would be sent all of it.
        elif split.tensor_producer[split.reader_tensor[reads[pointers[op]]]] == NO_PRODUCER:
            stages[name] = 0
    return stages
