"""Ways to split blocks by columns and then by the inner dimension, each part of a block on chips of its own.

A block ends with a product that is divided along its inner dimension. Before it are the ops whose columns or
heads are the terms of its sums, back to products that are divided by columns, such as the first product of a
feed-forward layer, or those of queries, keys and values. Parts share the weights and the work, and are joined
once, when their results are added.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from go_opt.common.arrays import IntArray
from go_opt.env import CostTables, Target, cost_tables
from go_opt.env.copies.columns import columns_of, held_columns, inner_of
from go_opt.env.copies.part_names import part_name, sum_name
from go_opt.env.op_memory import op_sram_bytes
from go_opt.errors import PlanError
from go_opt.model.axes import kept_heads
from go_opt.model.graph import ACTIVATION, NO_PRODUCER, WEIGHT, Graph
from go_opt.model.plan import Split
from go_opt.model.start import OpStart, Start
from go_opt.search.splits.row_starts import chips_of_stages

PARTS: Final = (2, 3, 4)
FILLED: Final = 3 / 4  # of a memory, at most, with the weights of a stage

Block = tuple[int, ...]  # ops in order; the last one is divided along its inner dimension


def blocks_of(graph: Graph) -> list[Block]:
    """The blocks of ``graph`` that can be divided in some number of ``PARTS``; no op is in two of them."""
    found: dict[int, Block] = {}
    for op in range(graph.num_ops):
        block = _block_before(graph, op)
        if len(block) > 1 and found.keys().isdisjoint(block) and any(is_open(graph, block, n) for n in PARTS):
            found |= dict.fromkeys(block, block)
    return list(dict.fromkeys(found.values()))


def inner_ways(
    graph: Graph, target: Target, blocks: list[Block], is_late: Callable[[], bool] = lambda: False
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
            between = [*_reads_before(graph, block), *graph.outputs_of(block[-1])]
            between_s = float(sent_s[between].sum())
            saved_s[block] = float(work_s[list(block)].sum()) * (1 - 1 / parts) - between_s - overhead_s
        best = sorted((block for block in saved_s if saved_s[block] > 0), key=lambda block: -saved_s[block])
        fitting = best[: max(0, chips) // (parts - 1)]
        for some in (fitting, fitting[: len(fitting) // 2]):
            ways.append(tuple(splits_of_blocks(graph, sorted(some), parts)))
    return [way for way in dict.fromkeys(ways) if way]


def splits_of_blocks(graph: Graph, blocks: list[Block], parts: int) -> Iterator[Split]:
    """The splits of some blocks."""
    for block in blocks:
        for op in block[:-1]:
            kind = "heads" if op in kept_heads(graph) else "columns"
            yield Split(graph.op_names[op], kind, parts, joined=False)
        yield Split(graph.op_names[block[-1]], "inner", parts)


def _block_before(graph: Graph, op: int) -> Block:
    """``op`` and the ops whose columns may be the terms of its sums; () if there are none."""
    inner = inner_of(graph, op)
    if inner is None:
        return ()
    found, waiting = {op}, [inner.activation]
    while waiting:
        source = int(graph.tensor_producer[waiting.pop()])
        if source == NO_PRODUCER:
            return ()
        if source not in found:
            found.add(source)
            heads = kept_heads(graph).get(source)
            elements = graph.tensor_elements[graph.outputs_of(source)[0]]
            waiting += [
                k
                for k in _activations(graph, source)
                if (k in heads.behind if heads else graph.tensor_elements[k] == elements)
                and columns_of(graph, source) is None
            ]
    return tuple(sorted(found))


def is_open(graph: Graph, block: Block, parts: int) -> bool:
    """Whether a block can be divided like that."""
    splits = {graph.op_index[one.op]: one for one in splits_of_blocks(graph, [block], parts)}
    try:
        return bool(held_columns(graph, splits))
    except PlanError:
        return False


def _reads_before(graph: Graph, block: Block) -> list[int]:
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

    Args:
      graph: of whole ops; ``split`` is that with the parts of ``way``.
      replicates: whether the chips of a stage are replicas; else they share its ops.
    """
    stages = _stages(graph, split, way, cost_tables(split, target))
    chip, size = chips_of_stages(split, stages, target, replicates=replicates)
    crosses = chip[split.edge_src] != chip[split.edge_dst]
    sends, waits = np.zeros((2, split.num_ops), np.bool_)
    sends[split.edge_src[crosses]] = waits[split.edge_dst[crosses]] = True
    place, at = np.arange(split.num_ops), chip.astype(np.float64)
    for one in (one for one in way if one.kind == "columns" and one.joined):
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
    ends: dict[str, int] = {}  # op that adds the last result -> parts of the block
    block = 0
    for one in sorted(way, key=lambda one: graph.op_index[one.op]):
        if one.joined and one.kind != "inner":
            continue
        for part in range(one.parts):
            names = part_name(one.op, part, one.parts), sum_name(one.op, part, one.parts)
            part_of |= dict.fromkeys(names, (block, part))
        if one.kind == "inner":
            part_of[one.op] = block, one.parts - 1
            ends[one.op] = one.parts
            block += 1
    filled_bytes = FILLED * op_sram_bytes(tables)
    weights = split.tensor_kind[split.reader_tensor] == WEIGHT
    bytes_of = np.bincount(
        split.reader_op[weights],
        weights=tables.stored_bytes[split.reader_tensor[weights]],
        minlength=split.num_ops,
    )
    held_bytes = np.zeros(2 * split.num_ops)
    stages = np.zeros(split.num_ops, np.int32)
    last, first = 0, dict[int, int]()  # stage of what is whole; of the first part of each block
    for op, name in enumerate(split.op_names):
        if held_bytes[last] + bytes_of[op] > filled_bytes[op] and (
            name not in part_of or part_of[name][0] not in first
        ):
            last += 1
        stage = last
        if name in part_of:
            number, part = part_of[name]
            stage = first.setdefault(number, last) + part
            last = stage if name in ends else last
        stages[op] = stage
        held_bytes[stage] += bytes_of[op]
    return stages
