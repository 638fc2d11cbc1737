"""Which ops may be split, and the ways to do so that are searched."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import Final

import numpy as np

from go_opt.common.arrays import BoolArray
from go_opt.env import Target, cost_tables
from go_opt.env.copies.columns import Columns, columns_of, stays_in_parts
from go_opt.env.copies.rows import Rows, rows_of
from go_opt.env.copies.splits import split_graph
from go_opt.env.op_memory import op_activation_bytes, op_sram_bytes
from go_opt.errors import PlanError
from go_opt.model.graph import Graph
from go_opt.model.kernel_patterns import pattern_kernels
from go_opt.model.plan import Split
from go_opt.result import Request
from go_opt.search.methods.events import has_static_constraints, may_replicate
from go_opt.search.splits.batch_ways import has_batch
from go_opt.search.splits.inner_ways import Block, blocks_of, inner_ways
from go_opt.search.splits.row_ways import row_ways

HEAVY: Final = 1 / 4  # of a chip's memory: the weight of an op that may be split
SHARES: Final = (1 / 2, 1 / 4, 1 / 8)  # of a chip's memory: the weight of a part, one way to split for each
JOINED_OUTPUT: Final = 2.5  # times its bytes, at least, that a chip holds which joins an output of the model


def divisible_ops(graph: Graph, target: Target, request: Request) -> BoolArray:
    """[N] the ops that may be split in answers to ``request``."""
    found = np.zeros(graph.num_ops, dtype=np.bool_)
    found[[*_heavy_ops(graph, target, request), *row_divisible(graph, target, request)]] = True
    found[list(chain.from_iterable(open_blocks(graph, target, request)))] = True
    found[[graph.op_index[split.op] for split in _given_splits(graph, target, request)]] = True
    return found


def _heavy_ops(graph: Graph, target: Target, request: Request) -> dict[int, Columns]:
    """The ops that may be split by columns: those with heavy weights.

    Where an output of the model must be joined, a chip holds it in two buffers and all parts but one.
    """
    return _divided_columns(graph, target, request.output_parts) if _splits_are_open(request) else {}


@lru_cache(maxsize=16)
def _divided_columns(graph: Graph, target: Target, output_parts: bool) -> dict[int, Columns]:
    found: dict[int, Columns] = {}
    tables = cost_tables(graph, target)
    sram_bytes = op_sram_bytes(tables)
    is_heavy = tables.stored_bytes[graph.reader_tensor] > HEAVY * sram_bytes[graph.reader_op]
    for op in np.unique(graph.reader_op[is_heavy]).tolist():
        columns = columns_of(graph, op)
        if columns is None or tables.stored_bytes[list(columns.weights)].max() <= HEAVY * sram_bytes[op]:
            continue
        stays = output_parts and stays_in_parts(graph, columns)
        is_output = bool(tables.tensor_is_output[columns.output])
        joined_bytes = JOINED_OUTPUT * float(tables.tensor_bytes[columns.output])
        if stays or not is_output or joined_bytes <= sram_bytes[op]:
            found[op] = columns
    return found


def _splits_are_open(request: Request) -> bool:
    return request.splits and request.decide == "all" and not request.constraints


def row_divisible(graph: Graph, target: Target, request: Request) -> dict[int, Rows]:
    """The ops that may be split by rows, where that may gain; for the makespan by the rows of a batch."""
    if not graph.op_rules:
        return {}
    if request.objective == "latency":
        may_gain = target.num_chips > 1 and not has_static_constraints(target) and has_batch(graph)
        is_open = may_gain and _splits_are_open(request)
    else:
        is_open = _parts_may_gain(graph, target, request)
    return _rows_by_op(graph, target) if is_open else {}


@lru_cache(maxsize=16)
def _rows_by_op(graph: Graph, target: Target) -> dict[int, Rows]:
    whole = _in_patterns(graph, target)
    ops = (op for op in range(graph.num_ops) if op not in whole)
    return {op: rows for op in ops if (rows := rows_of(graph, op)) is not None}


def open_blocks(graph: Graph, target: Target, request: Request) -> list[Block]:
    """The blocks that may be split by columns and the inner dimension, where that may gain."""
    return _whole_blocks(graph, target) if _parts_may_gain(graph, target, request) else []


@lru_cache(maxsize=16)
def _whole_blocks(graph: Graph, target: Target) -> list[Block]:
    whole = _in_patterns(graph, target)
    return [block for block in blocks_of(graph) if whole.isdisjoint(block)]


def _parts_may_gain(graph: Graph, target: Target, request: Request) -> bool:
    """Whether the latency of a sample is limited, stages are not replicated, or an op fits no chip."""
    if not (_splits_are_open(request) and target.goes_forward and request.objective == "throughput"):
        return False
    fits_none = op_activation_bytes(graph, target) > op_sram_bytes(cost_tables(graph, target))
    needs_replicas = request.max_latency_s is None and may_replicate(target, request)
    return not needs_replicas or bool(fits_none.any())


def _in_patterns(graph: Graph, target: Target) -> set[int]:
    """The ops of patterns; parts of them would be ordinary ops, for which the bound does not hold."""
    return set(chain.from_iterable(pattern_kernels(graph, target.kernel_patterns)))


def ways_to_split(graph: Graph, target: Target, request: Request) -> list[tuple[Split, ...]]:
    """For each of some shares of a memory, the fewest parts of each op whose weights take no more of it.

    Parts are a power of two, and no more than there are chips.
    """
    tables = cost_tables(graph, target)
    sram_bytes = op_sram_bytes(tables)
    columns_by_op = _heavy_ops(graph, target, request)
    ways = []
    for share in SHARES:
        way = []
        number_of: dict[int, int] = {}  # weight -> columns: slices serve all ops that divide it alike
        for op, columns in columns_by_op.items():
            weight_bytes = float(tables.stored_bytes[list(columns.weights)].max())
            doublings = max(0, math.ceil(math.log2(weight_bytes / max(share * sram_bytes[op], 1.0))))
            parts = min(2**doublings, target.num_chips, columns.number)
            is_alike = all(number_of.setdefault(k, columns.number) == columns.number for k in columns.weights)
            if parts > 1 and is_alike:
                joined = not (request.output_parts and stays_in_parts(graph, columns))
                way.append(Split(graph.op_names[op], "columns", parts, joined))
        ways.append(tuple(way))
    return [way for way in dict.fromkeys(ways) if way]


def ways_in_parts(
    graph: Graph,
    target: Target,
    rows: Mapping[int, Rows],
    blocks: list[Block],
    under_rows: tuple[Split, ...],
    under_blocks: tuple[Split, ...],
    is_late: Callable[[], bool],
) -> list[tuple[Split, ...]]:
    """Ways by rows on top of ``under_rows``, which keep their ops, and ways of blocks, which take theirs.

    Once ``is_late``, only those found so far.
    """
    names = {one.op for one in under_rows}
    left = {op: one for op, one in rows.items() if graph.op_names[op] not in names}
    ways = [(*way, *under_rows) for way in (row_ways(graph, target, left, is_late) if left else [])]
    for way in inner_ways(graph, target, blocks, is_late):
        names = {one.op for one in way}
        ways.append((*way, *(one for one in under_blocks if one.op not in names)))
    return ways


def outputs_in_parts(graph: Graph, target: Target, request: Request) -> list[str]:
    """Names of the ops that are searched with their outputs left in parts where ``request`` allows it."""
    requested = replace(request, output_parts=True)
    ways = ways_to_split(graph, target, requested)
    return list(dict.fromkeys(split.op for way in ways for split in way if not split.joined))


def given_way(graph: Graph, request: Request, divisible: BoolArray) -> tuple[Split, ...]:
    """Of the plan to begin with, where it is one of the same ops."""
    plan = None if request.start is None else request.start.plan
    splits = () if plan is None else plan.splits
    is_open = all(split.op in graph.op_index and divisible[graph.op_index[split.op]] for split in splits)
    return splits if is_open else ()


def _given_splits(graph: Graph, target: Target, request: Request) -> tuple[Split, ...]:
    """The splits of the plan to begin with; () if one of them is of another graph, or not asked for."""
    plan = None if request.start is None else request.start.plan
    if plan is None or not plan.splits or not _splits_are_open(request):
        return ()
    try:
        split_graph(graph, plan.splits)
    except PlanError:  # of another version of the model
        return ()
    whole = _in_patterns(graph, target)
    for split in plan.splits:
        op = graph.op_index[split.op]
        leaves_parts = not split.joined and any(graph.tensor_is_output[k] for k in graph.outputs_of(op))
        if op in whole or (leaves_parts and not request.output_parts):
            return ()
    return plan.splits
