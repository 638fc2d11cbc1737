"""The exact slicer as a decoder: takes an order and its kernels, returns their best placement."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from go_opt.common.arrays import IntArray
from go_opt.env import evaluate_batch
from go_opt.model.plan import Candidate
from go_opt.solver.orders.instance import OrderProblem
from go_opt.solver.slicing.slice import greedy_slicing, slice_order, slice_order_streamed

# A plan this much slower than its cuts streams weights.
STREAMS: Final = 1.0 + 1e-6


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
    """Returns the best slicing without relays, with streamed weights in its cost.

    If none fits it is the greedy one, which takes for ever.
    """
    is_adjacent, given = instance.is_adjacent, (instance.tables, order, fusion_group)
    options: dict[str, Any] = {"forwarding": "adjacent" if is_adjacent else "free"}
    options["min_chips"] = instance.min_chips
    slicing = slice_order(*given, **options)
    if slicing is None:
        greedy = greedy_slicing(*given, adjacent=is_adjacent)
        return Candidate("greedy", greedy.placement, order, fusion_group)
    best = _evaluated(instance, slicing)
    cut_streamed = partial(slice_order_streamed, *given, **options)
    charged = charged_slicing(slicing, best.expected_s, math.inf, cut_streamed)
    if charged is None:
        return best
    return min(best, _evaluated(instance, charged), key=lambda plan: plan.expected_s)


def _evaluated(instance: OrderProblem, slicing: Candidate) -> Candidate:
    """Returns ``slicing`` with its interval by the analytical model."""
    plan = slicing.placement[None], slicing.order[None], slicing.fusion_group[None]
    terms = evaluate_batch(instance.tables, *plan)
    return replace(slicing, expected_s=float(terms.interval_s[0]) if terms.fits[0] else math.inf)
