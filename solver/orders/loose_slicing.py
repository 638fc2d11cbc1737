"""Slicing that may cut through kernels: kernels are split where cuts want to fall.

A slicer cuts between kernels, and those of the default fusion hold up to 32 ops. Split all of
them, and each costs an overhead and a trip through memory more than finer cuts are worth. So an
order is sliced, the kernels that stand at a cut are taken apart, it is sliced again, and what no
cut went through is whole again; as long as that gains. Where memory binds, cuts that help may be far
away: then all kernels are taken apart, or some that are drawn.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from go_opt.common.arrays import BoolArray, IntArray, LongArray
from go_opt.env.kernels.numbering import number_kernels
from go_opt.solver.orders.cheapest import CheapestSlicing, Slicer
from go_opt.solver.orders.order_search import BETTER, OrderPlan

# A kernel is taken apart into its ops, behind the first, before the last one, or not at all. The
# fewer parts, the less they take and keep in memory.
INTO_OPS, BEHIND_FIRST, BEFORE_LAST, WHOLE = range(4)
WAYS: Final = (INTO_OPS, BEHIND_FIRST, BEFORE_LAST)


def loose_slicings(
    slicer: Slicer,
    order: IntArray,
    fusion_group: IntArray,
    start: CheapestSlicing,
    *,
    rng: np.random.Generator,
    draws: int,
) -> Iterator[OrderPlan | None]:
    """One for each slicing of ``order`` tried: a plan better than all before, or ``None``.

    Args:
      order: [N] along which the kernels ``fusion_group`` [N] are contiguous.
      start: a plan to begin with; it chip by chip follows the order.
      draws: how often kernels that are drawn are taken apart before it ends without a gain.
    """
    kernels = _Kernels(order, fusion_group)
    placement, best_s = start.placement, start.interval_s
    tries = kernels.tries(placement, rng, draws)
    while (marks := next(tries, None)) is not None:
        cuts = kernels.cuts_of(placement)
        apart = kernels.split(marks | cuts)
        sliced = slicer(order, apart, best_s * BETTER)
        if sliced is None:
            yield None
            continue
        whole = kernels.split(kernels.cuts_of(sliced.placement))
        again = slicer.cost(sliced.placement, sliced.replication, order, whole)
        if again.interval_s <= sliced.interval_s:
            sliced, apart = again, whole
        if sliced.interval_s >= best_s * BETTER:
            yield None
            continue
        placement, best_s = sliced.placement, sliced.interval_s
        yield OrderPlan(placement, order, apart, best_s, sliced.replication)
        tries = kernels.tries(placement, rng, draws)


class _Kernels:
    """Kernels along an order. Axes: ``N`` positions of the order, ``M`` kernels."""

    def __init__(self, order: IntArray, fusion_group: IntArray) -> None:
        self._order = order
        self._kernel = number_kernels(order, fusion_group)[order]  # [N]
        self._begin = np.searchsorted(self._kernel, np.arange(self._kernel[-1] + 1))  # [M]
        self._size = np.diff(self._begin, append=len(order))  # [M] ops of each

    def tries(self, placement: IntArray, rng: np.random.Generator, draws: int) -> Iterator[BoolArray]:
        """[N] where kernels are taken apart: those at the cuts of a placement [N], all, and drawn ones."""
        num_kernels = len(self._size)
        if num_kernels == len(self._order):
            return
        behind = np.flatnonzero(self.cuts_of(placement))
        at_cut = np.zeros(num_kernels, dtype=np.bool_)
        at_cut[self._kernel[behind]] = at_cut[self._kernel[behind - 1]] = True
        at_cut[[0, -1]] = True  # the order's ends are those of segments
        for way in WAYS:
            yield self._marks(np.where(at_cut, way, WHOLE))
        for way in WAYS:
            yield self._marks(np.full(num_kernels, way))
        for _ in range(draws):
            yield self._marks(np.minimum(rng.integers(0, 2 * WHOLE, num_kernels), WHOLE))

    def cuts_of(self, placement: IntArray) -> BoolArray:
        """[N] whether a chip's segment begins at each position."""
        along = placement[self._order]
        return np.concatenate([[False], along[1:] != along[:-1]])

    def split(self, marks: BoolArray) -> IntArray:
        """[N] kernels by op, those with a mark inside split there."""
        starts = marks.copy()
        starts[self._begin] = True
        group = np.empty(len(marks), dtype=np.int32)
        group[self._order] = np.cumsum(starts) - 1
        return group

    def _marks(self, way: LongArray) -> BoolArray:
        """[N] where kernels are taken apart, each its way [M]."""
        marks: BoolArray = (way == INTO_OPS)[self._kernel]
        end = self._begin + self._size
        is_fused = self._size > 1
        marks[self._begin[is_fused & (way == BEHIND_FIRST)] + 1] = True
        marks[end[is_fused & (way == BEFORE_LAST)] - 1] = True
        return marks
