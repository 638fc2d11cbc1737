"""Explains the cost of a plan: the binding terms, the next largest ones, and useful changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from go_opt.env import Metrics, Target
from go_opt.env.chip_buffers import ChipBuffers
from go_opt.env.critical_path import CriticalPath, critical_path
from go_opt.env.model.metrics import objective_s
from go_opt.env.peak_memory import PeakMemory, peak_memory, plan_buffers
from go_opt.explanations.moves import (
    Mover,
    Neighbourhood,
    OneMoreChip,
    Resize,
    WhatIf,
    best_resize,
    one_more_chip,
    what_ifs,
)
from go_opt.explanations.terms import TensorPart, Term, terms_of
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
from go_opt.model.graph import Graph
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
