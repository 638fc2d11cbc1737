"""Cuts through kernels: of every new best plan, and of orders searched for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from go_opt.agents.cheapest import CheapestSlicing, Slicer
from go_opt.agents.instance import instance
from go_opt.agents.loose_orders import loose_orders
from go_opt.agents.loose_slicing import loosened
from go_opt.agents.order_search import HOPELESS
from go_opt.env import greedy_fusion, loop_roles
from go_opt.plan import Plan
from go_opt.proposal import IntArray, Proposal, SearchState
from go_opt.solver.constrained_fusion import constrained_fusion

# A search short of time ends after this many orders in a row without a better plan.
PATIENCE: Final = 500


def with_loose_kernels(search: SearchState, methods: Iterator[Proposal | None]) -> Iterator[Proposal | None]:
    """What ``methods`` propose; the order of each new best plan is sliced again, through its kernels."""
    if not _serves(search):
        yield from methods
        return
    known: Plan | None = None
    for proposal in methods:
        yield proposal
        while search.best_plan is not None and search.best_plan is not known and not search.is_late:
            known = search.best_plan
            yield _loosened(search, known)


def loose_order_turns(search: SearchState, group: IntArray) -> Iterator[Proposal | None]:
    """One for each order that is sliced through its kernels."""
    if not _serves(search):
        return
    method, misses, best_s = "slice: loose kernels", 0, search.best_s
    for plan in loose_orders(_slicer(search), group, seed=search.request.seed):
        misses, best_s = (misses + 1, best_s) if search.best_s == best_s else (0, search.best_s)
        if search.is_late or (misses > PATIENCE and search.request.max_evaluations is None):
            return
        if plan is None or plan.interval_s >= search.best_s:
            search.count_miss(method)
            yield None
        else:
            yield Proposal(
                method, plan.placement, plan.order, plan.fusion_group, replication=plan.replication
            )


def _loosened(search: SearchState, plan: Plan) -> Proposal | None:
    """The order of ``plan`` chip by chip, its kernels anew, sliced from its cuts on."""
    order = plan.order[np.argsort(plan.placement[plan.order], kind="stable")]
    kernels = greedy_fusion(loop_roles(search.graph), order)
    kernels = constrained_fusion(search.asked, order, kernels)
    replication = plan.replication if search.replicates else None
    start = CheapestSlicing(plan.placement, search.best_s, fits=True, replication=replication)
    better = loosened(_slicer(search), order, kernels, start)
    method = "loose kernels"
    if better.interval_s >= search.best_s:
        search.count_miss(method)
        return None
    return Proposal(method, better.placement, order, better.fusion_group, replication=better.replication)


def _slicer(search: SearchState) -> Slicer:
    case = instance(search.graph, search.target)
    return Slicer(case, search.passing, search.rules, HOPELESS * search.best_s, search.replicates)


def _serves(search: SearchState) -> bool:
    """Whether kernels are open, and plans are slices along a ring."""
    return (
        search.request.objective == "throughput"
        and search.request.decide == "all"
        and search.target.goes_forward
    )
