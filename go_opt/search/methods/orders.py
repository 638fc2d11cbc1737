"""Search over orders for the slicer: from free slicings, or with kernels searched for as well."""

from __future__ import annotations

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
from go_opt.solver.orders.cheapest import HOPELESS, OrderPlan, Slicer
from go_opt.solver.orders.instance import instance
from go_opt.solver.orders.joint_orders import joint_orders
from go_opt.solver.orders.seeded import seeded_orders

RANDOM_SEEDS: Final = 4  # random orders that free slicings are projected along, beside the fixed ones


def seeded(search: SearchView, group: IntArray) -> Iterator[Event]:
    """Orders of the kernels ``group`` [N], of what the triangle rule leaves of free slicings."""
    yield from waiting_until(are_compiled)
    graph, seed = search.graph, search.request.seed
    orders = chain(
        [np.arange(graph.num_ops, dtype=np.int32)],
        (order for _, order in fixed_orders(graph, group)),
        islice(random_orders(graph, search.tables, group, seed), RANDOM_SEEDS),
    )
    plans = seeded_orders(_slicer(search, "adjacent"), group, orders, seed=seed)
    yield from order_events(search, "slice: order of a free slicing", plans)


def joint_keys(search: SearchView) -> Iterator[Event]:
    """Orders and kernels: one for each slicing."""
    slicer, known = _slicer(search, search.passing), partial(_best, search)
    plans = joint_orders(slicer, seed=search.request.seed, known=known)
    yield from order_events(search, "slice: orders and kernels", plans)


def _best(search: SearchView) -> OrderPlan | None:
    plan = search.best_plan
    if plan is None:
        return None
    replication = plan.replication if search.replicates else None
    return OrderPlan(plan.placement, plan.order, plan.fusion_group, search.best_s, replication)


def _slicer(search: SearchView, passing: Passing) -> Slicer:
    case = instance(search.graph, search.target)
    return Slicer(case, passing, search.rules, HOPELESS * search.best_s, search.replicates)
