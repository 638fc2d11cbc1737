"""Polish a placement: each chip's order and kernels, with every op where it is.

Placements are searched with kernels fixed along one order for all chips. Once ops are placed,
a chip's order and kernels concern no other chip, so orders are tried side by side and each
chip keeps its best: kernels fuse greedily along the chip's own order, and depth-first orders keep
fewer activations alive. Then the kernels of the chip that binds are varied one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from go_opt.common.arrays import IntArray
from go_opt.env import BatchMetrics, CostTables, Target, greedy_fusion, loop_roles
from go_opt.env.kernels.priority_fusion import priority_fusion
from go_opt.env.kernels.schedule import depth, height
from go_opt.model.graph import Graph
from go_opt.solver.copies.relayed_terms import relay_copies, terms_with_copies

EVALUATIONS: Final = 64
JOIN, PART = 2.0, -2.0  # fusion priorities beyond the ±1 that keep kernels as they are


@dataclass(frozen=True, eq=False)
class Polished:
    """The best order and kernels met for a placement."""

    order: IntArray  # [N] sorted by chip, or the order given where nothing better was met
    fusion_group: IntArray  # [N]
    interval_s: float  # infinite where activations never fitted
    evaluations: int


def polish(
    graph: Graph,
    target: Target,
    tables: CostTables,
    placement: IntArray,
    order: IntArray,
    fusion_group: IntArray,
    *,
    evaluations: int = EVALUATIONS,
) -> Polished:
    """Improve ``order`` [N] and ``fusion_group`` [N] of a valid ``placement`` [N].

    Tensors that pass chips are relayed as the rules of ``target`` ask.
    """
    chips = _ChipTerms(target, tables, placement)
    best = _Candidate(order, fusion_group, chips.evaluate(order, fusion_group))
    tried = [best]
    for alternative, group in _orders_and_kernels(graph, order, placement):
        if chips.evaluations + 1 >= evaluations:
            break
        tried.append(_Candidate(alternative, group, chips.evaluate(alternative, group)))
    if chips.evaluations < evaluations:
        mixed_order, mixed_group = _best_of_each_chip(tables, placement, tried)
        tried.append(_Candidate(mixed_order, mixed_group, chips.evaluate(mixed_order, mixed_group)))
    best = min(tried, key=lambda candidate: candidate.interval_s)
    improves = True
    while improves and chips.evaluations < evaluations:
        improves = False
        for varied_order, varied_group in _variations(graph, placement, best):
            if chips.evaluations >= evaluations:
                break
            metrics = chips.evaluate(varied_order, varied_group)
            varied = _Candidate(varied_order, varied_group, metrics)
            if varied.interval_s < best.interval_s:
                best, improves = varied, True
                break
    return Polished(best.order, best.fusion_group, best.interval_s, chips.evaluations)


def fused_within_chips(graph: Graph, order: IntArray, placement: IntArray) -> IntArray:
    """[N] greedy kernels along ``order``, each on one chip."""
    return _within_chips(greedy_fusion(loop_roles(graph), order), order, placement)


@dataclass(frozen=True, eq=False)
class _Candidate:
    order: IntArray
    fusion_group: IntArray
    metrics: BatchMetrics  # of this one plan

    @property
    def interval_s(self) -> float:
        return float(self.metrics.interval_s[0]) if self.metrics.fits[0] else np.inf


class _ChipTerms:
    """Evaluates orders and kernels of one placement, with its relays, and counts."""

    def __init__(self, target: Target, tables: CostTables, placement: IntArray) -> None:
        self._tables, self._placement = tables, placement
        self._copies = relay_copies(tables, placement, target.constraints.triangle)
        self.evaluations = 0

    def evaluate(self, order: IntArray, fusion_group: IntArray) -> BatchMetrics:
        self.evaluations += 1
        return terms_with_copies(self._tables, self._placement, order, fusion_group, self._copies)


def _orders_and_kernels(
    graph: Graph, order: IntArray, placement: IntArray
) -> Iterator[tuple[IntArray, IntArray]]:
    """Orders with the kernels that fuse along them."""
    for alternative in _orders(graph, order):
        by_chip = _by_chip(alternative, placement)
        yield by_chip, fused_within_chips(graph, by_chip, placement)


def _orders(graph: Graph, order: IntArray) -> Iterator[IntArray]:
    """Topological orders that differ in what they run early."""
    yield order
    yield _depth_first(graph, order)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    yield np.lexsort((place, depth(graph))).astype(np.int32)
    yield np.lexsort((place, -height(graph))).astype(np.int32)


def _depth_first(graph: Graph, order: IntArray) -> IntArray:
    """Each op right after what it reads, the longest way first: few results wait for their reader."""
    pointers, reads = graph.predecessors
    begin, far = pointers.tolist(), depth(graph)
    by_depth = [
        sorted(reads[begin[op] : begin[op + 1]].tolist(), key=far.__getitem__) for op in range(len(order))
    ]
    is_placed = np.zeros(len(order), dtype=np.bool_).tolist()
    found: list[int] = []
    for last in order.tolist():
        stack = [last]
        while stack:
            op = stack[-1]
            if is_placed[op] or not by_depth[op]:
                stack.pop()
                if not is_placed[op]:
                    is_placed[op] = True
                    found.append(op)
            else:
                stack.append(by_depth[op].pop())
    return np.array(found, dtype=np.int32)


def _by_chip(order: IntArray, placement: IntArray) -> IntArray:
    """``order``, chip after chip: topological because no op reads from a later chip."""
    return order[np.argsort(placement[order], kind="stable")]


def _within_chips(group: IntArray, order: IntArray, placement: IntArray) -> IntArray:
    """Kernels taken apart where chips meet; a stretch of a legal kernel is one."""
    along, chip = group[order], placement[order]
    starts = np.concatenate([[True], (along[1:] != along[:-1]) | (chip[1:] != chip[:-1])])
    apart = np.empty_like(group)
    apart[order] = np.cumsum(starts) - 1
    return apart


def _best_of_each_chip(
    tables: CostTables, placement: IntArray, tried: list[_Candidate]
) -> tuple[IntArray, IntArray]:
    """For each chip the order and kernels that fit, and take least with the weights they stream."""
    compute_s = np.stack([candidate.metrics.compute_s[0] for candidate in tried])
    stream_bytes = np.stack([candidate.metrics.stream_bytes[0] for candidate in tried])
    peak_bytes = np.stack([candidate.metrics.peak_bytes[0] for candidate in tried])
    cost_s = compute_s + stream_bytes * tables.host_in_s_per_byte
    cost_s[peak_bytes > tables.sram_bytes] = np.inf
    choice = np.argmin(cost_s, axis=0)
    orders, group = [], np.empty_like(placement)
    num_kernels = 0
    for chip in np.unique(placement):
        candidate = tried[choice[chip]]
        ops = candidate.order[placement[candidate.order] == chip]
        orders.append(ops)
        group[ops] = candidate.fusion_group[ops] + num_kernels
        num_kernels = int(group[ops].max()) + 1
    return np.concatenate(orders), group


def _variations(graph: Graph, placement: IntArray, best: _Candidate) -> Iterator[tuple[IntArray, IntArray]]:
    """One op of the chip that binds joined to what it reads, or taken off its kernel, at a time."""
    chip = int(best.metrics.bottleneck[0])
    ops = np.flatnonzero(placement == chip)
    _, inverse, members = np.unique(best.fusion_group, return_inverse=True, return_counts=True)
    is_fused = members[inverse] > 1
    for change, candidates in ((JOIN, ops), (PART, ops[is_fused[ops]])):
        for op in candidates:
            priority = np.zeros(graph.num_ops)
            priority[op] = change
            group = priority_fusion(graph, loop_roles(graph), best.fusion_group, priority)
            order = _by_chip(np.lexsort((np.arange(graph.num_ops), group)).astype(np.int32), placement)
            yield order, _within_chips(group, order, placement)
