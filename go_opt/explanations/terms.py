"""Breaks the terms of the interval down: chips into kernels, links and the host into tensors.

A replicated stage is identified by its first chip; all its chips run the same kernels in turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from go_opt.common.arrays import FloatArray
from go_opt.env import Metrics, Target, cost_tables, evaluate_plan
from go_opt.env.copies.relays import expand_plan, relay_name
from go_opt.env.cost.tables import COPY_TYPE
from go_opt.explanations.loads import Loads, forwarded_over, streamed_weights
from go_opt.model.graph import INPUT, Graph
from go_opt.model.plan import Plan

BoundBy = Literal["compute", "SRAM", "overhead", "measured"]
Role = Literal["activation", "input", "output", "weight"]


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
        seconds: dict[BoundBy, float] = {"measured": float(loads.measured_s[kernel])}
        if loads.is_modelled[kernel]:
            compute_s, sram_s = float(loads.compute_s[kernel]), float(loads.sram_s[kernel])
            seconds |= {"compute": compute_s, "SRAM": sram_s, "overhead": float(loads.overhead_s[kernel])}
        return KernelPart(
            ops=tuple(loads.graph.op_names[op] for op in ops),
            chip=int(loads.kernel_chip[kernel]),
            seconds=float(loads.kernel_s[kernel]),
            bound_by=max(seconds, key=lambda part: seconds[part]),
            compute_s=seconds.get("compute", 0.0),
            sram_s=seconds.get("SRAM", 0.0),
            overhead_s=seconds.get("overhead", 0.0),
            measured_s=seconds["measured"],
            flops=float(loads.graph.op_flops[ops].sum()),
            moved_bytes=int(loads.moved_bytes[kernel]),
        )

    def streamed(self, chip: int) -> tuple[TensorPart, ...]:
        """The weights that stream to a chip for one of its inferences, largest first.

        A weight that the stage's chips forward crosses the host's link once per ``replicas`` inferences.
        """
        chip = int(self.loads.first_chip[chip])
        weights, forwarded = streamed_weights(self.loads, chip)
        share = 1.0 / self.replicas(chip)
        parts = [
            self._host_in(k, touched, [chip], share if k in forwarded else 1.0) for k, touched in weights
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
        chip = forwarded_over(self.loads, link)
        if chip is None or not self.metrics.stream_bytes[chip]:
            return []
        weights, forwarded = streamed_weights(self.loads, chip)
        s_per_byte = float(self.loads.tables.link_s_per_byte[link])
        name, share = self.target.link_names[link], 1.0 / self.replicas(chip)
        return [
            replace(self._host_in(k, size, [chip], share), link=name, seconds=size * share * s_per_byte)
            for k, size in weights
            if k in forwarded
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


def terms_of(graph: Graph, target: Target, plan: Plan) -> Terms:
    """The terms of ``plan``, with its relays as ops."""
    expanded, placed = expand_plan(graph, target, plan)
    loads = Loads(expanded, cost_tables(expanded, target), placed)
    return Terms(target, loads, evaluate_plan(graph, target, plan), original_names(plan))


def original_names(plan: Plan) -> dict[str, str]:
    """The original of each tensor that a relay of ``plan`` writes, by name."""
    return {relay_name(relay.tensor, chip): relay.tensor for relay in plan.relays for chip in relay.chips}
