"""The entry point of the search."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from go_opt.api.inputs import as_loaded, as_target, costed
from go_opt.api.plan_store import PlanStore
from go_opt.common.units import parse_duration_s
from go_opt.constraint_file import as_constraints
from go_opt.env import Target
from go_opt.env.model.metrics import Fidelity
from go_opt.given_start import as_start
from go_opt.model.bindings import Bindings, Numbers
from go_opt.model.graph import Graph, Precision
from go_opt.model.plan import Plan
from go_opt.model.start import Start
from go_opt.result import ONLY, Decide, Objective, OptimizeResult, Request, Step
from go_opt.search.optimizer import optimize_request
from go_opt.search.policies import find_policy
from go_opt.solver.problem.user_constraints import UserConstraint

if TYPE_CHECKING:
    import networkx as nx


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
    remember: PlanStore | str | Path | None = None,
    early_end: bool = True,
    policy: str | Path | None = None,
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, Numbers] | None = None,
    trips: Mapping[str, int] | None = None,
    precision: Precision = "native",
    costs: str | Path | None = None,
    on_step: Callable[[Step], None] = lambda step: None,
    on_improvement: Callable[[OptimizeResult], None] = lambda result: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> OptimizeResult:
    """Finds the best verified plan that the budget allows, with a lower bound and the gap to it.

    Args:
      graph: a graph, or an argument of :func:`load`, with ``dims``, ``values``, ``trips`` and
        ``precision``.
      objective: ``throughput`` minimises the interval, ``latency`` the makespan.
      budget_s: seconds of search, or ``"500ms"``; 5 by default, no limit if ``max_evaluations`` is given.
      max_evaluations: evaluations at most; the same seed and count give the same answer.
      decide: ``all``, or ``placement`` with one kernel per op in the default order.
      relays, replication: whether plans may use them; they add plans for which the lower bound
        must hold.
      splits: whether ops with a weight of more than a quarter of a chip's memory may be split; splits
        also add plans for which the lower bound must hold.
      output_parts: whether model outputs may stay split into the parts of split ops.
      fidelity: ``simulated`` evaluates proposed plans in the simulator; no bound is proven then.
      constraints: constraints that plans must satisfy (:class:`go_opt.Pin`, …), or the path of their
        TOML file.
      simulate: whether to simulate the best plans and answer with the one that is best in the
        simulator; off for budgets below two seconds.
      start: a plan to start from, or its file. The plan may be for another version of the model or
        another target; ops are matched by name. The answer is no worse than this plan.
      remember: a folder of plans (:class:`PlanStore`): without ``start`` the search begins with the nearest
        of the same ops, and its own plan is kept there. The same contents give the same answer.
      early_end: whether the search ends before its limits when no gain is to be expected: after 0.3 s,
        200 evaluations, and as long as the last gain of 0.1 % took, without one. With
        ``max_evaluations``, only evaluations count.
      max_latency_s: the longest ``latency_s`` of a plan, in seconds or as ``"2ms"``, while its
        interval is minimised.
      policy: ``default`` is the shipped policy, a path is your own, None or ``"none"`` means no
        policy. With ``"only"`` the shipped policy decides placement, order and kernels, and no
        other method runs.
      costs: CSV file of measured seconds (:func:`with_measured_costs`).
      on_step: called after every method of the portfolio.
      on_improvement: called with every better plan, as the result at that time.
      should_stop: called after every evaluation; a stopped search returns its best plan.

    Raises:
      InvalidInputError: an argument is out of range.
      PolicyError: the policy's file is missing, malformed or of another version.
      InfeasibleError: no valid plan; the message names op, demand and limit.
    """
    on, on_graph = as_target(target), as_loaded(graph, Bindings.of(dims, values, trips), precision)
    costed_graph = costed(on_graph, on, costs)
    store = PlanStore(remember) if isinstance(remember, str | Path) else remember
    begins = as_start(start, on_graph)
    if begins is None and store is not None:
        begins = store.nearest(costed_graph, on, objective)
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
        begins,
        early_end,
    )
    result = optimize_request(
        costed_graph,
        on,
        request,
        policy=find_policy(policy),
        policy_alone=policy == ONLY,
        on_step=on_step,
        on_improvement=on_improvement,
        should_stop=should_stop,
    )
    if store is not None:
        store.keep(costed_graph, on, result)
    return result


def _seconds(duration: float | str | None, field: str) -> float | None:
    return parse_duration_s(duration, field) if isinstance(duration, str) else duration
