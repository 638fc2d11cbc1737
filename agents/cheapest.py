"""The exact slicer as a decoder: an order and its kernels in, their best placement out."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from go_opt.agents.instance import Instance
from go_opt.env import CostTables, evaluate_batch
from go_opt.env.expanded_tables import Copies, expanded_tables
from go_opt.env.stage_tables import stage_tables
from go_opt.env.stages import stages_of
from go_opt.solver import (
    Passing,
    greedy_slicing,
    slice_order,
    slice_order_relayed,
    slice_order_relayed_resident,
    slice_order_resident,
)
from go_opt.solver.relays import needed_relays
from go_opt.solver.replicated_slicing import slice_order_replicated
from go_opt.solver.segment_rules import SegmentRules

# A plan this much slower than its cuts streams weights.
STREAMS: Final = 1.0 + 1e-6

IntArray = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class CheapestSlicing:
    """A placement along an order, and what the analytical model says of it."""

    placement: IntArray  # [N]
    interval_s: float
    fits: bool  # False: no slicing of the order fits in memory, this is the greedy one
    replication: IntArray | None = None  # [N]; None: no stage is replicated


@dataclass(frozen=True, eq=False)
class Slicer:
    """The cheapest slicing of an order, or the cheapest that streams no weights where that is faster.

    Args:
      replicates: whether stages may be replicated.
    """

    instance: Instance
    passing: Passing
    rules: SegmentRules = field(default_factory=SegmentRules)
    cap_s: float = math.inf  # slower slicings are not looked for: where memory is tight that takes long
    replicates: bool = False

    def __call__(
        self, order: IntArray, fusion_group: IntArray, at_most_s: float = math.inf
    ) -> CheapestSlicing | None:
        """``None`` where no slicing whose cuts take ``at_most_s`` or less fits in memory."""
        at_most_s = min(at_most_s, self.cap_s)
        if self.replicates:
            return self._replicated(order, fusion_group, at_most_s)
        min_chips = self.instance.min_chips
        args = (self.instance.tables, order, fusion_group)
        slicing = self._slice(*args, min_chips=min_chips, at_most_s=at_most_s)
        if slicing is None:
            return None
        best = self._evaluated(self.instance.tables, slicing.placement, order, fusion_group)
        if best.interval_s <= slicing.interval_s * STREAMS or min_chips > 1:
            return best
        at_most_s = min(at_most_s, best.interval_s)
        slicing = self._slice_resident(*args, at_least_s=slicing.interval_s, at_most_s=at_most_s)
        if slicing is None:
            return best
        resident = self._evaluated(self.instance.tables, slicing.placement, order, fusion_group)
        return min(best, resident, key=lambda plan: plan.interval_s)

    def _replicated(
        self, order: IntArray, fusion_group: IntArray, at_most_s: float
    ) -> CheapestSlicing | None:
        tables = self.instance.tables
        slicing = slice_order_replicated(
            tables, order, fusion_group, passing=self.passing, at_most_s=at_most_s, **self.rules
        )
        if slicing is None:
            return None
        stages = stages_of(slicing.placement, slicing.replication)
        on_ring, placement = stage_tables(tables, stages), stages.number(slicing.placement)
        cost = self._evaluated(on_ring, placement, order, fusion_group)
        return replace(cost, placement=slicing.placement, replication=slicing.replication)

    @property
    def _slice(self) -> Any:
        if self.passing == "relayed":
            return partial(slice_order_relayed, **self.rules)
        return partial(slice_order, adjacent=self.passing == "adjacent", **self.rules)

    @property
    def _slice_resident(self) -> Any:
        if self.passing == "relayed":
            return partial(slice_order_relayed_resident, **self.rules)
        return partial(slice_order_resident, adjacent=self.passing == "adjacent", **self.rules)

    def _evaluated(
        self, tables: CostTables, placement: IntArray, order: IntArray, fusion_group: IntArray
    ) -> CheapestSlicing:
        triangle = self.instance.target.constraints.triangle
        plan = (placement, order, fusion_group)
        if self.passing == "relayed":
            nothing = np.zeros(0, np.int32)
            copies = Copies(*needed_relays(tables, placement, triangle), nothing, nothing)
            expanded = expanded_tables(tables, *plan, copies)
            tables, plan = expanded[0], expanded[1:]
        terms = evaluate_batch(tables, *(row[None] for row in plan))
        return CheapestSlicing(placement, float(terms.interval_s[0]) if terms.fits[0] else math.inf, True)


def cheapest_slicing(instance: Instance, order: IntArray, fusion_group: IntArray) -> CheapestSlicing:
    """The best slicing without relays; the greedy one where no slicing fits in memory."""
    passing: Passing = "adjacent" if instance.is_adjacent else "free"
    best = Slicer(instance, passing)(order, fusion_group)
    if best is not None:
        return best
    greedy = greedy_slicing(instance.tables, order, fusion_group, adjacent=instance.is_adjacent)
    return CheapestSlicing(greedy.placement, math.inf, fits=False)
