"""Slicing that may cut through kernels: kernels are split where cuts want to fall.

A slicer cuts between kernels, and those of the default fusion hold up to 32 ops. Splitting all of
them costs an overhead and a trip through memory for each, more than finer cuts are worth. So only those that
stand at a cut are split: the order is sliced, the kernels before and behind each cut are taken
apart, it is sliced again, and what no cut went through is whole again; as long as that gains.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from go_opt.agents.cheapest import CheapestSlicing, Slicer
from go_opt.agents.order_search import BETTER, OrderPlan
from go_opt.env.kernels import number_kernels

IntArray = NDArray[np.int32]
BoolArray = NDArray[np.bool_]
# How kernels at a cut are taken apart: into ops (0), behind the first op, before the last one. The
# fewer parts, the less they take and keep in memory.
WAYS: Final = (0, 1, -1)


def loosened(slicer: Slicer, order: IntArray, fusion_group: IntArray, start: CheapestSlicing) -> OrderPlan:
    """The best slicing of ``order`` met that may cut through kernels; ``start`` is one that does not.

    Args:
      order: [N] along which the kernels ``fusion_group`` [N] are contiguous.
    """
    kernels = _Kernels(order, fusion_group)
    best = OrderPlan(start.placement, order, fusion_group, start.interval_s, start.replication)
    is_better = kernels.are_fused
    while is_better:
        is_better = False
        for way in WAYS:
            cuts = kernels.cuts_of(best.placement)
            apart = kernels.split(kernels.at(cuts, way) | cuts)
            sliced = slicer(order, apart, best.interval_s * BETTER)
            if sliced is None:
                continue
            whole = kernels.split(kernels.cuts_of(sliced.placement))
            again = slicer.cost(sliced.placement, sliced.replication, order, whole)
            if again.interval_s <= sliced.interval_s:
                sliced, apart = again, whole
            if sliced.interval_s < best.interval_s * BETTER:
                best = OrderPlan(sliced.placement, order, apart, sliced.interval_s, sliced.replication)
                is_better = True
                break
    return best


class _Kernels:
    """Kernels along an order. Axis ``N`` is the positions of the order."""

    def __init__(self, order: IntArray, fusion_group: IntArray) -> None:
        self._order = order
        self._kernel = number_kernels(order, fusion_group)[order]  # [N]
        self._begin = np.searchsorted(self._kernel, np.arange(self._kernel[-1] + 1))  # [M]
        self._size = np.diff(self._begin, append=len(order))  # [M] ops of each

    @property
    def are_fused(self) -> bool:
        """Whether there is anything to split."""
        return len(self._size) < len(self._order)

    def cuts_of(self, placement: IntArray) -> BoolArray:
        """[N] whether a chip's segment begins at each position."""
        along = placement[self._order]
        return np.concatenate([[False], along[1:] != along[:-1]])

    def at(self, cuts: BoolArray, way: int) -> BoolArray:
        """[N] where the kernels before and behind each cut are taken apart, in one of ``WAYS``."""
        behind = np.flatnonzero(cuts)
        near = np.zeros(len(self._size), dtype=np.bool_)
        near[self._kernel[behind]] = near[self._kernel[behind - 1]] = True
        near[[0, -1]] = True  # all segments have two ends
        if way == 0:
            return near[self._kernel]
        parted = near & (self._size > 1)
        marks = np.zeros(len(cuts), dtype=np.bool_)
        marks[(self._begin + (way if way > 0 else self._size + way))[parted]] = True
        return marks

    def split(self, marks: BoolArray) -> IntArray:
        """[N] kernels by op, those with a mark inside split there."""
        starts = marks.copy()
        starts[self._begin] = True
        group = np.empty(len(marks), dtype=np.int32)
        group[self._order] = np.cumsum(starts) - 1
        return group
