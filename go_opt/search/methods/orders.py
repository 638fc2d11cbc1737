"""Search over orders for the slicer: genetic, with kernels as they are or searched for as well."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from itertools import chain, islice
from typing import Final

import numpy as np

from go_opt.common.arrays import IntArray
from go_opt.search.compiling.kernel_cache import are_compiled
from go_opt.search.methods.events import Event, SearchView, order_events, waiting_until
from go_opt.solver import Passing
from go_opt.solver.orders import fixed_orders, random_orders
from go_opt.solver.orders.cheapest import Slicer
from go_opt.solver.orders.instance import instance
from go_opt.solver.orders.joint_orders import joint_orders
from go_opt.solver.orders.order_search import HOPELESS, OrderPlan, genetic_orders
from go_opt.solver.orders.seeded import seeded_orders

RANDOM_SEEDS: Final = 4  # random orders that free slicings are projected along, beside the fixed ones
# A search short of time ends after this many orders in a row without a better plan, or so many slicings.
PATIENCE: Final = 1000
JOINT_PATIENCE: Final = 4000


def genetic(search: SearchView, group: IntArray, passing: Passing) -> Iterator[Event]:
    """One for each order tried.

    Args:
      passing: of the slices. Those without relays are worth a turn of their own where relays
        are open: what streams least is not what passes least.
    """
    yield from waiting_until(are_compiled)
    yield from order_events(search, _genetic_plans(search, group, passing), PATIENCE)


def joint_keys(search: SearchView) -> Iterator[Event]:
    """Orders and kernels: one for each slicing."""
    slicer, known = _slicer(search, search.passing), partial(_best, search)
    plans = joint_orders(slicer, seed=search.request.seed, known=known)
    yield from order_events(search, (("slice: orders and kernels", plan) for plan in plans), JOINT_PATIENCE)


def _genetic_plans(
    search: SearchView, group: IntArray, passing: Passing
) -> Iterator[tuple[str, OrderPlan | None]]:
    """Without relays, what the triangle rule leaves of free slicings comes first."""
    graph, seed, slicer = search.graph, search.request.seed, _slicer(search, passing)
    best: OrderPlan | None = None
    if passing == "adjacent":
        orders = chain(
            [np.arange(graph.num_ops, dtype=np.int32)],
            (order for _, order in fixed_orders(graph, group)),
            islice(random_orders(graph, search.tables, group, seed), RANDOM_SEEDS),
        )
        for plan in seeded_orders(slicer, group, orders, seed=seed):
            yield "slice: order of a free slicing", plan
            if plan is not None and plan.interval_s < (math.inf if best is None else best.interval_s):
                best = plan
    seeds = [] if best is None else [best.order]
    for plan in genetic_orders(slicer, group, seed=seed, seeds=seeds):
        yield "slice: genetic order" + (", relayed" if passing == "relayed" else ""), plan


def _best(search: SearchView) -> OrderPlan | None:
    plan = search.best_plan
    if plan is None:
        return None
    replication = plan.replication if search.replicates else None
    return OrderPlan(plan.placement, plan.order, plan.fusion_group, search.best_s, replication)


def _slicer(search: SearchView, passing: Passing) -> Slicer:
    case = instance(search.graph, search.target)
    return Slicer(case, passing, search.rules, HOPELESS * search.best_s, search.replicates)
