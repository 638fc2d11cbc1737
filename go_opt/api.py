"""The doors: load a model, pick a target, optimize, evaluate, verify."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from go_opt.common.units import parse_duration_s
from go_opt.constraint_file import as_constraints
from go_opt.env import Metrics, Target, evaluate_plan, load_target, load_zoo
from go_opt.env.copies.splits import planned_graph
from go_opt.env.model.metrics import Fidelity, check_fidelity
from go_opt.env.model.timeline import Timeline
from go_opt.errors import InfeasibleError, InvalidInputError, ModelError, PlanError
from go_opt.frontends.graph_like import as_graph
from go_opt.measured_costs import with_measured_costs
from go_opt.model.codecs.plan_json import load_plan
from go_opt.model.codecs.start_files import load_start
from go_opt.model.graph import Graph, Precision
from go_opt.model.plan import Plan
from go_opt.model.start import Start
from go_opt.result import Decide, Objective, OptimizeResult, Request, Step, check_seed
from go_opt.search.optimizer import optimize_request
from go_opt.search.policies import find_policy
from go_opt.search.split_search import divisible_ops
from go_opt.search.state import lower_bound
from go_opt.solver import Violation
from go_opt.solver import verify as verify_plan
from go_opt.solver.problem.user_constraints import UserConstraint
from go_opt.solver.verify.splits import broken_splits

if TYPE_CHECKING:
    import networkx as nx

    from go_opt.explanations import OpExplanation, PlanExplanation

ZOO_PREFIX = "zoo:"
MAX_INFERENCES = 10_000  # of a timeline: far more than a viewer opens


def load(
    path: str | Path, *, dims: Mapping[str, int] | None = None, precision: Precision = "native"
) -> Graph:
    """A graph from an ONNX file, a ``.json`` graph, or the zoo (``"zoo:resnet50"``).

    Args:
      path: ``*.onnx``; ``*.json`` in go-opt's own form or networkx's node-link form; or
        ``zoo:NAME``.
      dims: values of the symbolic dimensions of an ONNX model.
      precision: ``native`` costs floating tensors in the target's native type, ``as-is``
        in the type of the model.

    Raises:
      ModelError, GraphError: the file is missing or malformed; one sentence says why.
    """
    if precision not in ("native", "as-is"):
        raise InvalidInputError(f"precision must be native or as-is, not {precision!r}.", field="precision")
    name = str(path)
    if name.startswith(ZOO_PREFIX):
        _refuse_dims(name, dims)
        return load_zoo(name.removeprefix(ZOO_PREFIX), precision)
    if name.endswith(".json"):
        from go_opt.frontends.graph_file import load_graph_json

        _refuse_dims(name, dims)
        return load_graph_json(Path(name), precision)
    from go_opt.frontends import from_onnx

    return from_onnx(path, dims=dims, precision=precision)


def _refuse_dims(name: str, dims: Mapping[str, int] | None) -> None:
    if dims:
        raise ModelError(f"{name} has no symbolic dimension {next(iter(dims))!r}.", field="dims")


def target(name_or_path: str | Path) -> Target:
    """A shipped target by name (``"mcm-6x6"``) or one of your own by its TOML file."""
    return load_target(name_or_path)


def optimize(
    graph: Graph | nx.DiGraph | str | Path,
    target: Target | str | Path = "mcm-6x6",
    *,
    objective: Objective = "throughput",
    budget_s: float | str | None = None,
    max_evaluations: int | None = None,
    seed: int = 0,
    decide: Decide = "all",
    relays: bool = True,
    replication: bool = True,
    splits: bool = True,
    output_parts: bool = False,
    fidelity: Fidelity = "analytical",
    constraints: Sequence[UserConstraint] | str | Path = (),
    max_latency_s: float | str | None = None,
    simulate: bool = True,
    start: Start | Plan | str | Path | None = None,
    policy: str | Path | None = "default",
    dims: Mapping[str, int] | None = None,
    precision: Precision = "native",
    costs: str | Path | None = None,
    on_step: Callable[[Step], None] = lambda step: None,
    on_improvement: Callable[[OptimizeResult], None] = lambda result: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> OptimizeResult:
    """The best verified plan the budget allows, with a lower bound and the gap to it.

    Args:
      graph: a graph, or what :func:`load` takes, with ``dims`` and ``precision``.
      objective: ``throughput`` minimises the interval, ``latency`` the makespan.
      budget_s: seconds of search, or ``"500ms"``; 5 by default, no limit where ``max_evaluations`` is given.
      max_evaluations: calls of the environment; same seed and count, same answer.
      decide: ``all``, or ``placement`` with one kernel per op in the default order.
      relays, replication: whether the problem as asked lets plans use them; they widen
        what the lower bound must hold for.
      splits: whether ops with a weight of more than a quarter of a chip's memory may be split; they too
        widen what the bound must hold for.
      output_parts: whether outputs of the model may stay in the parts that split ops leave.
      fidelity: ``simulated`` has the simulator judge what the methods propose; no bound is
        proven of it.
      constraints: what plans must keep (:class:`go_opt.Pin`, …), or the path of a TOML file of them.
      simulate: whether the answer is simulated before it is given, and gives way to a plan that fares
        better there; not below two seconds of budget.
      start: a plan to begin with, or its file; it may be of another version of the model or of another
        target, and is matched by the names of ops. The answer is no worse than it.
      max_latency_s: the longest ``latency_s`` of a plan, in seconds or as ``"2ms"``, while its
        interval is minimised.
      policy: ``default`` is the one that ships, a path one of your own, None or ``"none"``
        none. It takes part where the budget leaves room for it.
      costs: CSV file of measured seconds (:func:`with_measured_costs`).
      on_step: called after every method of the portfolio.
      on_improvement: called with every better plan, as it would be answered then.
      should_stop: asked after every evaluation; stopping keeps what was reached.

    Raises:
      InvalidInputError: an argument is out of range.
      PolicyError: the policy's file is missing, malformed or of another version.
      InfeasibleError: no valid plan; the message names op, demand and limit.
    """
    on, on_graph = _as_target(target), _as_graph(graph, dims, precision)
    request = Request(
        objective,
        _seconds(budget_s, "budget_s"),
        max_evaluations,
        seed,
        decide,
        relays,
        replication,
        splits,
        output_parts,
        fidelity,
        as_constraints(constraints),
        _seconds(max_latency_s, "max_latency_s"),
        simulate,
        _as_start(start, on_graph),
    )
    return optimize_request(
        _costed(on_graph, on, costs),
        on,
        request,
        policy=find_policy(policy),
        on_step=on_step,
        on_improvement=on_improvement,
        should_stop=should_stop,
    )


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
    violations = _violations(on_graph, on, decided, as_constraints(constraints))
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
    violations = _violations(on_graph, on, decided)
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
    whole, on, decided = _whole_case(graph, target, plan, costs)
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

    whole, on, decided = _whole_case(graph, target, plan, costs)
    on_graph = planned_graph(whole, decided)
    asked = as_constraints(constraints)
    request = Request(objective=objective, replication=bool((decided.replication > 1).any()))
    if op is not None:
        return explain_op(on_graph, on, decided, op, objective=objective, constraints=asked)
    bound = lower_bound(whole, on, request, divisible_ops(whole, on, request))
    return explain_plan(on_graph, on, decided, objective=objective, bound=bound, constraints=asked)


def _violations(
    graph: Graph, target: Target, plan: Plan, constraints: Sequence[UserConstraint] = ()
) -> list[Violation]:
    """Every rule ``plan`` breaks; raises where it is no plan for the graph at all."""
    violations = verify_plan(graph, target, plan, constraints)
    if any(violation.constraint == "shape" for violation in violations):
        raise PlanError(violations[0].message, field="plan")
    return violations


def _judged(metrics: Metrics, violations: list[Violation]) -> Metrics:
    if metrics.valid and violations:
        return replace(metrics, valid=False, reason=violations[0].message)
    return metrics


def plan_case(
    graph: Graph | nx.DiGraph | str | Path,
    target: Target | str | Path | None,
    plan: Plan | str | Path,
    costs: str | Path | None,
) -> tuple[Graph, Target, Plan]:
    """What a plan is judged by: the graph is the one with the parts of ops that it splits."""
    whole, on, decided = _whole_case(graph, target, plan, costs)
    return planned_graph(whole, decided), on, decided


def _whole_case(
    graph: Graph | nx.DiGraph | str | Path,
    target: Target | str | Path | None,
    plan: Plan | str | Path,
    costs: str | Path | None,
) -> tuple[Graph, Target, Plan]:
    decided = plan if isinstance(plan, Plan) else load_plan(plan)
    on = _as_target(decided.target if target is None else target)
    if isinstance(graph, str | Path):
        graph = load(graph, dims=decided.dims, precision=decided.precision)
    return _costed(as_graph(graph), on, costs), on, decided


def _broken_rules(
    whole: Graph, target: Target, plan: Plan, constraints: Sequence[UserConstraint]
) -> list[Violation]:
    graph = planned_graph(whole, plan)
    if graph is not whole:
        problems = [Violation("splits", problem) for problem in broken_splits(whole, graph, plan.splits)]
        if problems:
            return problems
    return verify_plan(graph, target, plan, constraints)


def _as_graph(
    graph: Graph | nx.DiGraph | str | Path, dims: Mapping[str, int] | None, precision: Precision
) -> Graph:
    if isinstance(graph, str | Path):
        return load(graph, dims=dims, precision=precision)
    if dims or precision != "native":
        raise InvalidInputError("dims and precision are of a model that is loaded from a file.", field="dims")
    return as_graph(graph)


def _costed(graph: Graph, target: Target, costs: str | Path | None) -> Graph:
    """The graph with the measured costs of a file, where one is given."""
    return graph if costs is None else with_measured_costs(graph, costs, target)


def _seconds(duration: float | str | None, field: str) -> float | None:
    return parse_duration_s(duration, field) if isinstance(duration, str) else duration


def _as_start(start: Start | Plan | str | Path | None, graph: Graph) -> Start | None:
    if isinstance(start, str | Path):
        return load_start(start)
    if not isinstance(start, Plan):
        return start
    if start.graph_fingerprint != graph.fingerprint:
        raise PlanError("a plan of another graph is matched by names: give its file.", field="start")
    return Start.of_plan(start, graph.op_names)


def _as_target(target: Target | str | Path) -> Target:
    return target if isinstance(target, Target) else load_target(target)
