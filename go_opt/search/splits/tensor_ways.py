"""Ways to share all layers among chips that exchange results in collectives, such as GPUs.

Blocks are divided by their columns and sums, or by heads (tensor parallelism; Shoeybi et al., 2019), and what
is between them by rows (sequence parallelism; Korthikanti et al., 2022). Or all ops are divided by rows, and
keys and values are gathered. The same part of each op runs on the same chip, in the order of the graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray
from go_opt.env import CostTables, Target, cost_tables, greedy_fusion, loop_roles
from go_opt.env.copies.divisions import divisible_factors, period_in, touched_states
from go_opt.env.copies.splits import split_graph_and_parts
from go_opt.env.cost.exchanges import collective_s
from go_opt.env.kernels.numbering import kernel_seconds
from go_opt.model.graph import Graph
from go_opt.model.plan import CollectiveOp, Split
from go_opt.model.start import OpStart, Start
from go_opt.search.splits.block_ways import blocks_of
from go_opt.search.splits.rows import is_reduction, rows_by_op, split_along, steps_of

PARTS: Final = (8, 4, 2)
MOST_OPS: Final = 4096  # larger graphs would have too many parts
CLEARLY: Final = 0.9  # of the least seconds of whole ops, at most, by the estimate
Along = Mapping[int, int]  # op -> the factor along which it is divided


@lru_cache(maxsize=16)
def tensor_ways(graph: Graph, target: Target) -> tuple[tuple[Split, ...], ...]:
    """The ways of the least estimate that are clearly faster than whole ops; () without collectives."""
    if not (target.collectives and graph.op_rules) or not 1 < graph.num_ops <= MOST_OPS:
        return ()
    tables, roles = cost_tables(graph, target), loop_roles(graph, target.kernel_patterns)
    kernel_of = greedy_fusion(roles, np.arange(graph.num_ops, dtype=np.int32))
    kernel_s = kernel_seconds(tables, kernel_of).min(axis=0)
    overhead_s = float(tables.kernel_overhead_s.min())
    whole_s = max(_longest_path_s(graph, kernel_of, kernel_s), float(kernel_s.sum()) / target.num_chips)
    if CLEARLY * whole_s < len(kernel_s) * overhead_s:  # launches alone take longer
        return ()
    blocks = [dict(block) for block in blocks_of(graph)]
    found: dict[tuple[Split, ...], float] = {}
    for parts, some in product((parts for parts in PARTS if parts <= target.num_chips), (blocks, [])):
        along = _along(graph, some, parts)
        is_divided = np.zeros(graph.num_ops, np.bool_)
        is_divided[list(along)] = True
        whole = np.bincount(kernel_of, weights=~is_divided) > 0
        work_s = kernel_s - overhead_s
        seconds = float(np.where(whole, work_s, work_s / parts).sum() + len(kernel_s) * overhead_s)
        seconds += sum(_exchange_s(graph, target, tables, along, op, parts) for op in along)
        if along and seconds < CLEARLY * whole_s:
            found[_way(graph, along, parts)] = seconds
    best = sorted(found, key=lambda way: found[way])
    return tuple(best)


def _longest_path_s(graph: Graph, kernel_of: IntArray, kernel_s: FloatArray) -> float:
    """Of kernels, which are numbered in order."""
    end_s = kernel_s.tolist()
    for first, second in sorted(set(zip(kernel_of[graph.edge_src], kernel_of[graph.edge_dst], strict=True))):
        if first != second:
            end_s[second] = max(end_s[second], end_s[first] + float(kernel_s[second]))
    return float(max(end_s))


def _along(graph: Graph, blocks: Sequence[Along], parts: int) -> Along:
    """The factor of each op that is divided: of ``blocks`` as they say, of others as what they read."""
    along: dict[int, int] = {}
    for block in blocks:
        if all(steps_of(graph, op, factor) >= parts for op, factor in block.items()):
            along |= block
    rows, periods = rows_by_op(graph), dict[int, int]()  # of the cuts of tensors; 0 of sums
    for op in range(graph.num_ops):
        factor = along.get(op, _carried(graph, op, periods))
        factor = rows.get(op) if factor is None else factor
        if factor is None or op in touched_states(graph) or steps_of(graph, op, factor) < parts:
            continue
        along[op] = factor
        periods |= {k: period_in(graph, op, factor, k) for k in graph.outputs_of(op)}
    return along


def _carried(graph: Graph, op: int, periods: Mapping[int, int]) -> int | None:
    """The factor along which most of what an op reads is divided already."""
    found: dict[int, int] = {}
    for factor in divisible_factors(graph)[op]:
        if not is_reduction(graph, op, factor):
            read = ((k, touched) for k, touched in graph.reads_of(op) if periods.get(k))
            found[factor] = sum(n for k, n in read if period_in(graph, op, factor, k) == periods[k])
    best = max(found, key=lambda factor: found[factor], default=None)
    return best if best is not None and found[best] > 0 else None


def _exchange_s(graph: Graph, target: Target, tables: CostTables, along: Along, op: int, parts: int) -> float:
    """Seconds of the collectives behind the parts of an op, about."""
    is_sum, seconds = is_reduction(graph, op, along[op]), 0.0
    for k in graph.outputs_of(op):
        own = period_in(graph, op, along[op], k)
        periods = {period_in(graph, one, along[one], k) if one in along else 0 for one in graph.readers_of(k)}
        if periods <= {own} and not is_sum:
            continue
        is_sliced = len(periods) == 1 and 0 not in periods
        of_sum = CollectiveOp.REDUCE_SCATTER if is_sliced else CollectiveOp.ALL_REDUCE
        kind = of_sum if is_sum else CollectiveOp.ALL_GATHER
        num_bytes = float(tables.tensor_bytes[k])
        taken_s = collective_s(target.collectives, kind, num_bytes, parts)
        if taken_s is None:  # each chip copies what the others have
            taken_s = float(num_bytes * tables.link_s_per_byte.max(initial=0.0)) * (parts - 1)
        seconds += taken_s
    return seconds


def _way(graph: Graph, along: Along, parts: int) -> tuple[Split, ...]:
    """What other parts need is exchanged; what only whole ops read is joined, but for sums."""
    splits = []
    for op in sorted(along):
        readers = {reader for k in graph.outputs_of(op) for reader in graph.readers_of(k)}
        is_sum = is_reduction(graph, op, along[op])
        one = split_along(graph, op, along[op], parts, joined=is_sum)
        splits.append(replace(one, collective=is_sum or not readers.isdisjoint(along)))
    return tuple(splits)


class _Places(NamedTuple):
    """Which part of the layers each op of a graph in parts belongs to; how many transfers come before it."""

    part: LongArray  # [N]
    level: LongArray  # [N]


def start_by_tensor(graph: Graph, way: tuple[Split, ...], target: Target, *, replicates: bool) -> Start:
    """Part i of each op on chip i, or on as many chips as there are for each; whole ops on the first.

    Args:
      replicates: whether stages are replicated on all chips, for the interval.
    """
    split, _, _ = split_graph_and_parts(graph, way)
    places = _places(graph, way)
    size = target.num_chips // max(one.parts for one in way) if replicates else 1
    rank = np.empty(split.num_ops, np.int64)
    rank[np.lexsort((places.part, places.level))] = np.arange(split.num_ops)
    rows = zip(split.op_names, (places.part * size).tolist(), rank.tolist(), strict=True)
    return Start({name: OpStart(chip, size, rank=at) for name, chip, at in rows}, method="shared layers")


def _places(graph: Graph, way: tuple[Split, ...]) -> _Places:
    split, parts, _ = split_graph_and_parts(graph, way)
    part, level = np.zeros((2, split.num_ops), np.int64)
    number: dict[int, int] = {}  # of parts of each op so far
    groups: dict[tuple[int, ...], int] = {}  # what is handed over -> collectives so far
    (before_ptr, before), (behind_ptr, behind) = split.predecessors, split.successors
    moves = []
    for op, name in enumerate(split.op_names):
        sources = before[before_ptr[op] : before_ptr[op + 1]]
        if name in parts:
            part[op] = number.get(parts[name].op, 0)
            number[parts[name].op] = int(part[op]) + 1
        elif split.op_types[op] == CollectiveOp.SEND:
            part[op] = part[sources[0]]
        elif split.op_types[op] in tuple(CollectiveOp) and len(sources) > 1:
            group = tuple(sources.tolist())
            part[op] = part[group[groups.get(group, 0)]]
            groups[group] = groups.get(group, 0) + 1
        elif name not in graph.op_index:
            moves.append(op)
    for op in reversed(moves):
        part[op] = part[behind[behind_ptr[op] : behind_ptr[op + 1]]].min(initial=part.max())
    for op in range(split.num_ops):
        sources = before[before_ptr[op] : before_ptr[op + 1]]
        level[op] = (level[sources] + (part[sources] != part[op])).max(initial=0)
    return _Places(part, level)
