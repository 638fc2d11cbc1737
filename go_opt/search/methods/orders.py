"""Search over orders and kernels at once, for the slicer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from go_opt.model.plan import Candidate
from go_opt.search.methods.events import Event, Miss, Proposal, SearchView
from go_opt.solver.orders.cheapest import HOPELESS, Slicer
from go_opt.solver.orders.instance import instance
from go_opt.solver.orders.joint_orders import joint_orders

METHOD: Final = "slice: orders and kernels"
# A search short of time ends after this many orders in a row without a better plan.
PATIENCE: Final = 4000


def joint_keys(search: SearchView) -> Iterator[Event]:
    """One event for each slicing.

    Ends with the time; short of it, after :data:`PATIENCE` in a row without a better plan as well.
    """
    case = instance(search.graph, search.target)
    num_stages, cap_s = search.requested.num_stages, HOPELESS * search.best_s
    arrange = search.requested.contiguous
    slicer = Slicer(case, search.passing, search.rules, cap_s, search.replicates, num_stages, arrange)

    def known() -> Candidate | None:
        plan = search.best_plan
        if plan is None:
            return None
        replication = plan.replication if search.replicates else None
        given = plan.placement, plan.order, plan.fusion_group, replication
        return Candidate(METHOD, *given, expected_s=search.best_s)

    misses, best_s = 0, search.best_s
    for plan in joint_orders(slicer, seed=search.request.seed, known=known):
        misses, best_s = (misses + 1, best_s) if search.best_s == best_s else (0, search.best_s)
        if search.is_late or (misses > PATIENCE and search.request.max_evaluations is None):
            return
        yield _event(search, plan)


def _event(search: SearchView, plan: Candidate | None) -> Event:
    """A sliced order where it is better than the best plan; None: slicing was of no use."""
    if plan is None or plan.expected_s >= search.best_s:
        return Miss(METHOD)
    return Proposal(**vars(plan) | {"method": METHOD})
