"""Tiny instances: all plans are evaluated, so the best is proven optimal, or that there is none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray
from go_opt.env import cost_tables, evaluate_batch
from go_opt.env.evaluation import objectives_s
from go_opt.search.methods.events import Event, Miss, NoPlan, Proposal, SearchView, may_replicate
from go_opt.solver import Bound
from go_opt.solver.enumeration.plans import every_plan

METHOD: Final = "enumeration"
CHUNK: Final = 128  # plans that count as one evaluation


def enumerated(search: SearchView) -> Iterator[Event]:
    """The plans that may be better than the best one, by their lower bounds; in the end, the proof.

    A plan's interval without relays bounds that with relays, and the latency of a sample bounds its makespan.
    """
    plans = every_plan(search.requested, passing=search.passing, decides_all=search.request.decide == "all")
    if plans is None:
        return
    least_s = _least_s(search, plans)
    unsure_s = np.inf  # least objective of a plan that other relays might improve, or make valid
    by_least = np.argsort(least_s, kind="stable")
    for first in range(0, len(by_least), CHUNK):
        rows = by_least[first : first + CHUNK]
        if least_s[rows[0]] >= search.best_s:
            break
        yield Miss(METHOD)
        objective_s = _objective_s(search, plans, rows, least_s[rows])
        for i in np.argsort(objective_s, kind="stable"):
            if objective_s[i] >= search.best_s:
                break
            yield Proposal(METHOD, *(column[rows[i]] for column in plans))
            if search.passing == "relayed":
                unsure_s = min(unsure_s, float(objective_s[i]))
    if _covers_all(search) and search.best_plan is not None:
        reason = f"all {len(plans[0])} plans were evaluated"
        yield Miss(METHOD, Bound(min(search.best_s, unsure_s), reason))
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
    may_relay = search.passing == "relayed" and request.objective == "latency"
    return not (may_replicate(search.target, request) or may_relay or request.start is not None)
