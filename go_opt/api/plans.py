"""The functions for existing plans: evaluate, timeline, verify, explain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from go_opt.api.inputs import plan_case, whole_case
from go_opt.env import Metrics, Target, evaluate_plan
from go_opt.env.copies.splits import planned_graph, unsplit_graph
from go_opt.env.model.metrics import Fidelity, check_fidelity
from go_opt.env.model.timeline import Timeline
from go_opt.env.rewrites.applying import with_rewrites
from go_opt.errors import InfeasibleError, InvalidInputError
from go_opt.given_request import as_constraints
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.result import Objective, Request, check_seed
from go_opt.search.bounds import bound_over_states
from go_opt.search.splits.ways import divisible_ops
from go_opt.solver import Violation
from go_opt.solver.problem.user_constraints import UserConstraint
from go_opt.solver.verify.rewrites import broken_rewrites
from go_opt.solver.verify.splits import broken_splits
from go_opt.solver.verify.verifier import rules_broken
from go_opt.solver.verify.verifier import verify as verify_plan

if TYPE_CHECKING:
    import networkx as nx

    from go_opt.explanations import OpExplanation, PlanExplanation

MAX_INFERENCES = 10_000  # of a timeline: far more than a viewer can open


def evaluate(
    graph: Graph | nx.DiGraph | str | Path,
    target: Target | str | Path | None,
    plan: Plan | str | Path,
    *,
    fidelity: Fidelity = "analytical",
    seed: int | None = None,
    constraints: Sequence[UserConstraint] | str | Path = (),
    costs: str | Path | None = None,
) -> Metrics:
    """Evaluate ``plan``; ``valid`` and ``reason`` also say whether it satisfies every constraint.

    Args:
      graph: a graph, or an argument of :func:`load`; the plan gives dimensions and precision.
      target: None means the plan's own target.
      plan: a plan, or the path of a plan file.
      constraints: the user's, in addition to the target's rules; or the path of their TOML file.
      fidelity: ``analytical``, or ``simulated`` for a discrete-event simulation, whose
        metrics have ``simulation``: how busy each chip and link is, and what it waits for.
      seed: draws the noise of a simulated measurement; None simulates without noise.
    """
    check_seed(seed)
    on_graph, on, decided = plan_case(graph, target, plan, costs)
    violations = rules_broken(on_graph, on, decided, as_constraints(constraints))
    return _judged(evaluate_plan(on_graph, on, decided, fidelity=fidelity, seed=seed), violations)


def timeline(
    graph: Graph | nx.DiGraph | str | Path,
    target: Target | str | Path | None,
    plan: Plan | str | Path,
    *,
    fidelity: Fidelity = "simulated",
    inferences: int = 16,
    costs: str | Path | None = None,
) -> Timeline:
    """When each kernel and transfer of the first ``inferences`` of ``plan`` runs.

    Graph, target, plan and costs are given as for :func:`evaluate`.
    The simulated timeline of a plan that deadlocks ends at the deadlock.

    Raises:
      InfeasibleError: the plan breaks a constraint or does not fit, so that nothing runs.
    """
    check_fidelity(fidelity)
    if not 1 <= inferences <= MAX_INFERENCES:
        raise InvalidInputError(
            f"inferences must be between 1 and {MAX_INFERENCES}, not {inferences}.", field="inferences"
        )
    # The simulator loads when it is needed.
    from go_opt.env.analytical_timeline import analytical_timeline
    from go_opt.env.simulator.timeline import simulated_timeline

    on_graph, on, decided = plan_case(graph, target, plan, costs)
    violations = rules_broken(on_graph, on, decided)
    run = simulated_timeline if fidelity == "simulated" else analytical_timeline
    ran = run(on_graph, on, decided, inferences)
    metrics = _judged(ran.metrics, violations)
    if not (metrics.valid or ran.is_deadlocked):
        raise InfeasibleError(f"there is nothing to trace: {metrics.reason}", is_proven=True)
    return replace(ran, metrics=metrics)


def verify(
    graph: Graph | nx.DiGraph | str | Path,
    target: Target | str | Path | None,
    plan: Plan | str | Path,
    constraints: Sequence[UserConstraint] | str | Path = (),
    *,
    costs: str | Path | None = None,
) -> list[Violation]:
    """Every rule that ``plan`` breaks; empty means valid. Independent of how the plan was made.

    Graph, target, plan and costs are given as for :func:`evaluate`.

    Args:
      constraints: the user's, in addition to the target's rules; or the path of their TOML file.
    """
    whole, on, decided = whole_case(graph, target, plan, costs)
    return _broken_rules(whole, on, decided, as_constraints(constraints))


def explain(
    graph: Graph | nx.DiGraph | str | Path,
    target: Target | str | Path | None,
    plan: Plan | str | Path,
    op: str | None = None,
    *,
    objective: Objective = "throughput",
    constraints: Sequence[UserConstraint] | str | Path = (),
    costs: str | Path | None = None,
) -> PlanExplanation | OpExplanation:
    """Explains the cost of ``plan``, or why ``op`` is on its chip (docs/explain.md).

    Graph, target, plan and costs are given as for :func:`evaluate`.

    Args:
      op: the op to explain; None: the whole plan.
      objective: the objective of the plan; ``latency`` explains the makespan.
      constraints: the user's, which moves must keep; or the path of their TOML file.

    Raises:
      PlanError: the plan was made for another graph or target, or is malformed for them.
      InvalidInputError: there is no such op; the message has the nearest names.
    """
    from go_opt.explanations import explain_op, explain_plan

    whole, on, decided = whole_case(graph, target, plan, costs)
    on_graph = planned_graph(whole, decided)
    requested = as_constraints(constraints)
    request = Request(objective=objective, replication=bool((decided.replication > 1).any()))
    if op is not None:
        return explain_op(on_graph, on, decided, op, objective=objective, constraints=requested)
    is_expanded = on_graph is whole  # the caller gave the graph of the parts
    whole = with_rewrites(whole, decided.rewrites)
    divisible = divisible_ops(whole, on, request)
    if not is_expanded:
        divisible[[whole.op_index[split.op] for split in decided.splits if not split.level]] = True
    bound = bound_over_states(whole, on, request, divisible)
    return explain_plan(on_graph, on, decided, objective=objective, bound=bound, constraints=requested)


def _judged(metrics: Metrics, violations: list[Violation]) -> Metrics:
    if metrics.valid and violations:
        return replace(metrics, valid=False, reason=violations[0].message)
    return metrics


def _broken_rules(
    whole: Graph, target: Target, plan: Plan, constraints: Sequence[UserConstraint]
) -> list[Violation]:
    sent, whole = whole, unsplit_graph(whole, plan)
    if whole.rewrites and sent.rewrites != whole.rewrites:  # else the caller gave the rewritten graph
        sent = unsplit_graph(sent, replace(plan, rewrites=()))
        problems = [Violation("rewrites", problem) for problem in broken_rewrites(sent, whole, plan.rewrites)]
        if problems:
            return problems
    graph = planned_graph(whole, plan)
    if graph is not whole:
        problems = [Violation("splits", problem) for problem in broken_splits(whole, graph, plan.splits)]
        if problems:
            return problems
    return verify_plan(graph, target, plan, constraints)
