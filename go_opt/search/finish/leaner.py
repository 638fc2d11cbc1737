"""The best plan on fewer chips: its pace is often set by a link or the host, which fewer chips load no more.

Three moves: copies, or replicas, only as many as the interval needs; a slicing of the plan's own order into
fewer segments; and stages joined two by two. Axes: ``N`` ops, ``S`` stages, ``B`` plans.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np

from go_opt.common.arrays import FloatArray
from go_opt.env import BatchMetrics, cost_tables
from go_opt.env.copies.stages import size_by_chip
from go_opt.env.evaluation import objectives_s
from go_opt.model.plan import Plan
from go_opt.search.methods.events import EQUAL, Proposal, SearchView
from go_opt.search.methods.given import Stages
from go_opt.search.methods.slices import COPIED, copies, reallocated
from go_opt.solver import ForwardingMode, slice_order

FEWER: Final = ", fewer chips"
MOST_PAIRS: Final = 1 << 11  # of stages to join, in one step
MOST_LATE_OPS: Final = 5_000  # of graphs whose plans are made leaner after the time is up


def leaner(search: SearchView, method: str) -> Iterator[Proposal]:
    """Plans as good as the best one, on fewer chips; ``method`` found the best plan."""
    plan, method = search.leanest_plan, method.removesuffix(COPIED).removesuffix(FEWER)
    if plan is None or search.target.constraints.no_skip == "all":
        return
    yield from copies(search, method, plan.order, plan.fusion_group)
    if search.is_late and search.graph.num_ops > MOST_LATE_OPS:
        return
    keeps_stages = search.requested.num_stages is not None
    if plan.replication.max() == 1 and search.request.objective == "throughput":
        if not keeps_stages:
            yield from _sliced(search, method + FEWER, plan)
    elif search.target.goes_forward:
        yield reallocated(search, plan, method + FEWER)
    plan = search.leanest_plan
    if plan is None or plan.forwards or keeps_stages:
        return
    joined = list(_joined(search, plan))
    for stages in reversed(joined):
        yield Proposal(
            method + FEWER, stages.first_chip, plan.order, plan.fusion_group, replication=stages.size
        )
        if search.leanest_plan is not plan:
            return


def _sliced(search: SearchView, method: str, plan: Plan) -> Iterator[Proposal]:
    """Bisects the number of chips into which the plan's order can be sliced within its interval."""
    forwarding: ForwardingMode = "free" if search.target.constraints.triangle == "off" else search.forwarding
    cut = partial(
        slice_order,
        cost_tables(search.graph, search.target),
        plan.order,
        plan.fusion_group,
        forwarding=forwarding,
        at_most_s=_limit_s(search),
        **search.rules,
    )
    too_few, enough = 0, plan.chips_used
    while enough - too_few > 1:
        chips = (too_few + enough) // 2
        slicing = cut(max_chips=chips)
        if slicing is not None:
            yield Proposal(method, slicing.placement, plan.order, plan.fusion_group)
        known = search.leanest_plan
        if known is not None and known.chips_used <= chips:
            enough = known.chips_used
        else:
            too_few = chips


def _joined(search: SearchView, plan: Plan) -> Iterator[Stages]:
    """Yields the plan with two stages joined, then two more, as long as the objective allows it."""
    stages = Stages(plan.placement, plan.replication)
    while True:
        pairs = list(itertools.islice(_pairs(search, plan, stages), MOST_PAIRS))
        if not pairs:
            return
        objective_s, terms = _evaluated(search, plan, pairs)
        is_enough = objective_s <= _limit_s(search)
        if not is_enough.any():
            return
        stages = pairs[int(np.argmin(np.where(is_enough, terms.latency_s, np.inf)))]
        yield stages


def _pairs(search: SearchView, plan: Plan, stages: Stages) -> Iterator[Stages]:
    """Yields the plan with two stages joined; along a ring, two neighbours, and later stages move up."""
    _, terms = _evaluated(search, plan, [stages])
    first, stage = np.unique(stages.first_chip, return_inverse=True)
    size = size_by_chip(*stages, search.target.num_chips)[first]
    work_s = terms.compute_s[0, first] * size
    is_ring, limit_s = search.target.goes_forward, _limit_s(search)
    for a, b in itertools.combinations(range(len(first)), 2):
        needs = (
            1 if search.request.objective == "latency" else int(np.ceil((work_s[a] + work_s[b]) / limit_s))
        )
        if (is_ring and b > a + 1) or needs >= size[a] + size[b] or (needs > size[a] and not is_ring):
            continue
        chips, sizes = first.copy(), size.copy()
        sizes[a] = max(needs, 1)
        chips[b], sizes[b] = chips[a], sizes[a]
        if is_ring:
            kept = np.delete(sizes, b)
            chips = np.insert(np.cumsum(kept) - kept, b, chips[a])
        yield Stages(chips[stage].astype(np.int32), sizes[stage].astype(np.int32))


def _evaluated(search: SearchView, plan: Plan, rows: list[Stages]) -> tuple[FloatArray, BatchMetrics]:
    """[B] objective, infinite for plans that do not fit, and terms of plans without relays."""
    shape = (len(rows), search.graph.num_ops)
    order, group = np.broadcast_to(plan.order, shape), np.broadcast_to(plan.fusion_group, shape)
    placement, replication = (np.stack(column) for column in zip(*rows, strict=True))
    replicas = replication if replication.max() > 1 else None
    tables = cost_tables(search.graph, search.target)
    return objectives_s(tables, search.request.minimised, placement, order, group, replicas)


def _limit_s(search: SearchView) -> float:
    return search.best_s * (1.0 + EQUAL)
