"""Search over orders and kernels at once, for the slicer."""

from __future__ import annotations

from collections.abc import Iterator

from go_opt.search.methods.events import Event, SearchView, order_events
from go_opt.solver.orders.cheapest import HOPELESS, OrderPlan, Slicer
from go_opt.solver.orders.instance import instance
from go_opt.solver.orders.joint_orders import joint_orders


def joint_keys(search: SearchView) -> Iterator[Event]:
    """One event for each slicing."""
    case = instance(search.graph, search.target)
    slicer = Slicer(case, search.passing, search.rules, HOPELESS * search.best_s, search.replicates)

    def known() -> OrderPlan | None:
        plan = search.best_plan
        if plan is None:
            return None
        replication = plan.replication if search.replicates else None
        return OrderPlan(plan.placement, plan.order, plan.fusion_group, search.best_s, replication)

    plans = joint_orders(slicer, seed=search.request.seed, known=known)
    yield from order_events(search, "slice: orders and kernels", plans)
