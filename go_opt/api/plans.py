"""The doors for plans that there are: evaluate, timeline, verify, explain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from go_opt.api.inputs import plan_case, whole_case
from go_opt.constraint_file import as_constraints
from go_opt.env import Metrics, Target, evaluate_plan
from go_opt.env.copies.splits import planned_graph
from go_opt.env.model.metrics import Fidelity, check_fidelity
from go_opt.env.model.timeline import Timeline
from go_opt.errors import InfeasibleError, InvalidInputError
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.result import Objective, Request, check_seed
from go_opt.search.bounds import lower_bound
from go_opt.search.splits.ways import divisible_ops
from go_opt.solver import Violation
from go_opt.solver import verify as verify_plan
from go_opt.solver.problem.user_constraints import UserConstraint
from go_opt.solver.verify.splits import broken_splits
from go_opt.solver.verify.verifier import rules_broken

if TYPE_CHECKING:
    import networkx as nx

    from go_opt.explanations import OpExplanation, PlanExplanation

MAX_INFERENCES = 10_000  # of a timeline: far more than a viewer opens


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
    """Cost ``plan``; ``valid`` and ``reason`` also say whether it keeps every constraint.

    Args:
      graph: a graph, or what :func:`load` takes; dimensions and precision are the plan's.
      target: None is the plan's own.
      plan: a plan, or the path of a plan file.
      constraints: of the user, beside the target's rules; or the path of a TOML file of them.
      fidelity: ``analytical``, or ``simulated`` for a discrete-event simulation, whose
        metrics have ``simulation``: how busy every chip and link is, and what it waits for.
      seed: draws the noise of a simulated measurement; None is exact.
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
    """What runs when in the first ``inferences`` of ``plan``.

    Graph, target, plan and costs are given as for :func:`evaluate`.

    One that deadlocks, in the simulated fidelity, has a timeline up to there.

    Raises:
      InfeasibleError: the plan breaks a constraint or does not fit, so that nothing runs.
    """
    check_fidelity(fidelity)
    if not 1 <= inferences <= MAX_INFERENCES:
        raise InvalidInputError(
            f"inferences must be between 1 and {MAX_INFERENCES}, not {inferences}.", field="inferences"
        )
    # The simulator loads where it is asked for.
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
    """Every rule ``plan`` breaks; empty means valid. Independent of what made the plan.

    Graph, target, plan and costs are given as for :func:`evaluate`.

    Args:
      constraints: of the user, beside the target's rules; or the path of a TOML file of them.
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
    """Why ``plan`` costs what it costs, or why ``op`` is where it is (docs/explain.md).

    Graph, target, plan and costs are given as for :func:`evaluate`.

    Args:
      op: the op to explain; None: the whole plan.
      objective: what the plan is for; ``latency`` explains the makespan.
      constraints: of the user, which moves must keep; or the path of a TOML file of them.

    Raises:
      PlanError: the plan was made for another graph or target, or is no plan for them at all.
      InvalidInputError: there is no such op; the message has the nearest names.
    """
    from go_opt.explanations import explain_op, explain_plan

    whole, on, decided = whole_case(graph, target, plan, costs)
    on_graph = planned_graph(whole, decided)
    asked = as_constraints(constraints)
    request = Request(objective=objective, replication=bool((decided.replication > 1).any()))
    if op is not None:
        return explain_op(on_graph, on, decided, op, objective=objective, constraints=asked)
    divisible = divisible_ops(whole, on, request)
    divisible[[whole.op_index[split.op] for split in decided.splits]] = True
    bound = lower_bound(whole, on, request, divisible)
    return explain_plan(on_graph, on, decided, objective=objective, bound=bound, constraints=asked)


def _judged(metrics: Metrics, violations: list[Violation]) -> Metrics:
    if metrics.valid and violations:
        return replace(metrics, valid=False, reason=violations[0].message)
    return metrics


def _broken_rules(
    whole: Graph, target: Target, plan: Plan, constraints: Sequence[UserConstraint]
) -> list[Violation]:
    graph = planned_graph(whole, plan)
    if graph is not whole:
        problems = [Violation("splits", problem) for problem in broken_splits(whole, graph, plan.splits)]
        if problems:
            return problems
    return verify_plan(graph, target, plan, constraints)
