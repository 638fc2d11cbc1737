"""Ways to split blocks along what a product sums over: parts on chips of their own, or in turn on one.

A block ends with a product whose sums are divided. Before it are the ops that make the terms of these sums,
divided along the same elements, back to products that are divided by their columns, such as the first product
of a feed-forward layer, or those of queries, keys and values. Parts share the weights and the work, and are
joined once, when their results are added.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from go_opt.common.arrays import IntArray
from go_opt.env import CostTables, Target, cost_tables
from go_opt.env.copies.divisions import (
    Division,
    divisible_factors,
    period_in,
    state_period,
    stops_of,
    sum_factor,
    touched_states,
)
from go_opt.env.copies.pieces import part_name, sum_name
from go_opt.env.copies.splits import split_graph_and_parts
from go_opt.env.peak_memory import op_activation_bytes, op_sram_bytes
from go_opt.errors import PlanError
from go_opt.model.graph import ACTIVATION, MATRIX, NO_PRODUCER, WEIGHT, Graph, State, with_sequences
from go_opt.model.plan import Split
from go_opt.model.start import OpStart, Start
from go_opt.search.splits.rows import chips_of_stages, is_along, is_reduction, split_along

# Around a state: from the ops that touch it, such as the heads of a cache, a block goes on to readers of its
# parts, up to products that are divided along their sums, and to the ops before, back to products that are
# divided by their columns. What is divided in no such way is joined, or taken from the whole.


Block = tuple[tuple[int, int], ...]  # ops in order, each with the factor along which it is divided


@lru_cache(maxsize=16)
def state_blocks(graph: Graph) -> tuple[Block, ...]:
    """Blocks that divide states, at most one for each state; no op is in two of them.

    Of the cuts of a state, one that divides weights comes first, then one that divides fewer ops.
    """
    found: dict[int, Block] = {}
    for state in graph.states:
        ops = graph.readers_of(state.read)
        if not ops or not found.keys().isdisjoint(ops):
            continue
        periods = {state_period(graph, ops[0], factor, state) for factor in divisible_factors(graph)[ops[0]]}
        blocks = [block for period in periods if (block := _block_around(graph, state, period))]
        blocks = [block for block in blocks if found.keys().isdisjoint(op for op, _ in block)]
        best = min(blocks, key=lambda block: (not _divides_weights(graph, block), len(block)), default=())
        found |= dict.fromkeys((op for op, _ in best), best)
    return tuple(dict.fromkeys(found.values()))


def _block_around(graph: Graph, state: State, period: int) -> Block:
    """The block of a state that is cut with a period; () if an op would be divided in two ways."""
    found: dict[int, int] = {}
    waiting = list(_touching(graph, state, period))
    while waiting:
        op, factor = waiting.pop()
        if op in found:
            if found[op] != factor:
                return ()
            continue
        found[op] = factor
        for one in touched_states(graph).get(op, ()):
            waiting += _touching(graph, one, state_period(graph, op, factor, one))
        waiting += [one for one in _divided_alike(graph, op, factor) if one[0] not in found]
    return tuple(sorted(found.items()))


def _touching(graph: Graph, state: State, period: int) -> Iterator[tuple[int, int]]:
    for op in graph.readers_of(state.read):
        open_factors = divisible_factors(graph)[op]
        yield op, next(i for i in open_factors if state_period(graph, op, i, state) == period)


def _divided_alike(graph: Graph, op: int, factor: int) -> Iterator[tuple[int, int]]:
    """Readers and producers of the parts of an op that can go on with them."""
    for k, _ in graph.reads_of(op):
        source, period = int(graph.tensor_producer[k]), period_in(graph, op, factor, k)
        if period and source != NO_PRODUCER and graph.tensor_kind[k] == ACTIVATION:
            along = _factor_with(graph, source, k, period, ("parallel",))
            if along is not None:
                yield source, along
    for k in graph.outputs_of(op):
        period = period_in(graph, op, factor, k)
        for reader in graph.readers_of(k) if period else ():
            along = _factor_with(graph, reader, k, period, ("parallel", "reduction"))
            if along is not None:
                yield reader, along


def _factor_with(graph: Graph, op: int, tensor: int, period: int, kinds: Collection[str]) -> int | None:
    """The factor of an op with this period in a tensor; of a product, one that divides its weight."""
    factors = graph.known_rule_of(op).rule.factors if divisible_factors(graph)[op] else ()
    divided = [tensor, *(_large_weights(graph, op) if graph.op_class[op] == MATRIX else ())]
    found = (
        i
        for i in divisible_factors(graph)[op]
        if factors[i].kind in kinds
        and period_in(graph, op, i, tensor) == period
        and all(period_in(graph, op, i, k) for k in divided)
    )
    return next(found, None)


def _large_weights(graph: Graph, op: int) -> list[int]:
    """The largest weight of an op, if it has any."""
    weights = [k for k, _ in graph.reads_of(op) if graph.tensor_kind[k] == WEIGHT]
    return sorted(weights, key=lambda k: int(graph.tensor_elements[k]))[-1:]


def _divides_weights(graph: Graph, block: Block) -> bool:
    return any(graph.op_class[op] == MATRIX and _large_weights(graph, op) for op, _ in block)


PARTS: Final = (2, 3, 4)
TILES: Final = (2, 4)
TILED: Final = 1 / 4  # of a memory, at least: the activations of an op of a block that is worked off in parts
FINE: Final = (1 / 5, 1 / 4, 1 / 6)  # of an equal share of the work, at most: the ops of divided blocks
FILLED: Final = 3 / 4  # of a memory, at most, with the weights of a stage


def blocks_of(graph: Graph) -> tuple[Block, ...]:
    """The blocks of ``graph`` that can be divided in some number of ``PARTS``; no op is in two of them."""
    return _blocks_of(with_sequences(graph, 1))


@lru_cache(maxsize=16)
def _blocks_of(graph: Graph) -> tuple[Block, ...]:
    found = {op: block for block in state_blocks(graph) for op, _ in block if is_divisible(graph, block)}
    for op in range(graph.num_ops):
        block = _block_before(graph, op)
        ops = [one for one, _ in block]
        if len(block) > 1 and found.keys().isdisjoint(ops) and is_divisible(graph, block):
            found |= dict.fromkeys(ops, block)
    return tuple(dict.fromkeys(found.values()))


def blocks_of_way(graph: Graph, way: tuple[Split, ...]) -> list[tuple[Block, int]]:
    """The blocks that a way to split divides, each with the number of parts."""
    parts_of = {graph.op_index[one.op]: one for one in way}
    return [
        (block, parts_of[block[0][0]].parts)
        for block in blocks_of(graph)
        if all(op in parts_of and is_along(graph, parts_of[op], factor) for op, factor in block)
    ]


def block_ways(
    graph: Graph, target: Target, blocks: Sequence[Block], is_late: Callable[[], bool] = lambda: False
) -> list[tuple[Split, ...]]:
    """For 2, 3 and 4 parts the blocks that save most of a sample's latency, as far as there are chips.

    Then half as many, which leave more chips to others. Blocks not looked at before ``is_late`` are left out.
    """
    tables = cost_tables(graph, target)
    overhead_s = float(tables.kernel_overhead_s.min())
    work_s = tables.kernel_floor_s().min(axis=0) - overhead_s
    setup_s = float(tables.dma_setup_s.max() + tables.link_latency_s.max(initial=0.0))
    sent_s = tables.tensor_bytes * float(tables.link_s_per_byte.max(initial=0.0)) + setup_s
    weight_bytes = float(tables.stored_bytes[graph.tensor_kind == WEIGHT].sum())
    chips = target.num_chips - math.ceil(weight_bytes / (FILLED * float(tables.sram_bytes.max())))
    ways = []
    for parts in PARTS:
        saved_s = {}
        for block in (block for block in blocks if not is_late() and is_open(graph, block, parts)):
            # What the block reads and a partial result cross a link one after the other.
            ops = [op for op, _ in block]
            between = [*_reads_before(graph, ops), *graph.outputs_of(ops[-1])]
            between_s = float(sent_s[between].sum())
            saved_s[block] = float(work_s[ops].sum()) * (1 - 1 / parts) - between_s - overhead_s
        best = sorted((block for block in saved_s if saved_s[block] > 0), key=lambda block: -saved_s[block])
        fitting = best[: max(0, chips) // (parts - 1)]
        for some in (fitting, fitting[: len(fitting) // 2]):
            ways.append(tuple(splits_of_blocks(graph, sorted(some), parts)))
    return [way for way in dict.fromkeys(ways) if way]


def fine_ways(graph: Graph, target: Target, blocks: Sequence[Block]) -> list[tuple[Split, ...]]:
    """For some shares of a chip's equal part of the work, the blocks with an op that takes longer, in parts.

    Sequences in flight keep all chips busy, so that only loads count, which smaller ops make equal. Parts are
    worked off in turn; there are as few as make the longest op short enough.
    """
    op_s = cost_tables(graph, target).kernel_floor_s().min(axis=0)
    longest_s = {block: float(op_s[[op for op, _ in block]].max()) for block in blocks}
    ways = []
    for share in FINE:
        way: list[Split] = []
        for block, seconds in longest_s.items():
            parts = min(math.ceil(seconds / (share * float(op_s.sum()) / target.num_chips)), PARTS[-1])
            if parts > 1 and is_open(graph, block, parts):
                way += splits_of_blocks(graph, [block], parts)
        ways.append(tuple(way))
    return [way for way in dict.fromkeys(ways) if way]


def tiled_ways(graph: Graph, target: Target, blocks: Sequence[Block]) -> list[tuple[Split, ...]]:
    """The blocks with an op that fills much of a memory, in parts that one chip works off in turn.

    A chip then holds the activations of one part at a time, and more weights beside them.
    """
    filled = op_activation_bytes(graph, target) / np.maximum(op_sram_bytes(cost_tables(graph, target)), 1)
    large = [block for block in blocks if filled[[op for op, _ in block]].max() > TILED]
    ways = (
        tuple(splits_of_blocks(graph, [block for block in large if is_open(graph, block, parts)], parts))
        for parts in TILES
    )
    return [way for way in dict.fromkeys(ways) if way]


def splits_of_blocks(graph: Graph, blocks: Sequence[Block], parts: int) -> Iterator[Split]:
    """The splits of some blocks."""
    for block in blocks:
        for op, factor in block:
            yield split_along(graph, op, factor, parts, joined=is_reduction(graph, op, factor))


def _block_before(graph: Graph, op: int) -> Block:
    """``op`` and the ops that make the terms of its sums, divided alike; () if there are none."""
    factor = sum_factor(graph, op)
    if factor is None:
        return ()
    found = {op: factor}
    waiting = _divided_reads(graph, op, factor)
    while waiting:
        k, period = waiting.pop()
        source = int(graph.tensor_producer[k])
        along = None if source == NO_PRODUCER else _factor_at(graph, source, k, period)
        if along is None or found.get(source, along) != along:
            return ()
        if source not in found:
            found[source] = along
            waiting += _divided_reads(graph, source, along)
    return tuple(sorted(found.items()))


def _divided_reads(graph: Graph, op: int, factor: int) -> list[tuple[int, int]]:
    """The activations that parts of an op read in parts, with the periods of these."""
    read = {k: period_in(graph, op, factor, k) for k in _activations(graph, op)}
    return [(k, period) for k, period in read.items() if period]


def _factor_at(graph: Graph, op: int, tensor: int, period: int) -> int | None:
    """The factor along which parts of an op write pieces with this period, and nothing but pieces."""
    found = (
        factor
        for factor in divisible_factors(graph)[op]
        if graph.known_rule_of(op).rule.factors[factor].kind == "parallel"
        and period_in(graph, op, factor, tensor) == period
    )
    return next(found, None)


def is_divisible(graph: Graph, block: Block) -> bool:
    """Whether a block can be divided in some number of ``PARTS``."""
    return any(is_open(graph, block, parts) for parts in PARTS)


def is_open(graph: Graph, block: Block, parts: int) -> bool:
    """Whether a block can be divided like that; without a state, nothing else may need what it joins."""
    graph = with_sequences(graph, 1)
    ops = {op for op, _ in block}
    made = [k for op, factor in block if not is_reduction(graph, op, factor) for k in graph.outputs_of(op)]
    is_closed = all(ops.issuperset(graph.readers_of(k)) for k in made)
    if not is_closed and ops.isdisjoint(touched_states(graph)):
        return False
    try:
        stops_of(
            graph,
            {op: [Division(op, factor, parts, is_reduction(graph, op, factor))] for op, factor in block},
        )
    except PlanError:  # too few columns or heads
        return False
    return True


def _reads_before(graph: Graph, block: Sequence[int]) -> list[int]:
    """Activations that a block reads and does not write."""
    read = {k for op in block for k in _activations(graph, op)}
    return [k for k in read if graph.tensor_producer[k] not in block]


def _activations(graph: Graph, op: int) -> list[int]:
    return [k for k, _ in graph.reads_of(op) if graph.tensor_kind[k] == ACTIVATION]


def start_by_blocks(
    graph: Graph, split: Graph, way: tuple[Split, ...], target: Target, *, replicates: bool
) -> Start:
    """A plan in which each part of a block is a stage, the first one with what is before the block.

    A kernel ends where it sends something, and another begins where it waits, so that other stages wait no
    longer. Of parts that are joined the last ones come first, as chips pass others on when theirs are done.
    """
    stages = _stages(graph, split, way, cost_tables(split, target))
    chip, size = chips_of_stages(split, stages, target, replicates=replicates)
    crosses = chip[split.edge_src] != chip[split.edge_dst]
    sends, waits = np.zeros((2, split.num_ops), np.bool_)
    sends[split.edge_src[crosses]] = waits[split.edge_dst[crosses]] = True
    place, at = np.arange(split.num_ops), chip.astype(np.float64)
    in_blocks = {graph.op_names[op] for block, _ in blocks_of_way(graph, way) for op, _ in block}
    for one in (one for one in way if one.op not in in_blocks and one.op in split.op_index):
        parts = [split.op_index[part_name(one.op, part, one.parts)] for part in range(one.parts)]
        place[parts], at[parts] = parts[::-1], at[split.op_index[one.op]] - 0.5
    ops: dict[str, OpStart] = {}
    kernel = 0
    for rank, op in enumerate(np.lexsort((place, at)).tolist()):
        kernel += bool(waits[op])
        ops[split.op_names[op]] = OpStart(int(chip[op]), int(size[op]), kernel, rank)
        kernel += bool(sends[op])
    return Start(ops, method="parts of blocks")


def _stages(graph: Graph, split: Graph, way: tuple[Split, ...], tables: CostTables) -> IntArray:
    """[N] stages. Other ops follow each other as far as a memory holds their weights."""
    part_of: dict[str, tuple[int, int]] = {}  # op of a block -> number of the block, part
    ends: set[str] = set()  # the ops that add the last results
    for number, (block, parts) in enumerate(blocks_of_way(graph, way)):
        for op, part in itertools.product([op for op, _ in block], range(parts)):
            name = graph.op_names[op]
            part_of |= dict.fromkeys(
                (part_name(name, part, parts), sum_name(name, part, parts)), (number, part)
            )
            part_of[name] = number, parts - 1  # what adds or joins the parts
        last = graph.op_names[block[-1][0]]
        ends |= {last, part_name(last, parts - 1, parts)}
    filled_bytes = FILLED * op_sram_bytes(tables)
    weights = split.tensor_kind[split.reader_tensor] == WEIGHT
    bytes_of = np.bincount(
        split.reader_op[weights],
        weights=tables.stored_bytes[split.reader_tensor[weights]],
        minlength=split.num_ops,
    )
    held_bytes = np.zeros(2 * split.num_ops)
    stages = np.zeros(split.num_ops, np.int32)
    last_stage, first = 0, dict[int, int]()  # stage of what is whole; of the first part of each block
    for op, name in enumerate(split.op_names):
        if held_bytes[last_stage] + bytes_of[op] > filled_bytes[op] and (
            name not in part_of or part_of[name][0] not in first
        ):
            last_stage += 1
        stage = last_stage
        if name in part_of:
            number, part = part_of[name]
            stage = first.setdefault(number, last_stage) + part
            last_stage = stage if name in ends else last_stage
        stages[op] = stage
        held_bytes[stage] += bytes_of[op]
    return stages


def start_in_turn(graph: Graph, way: tuple[Split, ...]) -> Start:
    """An order in which each block works off its first parts, then its second ones, to be cut."""
    split, parts, _ = split_graph_and_parts(graph, way)
    first_of = {op: block[0][0] for block, _ in blocks_of_way(graph, way) for op, _ in block}
    number: Counter[int] = Counter()
    turns: list[tuple[int, int, int]] = []
    for name in split.op_names:
        op = parts[name].op if name in parts else graph.op_index.get(name, graph.num_ops)
        turns.append((first_of.get(op, op) if name in parts else op, number[op], op))
        number[op] += name in parts
    out_pointers, readers = split.successors
    for op in range(split.num_ops)[::-1]:  # what takes or adds pieces goes with its first reader
        if turns[op][2] == graph.num_ops:
            turns[op] = min(turns[reader] for reader in readers[out_pointers[op] : out_pointers[op + 1]])
    order = sorted(range(split.num_ops), key=lambda op: (turns[op], op))
    ops = {split.op_names[op]: OpStart(0, rank=rank) for rank, op in enumerate(order)}
    return Start(ops, method="parts in turn")
