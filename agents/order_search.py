"""Genetic search over orders for the slicer, one proposal at a time.

The rival of every table (:mod:`go_opt.agents.genetic`), started from structured orders and
those of the caller, and made quick: an order that cannot be sliced below the cost of the worst
elite, or is hopeless from the start, is refused by one candidate interval
(:mod:`go_opt.solver.order_screen`) and never sliced.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from go_opt.agents.cheapest import Slicer
from go_opt.agents.genetic import Keys, generations
from go_opt.agents.orders import fixed_orders, random_orders
from go_opt.env import list_schedule
from go_opt.env.kernels import number_kernels
from go_opt.solver.order_screen import OrderScreen

IntArray = NDArray[np.int32]
STRUCTURED_GENOMES: Final = 29  # with the default and the fixed orders half of a generation of 64
BETTER: Final = 1.0 - 1e-9  # than the worst elite
HOPELESS: Final = 2.0  # times the best so far


class OrderPlan(NamedTuple):
    """An order and its slicing."""

    placement: IntArray  # [N]
    order: IntArray  # [N]
    fusion_group: IntArray  # [N]
    interval_s: float
    replication: IntArray | None = None  # [N]; None: no stage is replicated


def genetic_orders(
    slicer: Slicer, fusion_group: IntArray, *, seed: int, seeds: Iterable[IntArray] = ()
) -> Iterator[OrderPlan | None]:
    """Endless, one for each order tried: its plan, or ``None`` where it is of no use to the search.

    The default order comes first.

    Args:
      fusion_group: [N] kernels, numbered 0 … M - 1, contiguous along the default order.
      seeds: [N] further orders to start with, in each of which kernels are contiguous.
    """
    graph, tables, default = slicer.instance.graph, slicer.instance.tables, slicer.instance.order
    structured = itertools.islice(random_orders(graph, tables, fusion_group, seed), STRUCTURED_GENOMES)
    fixed = [order for _, order in fixed_orders(graph, fusion_group)]
    first = np.stack([order_keys(order, fusion_group) for order in (default, *seeds, *fixed, *structured)])
    # The screen knows one chip for each segment.
    screen = None if slicer.replicates else OrderScreen(tables, default, fusion_group, slicer.passing)
    evolution = generations(first.shape[1], seed=seed, first=first)
    genomes, worst_elite_s = next(evolution)
    best_s = math.inf
    while True:
        costs_s = np.full(len(genomes), math.inf)
        is_promising = None
        for i, keys in enumerate(genomes):
            at_most_s = min(worst_elite_s * BETTER, best_s * HOPELESS)
            if screen is not None and is_promising is None and at_most_s < math.inf:
                is_promising = screen.within(genomes, at_most_s)
            if is_promising is not None and not is_promising[i]:
                yield None
                continue
            order = list_schedule(graph, fusion_group, keys)
            sliced = slicer(order, fusion_group, at_most_s)
            if sliced is None:
                yield None
                continue
            costs_s[i] = sliced.interval_s
            best_s = min(best_s, sliced.interval_s)
            yield OrderPlan(sliced.placement, order, fusion_group, sliced.interval_s, sliced.replication)
        genomes, worst_elite_s = evolution.send(costs_s)


def order_keys(order: IntArray, fusion_group: IntArray) -> Keys:
    """[M] keys in (0, 1) of kernels by which list scheduling gives ``order``."""
    place = number_kernels(order, fusion_group)
    keys = np.empty(int(place.max()) + 1)
    keys[fusion_group] = 1.0 - (place + 1.0) / (len(keys) + 1.0)
    return keys
