"""The door to SLICE with replicated stages: an order and its kernels in, stages and their sizes out."""

from __future__ import annotations

import math
from typing import Unpack

from go_opt.common.arrays import IntArray, LongArray
from go_opt.env.cost import CostTables
from go_opt.solver.problem.passing import Passing
from go_opt.solver.problem.segment_rules import SegmentRules
from go_opt.solver.problem.streamed_bytes import least_streamed_bytes
from go_opt.solver.slicing.along import Slicing, problem_along, stages
from go_opt.solver.slicing.replicated.cuts import (
    MOST_STEPS,
    cheapest_replicated_cuts,
    replicated_cost_s,
    stage_sizes,
)
from go_opt.solver.slicing.segments.fitting_starts import fitting_starts
from go_opt.solver.slicing.segments.memory import SegmentMemory, least_needed_bytes, segment_memory
from go_opt.solver.slicing.segments.problem import least_s, one_chip_s
from go_opt.solver.slicing.segments.starts import all_starts
from go_opt.solver.slicing.slice import with_addresses
from go_opt.solver.slicing.streamed.slice import slice_order_streamed_replicated


def slice_order_replicated(
    tables: CostTables,
    order: IntArray,
    fusion_group: IntArray,
    *,
    passing: Passing,
    at_most_s: float = math.inf,
    **rules: Unpack[SegmentRules],
) -> Slicing | None:
    """The cheapest slicing of ``order`` into replicated stages, on a one-directional ring that overlaps.

    What it streams of weights is left out of its cost, but where chips differ, in kind, in their links
    or in what they may hold. ``None`` where none was found that fits and takes no more than
    ``at_most_s``; the amount of work is bounded.

    Args:
      order, fusion_group, passing, rules: see :func:`~go_opt.solver.slicing.along.problem_along`.
      at_most_s: do not look for slicings slower than this.
    """
    sequence, problem = problem_along(tables, order, fusion_group, passing, **rules)
    if not (tables.overlap and problem.chips_are_alike):
        return slice_order_streamed_replicated(
            tables, order, fusion_group, passing=passing, at_most_s=at_most_s, **rules
        )
    chips = tables.num_chips
    host_bytes = sequence.input_bytes + least_streamed_bytes(tables)
    lower_s = max(least_s(problem, chips), host_bytes * tables.host_in_s_per_byte)
    # No segment takes longer than one chip takes for all; the host's link may.
    upper_s = min(at_most_s, max(lower_s, one_chip_s(problem)))
    # Leaving memory out relaxes the problem.
    cuts = cheapest_replicated_cuts(problem, all_starts(problem.num_kernels), chips, lower_s, upper_s)
    if cuts is None:
        return None
    lower_s = replicated_cost_s(problem, cuts, chips)

    def cheapest(held: SegmentMemory) -> LongArray | None:
        if least_needed_bytes(held).max() > held.sram_bytes[0]:
            return None
        most_steps = (2 * MOST_STEPS, max(1, MOST_STEPS // problem.num_kernels))
        fits = fitting_starts(problem, held, held.sram_bytes[:1], math.inf, most_steps)
        return cheapest_replicated_cuts(problem, fits, chips, lower_s, upper_s)

    cuts = with_addresses(segment_memory(tables, sequence, relayed=passing == "relayed"), cuts, cheapest)
    if cuts is None:
        return None
    sizes = stage_sizes(problem, cuts, chips)
    return stages(sequence, cuts, sizes, replicated_cost_s(problem, cuts, chips))
