"""Genetic search for orders and kernels at once, by priorities of both.

A genome has two keys an op: one for its place (list scheduling), one for its wish to share a
kernel with what it reads (:mod:`go_opt.env.priority_fusion`). Kernels joined across branches keep
tensors out of memory; where that binds, nothing else finds such plans. Only genomes that can beat the
worst elite are sliced for good, the best through their kernels (:mod:`go_opt.agents.loose_slicing`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain, islice
from typing import Final

import numpy as np

from go_opt.agents.cheapest import Slicer
from go_opt.agents.decoding import schedule
from go_opt.agents.genetic import Keys, generations
from go_opt.agents.loose_slicing import loose_slicings
from go_opt.agents.order_search import BETTER, HOPELESS, OrderPlan
from go_opt.agents.orders import fixed_orders, random_orders

# Fusion keys in [0, 1) become priorities in [-FUSION_RANGE, FUSION_RANGE): a quarter of them
# take an op off its default kernel, a quarter let it join another.
FUSION_RANGE: Final = 2.0
AS_BY_DEFAULT, JOINED = 0.5, 1.0  # keys
STRUCTURED_ORDERS: Final = 13  # with the default and the fixed orders, each with two kinds of kernels


def joint_orders(slicer: Slicer, *, seed: int) -> Iterator[OrderPlan | None]:
    """Endless, one for each slicing tried: its plan, or ``None`` where it is of no use to the search."""
    num_ops, rng = slicer.instance.graph.num_ops, np.random.default_rng((seed, 3))
    evolution = generations(2 * num_ops, seed=seed, first=_first(slicer, seed))
    genomes, worst_elite_s = next(evolution)
    best_s = math.inf
    while True:
        costs_s = np.full(len(genomes), math.inf)
        for i, keys in enumerate(genomes):
            priority = (2.0 * keys[num_ops:] - 1.0) * FUSION_RANGE
            kernels, order = schedule(slicer.instance, keys[:num_ops], priority)
            sliced = slicer(order, kernels, min(worst_elite_s * BETTER, best_s * HOPELESS))
            if sliced is None:
                yield None
                continue
            costs_s[i] = sliced.interval_s
            yield OrderPlan(sliced.placement, order, kernels, sliced.interval_s, sliced.replication)
            if sliced.interval_s < best_s:
                for plan in loose_slicings(slicer, order, kernels, sliced, rng=rng, draws=0):
                    costs_s[i] = costs_s[i] if plan is None else plan.interval_s
                    yield plan
                best_s = float(costs_s[i])
        genomes, worst_elite_s = evolution.send(costs_s)


def _first(slicer: Slicer, seed: int) -> Keys:
    """[F, 2 N] orders of the default kernels, each with these and with all joined that may be."""
    case = slicer.instance
    orders = chain(
        [case.order],
        (order for _, order in fixed_orders(case.graph, case.fusion_group)),
        islice(random_orders(case.graph, case.tables, case.fusion_group, seed), STRUCTURED_ORDERS),
    )
    first = []
    for order in orders:
        keys = np.empty(len(order))
        keys[order] = 1.0 - np.arange(1, len(order) + 1) / (len(order) + 1.0)
        first += [np.append(keys, np.full(len(order), kind)) for kind in (AS_BY_DEFAULT, JOINED)]
    return np.stack(first)
