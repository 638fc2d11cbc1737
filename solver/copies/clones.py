"""Clones for a placement (rematerialisation): recompute a cheap op instead of sending its result far.

Attention masks, position encodings, constants and broadcasts of small tensors are read all
over a model: they load every link in between, and each chip they pass copies them (design
section 8). The search is greedy. It tries to end tensors of clonable ops
(:mod:`go_opt.env.copies.clonable`) at the bottleneck chip or link. Later readers get clones of that
op, and of those ancestors that would have to send large tensors. A set of clones is kept if it
lowers the interval, or leaves the interval unchanged and balances the load better.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray, IntArray
from go_opt.env.copies.expanded_tables import Copies, expanded_tables
from go_opt.env.cost import CostTables
from go_opt.env.model.analytical import BatchMetrics, evaluate_batch
from go_opt.env.target import Triangle
from go_opt.model.graph import NO_PRODUCER
from go_opt.solver.copies.relays import needed_relays

MAX_TRIES: Final = 12  # tensors tried at one bottleneck
# Sums of floats in different orders differ by less than this share.
_TIE: Final = 1e-9
_NORM_POWER: Final = 8
# Clones read remote tensors smaller than this share of the saved tensor: all, small ones, none.
_LEAST_SHARES: Final = (np.inf, 0.25, 0.0)

_Clone = tuple[int, int]  # op and chip


class Cloned(NamedTuple):
    """Relays and clones for a placement, and the resulting interval."""

    copies: Copies
    interval_s: float
    evaluations: int  # total, including the placement with only relays


class _State(NamedTuple):
    clones: frozenset[_Clone]
    copies: Copies
    tables: CostTables  # with clones as ops, without relays
    placement: IntArray  # of these ops
    terms: BatchMetrics
    norm: float  # power sum of the loads relative to the interval


def improve_with_clones(
    tables: CostTables,
    is_clonable: BoolArray,
    triangle: Triangle,
    placement: IntArray,
    order: IntArray,
    fusion_group: IntArray,
    *,
    max_evaluations: int = 64,
) -> Cloned:
    """Returns the relays that ``placement`` needs, and clones that lower the interval.

    Deterministic. Targets without a triangle rule get neither.

    Args:
      is_clonable: [N] ops that may be cloned; their ancestors may also be cloned.
    """

    def evaluate(clones: frozenset[_Clone]) -> _State:
        return _evaluate(tables, triangle, placement, order, fusion_group, clones)

    best, evaluations = evaluate(frozenset()), 1
    is_better = triangle != "off"
    while is_better:
        is_better = False
        for clones in _candidates(tables, is_clonable, placement, best):
            if evaluations >= max_evaluations:
                break
            state, evaluations = evaluate(clones), evaluations + 1
            if _beats(state, best):
                best, is_better = state, True
                break
    return Cloned(best.copies, float(best.terms.interval_s[0]), evaluations)


def _evaluate(
    tables: CostTables,
    triangle: Triangle,
    placement: IntArray,
    order: IntArray,
    group: IntArray,
    clones: frozenset[_Clone],
) -> _State:
    none = np.empty(0, np.int32)
    pairs = np.array(sorted(clones), np.int32).reshape(-1, 2)
    copies = Copies(none, none, pairs[:, 0].copy(), pairs[:, 1].copy())
    cloned, placed, *_ = expanded_tables(tables, placement, order, group, copies)
    copies = Copies(*needed_relays(cloned, placed, triangle), copies.clone_op, copies.clone_chip)
    expanded, *plan = expanded_tables(tables, placement, order, group, copies)
    terms = evaluate_batch(expanded, *(array[None] for array in plan))
    interval_s = float(terms.interval_s[0])
    shares = _loads_s(tables, terms) / interval_s if interval_s else np.zeros(1)
    return _State(clones, copies, cloned, placed, terms, float((shares**_NORM_POWER).sum()))


def _loads_s(tables: CostTables, terms: BatchMetrics) -> FloatArray:
    """Returns the loads whose maximum is the interval; without overlap, host traffic is omitted."""
    compute_s, link_s = terms.compute_s[0], terms.link_s[0]
    if tables.overlap:
        return np.concatenate([compute_s, link_s])
    loads_s = compute_s.copy()
    for ends in (tables.link_from, tables.link_to):
        np.add.at(loads_s, ends, link_s[: len(ends)] * tables.pays_transfers[tables.chip_kind[ends]])
    return loads_s


def _beats(state: _State, best: _State) -> bool:
    if state.terms.fits[0] != best.terms.fits[0]:
        return bool(state.terms.fits[0])
    ratio = state.terms.interval_s[0] / best.terms.interval_s[0]
    return bool(ratio < 1 - _TIE or (ratio <= 1 and state.norm < best.norm * (1 - _TIE)))


def _candidates(
    tables: CostTables, is_clonable: BoolArray, placement: IntArray, state: _State
) -> Iterator[frozenset[_Clone]]:
    """Yields sets of clones that end a tensor at the bottleneck, the largest tensors first."""
    floor_s = tables.kernel_floor_s()[tables.chip_kind]  # [D, N]
    room_s = state.terms.interval_s[0] - state.terms.compute_s[0]
    reads = _Reads(tables, placement, state)
    tried = set()
    ends = [end for end in _ends(tables, state, reads) if is_clonable[tables.tensor_producer[end[0]]]]
    for tensor, cut in ends[:MAX_TRIES]:
        chips = np.unique(reads.chip[reads.tensor == tensor])
        for least_share in _LEAST_SHARES:
            clones = set(state.clones)
            for chip in chips[chips > cut].tolist():
                cone = reads.cone(tensor, chip, least_share)
                runs_here = tables.can_run[tables.chip_kind[chip], cone].all()
                if not runs_here or floor_s[chip, cone].sum() >= room_s[chip]:
                    break
                clones |= {(op, chip) for op in cone}
            else:
                if frozenset(clones) not in tried:
                    tried.add(frozenset(clones))
                    yield frozenset(clones)


class _Reads:
    """Reads by tensor and chip, including the current clones. Axes: ``R`` reads, ``K`` tensors."""

    def __init__(self, tables: CostTables, placement: IntArray, state: _State) -> None:
        cloned = state.tables
        self._tables, self._placement, self._clones = tables, placement, state.clones
        self.tensor = cloned.reader_tensor  # [R]
        self.chip = state.placement[cloned.reader_op]  # [R]
        self._there = set(zip(self.tensor.tolist(), self.chip.tolist(), strict=True))
        producer = cloned.tensor_producer[: len(tables.tensor_kind)]
        self.home = np.where(producer == NO_PRODUCER, tables.num_chips, state.placement[producer])  # [K]
        self.last = np.zeros(len(producer), np.int64)  # [K]
        is_own = self.tensor < len(producer)
        np.maximum.at(self.last, self.tensor[is_own], self.chip[is_own])

    def cone(self, tensor: int, chip: int, least_share: float) -> list[int]:
        """Returns the producer of ``tensor`` and the ancestors to clone with it on ``chip``.

        An ancestor is not cloned if its result is already on ``chip``, or takes less than
        ``least_share`` of the tensor's bytes and is sent instead.
        """
        tables = self._tables
        least_bytes = least_share * max(1, tables.tensor_bytes[tensor])
        cone = [int(tables.tensor_producer[tensor])]
        for op in cone:  # grows
            for r in tables.op_read[tables.op_read_ptr[op] : tables.op_read_ptr[op + 1]]:
                read = int(tables.reader_tensor[r])
                producer = int(tables.tensor_producer[read])
                is_there = producer == NO_PRODUCER or self._placement[producer] == chip
                is_there = is_there or (producer, chip) in self._clones or (read, chip) in self._there
                if not is_there and producer not in cone and tables.tensor_bytes[read] >= least_bytes:
                    cone.append(producer)
        return cone


def _ends(tables: CostTables, state: _State, reads: _Reads) -> list[tuple[int, int]]:
    """Returns ``(tensor, chip)`` of tensors that would relieve the bottleneck if they ended on the chip."""
    binding, num_chips = int(state.terms.bottleneck[0]), tables.num_chips
    ends: set[tuple[int, int]] = set()
    if binding >= num_chips:
        links = [binding - num_chips]
    elif tables.overlap:
        here = state.copies.relay_chip == binding
        ends = {(tensor, binding) for tensor in state.copies.relay_tensor[here].tolist()}
        links = []
    else:
        links = [binding - 1, binding]
    for link in links:  # in a ring or chain, link i starts at chip i
        crossing = np.flatnonzero((reads.home <= link) & (reads.last > link))
        ends |= {(tensor, link) for tensor in crossing.tolist()}
    return sorted(ends, key=lambda end: (-tables.tensor_bytes[end[0]], end))
