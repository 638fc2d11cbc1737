"""Ways to split by rows: runs of ops whose parts follow each other on chips of their own, and plans of them.

Rows are the second-to-last dimension of what an op writes: the height of an image, tokens, or the vectors of
a batch. What is alive between runs is joined there. The runs are those with the least estimate of a sample's
latency, found by dynamic programming over the chips that they take: in a run the largest part of each op
counts, and at its end what joining sends over a link.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Final

import numpy as np

from go_opt.common.arrays import IntArray, LongArray
from go_opt.env import CostTables, Target, cost_tables
from go_opt.env.copies.divisions import Division, divisible_factors, period_in, stops_of, touched_states
from go_opt.env.copies.pieces import part_name
from go_opt.env.copies.splits import JOIN
from go_opt.env.peak_memory import op_activation_bytes, op_sram_bytes
from go_opt.errors import PlanError
from go_opt.model.graph import INPUT, MATRIX, NO_PRODUCER, WEIGHT, Graph, tensor_shapes
from go_opt.model.plan import Split
from go_opt.model.rule import Shape, places
from go_opt.model.start import OpStart, Start
from go_opt.solver.problem.replica_allocation import allocated_chips

Rows = Mapping[int, int]  # op -> the factor along its rows
LEAST_BATCH: Final = 8  # images whose batch is what rows divide, not the images


@lru_cache(maxsize=16)
def row_shapes(graph: Graph) -> Mapping[int, Shape]:
    """Shapes whose rows lie along the second-to-last axis; of a batch, the images and their elements."""
    shapes, kinds = tensor_shapes(graph), graph.tensor_kind.tolist()
    batch = batch_of([shapes.get(k, ()) for k, kind in enumerate(kinds) if kind == INPUT])
    if not batch:
        return shapes
    return MappingProxyType(  # images are apart in nearly all ops
        {
            k: (batch, math.prod(shape) // batch)
            for k, shape in shapes.items()
            if kinds[k] != WEIGHT and shape[0] == batch
        }
    )


def batch_of(inputs: Sequence[Shape]) -> int:
    """The number of images in every input of a model, if all inputs are such batches; else 0."""
    sizes = {shape[0] if len(shape) > 3 else 0 for shape in inputs}
    batch = sizes.pop() if len(sizes) == 1 else 0
    return batch if batch >= LEAST_BATCH else 0


@lru_cache(maxsize=16)
def rows_by_op(graph: Graph) -> Rows:
    """The factor along the rows of each op that can be divided by rows."""
    return {op: factor for op in range(graph.num_ops) if (factor := _row_factor(graph, op)) is not None}


def _row_factor(graph: Graph, op: int) -> int | None:
    row, outputs = graph.rule_of(op), graph.outputs_of(op)
    if op in touched_states(graph):
        return None
    shape = row_shapes(graph).get(outputs[0], ()) if len(outputs) == 1 else ()
    if row is None or len(shape) < 2:
        return None
    at = math.prod(shape[:-2]), shape[-2]
    for place in places(row.rule, row.rule.results[0]):
        factor = place.piece
        if (place.blocks, place.size) != at or factor not in divisible_factors(graph)[op]:
            continue
        assert isinstance(factor, int), "no result is read through a window."
        is_read = (graph.tensor_kind[k] != WEIGHT and period_in(graph, op, factor, k) for k in row.operands)
        return factor if any(is_read) else None
    return None


def split_along(graph: Graph, op: int, factor: int, parts: int, *, joined: bool = True) -> Split:
    """The split of an op along a factor of its rule. The host joins what it alone reads, but adds nothing."""
    along = graph.known_rule_of(op).rule.factors[factor]
    results = graph.outputs_of(op)
    is_read = any(graph.readers_of(k) or not graph.tensor_is_output[k] for k in results)
    return Split(graph.op_names[op], along.name, parts, joined and (is_read or along.kind == "reduction"))


def is_reduction(graph: Graph, op: int, factor: int) -> bool:
    """Whether parts of an op along a factor are added."""
    return graph.known_rule_of(op).rule.factors[factor].kind == "reduction"


def steps_of(graph: Graph, op: int, factor: int) -> int:
    """The size of a factor of an op."""
    return graph.known_rule_of(op).rule.factors[factor].size


def is_along(graph: Graph, split: Split, factor: int) -> bool:
    """Whether a split of an op is along this factor of its rule."""
    return graph.known_rule_of(graph.op_index[split.op]).rule.factors[factor].name == split.factor


def reads_rows(graph: Graph, rows: Rows, op: int, tensor: int) -> bool:
    """Whether parts of ``op`` read rows of ``tensor``, which are those of its producer if that has rows."""
    producer = int(graph.tensor_producer[tensor])
    period = period_in(graph, op, rows[op], tensor) if op in rows else 0
    is_alike = producer not in rows or period_in(graph, producer, rows[producer], tensor) == period
    return period > 0 and is_alike


def waits_for(graph: Graph, rows: Rows, op: int) -> list[int]:
    """The ops done before any part of ``op``: those that are whole, and those that it reads whole."""
    producers = ((int(graph.tensor_producer[k]), k) for k, _ in graph.reads_of(op))
    return [source for source, k in producers if source not in rows or not reads_rows(graph, rows, op, k)]


def rows_of_way(graph: Graph, way: tuple[Split, ...]) -> Rows:
    """The ops that a way to split divides by rows."""
    rows, found = rows_by_op(graph), ((graph.op_index[one.op], one) for one in way)
    return {op: rows[op] for op, one in found if op in rows and is_along(graph, one, rows[op])}


PARTS: Final = (2, 4, 8)
CLEARLY: Final = 0.95  # of the latency of whole ops, or the interval of stages apart, at most
FILLED: Final = 3 / 4  # of a memory, at most, with the weights of a run or stage
# Of a link, at most, for what ends a run, in times the work of a chip when all share it.
LINK_SHARES: Final = (1.25, 2.0, math.inf)
_ROUNDING: Final = 1e-6


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


def start_by_rows(
    graph: Graph,
    split: Graph,
    way: tuple[Split, ...],
    target: Target,
    *,
    replicates: bool,
    takes_early: bool = False,
) -> Start:
    """A plan with a stage for each part of a run, and stages of other ops that fit a memory.

    Args:
      replicates: whether the chips of a stage are replicas; else they share its ops.
      takes_early: whether rows are always taken before links, for the least latency.
    """
    tables = cost_tables(split, target)
    stages = _stages(graph, split, way, tables)
    _place_moves(graph, split, tables, stages, takes_early)
    placed = Start({name: OpStart(stage, rank=split.op_index[name]) for name, stage in stages.items()})
    stage, *_ = placed.on(split)
    chip, size = chips_of_stages(split, stage, target, replicates=replicates)
    rows = zip(split.op_names, chip.tolist(), size.tolist(), strict=True)
    ops = {name: OpStart(first, count, rank=rank) for rank, (name, first, count) in enumerate(rows)}
    return Start(ops, method="parts by rows")


def chips_of_stages(
    split: Graph, stages: IntArray, target: Target, *, replicates: bool
) -> tuple[LongArray, LongArray]:
    """The first chip and the number of chips of each op's stage: as many as the stages [N] have work for."""
    _, stage = np.unique(stages, return_inverse=True)
    op_s = cost_tables(split, target).kernel_floor_s().min(axis=0)
    stage = joined_stages(np.bincount(stage, weights=op_s).tolist(), target.num_chips)[stage]
    sizes = allocated_chips(np.bincount(stage, weights=op_s).astype(np.float64), target.num_chips)
    size, chip = sizes[stage], (np.cumsum(sizes) - sizes)[stage]
    if not replicates:
        for here in (stage == number for number in range(len(sizes))):
            share = np.cumsum(op_s[here]) - op_s[here]
            chip[here] += (share / op_s[here].sum() * size[here]).astype(np.int64)
        size = np.ones_like(size)
    return chip, size


