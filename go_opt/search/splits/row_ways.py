"""Ways to split by rows: runs of ops whose parts follow each other on chips of their own.

What is alive between runs is joined there. The runs are those with the least estimate of a sample's latency,
found by dynamic programming over the chips that they take: in a run the largest part of each op counts, and
at its end what joining sends over a link.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Final

import numpy as np

from go_opt.env import CostTables, Target, cost_tables
from go_opt.env.copies.divisions import Division, stops_of
from go_opt.env.op_memory import op_activation_bytes, op_sram_bytes
from go_opt.errors import PlanError
from go_opt.model.graph import MATRIX, NO_PRODUCER, WEIGHT, Graph
from go_opt.model.plan import Split
from go_opt.search.splits.rows import Rows, reads_rows, split_along, steps_of, waits_for

PARTS: Final = (2, 4, 8)
CLEARLY: Final = 0.95  # of the latency of whole ops, at most, by the estimate
FILLED: Final = 3 / 4  # of a memory, at most, with the weights of a run or stage
# Of a link, at most, for what ends a run, in times the work of a chip when all share it.
LINK_SHARES: Final = (1.25, 2.0, math.inf)


def row_ways(
    graph: Graph, target: Target, rows: Rows, is_late: Callable[[], bool] = lambda: False
) -> list[tuple[Split, ...]]:
    """For up to 2, 4 and 8 parts the runs with the least latency, with little and with more traffic.

    Ops that fit no chip are in parts that do; where that is not possible there is no way.

    Args:
      rows: the ops that may be split by rows.
      is_late: whether to end with the ways found so far.
    """
    runs = _Runs(graph, target, rows, is_late)
    menu = tuple(parts for parts in PARTS if parts <= target.num_chips)  # each part has a chip
    menus = (menu[: i + 1] for i in range(len(menu)))
    ways = [runs.cheapest(*one) for one in itertools.product(menus, LINK_SHARES) if not is_late()]
    return [way for way in dict.fromkeys(ways) if way]


class _Runs:
    """Runs of ops from behind one cut to another; a cut is named by the op that it lies behind."""

    def __init__(self, graph: Graph, target: Target, rows: Rows, is_late: Callable[[], bool]) -> None:
        tables = cost_tables(graph, target)
        self._is_late = is_late
        self._graph, self._tables, self._rows = graph, tables, rows
        self._until = {op: self._last_reader(graph.outputs_of(op)[0]) for op in rows}
        self._waits = {op: max(waits_for(graph, rows, op), default=NO_PRODUCER) for op in rows}
        self._overhead_s = float(tables.kernel_overhead_s.min())
        self._op_s = tables.kernel_floor_s().min(axis=0)
        self._sram_bytes = np.maximum(op_sram_bytes(tables), 1)
        self._filled = op_activation_bytes(graph, target) / self._sram_bytes  # of a memory
        link_s = tables.tensor_bytes * float(tables.link_s_per_byte.max(initial=0.0))
        cuts = dict(_cuts(graph, rows))
        self._ends = {op for op, alive in cuts.items() if len(alive) == 1}
        self._join_s = {op: float(link_s[alive].sum()) for op, alive in cuts.items()}
        self._whole_s = {
            op: sum(float(link_s[k]) for k in alive if self._is_needed_whole(k)) for op, alive in cuts.items()
        }
        self._latency_s = cache(self._estimated_s)

    def cheapest(self, menu: tuple[int, ...], link_share: float) -> tuple[Split, ...]:
        """The runs of the least latency whose parts have a chip each."""
        chips = self._tables.num_chips
        whole_s = float(self._op_s.sum())
        limit_s = link_share * whole_s / chips
        cuts = [-1, *(op for op, seconds in self._join_s.items() if seconds <= limit_s), len(self._op_s) - 1]
        best_s = np.full((len(cuts), chips + 1), math.inf)  # by end and number of chips
        best_s[0] = 0.0
        last = np.zeros((len(cuts), chips + 1, 2), np.int64)  # start and parts of the last run
        for end in range(1, len(cuts)):
            for start, parts, run_s in self._candidates(cuts, end, menu):
                taken = parts if parts > 1 else 0
                found_s = best_s[start, : chips + 1 - taken] + run_s
                is_better = found_s < best_s[end, taken:]
                best_s[end, taken:][is_better] = found_s[is_better]
                last[end, taken:][is_better] = start, parts
        splits: dict[int, Split] = {}
        gains = best_s[-1, chips] < (CLEARLY * whole_s if (self._filled <= 1.0).all() else math.inf)
        end = len(cuts) - 1 if gains else 0
        while end > 0:
            start, parts = last[end, chips].tolist()
            if parts > 1:
                splits |= self._splits(cuts[start], cuts[end], parts)
                chips -= parts
            end = start
        return tuple(self._aligned(op, splits) for op in sorted(splits))

    def _aligned(self, op: int, splits: Mapping[int, Split]) -> Split:
        """Leaves an op in parts, beside what joins them for others, if a reader has the same parts."""
        split, graph, k = splits[op], self._graph, self._graph.outputs_of(op)[0]
        found = [
            reader
            for reader in graph.readers_of(k)
            if reader in splits and reads_rows(graph, self._rows, reader, k)
        ]
        goes_on = any(splits[reader].parts == split.parts for reader in found)
        return replace(split, joined=split.joined and (op in self._ends or not goes_on))

    def _candidates(
        self, cuts: Sequence[int], end: int, menu: tuple[int, ...]
    ) -> Iterator[tuple[int, int, float]]:
        """Start, parts and seconds of each last run; of one part is what stays whole."""
        ops = range(cuts[end - 1] + 1, cuts[end] + 1)
        yield end - 1, 1, float(self._op_s[ops].sum()) if (self._filled[ops] <= 1.0).all() else math.inf
        for start in range(end - 1, -1, -1):
            if self._is_late():
                return
            found = [(parts, self._latency_s(cuts[start], cuts[end], parts)) for parts in menu]
            yield from ((start, parts, run_s) for parts, run_s in found if run_s is not None)
            if all(run_s is None for _, run_s in found):
                return  # nor can a longer run be split

    def _estimated_s(self, start: int, end: int, parts: int) -> float | None:
        """Of a run, about; None where it cannot be split like that."""
        ops = [op for op in range(start + 1, end + 1) if op in self._rows]
        # Without work, a whole op such as a transposition of keys goes with the last part.
        moves = [op for op in range(start + 1, end + 1) if op not in self._rows]
        if not ops or self._graph.op_flops[moves].any() or any(self._waits[op] > start for op in ops):
            return None
        if weight_bytes_of(self._graph, self._tables, ops) > FILLED * self._sram_bytes[ops].min():
            return None
        divisions = {op: [Division(op, self._rows[op], parts, self._until[op] > end)] for op in ops}
        try:
            stops = stops_of(self._graph, divisions)
        except PlanError:  # too few rows
            return None
        shares = ((stops[of], steps_of(self._graph, of.op, of.factor)) for (of,) in divisions.values())
        largest = np.array([max(np.diff([0, *ends])) / number for ends, number in shares])
        if (largest * self._filled[ops] > 0.5).any() or (self._filled[moves] > 1.0).any():
            return math.inf
        run_s = float(largest @ (self._op_s[ops] - self._overhead_s)) + len(ops) * self._overhead_s
        # What each part of the next run needs whole passes all of them.
        joins_s = self._join_s.get(end, 0.0) / parts + self._whole_s.get(end, 0.0)
        return run_s + float(self._op_s[moves].sum()) + joins_s * (parts - 1)

    def _last_reader(self, k: int) -> int:
        """Of tensor ``k``; behind all ops where none takes rows of it."""
        graph, rows = self._graph, self._rows
        readers = graph.readers_of(k)
        takes_rows = any(reads_rows(graph, rows, op, k) for op in readers)
        return readers[-1] if takes_rows else graph.num_ops

    def _is_needed_whole(self, k: int) -> bool:
        """Whether parts of an op may need all rows of tensor ``k``, maybe moved before."""
        graph, rows = self._graph, self._rows
        return any(
            not reads_rows(graph, rows, op, k) if op in rows else graph.op_flops[op] == 0
            for op in graph.readers_of(k)
        )

    def _splits(self, start: int, end: int, parts: int) -> dict[int, Split]:
        """The ops whose outputs live on are joined."""
        ops = [op for op in range(start + 1, end + 1) if op in self._rows]
        return {
            op: split_along(self._graph, op, self._rows[op], parts, joined=self._until[op] > end)
            for op in ops
        }


def _cuts(graph: Graph, rows: Rows) -> Iterator[tuple[int, list[int]]]:
    """Ops behind which runs may end, and the tensors alive there.

    Behind an op, that is one tensor alone, which a product reads. Or the next op reads whole what a run has
    written, such as the keys of attention; or one of the two ops cannot be split.
    """
    made = np.maximum(graph.tensor_producer, 0)
    is_read = (graph.tensor_kind != WEIGHT) & (np.diff(graph.reader_ptr) > 0)
    until = np.zeros_like(made)  # readers of a tensor ascend
    until[is_read] = graph.reader_op[graph.reader_ptr[1:][is_read] - 1]
    for op in range(graph.num_ops - 1):
        is_barrier = op + 1 in rows and max(waits_for(graph, rows, op + 1), default=NO_PRODUCER) >= 0
        alive: list[int] = np.flatnonzero(is_read & (made <= op) & (until > op)).tolist()
        if len(alive) == 1:
            is_read_by_product = (graph.op_class[graph.readers_of(alive[0])] == MATRIX).any()
            is_barrier |= bool(graph.tensor_producer[alive[0]] == op and is_read_by_product)
        if is_barrier or (op in rows) != (op + 1 in rows):
            yield op, alive


def weight_bytes_of(graph: Graph, tables: CostTables, ops: Collection[int]) -> float:
    read = np.unique(graph.reader_tensor[np.isin(graph.reader_op, list(ops))])
    return float(tables.stored_bytes[read[graph.tensor_kind[read] == WEIGHT]].sum())
