"""Breaks the terms of the interval down: chips into kernels, links and the host into tensors.

All figures come from the cost tables that :func:`go_opt.env.evaluate_batch` sums, so the parts of a term
add up to the term. A replicated stage is identified by its first chip; all its chips run the same kernels in
turn. Axes: ``N`` ops, ``K`` tensors, ``M`` kernels, ``R`` reads, ``D`` chips.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import lcm
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import FloatArray, IntArray, LongArray, row_pointers
from go_opt.env import Metrics, Target, cost_tables, evaluate_plan
from go_opt.env.copies.relays import expand_plan, relay_name
from go_opt.env.copies.stages import size_by_chip, with_sharers
from go_opt.env.cost.tables import COPY_TYPE, CostTables
from go_opt.env.kernels.numbering import kernel_seconds, number_kernels
from go_opt.env.model.memory import Fit, Holdings, fit_chips, holdings
from go_opt.env.model.traffic import MOST_TURNS
from go_opt.model.graph import INPUT, NO_PRODUCER, Graph
from go_opt.model.plan import Plan

BoundBy = Literal["compute", "SRAM", "overhead", "measured"]
Role = Literal["activation", "input", "output", "weight"]


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
    def parts_s(self) -> dict[BoundBy, FloatArray]:
        """[M] the parts of each kernel's time.

        Seconds of ops with a measured cost; of the others FLOPs divided by peak rates, bytes moved divided by
        SRAM bandwidth, and launch overhead.
        """
        tables, ops = self.tables, np.arange(self.graph.num_ops)
        kind, kind_of_op = tables.chip_kind[self.kernel_chip], tables.chip_kind[self.plan.placement]
        measured_s = tables.measured_s[kind_of_op, ops]
        is_modelled = self._per_kernel(np.isnan(measured_s)) > 0
        compute_s = np.where(np.isnan(measured_s), tables.op_s[kind_of_op, ops], 0.0)
        return {
            "measured": self._per_kernel(np.nan_to_num(measured_s)),
            "compute": self._per_kernel(compute_s),
            "SRAM": np.where(is_modelled, self.moved_bytes * tables.sram_s_per_byte[kind], 0.0),
            "overhead": np.where(is_modelled, tables.kernel_overhead_s[kind], 0.0),
        }

    @cached_property
    def kernel_s(self) -> FloatArray:
        """[M] ``max(compute, SRAM) + overhead`` of the modelled ops, plus the measured seconds."""
        parts_s = self.parts_s
        modelled_s = np.maximum(parts_s["compute"], parts_s["SRAM"]) + parts_s["overhead"]
        kernel_s: FloatArray = modelled_s + parts_s["measured"]
        return kernel_s

    @cached_property
    def moved_bytes(self) -> LongArray:
        """[M] bytes read from outside the kernel, once per tensor, plus bytes written to outside."""
        no_op_s = np.zeros((1, self.graph.num_ops))
        bytes_alone = self.tables._replace(
            op_s=no_op_s,
            measured_s=np.full_like(no_op_s, np.nan),
            kernel_overhead_s=np.zeros(1),
            sram_s_per_byte=np.ones(1),
        )
        moved_bytes: LongArray = kernel_seconds(bytes_alone, self.kernel_of)[0].astype(np.int64)
        return moved_bytes

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

    def streamed_weights(self, chip: int) -> list[tuple[int, int, bool]]:
        """The weights that stream to a stage's first chip, their bytes, and whether it forwards them."""
        held, fit = self._memory
        here = range(held.weight_ptr[chip], held.weight_ptr[chip + 1])
        return [
            (int(held.weight[i]), int(fit.streamed_bytes[i]), bool(fit.is_forwarded[i]))
            for i in here
            if fit.is_streamed[i]
        ]

    @cached_property
    def _memory(self) -> tuple[Holdings, Fit]:
        kernel_of, kernel_chip = self.kernel_of.astype(np.int32), self.kernel_chip.astype(np.int32)
        held = holdings(self.tables, kernel_of, kernel_chip, self.stage_size.astype(np.int64))
        return held, fit_chips(self.tables, held)

    def forwards_over(self, link: int) -> bool:
        """Whether a stage forwards weights over a ring link."""
        if not self.tables.is_ring or link + 1 >= self.tables.num_chips:
            return False
        first, behind = self.first_chip[link : link + 2]
        return bool(first == behind and self.tables.stream_sharers[first] > 1)

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

    def _per_kernel(self, per_op: NDArray) -> FloatArray:
        return np.bincount(self.kernel_of, per_op, len(self.kernel_chip)).astype(np.float64)

    def _most_bytes_first(self, tensors: LongArray) -> LongArray:
        return tensors[np.argsort(-self.tables.tensor_bytes[tensors], kind="stable")]