def joined_stages(work_s: Sequence[float], num_chips: int) -> LongArray:
    """The stage [S] of each of ``S`` stages once small ones that follow each other share a chip.

    They are joined where there are too few chips, or where the chips that this leaves for others make the
    interval clearly shorter.
    """
    few, many = sum(work_s) / num_chips, sum(work_s)  # chips for `many` seconds each do, for `few` hardly
    while many > few * (1.0 + _ROUNDING):
        interval_s = (few + many) / 2
        _, chips = _joined(work_s, interval_s)
        few, many = (few, interval_s) if chips <= num_chips else (interval_s, many)
    apart_s = math.inf
    if len(work_s) <= num_chips:
        work = np.array(work_s)
        apart_s = float((work / allocated_chips(work, num_chips)).max())
    joined, _ = _joined(work_s, many)
    return joined if many < CLEARLY * apart_s else np.arange(len(work_s))


def _joined(work_s: Sequence[float], interval_s: float) -> tuple[LongArray, int]:
    """Stages joined as long as one chip does their work in ``interval_s``, and the chips that all take."""
    joined: list[float] = []
    stage = np.zeros(len(work_s), np.int64)
    for number, seconds in enumerate(work_s):
        if joined and joined[-1] + seconds <= interval_s:
            joined[-1] += seconds
        else:
            joined.append(seconds)
        stage[number] = len(joined) - 1
    return stage, sum(math.ceil(seconds / interval_s) for seconds in joined)


