"""The loads of chips and links: the parts of each kernel's time, and the links each tensor crosses.

All figures come from the cost tables that :func:`go_opt.env.evaluate_batch` sums, so
the parts of a term add up to the term. Axes: ``N`` ops, ``K`` tensors, ``M`` kernels,
``R`` reads, ``D`` chips.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import lcm

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import BoolArray, FloatArray, IntArray, LongArray, row_pointers
from go_opt.env.copies.stages import size_by_chip
from go_opt.env.cost import CostTables
from go_opt.env.kernels.numbering import number_kernels
from go_opt.env.model.memory import fit_chips, holdings
from go_opt.env.model.traffic import MOST_TURNS
from go_opt.model.graph import INPUT, NO_PRODUCER, Graph
from go_opt.model.plan import Plan


@dataclass(frozen=True, eq=False)
class Loads:
    """A plan without relays, and its cost tables; ``expand_plan`` makes them ordinary ops."""

    graph: Graph
    tables: CostTables
    plan: Plan

    @cached_property
    def kernel_of(self) -> IntArray:
        """[N] kernel of each op, numbered in execution order."""
        return number_kernels(self.plan.order, self.plan.fusion_group)

    @cached_property
    def kernel_chip(self) -> IntArray:
        """[M] chip of each kernel's first op; in an illegal plan, other ops may be elsewhere."""
        chip = np.empty(int(self.kernel_of.max()) + 1, dtype=np.int32)
        backwards = self.plan.order[::-1]
        chip[self.kernel_of[backwards]] = self.plan.placement[backwards]
        return chip

    @cached_property
    def op_chip(self) -> IntArray:
        """[N] chip of each op's kernel."""
        return self.kernel_chip[self.kernel_of]

    @cached_property
    def members(self) -> tuple[LongArray, IntArray]:
        """CSR over kernels: the ops of each kernel in execution order."""
        return row_pointers(self.kernel_of[self.plan.order], len(self.kernel_chip)), self.plan.order

    @cached_property
    def _kind(self) -> IntArray:
        return self.tables.chip_kind[self.kernel_chip]

    @cached_property
    def compute_s(self) -> FloatArray:
        """[M] FLOPs divided by peak rates, summed over ops without a measured cost."""
        kind = self.tables.chip_kind[self.plan.placement]
        op_s = self.tables.op_s[kind, np.arange(self.graph.num_ops)]
        return self._per_kernel(np.where(np.isnan(self._op_measured_s), op_s, 0.0))

    @cached_property
    def measured_s(self) -> FloatArray:
        """[M] measured seconds, summed over ops with a measured cost."""
        return self._per_kernel(np.nan_to_num(self._op_measured_s))

    @cached_property
    def _op_measured_s(self) -> FloatArray:
        kind = self.tables.chip_kind[self.plan.placement]
        return self.tables.measured_s[kind, np.arange(self.graph.num_ops)]

    @cached_property
    def is_modelled(self) -> BoolArray:
        """[M] False if all ops of the kernel have a measured cost."""
        return self._per_kernel(np.isnan(self._op_measured_s)) > 0

    @cached_property
    def sram_s(self) -> FloatArray:
        """[M] bytes moved divided by SRAM bandwidth."""
        return self.moved_bytes * self.tables.sram_s_per_byte[self._kind]

    @cached_property
    def overhead_s(self) -> FloatArray:
        """[M] launch overhead; 0 for kernels that are measured as a whole."""
        return np.where(self.is_modelled, self.tables.kernel_overhead_s[self._kind], 0.0)

    @cached_property
    def kernel_s(self) -> FloatArray:
        """[M] ``max(compute, SRAM) + overhead`` of the modelled ops, plus the measured seconds."""
        modelled_s = np.maximum(self.compute_s, self.sram_s) + self.overhead_s
        return np.where(self.is_modelled, modelled_s, 0.0) + self.measured_s

    @cached_property
    def moved_bytes(self) -> LongArray:
        """[M] bytes read from outside the kernel, once per tensor, plus bytes written to outside."""
        tables, kernel_of = self.tables, self.kernel_of
        is_outside = self._reader_kernel != self._home_kernel[tables.reader_tensor]
        # Each kernel's widest read of each tensor comes first.
        by_read = np.lexsort((-tables.read_bytes, tables.reader_tensor, self._reader_kernel))
        by_read = by_read[is_outside[by_read]]
        pairs = np.stack([self._reader_kernel[by_read], tables.reader_tensor[by_read]], axis=1)
        is_first = np.concatenate([[True], (pairs[1:] != pairs[:-1]).any(axis=1)])[: len(pairs)]
        moved = np.zeros(len(self.kernel_chip), dtype=np.int64)
        np.add.at(moved, pairs[is_first, 0], tables.read_bytes[by_read][is_first])
        is_stored = tables.tensor_is_output.copy()
        is_stored[tables.reader_tensor[is_outside]] = True
        written = is_stored & (tables.tensor_producer != NO_PRODUCER)
        np.add.at(moved, kernel_of[tables.tensor_producer[written]], tables.tensor_bytes[written])
        return moved

    @cached_property
    def stage_size(self) -> IntArray:
        """[D] number of chips of the stage that starts at each chip; 1 if none does."""
        num_chips = self.tables.num_chips
        size = size_by_chip(self.plan.placement, self.plan.replication, num_chips)
        most = self.tables.sequences or num_chips
        return np.minimum(size, np.minimum(np.arange(num_chips, 0, -1), most)).astype(np.int32)

    @cached_property
    def first_chip(self) -> IntArray:
        """[D] first chip of each chip's stage."""
        first = np.arange(self.tables.num_chips, dtype=np.int32)
        for chip in np.flatnonzero(self.stage_size > 1):
            first[chip : chip + self.stage_size[chip]] = chip
        return first

    @cached_property
    def round(self) -> LongArray:
        """[D] inferences after which the chips of the stage take the same turns again."""
        size, sequences = self.stage_size[self.first_chip].astype(np.int64), self.tables.sequences
        return np.where(sequences % size == 0, size, sequences)

    def _share_before(self, chip: LongArray, replicas: LongArray) -> FloatArray:
        """[K] share of inferences that run on the first ``replicas`` of the stages at ``chip``."""
        size, inferences = self.stage_size[chip], self.round[chip]
        replicas = np.clip(replicas, 0, size)
        before = inferences // size * replicas + np.minimum(inferences % size, replicas)
        share: FloatArray = before / inferences
        return share

    @cached_property
    def share(self) -> FloatArray:
        """[D] share of inferences that run on a chip, of those of its stage."""
        first = self.first_chip.astype(np.int64)
        replica = np.arange(len(first)) - first
        share: FloatArray = self._share_before(first, replica + 1) - self._share_before(first, replica)
        return share

    @cached_property
    def home_chip(self) -> LongArray:
        """[K] chip of the producer; -1 for weights and inputs."""
        producer = self.tables.tensor_producer
        return np.where(producer == NO_PRODUCER, -1, self.op_chip[producer])

    @cached_property
    def farthest_hops(self) -> LongArray:
        """[K] ring links from the first chip of a tensor's stage to that of its farthest reader."""
        tables = self.tables
        home = self.home_chip[tables.reader_tensor]
        hops = (self.op_chip[tables.reader_op] - home) % tables.num_chips
        farthest = np.zeros(len(tables.tensor_kind), dtype=np.int64)
        np.maximum.at(farthest, tables.reader_tensor[home >= 0], hops[home >= 0])
        return farthest

    def on_link(self, link: int) -> tuple[LongArray, FloatArray]:
        """The tensors that cross a link, largest load first, and each one's share of all inferences."""
        tables = self.tables
        share = self._share_on_ring(link) if tables.is_ring else self._share_by_routes(link)
        tensors = np.flatnonzero(share)
        tensors = tensors[np.argsort(-tables.tensor_bytes[tensors] * share[tensors], kind="stable")]
        return tensors, share[tensors]

    def _share_on_ring(self, link: int) -> FloatArray:
        """[K] share of inferences: its producing chip is before the link, its reading chip after it."""
        home, hops, num_chips = self.home_chip, self.farthest_hops, self.tables.num_chips
        end = (home + hops) % num_chips
        from_home = (link - home) % num_chips
        leave = self._share_before(home, from_home + 1)
        enter = 1.0 - self._share_before(end, from_home - hops + 1)
        return np.where((home >= 0) & (hops > 0), leave * enter, 0.0)

    def _share_by_routes(self, link: int) -> FloatArray:
        """[K] share of all inferences, for routes that are not a ring."""
        share = np.zeros(len(self.tables.tensor_kind))
        for k, chips in self._crossings.items():
            home = int(self.home_chip[k])
            cycle = min(self._cycle(home, *chips), MOST_TURNS)
            crosses = (any(self._takes(home, chip, turn, link) for chip in chips) for turn in range(cycle))
            share[k] = sum(crosses) / cycle
        return share

    def _cycle(self, *chips: int) -> int:
        """Inferences after which stages, given by their first chips, take the same turns again."""
        cycle = lcm(*(int(self.stage_size[chip]) for chip in chips))
        return self.tables.sequences if self.tables.sequences % cycle else cycle

    def _takes(self, home: int, chip: int, turn: int, link: int) -> bool:
        """Whether inference ``turn`` uses the link between two stages, given by their first chips."""
        tables, size = self.tables, self.stage_size
        pair = (home + turn % int(size[home])) * tables.num_chips + chip + turn % int(size[chip])
        return link in tables.route_link[tables.route_ptr[pair] : tables.route_ptr[pair + 1]]

    def behind_link(self, k: int, link: int) -> Iterator[int]:
        """The readers that tensor ``k`` reaches over ``link``."""
        tables, home = self.tables, int(self.home_chip[k])
        for op in self.readers(k):
            chip = int(self.op_chip[op])
            if tables.is_ring:
                hops = (chip - home) % tables.num_chips
                last = hops + int(self.stage_size[chip]) - 1
                is_behind = hops > 0 and (link - home) % tables.num_chips < last
            else:
                turns = range(self._cycle(home, chip))
                is_behind = any(self._takes(home, chip, turn, link) for turn in turns)
            if is_behind:
                yield op

    @cached_property
    def _crossings(self) -> dict[int, list[int]]:
        """The chips that each tensor is sent to, by tensor."""
        tables = self.tables
        chip = self.op_chip[tables.reader_op]
        home = self.home_chip[tables.reader_tensor]
        is_sent = (home >= 0) & (home != chip)
        pairs = np.unique(np.stack([tables.reader_tensor[is_sent], chip[is_sent]], axis=1), axis=0)
        chips_of: dict[int, list[int]] = {}
        for k, d in pairs.tolist():
            chips_of.setdefault(k, []).append(d)
        return chips_of

    def readers(self, k: int) -> list[int]:
        """The ops that read a tensor."""
        ptr = self.tables.reader_ptr
        return [int(op) for op in self.tables.reader_op[ptr[k] : ptr[k + 1]]]

    def inputs(self) -> LongArray:
        """The model's inputs, largest first."""
        return self._most_bytes_first(np.flatnonzero(self.tables.tensor_kind == INPUT))

    def outputs(self) -> LongArray:
        """The model's outputs, largest first."""
        is_sent = self.tables.tensor_is_output & (self.tables.tensor_producer != NO_PRODUCER)
        return self._most_bytes_first(np.flatnonzero(is_sent))

    @cached_property
    def _reader_kernel(self) -> IntArray:
        return self.kernel_of[self.tables.reader_op]

    @cached_property
    def _home_kernel(self) -> LongArray:
        producer = self.tables.tensor_producer
        return np.where(producer == NO_PRODUCER, -1, self.kernel_of[producer])

    def _per_kernel(self, per_op: NDArray) -> FloatArray:
        return np.bincount(self.kernel_of, per_op, len(self.kernel_chip)).astype(np.float64)

    def _most_bytes_first(self, tensors: LongArray) -> LongArray:
        return tensors[np.argsort(-self.tables.tensor_bytes[tensors], kind="stable")]