@dataclass(frozen=True)
class KernelPart:
    """One run of a kernel, of ``max(compute_s, sram_s) + overhead_s + measured_s`` seconds."""

    ops: tuple[str, ...]  # in execution order
    chip: int
    seconds: float
    bound_by: BoundBy  # the largest part of its time
    compute_s: float
    sram_s: float
    overhead_s: float
    measured_s: float
    flops: float
    moved_bytes: int  # between the kernel and SRAM


@dataclass(frozen=True)
class Place:
    """An op and the chip it runs on."""

    op: str
    chip: int  # first chip of its stage
    replicas: int = 1  # number of chips of its stage


@dataclass(frozen=True)
class TensorPart:
    """A tensor's share of a link's or the host's time."""

    tensor: str
    role: Role
    link: str  # a name in ``Target.link_names``
    size_bytes: int  # of an inference that uses this link
    seconds: float  # mean over all inferences
    source: Place | None  # its producer; None: the host
    readers: tuple[Place, ...]  # the readers reached over this link, without relay copies
    share: float = 1.0  # share of inferences that use this link; below 1 near replicated stages

    @property
    def mean_bytes(self) -> int:
        """The bytes that take ``seconds``: a mean over all inferences."""
        return round(self.size_bytes * self.share)


@dataclass(frozen=True)
class Term:
    """One term of the interval: the busy time of a chip, a link or the host's link."""

    name: str  # in the form of ``Metrics.bottleneck``
    seconds: float
    kernels: tuple[KernelPart, ...]  # longest first
    tensors: tuple[TensorPart, ...]  # longest first
    replicas: int = 1  # chips that run the kernels in turn
    own_share: float = 1.0  # of all inferences, that run on this chip

    @property
    def by_bound_s(self) -> dict[str, float]:
        """Seconds of the kernels of one inference, as in :func:`seconds_by_bound`."""
        return seconds_by_bound(self.kernels)

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors, as a mean over all inferences."""
        return round(sum(part.size_bytes * part.share for part in self.tensors))


class Terms:
    """All terms of a plan, by chip and by link."""

    def __init__(self, target: Target, loads: Loads, metrics: Metrics, names: Mapping[str, str]) -> None:
        """``names`` maps the names of copied tensors to those of their originals."""
        self.target, self.loads, self.metrics, self._names = target, loads, metrics, names

    def total_s(self) -> FloatArray:
        """[D + L] seconds of each term: chips, then links, host in and host out.

        Without overlap, a chip's term includes its transfers and link terms are zero.
        With overlap, all chips of a replicated stage have equal loads and share the term of the
        first chip.
        """
        if self.loads.tables.overlap:
            is_alike = self.loads.first_chip != np.arange(self.target.num_chips)
            return np.concatenate([np.where(is_alike, 0.0, self.metrics.compute_s), self.metrics.link_s])
        chip_s = [
            self.metrics.compute_s[chip] + sum(part.seconds for part in self._transfers(chip))
            for chip in range(self.target.num_chips)
        ]
        return np.concatenate([chip_s, np.zeros(len(self.metrics.link_s))])

    def term(self, index: int) -> Term:
        """The term at ``index``, broken down: a chip, or a link at ``D + link``."""
        name = self.target.bottleneck_name(index)
        if index >= self.target.num_chips:
            parts = self.link(index - self.target.num_chips)
            return Term(name, float(self.metrics.link_s[index - self.target.num_chips]), (), parts)
        kernels = self.kernels(index)
        tensors = () if self.loads.tables.overlap else self._transfers(index)
        seconds = float(self.metrics.compute_s[index]) + sum(part.seconds for part in tensors)
        return Term(name, seconds, kernels, tensors, self.replicas(index), float(self.loads.share[index]))

    def replicas(self, chip: int) -> int:
        """The number of chips of the stage of ``chip``."""
        return int(self.loads.stage_size[self.loads.first_chip[chip]])

    def is_inside(self, index: int) -> bool:
        """Whether a term belongs to a ring link between two chips of one replicated stage."""
        link = index - self.target.num_chips
        if not 0 <= link < self.target.num_chips - 1 or not self.loads.tables.is_ring:
            return False
        return bool(self.loads.first_chip[link] == self.loads.first_chip[link + 1])

    def kernels(self, chip: int) -> tuple[KernelPart, ...]:
        """The kernels of a chip, longest first."""
        here = np.flatnonzero(self.loads.kernel_chip == self.loads.first_chip[chip])
        longest = here[np.argsort(-self.loads.kernel_s[here], kind="stable")]
        return tuple(self.kernel(int(kernel)) for kernel in longest)

    def kernel(self, kernel: int) -> KernelPart:
        """One kernel, with the parts of its time."""
        loads = self.loads
        ptr, members = loads.members
        ops = members[ptr[kernel] : ptr[kernel + 1]]
        seconds = {part: float(parts_s[kernel]) for part, parts_s in loads.parts_s.items()}
        return KernelPart(
            ops=tuple(loads.graph.op_names[op] for op in ops),
            chip=int(loads.kernel_chip[kernel]),
            seconds=float(loads.kernel_s[kernel]),
            bound_by=max(seconds, key=lambda part: seconds[part]),
            compute_s=seconds["compute"],
            sram_s=seconds["SRAM"],
            overhead_s=seconds["overhead"],
            measured_s=seconds["measured"],
            flops=float(loads.graph.op_flops[ops].sum()),
            moved_bytes=int(loads.moved_bytes[kernel]),
        )

    def streamed(self, chip: int) -> tuple[TensorPart, ...]:
        """The weights that stream to a chip for one of its inferences, largest first.

        A weight that the stage's chips forward crosses the host's link once per ``replicas`` inferences.
        """
        chip = int(self.loads.first_chip[chip])
        share = 1.0 / self.replicas(chip)
        parts = [
            self._host_in(k, touched, [chip], share if is_forwarded else 1.0)
            for k, touched, is_forwarded in self.loads.streamed_weights(chip)
        ]
        return tuple(sorted(parts, key=lambda part: -part.size_bytes))

    def link(self, link: int) -> tuple[TensorPart, ...]:
        """The tensors that cross a link, including host in and host out, largest first."""
        loads = self.loads
        if link < len(loads.tables.link_s_per_byte):
            crossing = zip(*loads.on_link(link), strict=True)
            parts = [self._crossing(int(k), float(share), link) for k, share in crossing]
            forwarded = self._forwarded(link)
            return tuple(sorted([*parts, *forwarded], key=lambda part: -part.seconds) if forwarded else parts)
        if self.target.link_names[link] == "host out":
            return tuple(self._host_out(int(k)) for k in loads.outputs())
        weights = [part for chip in self.streaming() for part in self.streamed(chip)]
        inputs = [self._host_in(int(k), int(loads.tables.tensor_bytes[k]), None) for k in loads.inputs()]
        return tuple(sorted([*inputs, *weights], key=lambda part: -part.seconds))

    def _forwarded(self, link: int) -> list[TensorPart]:
        """The weights that one chip of a stage forwards to the next over a link."""
        loads = self.loads
        if not loads.forwards_over(link):
            return []
        chip, name = int(loads.first_chip[link]), self.target.link_names[link]
        s_per_byte, share = float(loads.tables.link_s_per_byte[link]), 1.0 / self.replicas(chip)
        return [
            replace(self._host_in(k, size, [chip], share), link=name, seconds=size * share * s_per_byte)
            for k, size, is_forwarded in loads.streamed_weights(chip)
            if is_forwarded
        ]

    def streaming(self) -> list[int]:
        """The first chips of the stages that stream weights."""
        is_first = self.loads.first_chip == np.arange(self.target.num_chips)
        return [int(chip) for chip in np.flatnonzero(is_first & (self.metrics.stream_bytes > 0))]

    def _transfers(self, chip: int) -> tuple[TensorPart, ...]:
        """The tensors that a chip sends, receives and passes on, per link, if it spends time on transfers."""
        loads, tables = self.loads, self.loads.tables
        first, own_share = loads.first_chip[chip], float(loads.share[chip])
        if not tables.pays_transfers[tables.chip_kind[chip]]:
            return ()
        links = np.flatnonzero((tables.link_from == chip) | (tables.link_to == chip))
        parts = [part for link in links for part in self.link(int(link))]
        own = [
            self._host_in(int(k), int(tables.tensor_bytes[k]), [first])
            for k in loads.inputs()
            if (loads.op_chip[loads.readers(int(k))] == first).any()
        ]
        own += [self._host_out(int(k)) for k in loads.outputs() if loads.home_chip[k] == first]
        own += self.streamed(chip)
        parts += [replace(part, seconds=part.seconds * own_share, share=own_share) for part in own]
        return tuple(sorted(parts, key=lambda part: -part.seconds))

    def _crossing(self, k: int, share: float, link: int) -> TensorPart:
        loads = self.loads
        size = int(loads.tables.tensor_bytes[k])
        readers = tuple(place for op in loads.behind_link(k, link) for place in self.final_readers(op))
        seconds = size * share * float(loads.tables.link_s_per_byte[link])
        name, link_name = self.tensor_name(k), self.target.link_names[link]
        return TensorPart(name, "activation", link_name, size, seconds, self.source(k), readers, share)

    def _host_in(self, k: int, size: int, chips: list[int] | None, share: float = 1.0) -> TensorPart:
        loads = self.loads
        readers = [(op, int(loads.op_chip[op])) for op in loads.readers(k)]
        places = tuple(self._place(op) for op, chip in readers if chips is None or chip in chips)
        role: Role = "input" if loads.tables.tensor_kind[k] == INPUT else "weight"
        seconds = size * share * loads.tables.host_in_s_per_byte
        return TensorPart(self.tensor_name(k), role, "host in", size, seconds, None, places, share)

    def _host_out(self, k: int) -> TensorPart:
        size = int(self.loads.tables.tensor_bytes[k])
        seconds = size * self.loads.tables.host_out_s_per_byte
        return TensorPart(self.tensor_name(k), "output", "host out", size, seconds, self.source(k), ())

    def final_readers(self, op: int) -> Iterator[Place]:
        """The reader itself, or the final readers of the copy if the reader is a relay."""
        if self.loads.graph.op_types[op] != COPY_TYPE:
            yield self._place(op)
            return
        out_ptr, outputs = self.loads.graph.op_outputs
        for k in outputs[out_ptr[op] : out_ptr[op + 1]]:
            for reader in self.loads.readers(int(k)):
                yield from self.final_readers(reader)

    def tensor_name(self, k: int) -> str:
        """The name of a tensor; outputs of relays get the name of the original."""
        name = self.loads.graph.tensor_names[k]
        return self._names.get(name, name)

    def source(self, k: int) -> Place:
        """The op that computes a tensor, skipping relays."""
        return self._place(self._way(k)[-1])

    def copied_on(self, k: int) -> tuple[int, ...]:
        """The first chips of the stages that relay a tensor, in the order of the transfers."""
        return tuple(int(self.loads.op_chip[op]) for op in reversed(self._way(k)[:-1]))

    def _way(self, k: int) -> list[int]:
        """The relays of a tensor from last to first, then the op that computes it."""
        graph = self.loads.graph
        read_ptr, reads = graph.op_reads
        way = [int(graph.tensor_producer[k])]
        while graph.op_types[way[-1]] == COPY_TYPE:
            way.append(int(graph.tensor_producer[graph.reader_tensor[reads[read_ptr[way[-1]]]]]))
        return way

    def place(self, name: str) -> Place:
        """The place of an op or relay."""
        return self._place(self.loads.graph.op_index[name])

    def _place(self, op: int) -> Place:
        chip = int(self.loads.op_chip[op])
        return Place(self.loads.graph.op_names[op], chip, self.replicas(chip))


def seconds_by_bound(kernels: Sequence[KernelPart]) -> dict[str, float]:
    """Seconds of kernels that compute or SRAM traffic binds, of overhead, and measured ones."""
    return {
        "compute": sum(kernel.compute_s for kernel in kernels if kernel.compute_s >= kernel.sram_s),
        "SRAM traffic": sum(kernel.sram_s for kernel in kernels if kernel.compute_s < kernel.sram_s),
        "overhead": sum(kernel.overhead_s for kernel in kernels),
        "measured": sum(kernel.measured_s for kernel in kernels),
    }


def terms_of(graph: Graph, target: Target, plan: Plan) -> Terms:
    """The terms of ``plan``, with its relays as ops."""
    expanded, placed = expand_plan(graph, target, plan)
    size = size_by_chip(plan.placement, plan.replication, target.num_chips)
    loads = Loads(expanded, with_sharers(cost_tables(expanded, target), plan.forwards, size), placed)
    return Terms(target, loads, evaluate_plan(graph, target, plan), original_names(plan))


def original_names(plan: Plan) -> dict[str, str]:
    """The original of each tensor that a relay of ``plan`` writes, by name."""
    return {relay_name(relay.tensor, chip): relay.tensor for relay in plan.relays for chip in relay.chips}
