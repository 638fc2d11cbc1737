"""Orders for slicing under the adjacent rule, found by slicing without it.

Along an order: the cheapest slicing at no cost for what passes, projected on the adjacent rule by
FIX, visiting units in random orders; sorted by chip, each projection is an order that has it as
one of its slicings, and is sliced again. What comes of the best goes round again while it
gets better.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from go_opt.common.arrays import IntArray
from go_opt.env.kernels.numbering import number_kernels
from go_opt.errors import InfeasibleError
from go_opt.solver.orders.cheapest import BETTER, OrderPlan, Slicer
from go_opt.solver.problem.problem import PlacementProblem, placement_problem
from go_opt.solver.propagation.adjacent import ANCHORED, DRAWN, fix_adjacent

PROJECTIONS: Final = 8  # of one free slicing
ROUNDS: Final = 4  # along one order, at most


def seeded_orders(
    slicer: Slicer, fusion_group: IntArray, orders: Iterable[IntArray], *, seed: int
) -> Iterator[OrderPlan | None]:
    """One for each slicing tried; ``None`` where it is no better than those along the order before.

    Args:
      slicer: under the adjacent rule.
      fusion_group: [N] kernels.
      orders: [N] to start from, along each of which kernels are contiguous.
    """
    instance = slicer.instance
    problem = placement_problem(instance.graph, instance.target, fusion_group)
    without_rule = Slicer(instance, "free", slicer.rules, slicer.cap_s)
    for number, start in enumerate(orders):
        order, best_s, before_s = start, math.inf, math.inf
        for turn in range(ROUNDS):
            relaxed = without_rule(order, fusion_group)
            if relaxed is None:
                yield None
                break
            along = order
            for placement in _projections(problem, relaxed.placement, (seed, number, turn)):
                candidate = order_along(placement, along, fusion_group)
                sliced = slicer(candidate, fusion_group, best_s * BETTER)
                if sliced is None:
                    yield None
                    continue
                order, best_s = candidate, sliced.interval_s
                yield OrderPlan(sliced.placement, candidate, fusion_group, best_s)
            if best_s >= before_s:
                break
            before_s = best_s


def order_along(placement: IntArray, order: IntArray, fusion_group: IntArray) -> IntArray:
    """[N] ops by chip, within a chip as in ``order``: kernels stay contiguous."""
    place = number_kernels(order, fusion_group)[order]
    by_chip = np.lexsort((place, placement[order]))
    return np.ascontiguousarray(order[by_chip])


def _projections(problem: PlacementProblem, placement: IntArray, seed: tuple[int, ...]) -> IntArray:
    """[P, N] placements that keep the adjacent rule, close to ``placement`` [N]."""
    units = np.zeros((PROJECTIONS, problem.num_units), dtype=np.int32)
    units[:, problem.unit_of_op] = placement
    try:
        fixed = fix_adjacent(problem, units, seed=int(np.random.default_rng(seed).integers(2**31)))
    except InfeasibleError:
        return np.zeros((0, len(placement)), dtype=np.int32)
    is_valid = (fixed.status == DRAWN) | (fixed.status == ANCHORED)
    projected: IntArray = fixed.placement[is_valid][:, problem.unit_of_op]
    return projected
