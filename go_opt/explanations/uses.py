"""Parts of a plan's explanation: the use of chips and links, and the purpose of copies and splits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import numpy as np

from go_opt.env import Target, cost_tables
from go_opt.env.copies.pieces import part_name
from go_opt.env.copies.relays import relay_name
from go_opt.explanations.terms import KernelPart, Place, TensorPart, Terms
from go_opt.model.graph import WEIGHT, Graph
from go_opt.model.plan import Plan


@dataclass(frozen=True)
class ChipUse:
    """The use of each chip of a stage. The four kinds of time add up to ``busy_s``."""

    chip: int  # first chip of the stage
    replicas: int  # number of chips of the stage
    ops: int  # ops of the graph, without relays
    kernels: int  # including relays
    busy_s: float  # mean over all inferences; each chip runs one in ``replicas``
    compute_s: float  # of compute-bound kernels
    sram_s: float  # of kernels bound by SRAM traffic
    overhead_s: float  # of kernel launches
    measured_s: float
    dearest: KernelPart
    weight_bytes: int  # resident
    peak_bytes: int  # of activations
    stream_bytes: int  # of streamed weights, per inference on the chip
    sram_bytes: int

    @property
    def memory_share(self) -> float:
        """The share of memory that resident weights and peak activations fill."""
        return (self.weight_bytes + self.peak_bytes) / self.sram_bytes


@dataclass(frozen=True)
class LinkUse:
    """The use of a link, and the tensors it carries."""

    name: str
    seconds: float
    size_bytes: int
    tensors: int
    largest: TensorPart
    among: int = 1  # number of links inside the replicated stage, of which this is the busiest


@dataclass(frozen=True)
class RelayUse:
    """A relayed tensor: its farthest reader, and the cost of its copies."""

    tensor: str
    source: Place
    chips: tuple[int, ...]  # first chips of the stages that copy it
    farthest: Place  # the reader on the last chip
    size_bytes: int
    moved_bytes: int  # between the copies and SRAM: each reads and writes the tensor
    seconds: float  # sum over all copies


_BLOCK: Final = "in blocks, by columns and inner dimensions,"
SHARED: Final = {"rows": "by rows", "heads": "by heads", "inner": _BLOCK}


@dataclass(frozen=True)
class SplitUse:
    """A split op, with the memory figures that explain the split."""

    op: str
    kind: str
    parts: int
    joined: bool
    how: str  # ops that share the work of an inference, for a lower latency; "" if weights are heavy
    weight_bytes: int  # of all parts
    sram_bytes: int  # of the chip with the least memory


def split_uses(graph: Graph, target: Target, plan: Plan) -> tuple[SplitUse, ...]:
    """The splits of a plan, heaviest first; ``graph`` is the graph with the parts."""
    tables = cost_tables(graph, target)
    found = []
    for split in plan.splits:
        parts = [graph.op_index[part_name(split.op, i, split.parts)] for i in range(split.parts)]
        read = graph.reader_tensor[np.isin(graph.reader_op, parts)]
        weights = np.unique(read[graph.tensor_kind[read] == WEIGHT])
        weight_bytes = int(tables.tensor_bytes[weights].sum())
        least = int(target.chip_sram_bytes.min())
        outputs = graph.op_outputs[1][graph.op_outputs[0][parts]]
        is_left = split.kind == "columns" and not split.joined and not graph.tensor_is_output[outputs].all()
        how = _BLOCK if is_left or split.kind == "inner" else SHARED.get(split.kind, "")
        use = SplitUse(split.op, split.kind, split.parts, split.joined, how, weight_bytes, least)
        found.append(use)
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
    """All links in use; of the links inside a replicated stage, only the busiest."""
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
                moved_bytes=int(loads.moved_bytes[loads.kernel_of[copies]].sum()),
                seconds=float(loads.kernel_s[loads.kernel_of[copies]].sum()),
            )
        )
    return tuple(sorted(found, key=lambda relay: -relay.seconds))
