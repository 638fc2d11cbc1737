"""Simulates the best plans of a search; the best of them in simulation is the answer.

Searches exploit the errors of a model. So the best plan and the next best ones are
simulated: the least simulated objective wins; among equals a proven optimum, then fewer chips, then
the lower latency.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import replace
from operator import attrgetter
from typing import Final

from go_opt.env import Metrics, Target, evaluate_plan
from go_opt.env.copies.splits import planned_graph
from go_opt.env.evaluation import with_waiting
from go_opt.env.model.metrics import objective_s
from go_opt.env.target.kinds import EFFECTS
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.result import Objective, OptimizeResult, Request
from go_opt.search.methods.events import EQUAL
from go_opt.search.shared.context import Context

APART: Final = 0.05  # relative difference of predicted and simulated objective that needs an explanation
MOST_SECONDS: Final = 0.3  # to simulate plans after the best one, if time is limited
LEAST_BUDGET_S: Final = 2.0  # of searches whose answer is simulated
S_PER_OP: Final = 1e-5  # simulation time of most plans; those that stream weights may take 6e-5
MOST_RESERVED: Final = 0.1  # share of the time limit
MOST_SIMULATED_OPS: Final = 5_000  # of graphs whose plans may be simulated during the search
MOST_FORWARDED_OPS: Final = 20_000  # the same for plans that forward weights: a second each
SHORTLISTED: Final = 6  # plans
_BLAME: Final = {
    "shapes": "products and vectors that do not fill the units",
    "dma": "the DMA engines' set-up",
    "latency": "the latency of the links",
    "packets": "the headers of packets",
    "buffers": "too few buffers between chips",
    "host": "inputs and weights that wait for the host's link",
    "memory": "pages, holes between buffers and the stream buffer",
}


def is_simulated(target: Target, request: Request) -> bool:
    """Whether the answer to ``request`` is simulated; the simulator assumes that transfers overlap."""
    return (
        request.simulate
        and target.overlap
        and request.fidelity == "analytical"
        and request.time_limit_s >= LEAST_BUDGET_S
    )


def reserve_s(graph: Graph, target: Target, request: Request) -> float:
    """Seconds of the time limit that are reserved for simulating the answer."""
    if not (is_simulated(target, request) and math.isfinite(request.time_limit_s)):
        return 0.0
    return min(S_PER_OP * graph.num_ops, MOST_RESERVED * request.time_limit_s)


def on_package(graph: Graph, target: Target, request: Request, result: OptimizeResult) -> OptimizeResult:
    """A result for another package with the same chips as one for ``target``: costed anew, with its bound."""
    plan = replace(result.plan, target=target.source, target_fingerprint=target.fingerprint)
    graph = planned_graph(graph, plan)
    there = replace(result, plan=plan, metrics=evaluate_plan(graph, target, plan))
    return there if result.simulated_interval_s is None else simulated_answer(graph, target, request, [there])


def shortlisted(found: list[OptimizeResult]) -> list[OptimizeResult]:
    """The best plan by the model, then the next best, among equals the leanest first, for the simulator."""
    best = min(found, key=attrgetter("objective_s"))
    most_s = best.objective_s * (1.0 + EQUAL)
    ranked = sorted(found, key=lambda one: (max(one.objective_s, most_s), *size_of(one)))
    return [best, *(one for one in ranked if one is not best)][:SHORTLISTED]


def leanest(shortlist: list[OptimizeResult]) -> OptimizeResult:
    """Of the plans as good as the first a proven optimum, then fewest chips, then least latency."""
    most_s = shortlist[0].objective_s * (1.0 + EQUAL)
    equal = (one for one in shortlist if one.objective_s <= most_s)
    return min(equal, key=lambda one: (one.status != "OPTIMAL", *size_of(one)))


def size_of(one: OptimizeResult) -> tuple[int, float]:
    """Chips and latency, by which plans of equal objectives are compared."""
    return one.plan.chips_used, one.metrics.latency_s


def simulated_answer(
    graph: Graph, target: Target, request: Request, found: list[OptimizeResult]
) -> OptimizeResult:
    """The best of ``found`` in simulation, with simulated metrics; ``found[0]`` is the best by the model."""
    started_s = time.monotonic()
    best = _simulated(graph, target, found[0])
    for one in found[1:]:
        is_late = time.monotonic() - started_s > MOST_SECONDS and math.isfinite(request.time_limit_s)
        if is_late or one.objective_s > _simulated_s(best) * (1.0 + EQUAL):
            continue
        one = _simulated(graph, target, one)
        if _rank(one, best) < _rank(best, one):
            best = one
    note = simulation_note(graph, target, best.plan, best.objective, best.objective_s, _simulated_s(best))
    return replace(best, simulation_note=note)


def simulated_if_asked(
    graph: Graph, target: Target, request: Request, context: Context, found: OptimizeResult
) -> OptimizeResult:
    """The answer to ``request`` about ``graph`` as sent; simulated, unless it is already, or need not be."""
    if found.simulated_interval_s is None and is_simulated(target, request):
        with context.tolerates("simulation"):
            found = simulated_answer(planned_graph(graph, found.plan), target, request, [found])
    return found


def _simulated(graph: Graph, target: Target, result: OptimizeResult) -> OptimizeResult:
    """``result`` with the simulated metrics of its plan."""
    seen = simulated(graph, target, result.plan)
    return replace(
        result,
        metrics=with_waiting(target, result.metrics, seen),
        simulated_interval_s=seen.interval_s,
        simulated_makespan_s=seen.makespan_s,
    )


def simulated(graph: Graph, target: Target, plan: Plan, without: Iterable[str] = ()) -> Metrics:
    """Simulate one plan."""
    from go_opt.env.simulator.simulate import simulate_plan  # loads on first use

    return simulate_plan(graph, target, plan, without=tuple(without))


def _rank(one: OptimizeResult, other: OptimizeResult) -> tuple[float, ...]:
    """The rank of ``one`` against ``other``; lower is better."""
    least_s = min(_simulated_s(one), _simulated_s(other))
    is_equal = _simulated_s(one) <= least_s * (1.0 + EQUAL)
    # Among equals, a proven optimum comes before fewer chips.
    return (
        0.0 if is_equal else _simulated_s(one),
        one.status != "OPTIMAL",
        *size_of(one),
    )


def _simulated_s(result: OptimizeResult) -> float:
    assert result.simulated_interval_s is not None
    assert result.simulated_makespan_s is not None
    return result.simulated_makespan_s if result.objective == "latency" else result.simulated_interval_s


def simulation_note(
    graph: Graph, target: Target, plan: Plan, objective: Objective, predicted_s: float, simulated_s: float
) -> str:
    """Why prediction and simulation differ; empty if they are within ``APART``.

    Names the effect without which the simulated objective comes closest to the predicted one.
    """
    if abs(simulated_s / max(predicted_s, 1e-30) - 1.0) <= APART:
        return ""
    if math.isinf(simulated_s):
        return simulated(graph, target, plan).reason

    def distance(effect: str) -> float:
        return abs(objective_s(simulated(graph, target, plan, (effect,)), objective) - predicted_s)

    left_out = [effect for effect in EFFECTS if effect in _BLAME]
    nearest, effect = min((distance(effect), effect) for effect in left_out)
    if nearest > 0.9 * abs(simulated_s - predicted_s):
        return "transfers and kernels that wait for each other"
    return _BLAME[effect]
