"""Parts of a plan's explanation: the use of chips and links, and the purpose of copies and splits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from go_opt.env import Target, cost_tables
from go_opt.env.copies.relays import relay_name
from go_opt.env.copies.splits import JOIN
from go_opt.env.rewrites import names as rewritten
from go_opt.explanations.terms import KernelPart, Place, TensorPart, Terms
from go_opt.model.graph import WEIGHT, Graph
from go_opt.model.plan import Plan, Split


@dataclass(frozen=True)
class ChipUse:
    """The use of each chip of a stage. The four kinds of time add up to ``busy_s``."""

    chip: int  # first chip of the stage
    replicas: int  # number of chips of the stage
    own_share: float  # of all inferences, that run on this chip
    ops: int  # ops of the graph, without relays
    kernels: int  # including relays
    busy_s: float  # mean over all inferences, of which the chip runs ``own_share``
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


@dataclass(frozen=True)
class SplitUse:
    """A split op, with the memory figures that explain the split."""

    op: str
    factors: tuple[str, ...]  # loops of the op along which it is divided; (): parts compute all of the op
    parts: int
    joined: bool
    is_summed: bool  # the results of parts are added, or joined by max or min
    is_shared: bool  # parts share the work of an inference, for a lower latency; else weights are heavy
    weight_bytes: int  # of all parts
    sram_bytes: int  # of the chip with the least memory


@dataclass(frozen=True)
class RewriteUse:
    """Ops that others replace."""

    rule: str
    ops: tuple[str, ...]  # of the graph as sent, or of the rewrite before: its products
    op: str  # that computes what the first of them did
    number: int  # of products among them
    kind: str  # "convolution" or "product"
    source: str  # the tensor, or of a batch the weight, that all of them read; empty if the op is split


def rewrite_uses(graph: Graph, plan: Plan) -> tuple[RewriteUse, ...]:
    """The rewrites of a plan; ``graph`` is the one that it places."""
    found = []
    for one in plan.rewrites:
        names = {rewritten.merged_name(one.ops[0], number): number for number in range(2, len(one.ops) + 1)}
        here = (name for name in names if name in graph.op_index or graph.ops_named(f"{name}/part 1 of "))
        op = one.ops[0] if one.rule in rewritten.KEEPS_NAME else next(here, one.ops[0])
        number = names.get(op, 1)
        row = graph.rule_of(graph.op_index[op]) if op in graph.op_index else None
        is_convolution = op in graph.op_index and graph.op_types[graph.op_index[op]] == "Conv"
        found.append(
            RewriteUse(
                rule=one.rule,
                ops=one.ops[:: len(one.ops) // number],
                op=op,
                number=number,
                kind="convolution" if is_convolution else "product",
                source="" if row is None else graph.tensor_names[row.operands[one.rule == rewritten.BATCH]],
            )
        )
    return tuple(found)


def split_uses(graph: Graph, target: Target, plan: Plan) -> tuple[SplitUse, ...]:
    """The split ops of a plan, heaviest first; ``graph`` is the graph with the parts."""
    tensor_bytes, least = cost_tables(graph, target).tensor_bytes, int(target.chip_sram_bytes.min())
    of_op: dict[str, list[Split]] = {}
    for split in plan.splits:
        if not split.level:  # else of parts of an op
            of_op.setdefault(split.op, []).append(split)
    found = []
    for name, splits in of_op.items():
        parts = graph.ops_named(f"{name}/part ") or [
            graph.op_index[name] if name in graph.op_index else graph.ops_named(f"{name}/")[0]
        ]
        reads = [
            frozenset(k for k, _ in graph.reads_of(op) if graph.tensor_kind[k] == WEIGHT) for op in parts
        ]
        weights = frozenset[int]().union(*reads)
        types = {graph.op_types[op] for op in (*parts, graph.op_index.get(name, parts[0]))} - {JOIN}
        joined, is_summed = all(one.joined for one in splits), len(types) > 1
        outputs = [k for op in parts for k in graph.outputs_of(op)]
        stays = not joined and not graph.tensor_is_output[outputs].all()
        use = SplitUse(
            op=name,
            factors=tuple(one.factor for one in splits if one.factor),
            parts=math.prod(one.parts for one in splits),
            joined=joined,
            is_summed=is_summed,
            is_shared=is_summed or stays or all(one == weights for one in reads),
            weight_bytes=int(tensor_bytes[sorted(weights)].sum()),
            sram_bytes=least,
        )
        found.append(use)
    return tuple(sorted(found, key=lambda use: -use.weight_bytes))


def chip_use(target: Target, plan: Plan, terms: Terms, chip: int) -> ChipUse:
    kernels, share = terms.kernels(chip), float(terms.loads.share[chip])
    metrics = terms.metrics
    return ChipUse(
        chip=chip,
        replicas=terms.replicas(chip),
        own_share=share,
        ops=int((plan.placement == chip).sum()),
        kernels=len(kernels),
        busy_s=float(metrics.compute_s[chip]),
        compute_s=sum(kernel.compute_s for kernel in kernels if kernel.compute_s >= kernel.sram_s) * share,
        sram_s=sum(kernel.sram_s for kernel in kernels if kernel.compute_s < kernel.sram_s) * share,
        overhead_s=sum(kernel.overhead_s for kernel in kernels) * share,
        measured_s=sum(kernel.measured_s for kernel in kernels) * share,
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
