"""Ways to compute a training step on several chips: each takes a share of the batch.

Ops along the batch are divided, from the inputs on; sums over the batch, the gradients, end in collectives
that leave a copy on each chip. What no op along the batch waits for is one collective, as the buckets of
Li et al., "PyTorch Distributed" (VLDB 2020). All other ops are computed on each chip, from copies of the
weights; or each chip updates a slice of the weights (:mod:`go_opt.search.replicas.layers`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, LongArray
from go_opt.env import list_schedule
from go_opt.env.copies.divisions import divisible_factors, period_in
from go_opt.env.copies.parts import SplitGraph
from go_opt.env.copies.splits import split_graph_and_parts, split_levels
from go_opt.env.kernels.fusion import LoopRoles, greedy_fusion, priority_fusion
from go_opt.model.graph import INPUT, Graph
from go_opt.model.plan import CollectiveOp, Split
from go_opt.model.start import NO_KERNEL, OpStart, Start
from go_opt.search.replicas.layers import update_factors

_SUMMED, _SLICED, _GATHERED = 1, 2, 3  # buckets: all-reduces, reduce-scatters, all-gathers
_JOINED: Final = 2.0  # a priority by which an op joins whatever kernel it may


def batch_factors(graph: Graph, parts: int) -> dict[int, int]:
    """The factor along the batch of each op that can be divided into ``parts`` of equal size."""
    periods = {
        k: elements
        for k, elements in enumerate(graph.tensor_elements.tolist())
        if graph.tensor_kind[k] == INPUT and elements > 1
    }
    found: dict[int, int] = {}
    for op in range(graph.num_ops):
        factor = _batch_factor(graph, op, parts, periods)
        if factor is None:
            continue
        found[op] = factor
        results = {k: period_in(graph, op, factor, k) for k in graph.known_rule_of(op).results}
        periods |= {k: period for k, period in results.items() if period}
    return found


def _batch_factor(graph: Graph, op: int, parts: int, periods: dict[int, int]) -> int | None:
    row = graph.rule_of(op)
    read = [] if row is None else [k for k in dict.fromkeys(row.operands) if k in periods]
    if row is None or not read:
        return None
    for factor in divisible_factors(graph, with_states=False)[op]:
        along = row.rule.factors[factor]
        is_in_all = along.kind == "reduction" or all(period_in(graph, op, factor, k) for k in row.results)
        if (
            is_in_all
            and along.size % parts == 0
            and all(period_in(graph, op, factor, k) == periods[k] for k in read)
        ):
            return factor
    return None


def updates_of(graph: Graph, factors: Mapping[int, int]) -> frozenset[int]:
    """The ops that no op along the batch waits for, which ``factors`` has."""
    goes_on = _before(graph, factors)
    return frozenset(op for op in range(graph.num_ops) if op not in factors and not goes_on[op])


def replicated_way(graph: Graph, parts: int, *, shares_updates: bool = False) -> tuple[Split, ...]:
    """The step on ``parts`` chips; () if no op has a batch that can be divided into so many.

    Args:
      shares_updates: each chip updates a slice of the weights; () if none can be divided.
    """
    factors = batch_factors(graph, parts)
    goes_on = _before(graph, factors)
    updates = updates_of(graph, factors)
    shared = update_factors(graph, updates, parts) if shares_updates and factors else {}
    if not factors or (shares_updates and not shared):
        return ()
    return tuple(
        _split(graph, op, factors, parts, bucket=0 if goes_on[op] else _bucket_of_sums(graph, op, shared))
        if op in factors
        else _split_update(graph, op, shared, parts)
        if op in shared
        else Split(graph.op_names[op], "", parts)
        for op in range(graph.num_ops)
    )


def replicas_of_layers(graph: Graph, way: tuple[Split, ...], parts: int) -> tuple[Split, ...]:
    """Replicas of a step whose layers are shared by ``way``; () if there is no batch for so many.

    The gradients of each chip are one collective, among the chips that have the same share of the layers.
    """
    split = split_graph_and_parts(graph, way, is_last=False)
    chips = _Chips.whole(graph).divided(graph, split)
    of_bucket = max(_SUMMED, _SLICED, _GATHERED)
    replicas = tuple(
        replace(one, level=1, bucket=one.bucket and one.bucket + of_bucket * (1 + chips.chip[one.op]))
        for one in replicated_way(split.graph, parts)
    )
    return (*way, *replicas) if replicas else ()


def _bucket_of_sums(graph: Graph, op: int, shared: Mapping[int, int]) -> int:
    """All-reduces are in one bucket, the sums of which each chip needs a slice in another one."""
    readers = {reader for k in graph.outputs_of(op) for reader in graph.readers_of(k)}
    return _SLICED if readers and shared.keys() >= readers else _SUMMED


def _split_update(graph: Graph, op: int, shared: Mapping[int, int], parts: int) -> Split:
    """New weights that others read go to all chips; moments stay in slices."""
    row, name = graph.known_rule_of(op), graph.op_names[op]
    along = row.rule.factors[shared[op]]
    if along.kind == "reduction":
        return Split(name, along.name, parts, collective=True)
    written = {state.next: state for state in graph.states}
    is_copied = any(
        not shared.keys() >= set(graph.readers_of(written[k].read)) for k in row.results if k in written
    )
    bucket = _GATHERED if is_copied else 0
    return Split(name, along.name, parts, joined=is_copied, collective=is_copied, bucket=bucket)


def _before(graph: Graph, factors: Mapping[int, int]) -> BoolArray:
    """[N] the ops from which a path leads to an op along the batch."""
    found = np.zeros(graph.num_ops, np.bool_)
    ptr, readers = graph.successors
    for op in range(graph.num_ops - 1, -1, -1):
        following = readers[ptr[op] : ptr[op + 1]].tolist()
        found[op] = any(found[reader] or reader in factors for reader in following)
    return found


def _split(graph: Graph, op: int, factors: Mapping[int, int], parts: int, *, bucket: int) -> Split:
    row, name = graph.known_rule_of(op), graph.op_names[op]
    along = row.rule.factors[factors[op]]
    if along.kind == "reduction":
        return Split(name, along.name, parts, collective=True, bucket=bucket)
    goes_on = all(
        reader in factors
        and period_in(graph, reader, factors[reader], k) == period_in(graph, op, factors[op], k)
        for k in row.results
        for reader in graph.readers_of(k)
    )
    return Split(name, along.name, parts, joined=not goes_on, collective=not goes_on)


def start_of_replicas(graph: Graph, way: tuple[Split, ...], roles: LoopRoles) -> Start:
    """Part or copy i of each op on chip i, with the kernels of one chip joined wherever they may be.

    Between two collectives that follow each other, each chip works without a break.
    """
    levels = split_levels(graph, way)
    after, before, chips = levels[-1][1].graph, graph, _Chips.whole(graph)
    for _, split in levels:
        chips = chips.divided(before, split)
        before = split.graph
    sizes = [own[0].parts for own, _ in levels]
    parts = math.prod(sizes)
    any_shared = any(one.bucket == _SLICED for one in way)
    in_order = np.arange(graph.num_ops, dtype=np.int32)
    kernel = priority_fusion(graph, roles, greedy_fusion(roles, in_order), np.full(graph.num_ops, _JOINED))
    order = list_schedule(graph, kernel, -np.arange(int(kernel.max()) + 1, dtype=np.float64))
    place = np.empty(graph.num_ops, np.int64)
    place[order] = np.arange(graph.num_ops)
    ops: dict[str, OpStart] = {}
    level = _levels(after)
    for op, name in enumerate(after.op_names):
        if name not in chips.chip or name in chips.moves:
            continue  # what takes or joins is where its source is
        whole, chip = graph.op_index[chips.whole_op[name]], chips.chip[name]
        rank = (int(level[op]) * parts + chip) * graph.num_ops + int(place[whole])
        is_sent = after.op_types[op] in tuple(CollectiveOp)
        group = NO_KERNEL if is_sent else int(kernel[whole]) * parts + chip
        ops[name] = OpStart(chip, kernel=group, rank=rank)
    first, *rest = sizes
    if way[0].factor and not rest and not any(one.bucket for one in way):
        return Start(ops, method=f"layers on {first} chips")
    method = f"{rest[0]} replicas, each on {first} chips" if rest else f"{first} replicas"
    return Start(ops, method=f"{method} that share updates" if any_shared else method)


class _Chips(NamedTuple):
    """For each op of a graph in parts, by name, its chip and the op of the whole graph that it is a part of.

    Part or copy i is on chip i; a further level has these chips once for each of its parts.
    """

    chip: Mapping[str, int]
    whole_op: Mapping[str, str]
    moves: frozenset[str]  # ops that take or join, which have the chip of what they read
    number: int  # chips

    @classmethod
    def whole(cls, graph: Graph) -> _Chips:
        return cls(
            dict.fromkeys(graph.op_names, 0), dict(zip(*[graph.op_names] * 2, strict=True)), frozenset(), 1
        )

    def divided(self, before: Graph, split: SplitGraph) -> _Chips:
        """The chips of the ops in parts; ``before`` is the graph that is split."""
        after, chip, whole_op, moves = split.graph, dict[str, int](), dict[str, str](), set[str]()
        made: Counter[tuple[str, str]] = Counter()  # how many parts of an op there are so far
        for op, name in enumerate(after.op_names):
            if name in split.parts:
                source, what = before.op_names[split.parts[name].op], ""
            elif after.op_types[op] in tuple(CollectiveOp):
                written = after.tensor_names[after.outputs_of(op)[0]]
                k = split.held[written].tensor if written in split.held else before.tensor_index[written]
                source, what = before.op_names[before.tensor_producer[k]], after.op_types[op]
            else:
                read = [int(after.tensor_producer[k]) for k, _ in after.reads_of(op)]
                of = after.op_names[read[0]] if read and read[0] >= 0 else ""
                if of in chip:
                    chip[name], whole_op[name] = chip[of], whole_op[of]
                moves.add(name)
                continue
            chip[name] = made[source, what] * self.number + self.chip.get(source, 0)
            whole_op[name] = self.whole_op.get(source, "")
            made[source, what] += 1
            if source in self.moves:
                moves.add(name)
        number = self.number * max(made.values(), default=1)
        return _Chips(chip, whole_op, frozenset(moves), number)


def _levels(graph: Graph) -> LongArray:
    """[N] how many collectives come before each op, which is as late as its readers allow."""
    level = np.zeros(graph.num_ops, np.int64)
    ptr, sources = graph.predecessors
    for op, op_type in enumerate(graph.op_types):
        is_exchange = CollectiveOp.of(op_type) is not None
        level[op] = level[sources[ptr[op] : ptr[op + 1]]].max(initial=0) + is_exchange
    ptr, readers = graph.successors
    for op in range(graph.num_ops - 1, -1, -1):
        following = readers[ptr[op] : ptr[op + 1]]
        if len(following) and graph.op_types[op] not in tuple(CollectiveOp):
            level[op] = level[following].min()
    return level
