"""Search over orders for the slicer: what the triangle rule leaves of free slicings, then genetic search."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain, islice
from typing import Final

import numpy as np

from go_opt.search.compiling.kernel_cache import until_compiled
from go_opt.search.methods.proposal import IntArray, Proposal, SearchState
from go_opt.search.methods.slices import RELAYED
from go_opt.solver import Passing
from go_opt.solver.orders import fixed_orders, random_orders
from go_opt.solver.orders.cheapest import Slicer
from go_opt.solver.orders.instance import instance
from go_opt.solver.orders.order_search import HOPELESS, OrderPlan, genetic_orders
from go_opt.solver.orders.seeded import seeded_orders

RANDOM_SEEDS: Final = 4  # random orders that free slicings are projected along, beside the fixed ones
# A search short of time ends after this many orders in a row without a better plan.
PATIENCE: Final = 1000


def order_turns(search: SearchState, group: IntArray, passing: Passing) -> Iterator[Proposal | None]:
    """One for each order tried; serves throughput along a ring.

    Args:
      passing: of the slices. Those without relays are worth a turn of their own where relays
        are open: what streams least is not what passes least.

    Where only placements are decided, an order finds one and ops run in the default order.
    """
    if search.request.objective != "throughput" or not search.target.goes_forward:
        return
    yield from until_compiled()
    default = np.arange(search.graph.num_ops, dtype=np.int32)
    misses, best_s = 0, search.best_s
    for method, plan in _plans(search, group, passing):
        misses, best_s = (misses + 1, best_s) if search.best_s == best_s else (0, search.best_s)
        if misses > PATIENCE and search.request.max_evaluations is None:
            return
        if search.is_late:  # and goes on because there is no plan yet
            return
        if plan is None or plan.interval_s >= search.best_s:
            search.count_miss(method)
            yield None
        else:
            order = default if search.request.decide == "placement" else plan.order
            yield Proposal(method, plan.placement, order, plan.fusion_group, replication=plan.replication)


def _plans(search: SearchState, group: IntArray, passing: Passing) -> Iterator[tuple[str, OrderPlan | None]]:
    graph, seed = search.graph, search.request.seed
    cap_s, replicates = HOPELESS * search.best_s, search.replicates
    slicer = Slicer(instance(graph, search.target), passing, search.rules, cap_s, replicates)
    best: OrderPlan | None = None
    if passing == "adjacent":
        orders = chain(
            [np.arange(graph.num_ops, dtype=np.int32)],
            (order for _, order in fixed_orders(graph, group)),
            islice(random_orders(graph, search.tables, group, seed), RANDOM_SEEDS),
        )
        for plan in seeded_orders(slicer, group, orders, seed=seed):
            yield "slice: projected order", plan
            if plan is not None and plan.interval_s < (math.inf if best is None else best.interval_s):
                best = plan
    seeds = [] if best is None else [best.order]
    for plan in genetic_orders(slicer, group, seed=seed, seeds=seeds):
        yield "slice: genetic order" + (RELAYED if passing == "relayed" else ""), plan
