"""The exact slicer as a decoder: takes an order and its kernels, returns their best placement."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from go_opt.common.arrays import IntArray
from go_opt.env.copies.stage_tables import stage_tables
from go_opt.env.copies.stages import stages_of
from go_opt.model.plan import Candidate
from go_opt.solver.copies.relays import relayed_terms
from go_opt.solver.orders.instance import OrderProblem
from go_opt.solver.problem.forwarding_mode import ForwardingMode
from go_opt.solver.problem.segment_rules import SegmentRules
from go_opt.solver.slicing.replicated.slice import slice_order_replicated
from go_opt.solver.slicing.slice import greedy_slicing, slice_order
from go_opt.solver.slicing.streamed.slice import slice_order_streamed

# A plan this much slower than its cuts streams weights.
STREAMS: Final = 1.0 + 1e-6
# Factors for the limits that searches over orders set for slicings.
BETTER: Final = 1.0 - 1e-9  # times the cost to beat
HOPELESS: Final = 2.0  # times the best cost so far


@dataclass(frozen=True, eq=False)
class Slicer:
    """Finds the cheapest slicing of an order, with streamed weights in its cost.

    Args:
      replicates: whether stages may be replicated.
      num_stages: exactly so many, of one chip each; ``None``: any number.
      arrange: changes each order before it is sliced, given its kernels.
    """

    instance: OrderProblem
    passing: ForwardingMode
    rules: SegmentRules = field(default_factory=SegmentRules)
    cap_s: float = math.inf  # slower slicings are ignored: the search takes long where memory is tight
    replicates: bool = False
    num_stages: int | None = None
    arrange: Callable[[IntArray, IntArray], IntArray] = lambda order, fusion_group: order

    def __call__(
        self, order: IntArray, fusion_group: IntArray, at_most_s: float = math.inf
    ) -> Candidate | None:
        """Returns ``None`` if no slicing whose cuts take ``at_most_s`` or less fits in memory."""
        at_most_s = min(at_most_s, self.cap_s)
        order = self.arrange(order, fusion_group)
        cut, cut_streamed = self._cuts(self.instance.tables, order, fusion_group)
        slicing = cut(at_most_s=at_most_s)
        if slicing is None:
            return None
        best = self._evaluated(slicing)
        charged = charged_slicing(slicing, best.expected_s, at_most_s, cut_streamed)
        if charged is not None:
            best = min(best, self._evaluated(charged), key=lambda plan: plan.expected_s)
        return best

    def _cuts(self, *given: Any) -> tuple[Callable[..., Candidate | None], Callable[..., Candidate | None]]:
        """Returns functions that slice ``given``, without and with streamed weights in the cost."""
        options: dict[str, Any] = {"passing": self.passing, **self.rules}
        if self.replicates:
            streamed = partial(slice_order_streamed, *given, replicates=True, **options)
            return partial(slice_order_replicated, *given, **options), streamed
        options["min_chips"] = self.num_stages or self.instance.min_chips
        options["max_chips"] = self.num_stages
        return partial(slice_order, *given, **options), partial(slice_order_streamed, *given, **options)

    def _evaluated(self, slicing: Candidate) -> Candidate:
        """Returns ``slicing`` with its interval by the analytical model."""
        tables, placement = self.instance.tables, slicing.placement
        if slicing.replication is not None:
            stages = stages_of(placement, slicing.replication)
            tables, placement = stage_tables(tables, stages), stages.number(placement)
        triangle = self.instance.target.constraints.triangle if self.passing == "relayed" else "off"
        terms = relayed_terms(tables, placement, slicing.order, slicing.fusion_group, triangle)
        return replace(slicing, expected_s=float(terms.interval_s[0]) if terms.fits[0] else math.inf)


def streams_weights(slicing: Candidate, reached_s: float) -> bool:
    """Returns whether streamed weights, which its cost ignores, make the plan slower than its cuts."""
    return reached_s > slicing.expected_s * STREAMS


def charged_slicing(slicing: Candidate, reached_s: float, at_most_s: float, cut: Callable[..., Any]) -> Any:
    """Returns the cheapest slicing with streamed weights in its cost, if ``slicing`` streams any.

    Args:
      slicing: the cheapest without streamed weights.
      reached_s: the interval of its plan.
      at_most_s: ignore slicings that take this long or longer.
      cut: slices with streamed weights, given ``at_least_s`` and ``at_most_s``.
    """
    if not streams_weights(slicing, reached_s):
        return None
    return cut(at_least_s=slicing.expected_s, at_most_s=min(at_most_s, reached_s))


def cheapest_slicing(instance: OrderProblem, order: IntArray, fusion_group: IntArray) -> Candidate:
    """Returns the best slicing without relays; the greedy one, which takes for ever, if none fits."""
    passing: ForwardingMode = "adjacent" if instance.is_adjacent else "free"
    best = Slicer(instance, passing)(order, fusion_group)
    if best is not None:
        return best
    greedy = greedy_slicing(instance.tables, order, fusion_group, adjacent=instance.is_adjacent)
    return Candidate("greedy", greedy.placement, order, fusion_group)
