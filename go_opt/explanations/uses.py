"""Parts of a plan's explanation: the use of chips and links, the purpose of copies and splits, and states."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

import numpy as np

from go_opt.env import Metrics, Target, cost_tables, evaluate_plan
from go_opt.env.copies.relays import relay_name
from go_opt.env.copies.splits import JOIN
from go_opt.env.rewrites import names as rewritten
from go_opt.explanations.terms import KernelPart, Place, TensorPart, Terms, seconds_by_bound
from go_opt.model.graph import NO_PRODUCER, WEIGHT, Graph, NamedState, with_sequences
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
    kernels, share, metrics = terms.kernels(chip), float(terms.loads.share[chip]), terms.metrics
    seconds = {part: seconds * share for part, seconds in seconds_by_bound(kernels).items()}
    return ChipUse(
        chip=chip,
        replicas=terms.replicas(chip),
        own_share=share,
        ops=int((plan.placement == chip).sum()),
        kernels=len(kernels),
        busy_s=float(metrics.compute_s[chip]),
        compute_s=seconds["compute"],
        sram_s=seconds["SRAM traffic"],
        overhead_s=seconds["overhead"],
        measured_s=seconds["measured"],
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


_Because = Literal["chips", "memory", "choice"]


@dataclass(frozen=True)
class HostState:
    """A state that the host keeps: an input and an output of each inference."""

    state: str
    in_bytes: int  # that the host sends for each inference
    out_bytes: int  # that it receives
    # Why the plan as it stands cannot keep it: its ops lie on several "chips", or the "memory" of their chip
    # is too small. "choice": it could.
    because: _Because
    chips: tuple[int, ...]  # of the ops that touch it
    free_bytes: int  # on the first of these chips, beside the plan's tensors
    needed_bytes: int  # of the state, for all sequences


@dataclass(frozen=True)
class StateUse:
    """The states of a graph under a plan."""

    sequences: int  # in flight
    sequence_bytes: int  # stored on the chips for each of them
    model_bytes: int  # stored on the chips once: states of scope ``model``
    fullest_chip: int  # the chip with most bytes of states
    fullest_bytes: int
    waits_s: float  # latency / sequences, below which no interval is; 0 without states of sequences
    one_more_s: float | None  # interval of the same plan with one more sequence; None: they do not fit
    one_more_reason: str  # why not; empty if they fit
    on_host: tuple[HostState, ...] = ()


def state_use(graph: Graph, target: Target, plan: Plan, metrics: Metrics) -> StateUse | None:
    """The states of ``graph``, which is costed for the plan's sequences; None if it has none."""
    if not (graph.states or graph.host_states):
        return None
    stored = cost_tables(graph, target).stored_bytes
    held = np.zeros(target.num_chips, np.int64)
    for state in graph.states:
        readers = graph.readers_of(state.read)
        if readers:
            sequences = graph.sequences if state.scope == "sequence" else 1
            # The first chip of a replicated stage has the most sequences.
            busiest = -(-sequences // int(plan.replication[readers[0]]))
            held[plan.placement[readers[0]]] += stored[state.read] // sequences * busiest
    of_sequences = [state.read for state in graph.states if state.scope == "sequence"]
    of_model = [state.read for state in graph.states if state.scope == "model"]
    more = replace(plan, sequences=plan.sequences + 1)
    then = evaluate_plan(with_sequences(graph, more.sequences), target, more)
    has_sequences = graph.has_scope("sequence")
    return StateUse(
        sequences=plan.sequences,
        sequence_bytes=int(stored[of_sequences].sum()) // graph.sequences,
        model_bytes=int(stored[of_model].sum()),
        fullest_chip=int(held.argmax()),
        fullest_bytes=int(held.max()),
        waits_s=metrics.latency_s / plan.sequences if has_sequences else 0.0,
        one_more_s=then.interval_s if then.valid else None,
        one_more_reason=then.reason,
        on_host=tuple(host_states(graph, target, plan, metrics)),
    )


def host_states(graph: Graph, target: Target, plan: Plan, metrics: Metrics) -> Iterator[HostState]:
    """The states that the host keeps, and why; ``graph`` is costed for the plan's sequences."""
    tables = cost_tables(graph, target)
    for state in graph.host_states:
        pair = [graph.tensor_index.get(name) for name in (state.read, state.next)]
        sizes = [0 if k is None else int(tables.tensor_bytes[k]) for k in pair]
        chips = _chips_of(graph, plan, state)
        needed = max(0 if k is None else int(tables.stored_bytes[k]) for k in pair)
        needed *= graph.sequences if state.scope == "sequence" else 1
        chip = chips[0] if chips else 0
        free = int(tables.sram_bytes[chip] - metrics.peak_bytes[chip] - metrics.weight_bytes[chip])
        is_small: _Because = "memory" if needed > max(free, 0) else "choice"
        yield HostState(
            state=state.read,
            in_bytes=sizes[0],
            out_bytes=0 if state.next == state.read else sizes[1],
            because="chips" if len(chips) > 1 else is_small,
            chips=chips,
            free_bytes=free,
            needed_bytes=needed,
        )


def _chips_of(graph: Graph, plan: Plan, state: NamedState) -> tuple[int, ...]:
    """The chips of the ops that read a state or compute its next value, all of their stages."""
    ops = []
    for name in (state.read, state.next):
        if (k := graph.tensor_index.get(name)) is not None:
            ops += graph.readers_of(k) if name == state.read else []
            ops += [int(graph.tensor_producer[k])] if graph.tensor_producer[k] != NO_PRODUCER else []
    stages = {(int(plan.placement[op]), int(plan.replication[op])) for op in ops}
    return tuple(sorted(chip + i for chip, size in stages for i in range(size)))
