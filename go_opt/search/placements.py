"""Methods that look at placements one by one: all plans of tiny instances, and local search.

Of tiny instances all plans are evaluated, so the best is proven optimal, or that there is none. Local search
serves where neither slicing nor refinement decides placements alone: for the makespan of given kernels in a
given order, and the interval without relays, where under the longest-path form of the triangle rule branches
may take chips of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray
from go_opt.env import cost_tables, evaluate_batch
from go_opt.env.evaluation import objectives_s
from go_opt.search.methods.events import Event, Miss, NoPlan, Proposal, SearchView, may_replicate
from go_opt.solver import Bound, Forbid, Pin, Stages, broken_rules, placement_problem
from go_opt.solver.enumeration.neighbours import MOST_OPS, Neighbourhood
from go_opt.solver.enumeration.plans import every_plan
from go_opt.solver.problem.problem import NO_SKIP_OFF, TRIANGLE_OFF
from go_opt.solver.verify.rule_check import NONE

ENUMERATION: Final = "enumeration"
CHUNK: Final = 128  # plans that count as one evaluation


def enumerated(search: SearchView) -> Iterator[Event]:
    """The plans that may be better than the best one, by their lower bounds; in the end, the proof.

    A plan's interval without relays bounds that with relays, and the latency of a sample bounds its makespan.
    """
    plans = every_plan(
        search.requested, forwarding=search.forwarding, decides_all=search.request.decide == "all"
    )
    if plans is None:
        return
    least_s = _least_s(search, plans)
    unsure_s = np.inf  # least objective of a plan that other relays might improve, or make valid
    by_least = np.argsort(least_s, kind="stable")
    for first in range(0, len(by_least), CHUNK):
        rows = by_least[first : first + CHUNK]
        if least_s[rows[0]] >= search.best_s:
            break
        yield Miss(ENUMERATION)
        objective_s = _objective_s(search, plans, rows, least_s[rows])
        for i in np.argsort(objective_s, kind="stable"):
            if objective_s[i] >= search.best_s:
                break
            yield Proposal(ENUMERATION, *(column[rows[i]] for column in plans))
            if search.forwarding == "relayed":
                unsure_s = min(unsure_s, float(objective_s[i]))
    if _covers_all(search) and search.best_plan is not None:
        reason = f"all {len(plans[0])} plans were evaluated"
        yield Miss(ENUMERATION, Bound(min(search.best_s, unsure_s), reason))
    elif _covers_all(search) and unsure_s == np.inf:
        yield NoPlan("", is_proven=True)


def _least_s(search: SearchView, plans: tuple[IntArray, ...]) -> FloatArray:
    """[B] lower bounds of the objective; infinite if a plan does not fit in memory."""
    terms = evaluate_batch(cost_tables(search.graph, search.target), *plans)
    is_latency = search.request.objective == "latency"
    return np.where(terms.fits, terms.latency_s if is_latency else terms.interval_s, np.inf)


def _objective_s(
    search: SearchView, plans: tuple[IntArray, ...], rows: LongArray, least_s: FloatArray
) -> FloatArray:
    """[CHUNK] the objective of the plans ``rows``, without relays."""
    if search.request.objective != "latency":
        return least_s
    tables, chunk = cost_tables(search.graph, search.target), [column[rows] for column in plans]
    return objectives_s(tables, "latency", *chunk)[0]


def _covers_all(search: SearchView) -> bool:
    """Whether the request leaves nothing open that plans of an enumeration do not decide.

    Sequences in flight are open: bounds here are those of the loads, which hold for more sequences too.
    """
    request = search.request
    if search.graph.has_scope("sequence") and request.objective == "throughput":
        return False
    may_relay = search.forwarding == "relayed" and request.objective == "latency"
    return not (may_replicate(search.target, request) or may_relay or request.start is not None)


LOCAL: Final = "local search"
NEIGHBOURS: Final = 24  # looked at in a step, which counts as one evaluation
STEPS: Final = 200  # of the first chain; each next one is twice as long
BARREN: Final = 3  # chains in a row that gained nothing: the search ends
HOT, COLD = 0.02, 0.0005  # temperatures, of the logarithm of the objective
POWER: Final = 8  # of the loads whose sum stands for the interval


def is_searched(search: SearchView) -> bool:
    """Whether only the placement is open, and other methods leave something to find."""
    request, size = search.request, search.graph.num_ops * search.target.num_chips
    is_open = request.objective == "latency" or search.forwarding == "adjacent"
    is_kept = all(isinstance(one, Pin | Forbid | Stages) for one in request.constraints)
    return (
        request.decide == "placement"
        and is_open
        and is_kept
        and size > 1
        and search.graph.num_ops <= MOST_OPS
    )


def local_search(search: SearchView) -> Iterator[Event]:
    """Chains of annealing from the best plan: the best neighbour of a few is the next placement, or not."""
    rng = np.random.default_rng((search.request.seed, 5))
    walk, barren, steps = _Walk(search), 0, STEPS
    while barren < BARREN and search.best_plan is not None:
        before_s, placement = search.best_s, search.best_plan.placement
        (present,) = walk.heights(placement[None])[0]
        for step in range(steps):
            temperature = HOT * (COLD / HOT) ** (step / steps)
            rows = walk.neighbours(placement, rng)
            heights, objective_s = walk.heights(rows)
            i = int(np.argmin(heights)) if len(rows) else 0
            if len(rows) and heights[i] < present + temperature * rng.exponential():
                placement, present = rows[i], heights[i]
            best = int(np.argmin(objective_s)) if len(rows) else 0
            if len(rows) and objective_s[best] < search.best_s:
                order = np.arange(search.graph.num_ops, dtype=np.int32)
                yield Proposal(LOCAL, rows[best], order, order)
            else:
                yield Miss(LOCAL)
        barren, steps = (0 if search.best_s < before_s else barren + 1), 2 * steps


class _Walk:
    """Neighbours that keep the rules, and how good they are."""

    def __init__(self, search: SearchView) -> None:
        graph, target = search.graph, search.target
        self._search, self._tables = search, cost_tables(graph, target)
        self._near = Neighbourhood(graph, target.num_chips, is_ring=target.goes_forward)
        problem = placement_problem(graph, target)
        if search.forwarding == "relayed" or not target.goes_forward:
            problem = problem._replace(triangle=TRIANGLE_OFF, acyclic=target.goes_forward)
        if search.forwarding == "relayed":
            problem = problem._replace(no_skip=NO_SKIP_OFF)
        self._problem = problem

    def neighbours(self, placement: IntArray, rng: np.random.Generator) -> IntArray:
        """[B, N] neighbours of ``placement`` that keep the rules."""
        rows = self._near.draw(placement, rng, NEIGHBOURS)
        allowed = self._search.requested.allowed[np.arange(rows.shape[1]), rows].all(axis=1)
        if (stages := self._search.requested.num_stages) is not None:
            allowed &= (np.diff(np.sort(rows, axis=1), axis=1) > 0).sum(axis=1) + 1 == stages
        rows = rows[allowed & (rows != placement).any(axis=1)]
        kept: IntArray = rows[broken_rules(self._problem, rows) == NONE]
        return kept

    def heights(self, rows: IntArray) -> tuple[FloatArray, FloatArray]:
        """[B] what the walk minimises, a logarithm, and the objective; infinite if memory is too small."""
        order = np.tile(np.arange(rows.shape[1], dtype=np.int32), (len(rows), 1))
        objective = self._search.request.minimised
        seconds, terms = objectives_s(self._tables, objective, rows, order, order)
        if objective == "latency":
            return np.log(np.maximum(seconds, 1e-30)), seconds
        loads = np.concatenate([terms.compute_s, terms.link_s], axis=1)
        most = np.maximum(loads.max(axis=1, keepdims=True), 1e-30)
        smooth = np.log(most[:, 0]) + np.log(((loads / most) ** POWER).sum(axis=1)) / POWER
        # Without overlap the interval sums the loads of a chip and of its links.
        smooth += np.log(np.maximum(terms.interval_s, 1e-30) / most[:, 0])
        return np.where(terms.fits, smooth, math.inf), seconds
