"""Genetic search for orders and kernels at once: orders compete as sliced through their kernels.

Where kernels stay whole, good orders often are level. Keys are those of the kernels
(:mod:`go_opt.solver.orders.order_search`); where a kernel is split follows from the cuts
(:mod:`go_opt.solver.orders.loose_slicing`), so no keys are spent on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from typing import Final

import numpy as np

from go_opt.common.arrays import IntArray
from go_opt.env import list_schedule
from go_opt.solver.orders.cheapest import Slicer
from go_opt.solver.orders.genetic import Evolution, order_keys
from go_opt.solver.orders.loose_slicing import loose_slicings
from go_opt.solver.orders.order_search import HOPELESS, STARTING_ORDERS, OrderPlan
from go_opt.solver.orders.orders import largest_by_kernel, starting_orders

LOOSE: Final = 1.1  # no more is hoped for of cuts through kernels
DRAWS: Final = 2  # of kernels to take apart, for an order


def loose_orders(slicer: Slicer, fusion_group: IntArray, *, seed: int) -> Iterator[OrderPlan | None]:
    """Endless, one for each slicing tried: its plan, or ``None`` where it is of no use to the search.

    Args:
      fusion_group: [N] kernels, numbered 0 … M - 1.
    """
    graph, rng = slicer.instance.graph, np.random.default_rng((seed, 1))
    early = -np.arange(graph.num_ops, dtype=np.float64)
    default = list_schedule(graph, fusion_group, largest_by_kernel(fusion_group, early))
    starting = islice(starting_orders(slicer.instance, fusion_group, seed), STARTING_ORDERS)
    first = np.stack([order_keys(order, fusion_group) for order in (default, *starting)])
    evolution = Evolution(first.shape[1], seed=seed, first=first)
    best_s = math.inf
    while True:
        genomes, worst_elite_s = evolution.genomes, evolution.worst_elite
        costs_s = np.full(len(genomes), math.inf)
        for i, keys in enumerate(genomes):
            order = list_schedule(graph, fusion_group, keys)
            sliced = slicer(order, fusion_group, min(worst_elite_s * LOOSE, best_s * HOPELESS))
            if sliced is None:
                yield None
                continue
            costs_s[i] = sliced.interval_s
            yield OrderPlan(sliced.placement, order, fusion_group, sliced.interval_s, sliced.replication)
            for plan in loose_slicings(slicer, order, fusion_group, sliced, rng=rng, draws=DRAWS):
                if plan is not None:
                    costs_s[i] = plan.interval_s
                yield plan
            best_s = min(best_s, costs_s[i])
        evolution.advance(costs_s)
