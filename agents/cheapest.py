"""The exact slicer as a decoder: an order and its kernels in, their best placement out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from go_opt.agents.instance import Instance
from go_opt.env import evaluate_batch
from go_opt.solver import greedy_slicing, slice_order, slice_order_resident

# A plan this much slower than its cuts streams weights.
STREAMS: Final = 1.0 + 1e-6


@dataclass(frozen=True, eq=False)
class CheapestSlicing:
    """A placement along an order, and what the analytical model says of it."""

    placement: NDArray[np.int32]  # [N]
    interval_s: float
    fits: bool  # False: no slicing of the order fits in memory, this is the greedy one


def cheapest_slicing(
    instance: Instance, order: NDArray[np.int32], fusion_group: NDArray[np.int32]
) -> CheapestSlicing:
    """The cheapest slicing, or the cheapest that streams no weights where that is faster."""
    tables, adjacent = instance.tables, instance.is_adjacent
    slicing = slice_order(tables, order, fusion_group, adjacent=adjacent, min_chips=instance.min_chips)
    if slicing is None:
        greedy = greedy_slicing(tables, order, fusion_group, adjacent=adjacent)
        return CheapestSlicing(greedy.placement, math.inf, fits=False)
    best = CheapestSlicing(
        slicing.placement, _interval_s(instance, slicing.placement, order, fusion_group), True
    )
    if best.interval_s <= slicing.interval_s * STREAMS or instance.min_chips > 1:
        return best
    resident = slice_order_resident(
        tables,
        order,
        fusion_group,
        adjacent=adjacent,
        at_least_s=slicing.interval_s,
        at_most_s=best.interval_s,
    )
    if resident is None:
        return best
    interval_s = _interval_s(instance, resident.placement, order, fusion_group)
    return CheapestSlicing(resident.placement, interval_s, True) if interval_s < best.interval_s else best


def _interval_s(
    instance: Instance,
    placement: NDArray[np.int32],
    order: NDArray[np.int32],
    fusion_group: NDArray[np.int32],
) -> float:
    terms = evaluate_batch(instance.tables, placement[None], order[None], fusion_group[None])
    return float(terms.interval_s[0]) if terms.fits[0] else math.inf
