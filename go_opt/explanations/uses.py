"""The parts of a plan's explanation: how full its chips and links are, and what its copies are for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from go_opt.env import Target, cost_tables
from go_opt.env.copies.part_names import part_name
from go_opt.env.copies.relays import clone_name, relay_name
from go_opt.explanations.terms import KernelPart, Place, TensorPart, Terms
from go_opt.model.graph import WEIGHT, Graph
from go_opt.model.plan import Plan


@dataclass(frozen=True)
class ChipUse:
    """How full each chip of a stage is. The four kinds of time add up to ``busy_s``."""

    chip: int  # the first of the stage
    replicas: int  # chips of the stage
    ops: int  # of the graph; clones and relays apart
    kernels: int  # with clones and relays
    busy_s: float  # in the mean over all inferences, of which each chip runs one in ``replicas``
    compute_s: float  # of kernels that compute binds
    sram_s: float  # of kernels that traffic with SRAM binds
    overhead_s: float  # of starting kernels
    measured_s: float
    dearest: KernelPart
    weight_bytes: int  # resident
    peak_bytes: int  # of activations
    stream_bytes: int  # of weights, each inference on the chip
    sram_bytes: int

    @property
    def memory_share(self) -> float:
        """Of its memory that weights and, at their peak, activations fill; what streams takes none."""
        return (self.weight_bytes + self.peak_bytes) / self.sram_bytes


@dataclass(frozen=True)
class LinkUse:
    """How full a link is, and what it carries."""

    name: str
    seconds: float
    size_bytes: int
    tensors: int
    largest: TensorPart
    among: int = 1  # links inside a replicated stage, of which this is the fullest


@dataclass(frozen=True)
class RelayUse:
    """A tensor forwarded by copies: the reader it is for, and what the copies cost."""

    tensor: str
    source: Place
    chips: tuple[int, ...]  # that copy it, the first of each stage
    farthest: Place  # reader
    size_bytes: int
    seconds: float  # of all copies, each on its chip


@dataclass(frozen=True)
class CloneUse:
    """An op computed once more, and the tensors that its chip need not be sent for it."""

    op: str
    chip: int
    original_chip: int
    seconds: float
    weight_bytes: int  # held once more
    read_by: tuple[str, ...]


@dataclass(frozen=True)
class SplitUse:
    """An op that is computed in parts, with what did not fit as a whole."""

    op: str
    kind: str
    parts: int
    joined: bool
    weight_bytes: int  # of all parts
    sram_bytes: int  # of the largest chip


def split_uses(graph: Graph, target: Target, plan: Plan) -> tuple[SplitUse, ...]:
    """The heaviest first; ``graph`` is the one with the parts."""
    tables = cost_tables(graph, target)
    found = []
    for split in plan.splits:
        parts = [graph.op_index[part_name(split.op, i, split.parts)] for i in range(split.parts)]
        read = graph.reader_tensor[np.isin(graph.reader_op, parts)]
        weights = np.unique(read[graph.tensor_kind[read] == WEIGHT])
        weight_bytes = int(tables.tensor_bytes[weights].sum())
        largest = int(target.chip_sram_bytes.max())
        found.append(SplitUse(split.op, split.kind, split.parts, split.joined, weight_bytes, largest))
    return tuple(sorted(found, key=lambda use: -use.weight_bytes))


def chip_use(target: Target, plan: Plan, terms: Terms, chip: int) -> ChipUse:
    kernels, replicas = terms.kernels(chip), terms.replicas(chip)
    metrics = terms.metrics
    return ChipUse(
        chip=chip,
        replicas=replicas,
        ops=int((plan.placement == chip).sum()),
        kernels=len(kernels),
        busy_s=float(metrics.compute_s[chip]),
        compute_s=sum(kernel.compute_s for kernel in kernels if kernel.compute_s >= kernel.sram_s) / replicas,
        sram_s=sum(kernel.sram_s for kernel in kernels if kernel.compute_s < kernel.sram_s) / replicas,
        overhead_s=sum(kernel.overhead_s for kernel in kernels) / replicas,
        measured_s=sum(kernel.measured_s for kernel in kernels) / replicas,
        dearest=kernels[0],
        weight_bytes=int(metrics.weight_bytes[chip]),
        peak_bytes=int(metrics.peak_bytes[chip]),
        stream_bytes=int(metrics.stream_bytes[chip]),
        sram_bytes=int(target.chip_sram_bytes[chip]),
    )


def link_uses(terms: Terms) -> Iterator[LinkUse]:
    """Every link in use, of those inside a replicated stage the fullest."""
    link_s, num_chips = terms.metrics.link_s, terms.target.num_chips
    first_chip = terms.loads.first_chip

    def group(link: int) -> tuple[bool, int]:
        is_inside = terms.is_inside(num_chips + link)
        return is_inside, int(first_chip[link]) if is_inside else link

    for _, links in groupby(np.flatnonzero(link_s).tolist(), key=group):
        alike = list(links)
        term = terms.term(num_chips + max(alike, key=lambda link: float(link_s[link])))
        parts = term.tensors
        yield LinkUse(term.name, term.seconds, term.size_bytes, len(parts), parts[0], len(alike))


def relay_uses(graph: Graph, plan: Plan, terms: Terms) -> tuple[RelayUse, ...]:
    found = []
    loads = terms.loads
    for relay in plan.relays:
        k = graph.tensor_index[relay.tensor]
        copies = [loads.graph.op_index[relay_name(relay.tensor, chip)] for chip in relay.chips]
        readers = [place for copy in copies for place in terms.final_readers(copy)]
        source = int(graph.tensor_producer[k])
        found.append(
            RelayUse(
                tensor=relay.tensor,
                source=terms.place(graph.op_names[source]),
                chips=relay.chips,
                farthest=max(readers, key=lambda place: place.chip),
                size_bytes=int(cost_tables(graph, terms.target).tensor_bytes[k]),
                seconds=float(loads.kernel_s[loads.kernel_of[copies]].sum()),
            )
        )
    return tuple(sorted(found, key=lambda relay: -relay.seconds))


def clone_uses(graph: Graph, plan: Plan, terms: Terms) -> tuple[CloneUse, ...]:
    found = []
    loads = terms.loads
    for clone in plan.clones:
        op = loads.graph.op_index[clone_name(clone.op, clone.chip)]
        out_ptr, outputs = loads.graph.op_outputs
        written = outputs[out_ptr[op] : out_ptr[op + 1]]
        found.append(
            CloneUse(
                op=clone.op,
                chip=clone.chip,
                original_chip=int(plan.placement[graph.op_index[clone.op]]),
                seconds=float(loads.kernel_s[loads.kernel_of[op]]),
                weight_bytes=loads.weight_bytes(op),
                read_by=tuple(
                    loads.graph.op_names[reader] for k in written for reader in loads.readers(int(k))
                ),
            )
        )
    return tuple(sorted(found, key=lambda clone: -clone.seconds))
