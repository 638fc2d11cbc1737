"""Why a plan costs what it costs: what binds, what comes next, what would help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import numpy as np
from numpy.typing import NDArray

from go_opt.env import Metrics, Target, cost_tables, evaluate_plan
from go_opt.env.copies.expanded_tables import PlanTables
from go_opt.env.copies.relays import clone_name, expand_plan, relay_name
from go_opt.env.critical_path import CriticalPath, critical_path
from go_opt.env.peak_memory import PeakMemory, peak_memory
from go_opt.errors import PlanError
from go_opt.explanations.blocks import Blocks, repeated_blocks
from go_opt.explanations.loads import Loads
from go_opt.explanations.moves import Mover, Neighbourhood
from go_opt.explanations.resizes import Resize, best_resize
from go_opt.explanations.terms import KernelPart, Place, TensorPart, Term, Terms, original_names
from go_opt.explanations.what_if import WhatIf, what_ifs
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.result import Objective
from go_opt.solver import Bound, Violation, verify
from go_opt.solver.problem.user_constraints import UserConstraint

EQUAL: Final = 1e-9  # terms that differ by less, relatively, bind together


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
class PlanExplanation:
    """Everything that is told of a plan as a whole. Times are of one inference in steady state."""

    graph: str
    target: str
    overlap: bool  # whether transfers run beside compute
    num_ops: int
    num_kernels: int
    num_chips: int
    may_replicate: bool  # whether the target can run stages on several chips in turn
    chips_used: int
    metrics: Metrics
    violations: tuple[Violation, ...]  # rules the plan breaks; empty where it is valid
    bound: Bound | None  # no plan's interval is below it
    binding: tuple[Term, ...]  # the largest; several where they are equal
    next_terms: tuple[tuple[str, float], ...]  # the others, the largest first
    what_ifs: tuple[WhatIf, ...]
    moves: Neighbourhood | None  # of the kernels that bind; None where the plan breaks a rule
    resize: Resize | None  # the best way to another chip for the stage that binds
    chips: tuple[ChipUse, ...]  # in use, one for each stage
    links: tuple[LinkUse, ...]  # in use, host in and out included
    fullest: PeakMemory  # of the chip whose weights and activations fill most of its memory
    streamed: tuple[tuple[int, tuple[TensorPart, ...]], ...]  # of each stage that streams weights
    relays: tuple[RelayUse, ...]
    clones: tuple[CloneUse, ...]
    blocks: tuple[Blocks, ...]
    provenance: tuple[tuple[str, int], ...]  # where decisions came from, and of how many ops
    objective: Objective = "throughput"  # of which bound, what-ifs and loads are told
    path: CriticalPath | None = None  # of the makespan, where that is the objective of a valid plan

    @property
    def reached_s(self) -> float:
        """The objective of the plan."""
        return self.metrics.makespan_s if self.objective == "latency" else self.metrics.interval_s

    def busy_s(self, use: ChipUse) -> float:
        """Seconds that a stage computes in what the objective is about: an interval, or one inference."""
        return use.busy_s * (use.replicas if self.objective == "latency" else 1)

    @property
    def idle_share(self) -> float:
        """Of the time of all chips of the package."""
        if self.reached_s == 0:
            return 0.0
        return 1.0 - float(self.metrics.compute_s.sum()) / (self.num_chips * self.reached_s)


def explain_plan(
    graph: Graph,
    target: Target,
    plan: Plan,
    *,
    objective: Objective = "throughput",
    bound: Bound | None = None,
    constraints: Sequence[UserConstraint] = (),
) -> PlanExplanation:
    """Explain ``plan`` by the analytical model.

    Args:
      objective: ``latency`` explains the makespan, and does not try moves.
      bound: of the problem that ``plan`` answers, where one is known.
      constraints: of the user, which the plan must keep.

    Raises:
      PlanError: the plan was made for another graph or target, or is no plan for them at all.
    """
    violations = rules_broken(graph, target, plan, constraints)
    expanded, placed = expand_plan(graph, target, plan)
    tables = cost_tables(expanded, target)
    metrics = evaluate_plan(graph, target, plan)
    loads = Loads(expanded, tables, placed)
    terms = Terms(target, loads, metrics, original_names(graph, plan))
    total_s = terms.total_s()
    largest_first = np.argsort(-total_s, kind="stable")
    num_binding = int((total_s >= total_s.max() * (1.0 - EQUAL)).sum())
    binding = [int(i) for i in largest_first[:num_binding]]
    binding_terms = tuple(terms.term(i) for i in binding)
    chips = tuple(_chip_use(target, plan, terms, int(d)) for d in np.unique(loads.kernel_chip))
    fullest = max(chips, key=lambda use: use.memory_share)
    at_fault = next((i for i in binding if i < target.num_chips), None)
    # Of an illegal plan there may not even be a graph of kernels to move.
    of_interval = objective == "throughput"
    mover = Mover(graph, target, plan, constraints) if of_interval and not violations else None
    return PlanExplanation(
        graph=graph.name,
        target=target.name,
        overlap=target.overlap,
        num_ops=graph.num_ops,
        num_kernels=len(loads.kernel_chip),
        num_chips=target.num_chips,
        may_replicate=target.num_chips > 1,
        chips_used=int(loads.stage_size[np.unique(placed.placement)].sum()),
        metrics=metrics,
        violations=violations,
        bound=bound,
        binding=binding_terms,
        next_terms=tuple(
            (target.bottleneck_name(int(i)), float(total_s[i]))
            for i in largest_first[num_binding:]
            if total_s[i] > 0 and not terms.is_inside(int(i))
        ),
        what_ifs=what_ifs(target, PlanTables(tables, *_decided(placed)), metrics, binding, objective),
        moves=None if mover is None else mover.around(_ops(graph, binding_terms)),
        resize=None
        if at_fault is None or mover is None
        else best_resize(graph, target, plan, int(loads.first_chip[at_fault]), constraints),
        chips=chips,
        links=tuple(_link_uses(terms)),
        fullest=peak_memory(graph, target, plan, fullest.chip),
        streamed=tuple((chip, terms.streamed(chip)) for chip in terms.streaming()),
        relays=_relays(graph, plan, terms),
        clones=_clones(graph, plan, terms),
        blocks=repeated_blocks(graph, plan),
        provenance=_provenance(plan),
        objective=objective,
        path=None if of_interval or violations else critical_path(graph, target, plan),
    )


def rules_broken(
    graph: Graph, target: Target, plan: Plan, constraints: Sequence[UserConstraint]
) -> tuple[Violation, ...]:
    """Every rule and constraint that ``plan`` breaks.

    Raises:
      PlanError: it cannot even be costed.
    """
    violations = verify(graph, target, plan, constraints)
    if any(violation.constraint == "shape" for violation in violations):
        raise PlanError(violations[0].message, field="plan")
    return tuple(violations)


def _ops(graph: Graph, terms: tuple[Term, ...]) -> list[int]:
    """The ops of the graph that make up terms: of their kernels, and at the ends of their tensors."""
    names = [kernel.ops[0] for term in terms for kernel in term.kernels]
    for part in (part for term in terms for part in term.tensors):
        names += [place.op for place in (part.source, *part.readers) if place is not None]
    return [graph.op_index[name] for name in dict.fromkeys(names) if name in graph.op_index]


def _decided(plan: Plan) -> tuple[NDArray[np.int32], ...]:
    return plan.placement, plan.order, plan.fusion_group, plan.replication


def _chip_use(target: Target, plan: Plan, terms: Terms, chip: int) -> ChipUse:
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


def _link_uses(terms: Terms) -> Iterator[LinkUse]:
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


def _relays(graph: Graph, plan: Plan, terms: Terms) -> tuple[RelayUse, ...]:
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


def _clones(graph: Graph, plan: Plan, terms: Terms) -> tuple[CloneUse, ...]:
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


def _provenance(plan: Plan) -> tuple[tuple[str, int], ...]:
    counts = np.bincount(plan.op_provenance, minlength=len(plan.provenance))
    return tuple(
        (plan.provenance[i], int(counts[i])) for i in np.argsort(-counts, kind="stable") if counts[i]
    )
