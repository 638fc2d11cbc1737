"""Runs one match in this process."""

from __future__ import annotations

import math

from go_opt import api
from go_opt.agents.generator import generate_graph
from go_opt.bench.matches import OURS, Match, Record, with_links_scaled
from go_opt.bench.rivals import RIVALS, Limits, Outcome, Point, compete, pose
from go_opt.env import Target
from go_opt.errors import InfeasibleError
from go_opt.model.graph import Graph
from go_opt.search.compiling.warm_up import warm_up

_WARM_OPS = 40
_WARM_EVALUATIONS = 12


def play(match: Match) -> Record:
    """Run ``match``; compiled functions are loaded before its clock starts.

    Raises:
      GoOptError: the model or the target cannot be loaded.
    """
    target = with_links_scaled(api.target(match.target), match.link_scale)
    graph = api.load(match.model)
    if match.method in OURS:
        warm_up()
    _outcome(match, generate_graph(0, num_ops=_WARM_OPS), target, Limits(evaluations=_WARM_EVALUATIONS))
    outcome, status = _outcome(match, graph, target, match.limits)
    return Record.of(match, graph.num_ops, outcome, status)


def _outcome(match: Match, graph: Graph, target: Target, limits: Limits) -> tuple[Outcome, str]:
    """The outcome of the method, and the status of the portfolio's answer (empty for rivals)."""
    if match.method in OURS:
        return _portfolio(match, graph, target, limits)
    problem = pose(graph, target, relays=match.relays, decide=match.decide)
    return compete(RIVALS[match.method], problem, limits, match.seed), ""


def _portfolio(match: Match, graph: Graph, target: Target, limits: Limits) -> tuple[Outcome, str]:
    """A late plan counts only if it is the first plan, as for the rivals."""
    try:
        result = api.optimize(
            graph,
            target,
            budget_s=limits.budget_s if math.isfinite(limits.budget_s) else None,
            max_evaluations=limits.evaluations,
            seed=match.seed,
            decide=match.decide,
            relays=match.relays,
            replication=False,
            splits=False,
            rewrite=False,
            policy=OURS[match.method],
        )
    except InfeasibleError as error:
        return Outcome(None, math.inf, (), 0, 0.0, 0.0, (str(error),)), ""
    curve: list[Point] = []
    for step in result.history:
        is_better = step.best_s < (curve[-1].interval_s if curve else math.inf)
        if is_better and (step.elapsed_s <= limits.budget_s or not curve):
            curve.append(Point(step.evaluations, step.elapsed_s, step.best_s))
    reached_s = curve[-1].interval_s
    notes = (result.method,)
    outcome = Outcome(
        result.plan, reached_s, tuple(curve), result.evaluations, result.wall_s, result.lower_bound_s, notes
    )
    return outcome, result.status