def _stages(graph: Graph, split: Graph, way: tuple[Split, ...], tables: CostTables) -> dict[str, int]:
    """Of the ops that are whole or parts."""
    stages: dict[str, int] = {}
    filled_bytes = FILLED * op_sram_bytes(tables)  # [N] of ops of `split`
    stage, held_bytes = 0, 0.0
    parts = 1  # of the current run
    run: set[int] = set()
    ended: set[int] = set()  # its ops that are joined at its end
    splits, rows = {one.op: one for one in way}, rows_of_way(graph, way)
    before_pointers, before = graph.predecessors
    for op, name in enumerate(graph.op_names):
        one = splits.get(name)
        if parts > 1 and op not in rows and graph.op_flops[op] == 0:
            run.add(op)  # it follows the last part
            continue
        number = one.parts if one is not None and op in rows else 1
        waits = not ended.isdisjoint(before[before_pointers[op] : before_pointers[op + 1]].tolist())
        waits |= op in rows and not run.isdisjoint(waits_for(graph, rows, op))
        if stages and (number != parts or waits):
            # Whole ops stay with the last part.
            stage, held_bytes, run, ended = stage + parts - (number == 1 < parts), 0.0, set(), set()
        parts = number
        names = [name] if one is None else [part_name(name, part, one.parts) for part in range(one.parts)]
        for part, each in enumerate(names):
            if op not in rows:
                index = split.op_index[each]
                weight_bytes = weight_bytes_of(split, tables, [index])
                if held_bytes + weight_bytes > filled_bytes[index]:
                    stage, held_bytes = stage + 1, 0.0
                held_bytes += weight_bytes
            stages[each] = stage + part * (op in rows)
        if one is not None and op in rows:
            run.add(op)
            ended |= {op} if one.joined else set()
    return stages


def _place_moves(
    graph: Graph, split: Graph, tables: CostTables, stages: dict[str, int], takes_early: bool
) -> None:
    """Add what takes or joins rows: on the chip of its readers, or of its source where that sends less.

    What several readers take of a tensor may have rows in common; the tensor itself crosses a link once. An
    input of the model goes to each stage that takes rows of it, unless the host's link limited the interval.
    """
    out_pointers, readers = split.successors
    moves = [
        op for op, name in enumerate(split.op_names) if name not in graph.op_index and name not in stages
    ]
    for op in reversed(moves):  # the rows that a part takes may be joined before
        takers = readers[out_pointers[op] : out_pointers[op + 1]]
        stages[split.op_names[op]] = min(stages[split.op_names[taker]] for taker in takers)
    before_pointers, before = split.predecessors
    home = np.zeros(split.num_ops, np.int64)  # what joins parts of an op follows them
    for op, name in enumerate(split.op_names):
        sources = before[before_pointers[op] : before_pointers[op + 1]]
        home[op] = stages.get(name, int(home[sources].max(initial=0)))
    slices = {op: split.reads_of(op)[0] for op in moves if split.op_types[op] != JOIN}
    sent = np.zeros(split.num_tensors, np.int64)  # elements of the slices that others take of a tensor
    inputs: dict[int, set[int]] = {}  # of the model -> stages that take rows of it
    for op, (k, touched) in slices.items():
        producer = int(split.tensor_producer[k])
        if producer == NO_PRODUCER:
            inputs.setdefault(k, set()).add(int(home[op]))
        elif home[op] != home[producer]:
            sent[k] += touched
    host_s = (
        sum(float(tables.tensor_bytes[k]) * len(at) for k, at in inputs.items()) * tables.host_in_s_per_byte
    )
    shared_s = float(tables.kernel_floor_s().min(axis=0).sum()) / tables.num_chips
    is_close = takes_early or host_s > LINK_SHARES[0] * shared_s
    for op, (k, _) in slices.items():
        producer = int(split.tensor_producer[k])
        if producer == NO_PRODUCER:
            stages[split.op_names[op]] *= not is_close
        elif takes_early or sent[k] < split.tensor_elements[k]:
            stages[split.op_names[op]] = int(home[producer])