def streamed_weights(loads: Loads, chip: int) -> tuple[list[tuple[int, int]], frozenset[int]]:
    """The streamed weights of a stage's first chip with their bytes, and the set that the stage forwards.

    It forwards the weights that a kernel is first to read if that kernel's are all touched as a whole.
    """
    kernel_of, kernel_chip = loads.kernel_of.astype(np.int32), loads.kernel_chip.astype(np.int32)
    held = holdings(loads.tables, kernel_of, kernel_chip, loads.stage_size.astype(np.int64))
    fit, here = fit_chips(loads.tables, held), range(held.weight_ptr[chip], held.weight_ptr[chip + 1])
    pairs = [i for i in here if fit.is_streamed[i]]
    streamed = [(int(held.weight[i]), int(fit.streamed_bytes[i])) for i in pairs]
    if chip not in loads.plan.forwards or loads.stage_size[chip] == 1:
        return streamed, frozenset()
    is_whole = held.weight_touched == loads.tables.tensor_bytes[held.weight]
    in_part = {held.weight_reader[i] for i in pairs if not is_whole[i]}
    return streamed, frozenset(int(held.weight[i]) for i in pairs if held.weight_reader[i] not in in_part)


def forwarded_over(loads: Loads, link: int) -> int | None:
    """The first chip of the stage that forwards weights over a ring link; None if there is none."""
    if not loads.tables.is_ring or link + 1 >= loads.tables.num_chips:
        return None
    chip = int(loads.first_chip[link])
    return chip if chip in loads.plan.forwards and loads.first_chip[link + 1] == chip else None
