"""Cuts through kernels: of every new best plan, and of orders searched for them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np

from go_opt.env import greedy_fusion, loop_roles
from go_opt.model.plan import Plan
from go_opt.search.methods.proposal import IntArray, Proposal, SearchState, Tried, better_or_miss
from go_opt.solver.constraints.fusion import constrained_fusion
from go_opt.solver.orders.cheapest import CheapestSlicing, Slicer
from go_opt.solver.orders.instance import instance
from go_opt.solver.orders.joint_orders import joint_orders
from go_opt.solver.orders.loose_orders import loose_orders
from go_opt.solver.orders.loose_slicing import loose_slicings
from go_opt.solver.orders.order_search import HOPELESS, OrderPlan

# A search short of time ends after this many slicings in a row without a better plan.
PATIENCE: Final = 4000
DRAWS: Final = 8  # of kernels to take apart, for a best plan
SHARE: Final = 0.2  # of the time


def with_loose_kernels(search: SearchState, methods: Iterator[Proposal | None]) -> Iterator[Proposal | None]:
    """What ``methods`` propose; the order of each new best plan is sliced again, through its kernels.

    Short of time, slicing again takes no more than :data:`SHARE` of it.
    """
    if not _serves(search):
        yield from methods
        return
    is_counted = search.request.max_evaluations is not None
    known: Plan | None = None
    loosened: Iterator[Proposal | None] = iter(())
    began_s, used_s = time.monotonic(), 0.0
    for proposal in methods:
        yield proposal
        if search.best_plan is not known and search.best_plan is not None:
            known, loosened = search.best_plan, _loosened(search, search.best_plan)
        while is_counted or used_s <= SHARE * (time.monotonic() - began_s):
            started_s = time.monotonic()
            try:
                yield next(loosened)
            except StopIteration:
                break
            used_s += time.monotonic() - started_s
            known = search.best_plan  # what it finds it goes on from itself


def loose_order_tries(search: SearchState, group: IntArray) -> Iterator[Tried]:
    """Over orders of the kernels ``group`` [N]: one for each slicing."""
    if _serves(search):
        plans = loose_orders(_slicer(search), group, seed=search.request.seed)
        yield from _in_patience(search, "slice: loose kernels", plans)


def joint_order_tries(search: SearchState) -> Iterator[Tried]:
    """Over orders and kernels: one for each slicing."""
    if _serves(search):
        plans = joint_orders(_slicer(search), seed=search.request.seed, known=partial(_best, search))
        yield from _in_patience(search, "slice: joint keys", plans)


def _in_patience(search: SearchState, method: str, plans: Iterator[OrderPlan | None]) -> Iterator[Tried]:
    misses, best_s = 0, search.best_s
    for plan in plans:
        misses, best_s = (misses + 1, best_s) if search.best_s == best_s else (0, search.best_s)
        if search.is_late or (misses > PATIENCE and search.request.max_evaluations is None):
            return
        yield method, plan


def _loosened(search: SearchState, plan: Plan) -> Iterator[Proposal | None]:
    """The order of ``plan`` chip by chip, its kernels anew, sliced from its cuts on."""
    order = plan.order[np.argsort(plan.placement[plan.order], kind="stable")]
    kernels = constrained_fusion(search.asked, order, greedy_fusion(loop_roles(search.graph), order))
    replication = plan.replication if search.replicates else None
    start = CheapestSlicing(plan.placement, search.best_s, fits=True, replication=replication)
    rng = np.random.default_rng((search.request.seed, 2))
    for better in loose_slicings(_slicer(search), order, kernels, start, rng=rng, draws=DRAWS):
        yield better_or_miss(search, "loose kernels", better)
        if search.is_late:
            return


def _best(search: SearchState) -> OrderPlan | None:
    plan = search.best_plan
    if plan is None:
        return None
    replication = plan.replication if search.replicates else None
    return OrderPlan(plan.placement, plan.order, plan.fusion_group, search.best_s, replication)


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
