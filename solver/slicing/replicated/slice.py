"""The door to SLICE with replicated stages: an order and its kernels in, stages and their sizes out.

A stage wants to be large, so memory for its weights is what limits it. Weights stay resident,
but for those no chip can hold and those that stream for nothing: as many as the host's link
carries beside the inputs within the least interval there may be.
"""

from __future__ import annotations

import math
from typing import Unpack

import numpy as np

from go_opt.common.arrays import IntArray, LongArray
from go_opt.env.cost import CostTables
from go_opt.env.model.memory import stream_order
from go_opt.model.graph import INPUT, WEIGHT
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
from go_opt.solver.slicing.replicated.general import replicated_cuts_general
from go_opt.solver.slicing.segments.fitting_starts import fitting_starts
from go_opt.solver.slicing.segments.memory import SegmentMemory, least_needed_bytes, segment_memory
from go_opt.solver.slicing.segments.problem import least_s, one_chip_s
from go_opt.solver.slicing.segments.starts import all_starts
from go_opt.solver.slicing.slice import with_addresses


def slice_order_replicated(
    tables: CostTables,
    order: IntArray,
    fusion_group: IntArray,
    *,
    passing: Passing,
    min_chips: int = 1,
    max_chips: int | None = None,
    at_most_s: float = math.inf,
    weights_may_stream: bool = False,
    **rules: Unpack[SegmentRules],
) -> Slicing | None:
    """The cheapest slicing of ``order`` into replicated stages, on a one-directional ring.

    ``None`` where none was found that fits and takes no more than ``at_most_s``; the amount of work
    is bounded.

    Args:
      order, fusion_group, passing, rules: see :func:`~go_opt.solver.slicing.along.problem_along`.
      min_chips: use no fewer chips than this.
      max_chips: use no more chips than this; all by default.
      at_most_s: do not look for slicings slower than this.
      weights_may_stream: look for those too that stream more weights than is free; what they
        stream is left out of their cost.
    """
    sequence, problem = problem_along(tables, order, fusion_group, passing, **rules)
    chips = min(max_chips or tables.num_chips, tables.num_chips)
    lower_s = least_s(problem, chips)
    if tables.overlap:
        lower_s = max(lower_s, _host_floor_s(tables))
    # No segment takes longer than one chip takes for all; the host's link may.
    upper_s = min(at_most_s, max(lower_s, one_chip_s(problem)))
    memory = segment_memory(
        tables,
        sequence,
        weights_may_stream=weights_may_stream,
        relayed=passing == "relayed",
        streamed=free_reads(tables, lower_s),
    )
    if tables.overlap and problem.kinds_are_alike:
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

        cuts = with_addresses(memory, cuts, cheapest)
        if cuts is None:
            return None
        # Where chips may not hold something, which is left out here, this is a lower bound.
        lower_s = replicated_cost_s(problem, cuts, chips)
        if problem.chips_are_alike:
            return stages(sequence, cuts, stage_sizes(problem, cuts, chips, min_chips), lower_s)
    found = replicated_cuts_general(problem, memory, chips, min_chips, lower_s, upper_s)
    return None if found is None else stages(sequence, *found)


def free_reads(tables: CostTables, interval_s: float) -> LongArray:
    """Reads of weights which the host's link carries within an interval, beside what it has to.

    In the order in which chips stream them.
    """
    tensor, touched = tables.reader_tensor, tables.read_bytes
    may_stay = (tables.tensor_kind[tensor] == WEIGHT) & (tables.tensor_bytes[tensor] > 0)
    may_stay &= tables.stored_bytes[tensor] <= tables.sram_bytes.max()
    # Not overlapped, what streams adds to the work of its chip.
    read = np.flatnonzero(may_stay & tables.overlap)
    read = read[stream_order(tables, tensor[read], touched[read])]
    host_s = _host_floor_s(tables) + np.cumsum(touched[read]) * tables.host_in_s_per_byte
    return read[: np.searchsorted(host_s, interval_s, side="right")]


def _host_floor_s(tables: CostTables) -> float:
    """Of the host's link in: the inputs, and what all memories together cannot hold."""
    inputs = int(tables.tensor_bytes[tables.tensor_kind == INPUT].sum())
    return (inputs + least_streamed_bytes(tables)) * tables.host_in_s_per_byte
