"""Why a plan costs what it costs: what binds, what comes next, what would help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from go_opt.env import Metrics, Target, cost_tables, evaluate_plan
from go_opt.env.copies.relays import expand_plan
from go_opt.env.critical_path import CriticalPath, critical_path
from go_opt.env.model.metrics import objective_s
from go_opt.env.peak_memory import PeakMemory, peak_memory
from go_opt.explanations.loads import Loads
from go_opt.explanations.moves import Mover, Neighbourhood, Resize, best_resize
from go_opt.explanations.terms import TensorPart, Term, Terms, original_names
from go_opt.explanations.uses import (
    ChipUse,
    CloneUse,
    LinkUse,
    RelayUse,
    SplitUse,
    chip_use,
    clone_uses,
    link_uses,
    relay_uses,
    split_uses,
)
from go_opt.explanations.what_if import OneMoreChip, WhatIf, one_more_chip, what_ifs
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.result import Objective
from go_opt.solver import Bound, Violation
from go_opt.solver.problem.user_constraints import UserConstraint
from go_opt.solver.verify.verifier import rules_broken

EQUAL: Final = 1e-9  # terms that differ by less, relatively, bind together


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
    moves: Neighbourhood | None  # of the kernels that bind; None where the plan breaks a rule or waits
    resize: Resize | None  # the best way to another chip for the stage that binds
    chips: tuple[ChipUse, ...]  # in use, one for each stage
    links: tuple[LinkUse, ...]  # in use, host in and out included
    fullest: PeakMemory  # of the chip whose weights and activations fill most of its memory
    streamed: tuple[tuple[int, tuple[TensorPart, ...]], ...]  # of each stage that streams weights
    relays: tuple[RelayUse, ...]
    clones: tuple[CloneUse, ...]
    splits: tuple[SplitUse, ...]
    provenance: tuple[tuple[str, int], ...]  # where decisions came from, and of how many ops
    objective: Objective = "throughput"  # of which bound, what-ifs and loads are told
    path: CriticalPath | None = None  # of the makespan, where that is the objective of a valid plan
    one_more_chip: OneMoreChip | None = None  # likewise, where the user has no constraints

    @property
    def reached_s(self) -> float:
        """The objective of the plan."""
        return objective_s(self.metrics, self.objective)

    def busy_s(self, use: ChipUse) -> float:
        """Seconds that a stage computes in what the objective is about: an interval, or one inference."""
        return use.busy_s * (use.replicas if self.objective == "latency" else 1)

    @property
    def is_bound_of_single_chips(self) -> bool:
        """Whether ``bound`` holds for plans with one chip per stage alone, though others are possible."""
        is_replicated = any(use.replicas > 1 for use in self.chips)
        return self.may_replicate and self.objective == "throughput" and not is_replicated

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
    violations = tuple(rules_broken(graph, target, plan, constraints))
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
    chips = tuple(chip_use(target, plan, terms, int(d)) for d in np.unique(loads.kernel_chip))
    fullest = max(chips, key=lambda use: use.memory_share)
    at_fault = next((i for i in binding if i < target.num_chips), None)
    # Of an illegal plan there may not even be a graph of kernels to move.
    runs_alone = objective == "latency" and not violations
    # Nor is there a closed form of how long a moved plan would wait for its weights.
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
        what_ifs=what_ifs(graph, target, plan, metrics, binding, objective),
        moves=None if mover is None else mover.around(_ops(graph, binding_terms)),
        resize=None
        if at_fault is None or mover is None
        else best_resize(graph, target, plan, int(loads.first_chip[at_fault]), constraints),
        chips=chips,
        links=tuple(link_uses(terms)),
        fullest=peak_memory(graph, target, plan, fullest.chip),
        streamed=tuple((chip, terms.streamed(chip)) for chip in terms.streaming()),
        relays=relay_uses(graph, plan, terms),
        clones=clone_uses(graph, plan, terms),
        splits=split_uses(graph, target, plan),
        provenance=_provenance(plan),
        objective=objective,
        path=critical_path(graph, target, plan) if runs_alone else None,
        one_more_chip=one_more_chip(expanded, target, placed) if runs_alone and not constraints else None,
    )


def _ops(graph: Graph, terms: tuple[Term, ...]) -> list[int]:
    """The ops of the graph that make up terms: of their kernels, and at the ends of their tensors."""
    names = [kernel.ops[0] for term in terms for kernel in term.kernels]
    for part in (part for term in terms for part in term.tensors):
        names += [place.op for place in (part.source, *part.readers) if place is not None]
    return [graph.op_index[name] for name in dict.fromkeys(names) if name in graph.op_index]


def _provenance(plan: Plan) -> tuple[tuple[str, int], ...]:
    counts = np.bincount(plan.op_provenance, minlength=len(plan.provenance))
    return tuple(
        (plan.provenance[i], int(counts[i])) for i in np.argsort(-counts, kind="stable") if counts[i]
    )
