"""Explains the cost of a plan: binding terms, the next ones, useful changes; and why an op is on its chip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from go_opt.common.suggestion import suggestion
from go_opt.env import Metrics, Target
from go_opt.env.chip_buffers import ChipBuffers
from go_opt.env.critical_path import CriticalPath, KernelSlack, critical_path
from go_opt.env.model.metrics import objective_s
from go_opt.env.peak_memory import PeakMemory, peak_memory, plan_buffers
from go_opt.errors import InvalidInputError
from go_opt.explanations.moves import (
    Cost,
    Move,
    Mover,
    Neighbourhood,
    OneMoreChip,
    Resize,
    WhatIf,
    best_resize,
    one_more_chip,
    plan_cost,
    what_ifs,
)
from go_opt.explanations.terms import KernelPart, Loads, Place, TensorPart, Term, Terms, terms_of
from go_opt.explanations.uses import (
    ChipUse,
    LinkUse,
    RelayUse,
    RewriteUse,
    SplitUse,
    StateUse,
    chip_use,
    link_uses,
    relay_uses,
    rewrite_uses,
    split_uses,
    state_use,
)
from go_opt.model.codecs.fields import shown
from go_opt.model.dtypes import DTYPES
from go_opt.model.graph import NO_PRODUCER, OP_CLASSES, TENSOR_KINDS, Graph
from go_opt.model.plan import Plan
from go_opt.result import Objective
from go_opt.solver import Bound, Violation
from go_opt.solver.problem.user_constraints import UserConstraint
from go_opt.solver.verify.verifier import rules_broken

EQUAL: Final = 1e-9  # relative difference below which terms bind together


@dataclass(frozen=True)
class PlanExplanation:
    """The explanation of a whole plan. Times are per inference in steady state."""

    graph: str
    target: str
    overlap: bool  # whether transfers overlap with compute
    num_ops: int
    num_kernels: int
    num_chips: int
    may_replicate: bool  # whether the target can have replicated stages
    chips_used: int
    metrics: Metrics
    violations: tuple[Violation, ...]  # rules that the plan breaks; empty if it is valid
    bound: Bound | None  # lower bound of the objective over all plans
    binding: tuple[Term, ...]  # the largest term; several if they are equal
    next_terms: tuple[tuple[str, float], ...]  # the other terms, largest first
    what_ifs: tuple[WhatIf, ...]
    moves: Neighbourhood | None  # of binding kernels; None for latency, or if the plan is invalid or waits
    resize: Resize | None  # the best way to add a chip to the binding stage
    chips: tuple[ChipUse, ...]  # one for each stage in use
    links: tuple[LinkUse, ...]  # links in use, including host in and host out
    fullest: PeakMemory  # of the chip with the largest share of its memory in use
    buffers: tuple[ChipBuffers, ...]  # of each stage: where every tensor lies
    streamed: tuple[tuple[int, tuple[TensorPart, ...]], ...]  # first chip and weights of streaming stages
    relays: tuple[RelayUse, ...]
    rewrites: tuple[RewriteUse, ...]
    splits: tuple[SplitUse, ...]
    provenance: tuple[tuple[str, int], ...]  # origin of decisions, and its number of ops
    states: StateUse | None = None  # None: the graph has none
    objective: Objective = "throughput"  # which bound, what-ifs and loads refer to
    path: CriticalPath | None = None  # of a valid plan whose objective is latency
    one_more_chip: OneMoreChip | None = None  # like ``path``, if the user has no constraints

    @property
    def reached_s(self) -> float:
        """The plan's value of the objective."""
        return objective_s(self.metrics, self.objective)

    def busy_s(self, use: ChipUse) -> float:
        """Seconds that a stage computes per interval, or per inference if the objective is latency."""
        return use.busy_s / (use.own_share if self.objective == "latency" else 1.0)

    @property
    def is_bound_of_single_chips(self) -> bool:
        """Whether ``bound`` holds only without replicated stages, although the target allows them."""
        is_replicated = any(use.replicas > 1 for use in self.chips)
        return self.may_replicate and self.objective == "throughput" and not is_replicated

    @property
    def idle_share(self) -> float:
        """The idle share of the time of all chips of the package."""
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
      bound: a lower bound of the problem that ``plan`` solves, if known.
      constraints: the user's constraints, which the plan must satisfy.

    Raises:
      PlanError: the plan was made for another graph or target, or its arrays do not fit them.
    """
    violations = tuple(rules_broken(graph, target, plan, constraints))
    terms = terms_of(graph, target, plan)
    loads, metrics = terms.loads, terms.metrics
    total_s = terms.total_s()
    largest_first = np.argsort(-total_s, kind="stable")
    num_binding = int((total_s >= total_s.max() * (1.0 - EQUAL)).sum())
    binding = [int(i) for i in largest_first[:num_binding]]
    binding_terms = tuple(terms.term(i) for i in binding)
    chips = tuple(chip_use(target, plan, terms, int(d)) for d in np.unique(loads.kernel_chip))
    fullest = max(chips, key=lambda use: use.memory_share)
    at_fault = next((i for i in binding if i < target.num_chips), None)
    # An illegal plan may not even have a valid kernel graph.
    runs_alone = objective == "latency" and not violations
    may_grow = runs_alone and not constraints
    # The time that a changed plan waits for streamed weights has no closed form.
    can_move = objective == "throughput" and not violations and not metrics.waits
    mover = Mover(graph, target, plan, constraints) if can_move else None
    return PlanExplanation(
        graph=graph.name,
        target=target.name,
        overlap=target.overlap,
        num_ops=graph.num_ops,
        num_kernels=len(loads.kernel_chip),
        num_chips=target.num_chips,
        may_replicate=target.num_chips > 1,
        chips_used=int(loads.stage_size[np.unique(loads.plan.placement)].sum()),
        metrics=metrics,
        violations=violations,
        bound=bound,
        binding=binding_terms,
        next_terms=tuple(
            (target.bottleneck_name(int(i)), float(total_s[i]))
            for i in largest_first[num_binding:]
            if total_s[i] > 0 and not terms.is_inside(int(i))
        ),
        what_ifs=what_ifs(graph, target, plan, metrics, binding, objective),
        moves=None if mover is None else mover.around(_ops(graph, binding_terms)),
        resize=None
        if at_fault is None or mover is None
        else best_resize(graph, target, plan, int(loads.first_chip[at_fault]), constraints),
        chips=chips,
        links=tuple(link_uses(terms)),
        fullest=peak_memory(graph, target, plan, fullest.chip),
        buffers=plan_buffers(graph, target, plan),
        streamed=tuple((chip, terms.streamed(chip)) for chip in terms.streaming()),
        relays=relay_uses(graph, plan, terms),
        rewrites=rewrite_uses(graph, plan),
        splits=split_uses(graph, target, plan),
        provenance=_provenance(plan),
        states=state_use(graph, target, plan, metrics),
        objective=objective,
        path=critical_path(graph, target, plan) if runs_alone else None,
        one_more_chip=one_more_chip(loads.graph, target, loads.plan) if may_grow else None,
    )


def _ops(graph: Graph, terms: tuple[Term, ...]) -> list[int]:
    """The ops of the terms: one per kernel, and the producers and readers of the tensors."""
    names = [kernel.ops[0] for term in terms for kernel in term.kernels]
    for part in (part for term in terms for part in term.tensors):
        names += [place.op for place in (part.source, *part.readers) if place is not None]
    return [graph.op_index[name] for name in dict.fromkeys(names) if name in graph.op_index]


def _provenance(plan: Plan) -> tuple[tuple[str, int], ...]:
    counts = np.bincount(plan.op_provenance, minlength=len(plan.provenance))
    return tuple(
        (plan.provenance[i], int(counts[i])) for i in np.argsort(-counts, kind="stable") if counts[i]
    )


@dataclass(frozen=True)
class Read:
    """A tensor that an op reads, and its origin."""

    tensor: str
    kind: str  # "activation", "input", "weight", "streamed weight"
    size_bytes: int  # bytes that the op touches
    source: Place | None  # the op that computes it; None: it comes from the host
    relayed_on: tuple[int, ...]  # first chips of the stages that relay it
    is_in_kernel: bool  # the same kernel computes it, so this read costs no traffic


@dataclass(frozen=True)
class Written:
    """A tensor that an op writes, and its readers."""

    tensor: str
    size_bytes: int
    readers: tuple[Place, ...]
    is_output: bool  # it is sent to the host


@dataclass(frozen=True)
class OpExplanation:
    """The explanation of one op."""

    violations: tuple[Violation, ...]  # rules that the plan breaks; if any, there are no moves
    op: str
    op_type: str
    op_class: str
    dtype: str
    flops: float
    chip: int  # first chip of its stage
    replicas: int  # number of chips of its stage, which run the inferences in turn
    own_share: float  # of all inferences, that run on the first of them
    provenance: str  # origin of its placement
    kernel: KernelPart
    place_on_chip: int  # position of its kernel among those of the chip, from 1
    kernels_on_chip: int
    chip_busy_s: float  # busy time of one chip of the stage per inference that it runs
    cost: Cost  # of the unchanged plan; like those of moves without waits for streamed weights
    waits: bool  # whether the plan's interval is longer, since chips wait for streamed weights
    relays: int  # number of relay copies in the plan
    reads: tuple[Read, ...]  # largest first
    writes: tuple[Written, ...]
    free_chips: tuple[int, ...]  # first chips of stages where it can run if all other kernels stay
    moves: tuple[Move, ...]  # one for every other stage
    alone: KernelSlack | None = None  # its kernel in a single inference, if the objective is latency


def explain_op(
    graph: Graph,
    target: Target,
    plan: Plan,
    op: str,
    *,
    objective: Objective = "throughput",
    constraints: Sequence[UserConstraint] = (),
) -> OpExplanation:
    """Explain the placement of ``op``, and the cost of moving it to any other chip or replicated stage.

    Args:
      objective: ``latency`` adds the start and slack of its kernel in a single inference.
      constraints: the user's constraints, which moves must satisfy.

    Raises:
      PlanError: the plan was made for another graph or target, or its arrays do not fit them.
      InvalidInputError: there is no such op; the message suggests similar names.
    """
    violations = tuple(rules_broken(graph, target, plan, constraints))
    i = graph.op_index.get(op)
    if i is None:
        raise InvalidInputError(_unknown(graph, op), field="op")
    terms = terms_of(graph, target, plan)
    loads, metrics = terms.loads, terms.metrics
    kernel = int(loads.kernel_of[loads.graph.op_index[op]])
    chip = int(plan.placement[i])
    on_chip = np.flatnonzero(loads.kernel_chip == chip)
    moves: tuple[Move, ...] = ()
    if not violations:
        mover = Mover(graph, target, plan, constraints)
        own = int(mover.stages.number(plan.placement)[i])
        moves = tuple(mover.move(i, other) for other in range(len(mover.stages.size)) if other != own)
    may_run = [chip, *(move.chip for move in moves if not move.ops_along and not move.forbidden)]
    return OpExplanation(
        violations=violations,
        op=op,
        op_type=graph.op_types[i],
        op_class=OP_CLASSES[graph.op_class[i]],
        dtype=DTYPES[graph.op_dtype[i]],
        flops=float(graph.op_flops[i]),
        chip=chip,
        replicas=terms.replicas(chip),
        own_share=float(loads.share[chip]),
        provenance=plan.provenance[plan.op_provenance[i]],
        kernel=terms.kernel(kernel),
        place_on_chip=int(np.searchsorted(on_chip, kernel)) + 1,
        kernels_on_chip=len(on_chip),
        chip_busy_s=float(metrics.compute_s[chip] / loads.share[chip]),
        cost=plan_cost(graph, target, plan)[0],
        waits=bool(metrics.waits),
        relays=sum(len(relay.chips) for relay in plan.relays),
        reads=_reads(loads, terms, op, chip),
        writes=_writes(loads, terms, op),
        free_chips=tuple(sorted(may_run)),
        moves=moves,
        alone=None if objective == "throughput" or violations else _alone(graph, target, plan, op),
    )


def _alone(graph: Graph, target: Target, plan: Plan, op: str) -> KernelSlack:
    kernels = critical_path(graph, target, plan).kernels
    return next(kernel for kernel in kernels if op in kernel.ops)


def _reads(loads: Loads, terms: Terms, op: str, chip: int) -> tuple[Read, ...]:
    graph, tables = loads.graph, loads.tables
    i = graph.op_index[op]
    read_ptr, reads = graph.op_reads
    streamed = {part.tensor for part in terms.streamed(chip)} if terms.metrics.stream_bytes[chip] else set()
    found = []
    for r in reads[read_ptr[i] : read_ptr[i + 1]].tolist():
        k = int(graph.reader_tensor[r])
        name = terms.tensor_name(k)
        kind = TENSOR_KINDS[graph.tensor_kind[k]]
        producer = int(graph.tensor_producer[k])
        made = producer != NO_PRODUCER
        found.append(
            Read(
                tensor=name,
                kind="streamed weight" if name in streamed else kind,
                size_bytes=int(tables.read_bytes[r]),
                source=terms.source(k) if made else None,
                relayed_on=terms.copied_on(k) if made else (),
                is_in_kernel=made and bool(loads.kernel_of[producer] == loads.kernel_of[i]),
            )
        )
    return tuple(sorted(found, key=lambda read: (-read.size_bytes, read.tensor)))


def _writes(loads: Loads, terms: Terms, op: str) -> tuple[Written, ...]:
    graph = loads.graph
    i = graph.op_index[op]
    out_ptr, outputs = graph.op_outputs
    found = []
    for k in outputs[out_ptr[i] : out_ptr[i + 1]].tolist():
        readers = tuple(place for reader in loads.readers(k) for place in terms.final_readers(reader))
        found.append(
            Written(
                tensor=graph.tensor_names[k],
                size_bytes=int(loads.tables.tensor_bytes[k]),
                readers=tuple(sorted(readers, key=lambda place: place.chip)),
                is_output=bool(graph.tensor_is_output[k]),
            )
        )
    return tuple(found)


def _unknown(graph: Graph, op: str) -> str:
    return f"the graph has no op {shown(op)}{suggestion(op, graph.op_names)}"
