"""The entry point of SLICE with replicated stages: takes an order, returns stages and their sizes."""

from __future__ import annotations

import math
from typing import Unpack

from go_opt.common.arrays import IntArray, LongArray
from go_opt.env.cost import CostTables
from go_opt.model.plan import Candidate
from go_opt.solver.problem.forwarding_mode import ForwardingMode
from go_opt.solver.problem.segment_rules import SegmentRules
from go_opt.solver.problem.sequence import KernelSequence
from go_opt.solver.problem.streamed_bytes import least_streamed_bytes
from go_opt.solver.slicing.along import problem_along, slicing_of
from go_opt.solver.slicing.replicated.cuts import (
    MOST_STEPS,
    cheapest_replicated_cuts,
    replicated_cost_s,
    stage_sizes,
)
from go_opt.solver.slicing.segments.fitting_starts import fitting_starts
from go_opt.solver.slicing.segments.memory import (
    SegmentMemory,
    bytes_of_states,
    least_needed_bytes,
    segment_memory,
    shortage_bytes,
    states_of_stages,
    without_states,
)
from go_opt.solver.slicing.segments.problem import least_s, one_chip_s
from go_opt.solver.slicing.segments.starts import all_starts
from go_opt.solver.slicing.slice import with_addresses
from go_opt.solver.slicing.streamed.slice import slice_order_streamed


def slice_order_replicated(
    tables: CostTables,
    order: IntArray,
    fusion_group: IntArray,
    *,
    passing: ForwardingMode,
    at_most_s: float = math.inf,
    **rules: Unpack[SegmentRules],
) -> Candidate | None:
    """Returns the cheapest slicing of ``order`` into replicated stages.

    Needs a one-directional ring that overlaps transfers. The cost ignores streamed weights, and that replicas
    may have more sequences than others, except where chips differ in kind, links or allowed ops, or where
    states fit no chip of the stages that are best without them. Returns ``None`` if the search, whose work is
    bounded, finds none that fits within ``at_most_s``.

    Args:
      order, fusion_group, passing, rules: see :func:`~go_opt.solver.slicing.along.problem_along`.
      at_most_s: ignore slicings slower than this.
    """
    sequence, problem = problem_along(tables, order, fusion_group, passing, **rules)
    if not (tables.overlap and problem.chips_are_alike):
        return slice_order_streamed(
            tables, order, fusion_group, passing=passing, replicates=True, at_most_s=at_most_s, **rules
        )
    chips = tables.num_chips
    host_bytes = sequence.input_bytes + least_streamed_bytes(tables)
    lower_s = max(least_s(problem, chips), host_bytes * tables.host_in_s_per_byte)
    # No segment takes longer than all kernels on one chip, but the host's link may.
    upper_s = min(at_most_s, max(lower_s, one_chip_s(problem)))
    # Without memory limits the problem is a relaxation.
    cuts = cheapest_replicated_cuts(problem, all_starts(problem.num_kernels), chips, lower_s, upper_s)
    if cuts is None:
        return None
    lower_s = replicated_cost_s(problem, cuts, chips)
    if tables.sequences > 0:
        sizes = stage_sizes(problem, cuts, chips)
        if _keeps_sequences(tables, sequence, cuts, sizes, relayed=passing == "relayed"):
            return slicing_of(sequence, cuts, lower_s, sizes)
        return slice_order_streamed(
            tables,
            order,
            fusion_group,
            passing=passing,
            replicates=True,
            at_least_s=lower_s,
            at_most_s=at_most_s,
            **rules,
        )

    def cheapest(held: SegmentMemory) -> LongArray | None:
        if least_needed_bytes(held).max() > held.sram_bytes[0]:
            return None
        most_steps = (2 * MOST_STEPS, max(1, MOST_STEPS // problem.num_kernels))
        fits = fitting_starts(problem, held, held.sram_bytes[:1], math.inf, most_steps)
        return cheapest_replicated_cuts(problem, fits, chips, lower_s, upper_s)

    cuts = with_addresses(segment_memory(tables, sequence, relayed=passing == "relayed"), cuts, cheapest)
    if cuts is None:
        return None
    interval_s = replicated_cost_s(problem, cuts, chips)
    return slicing_of(sequence, cuts, interval_s, stage_sizes(problem, cuts, chips))


def _keeps_sequences(
    tables: CostTables, sequence: KernelSequence, cuts: LongArray, sizes: LongArray, *, relayed: bool
) -> bool:
    """Returns whether there are sequences for all chips of each stage, and room for their states."""
    if sizes.max() > tables.sequences:
        return False
    kept = states_of_stages(tables, bytes_of_states(tables, sequence), cuts, sizes)
    needed = segment_memory(without_states(tables), sequence, relayed=relayed)
    return shortage_bytes(needed, cuts, kept) <= 0
