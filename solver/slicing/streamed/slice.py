"""The door to slicing that charges streamed weights: an order and its kernels in, a placement out."""

from __future__ import annotations

import math
from typing import Final, Unpack

import numpy as np

from go_opt.common.arrays import IntArray
from go_opt.env.cost import CostTables
from go_opt.model.graph import WEIGHT
from go_opt.solver.problem.passing import Passing
from go_opt.solver.problem.segment_rules import SegmentRules
from go_opt.solver.problem.sequence import KernelSequence
from go_opt.solver.problem.streamed_bytes import least_streamed_bytes
from go_opt.solver.slicing.along import Slicing, one_chip_each, problem_along, stages
from go_opt.solver.slicing.segments.memory import SegmentMemory, segment_memory, shortage_bytes
from go_opt.solver.slicing.segments.problem import SliceProblem, least_s, one_chip_s
from go_opt.solver.slicing.slice import TRIES, most_chips
from go_opt.solver.slicing.streamed.cuts import StreamedCuts, StreamedProblem, cheapest_streamed_cuts
from go_opt.solver.slicing.streamed.floor import CELLS, FINE_CELLS, StreamedFloor
from go_opt.solver.slicing.streamed.segment_table import chip_classes, segment_table
from go_opt.solver.slicing.streamed.weight_streams import weight_reads

FEW_SEGMENTS: Final = 400_000  # are tabled at once
FIRST_STEP: Final = 0.02  # from the bound to the first limit
STEP_GROWTH: Final = 2.0
WORTH_ANOTHER: Final = 2  # where so many times fewer cuts may be better than the best of some
LIFTS: Final = 10  # of the bound, at most,
CLOSE: Final = 5e-3  # until it is this exact
DOUBT: Final = 1e-9


def slice_order_streamed(
    tables: CostTables,
    order: IntArray,
    fusion_group: IntArray,
    *,
    passing: Passing,
    min_chips: int = 1,
    at_least_s: float = 0.0,
    at_most_s: float = math.inf,
    **rules: Unpack[SegmentRules],
) -> Slicing | None:
    """The cheapest slicing of ``order``, what it streams of weights included, that fits.

    ``None`` where none takes less than ``at_most_s``. Along sequences so long that not
    every cut is looked at it is a good one, and its cost is exact.

    Args:
      order, fusion_group, passing, rules: see :func:`~go_opt.solver.slicing.along.problem_along`.
      min_chips: use no fewer chips than this.
      at_least_s: none takes less, as known from a slicing that leaves streamed weights out.
      at_most_s: do not look for slicings as slow as this.
    """
    sequence, problem = problem_along(tables, order, fusion_group, passing, **rules)
    chips = most_chips(tables, sequence, None)
    limits_s = (at_least_s, at_most_s)
    found = _cheapest(tables, sequence, problem, passing, (min_chips, chips), limits_s, replicates=False)
    return None if found is None else one_chip_each(sequence, found.cuts, found.interval_s)


def slice_order_streamed_replicated(
    tables: CostTables,
    order: IntArray,
    fusion_group: IntArray,
    *,
    passing: Passing,
    at_least_s: float = 0.0,
    at_most_s: float = math.inf,
    **rules: Unpack[SegmentRules],
) -> Slicing | None:
    """The same into replicated stages, on a one-directional ring that overlaps transfers and compute.

    All its links are taken to be as slow as the slowest. On other rings ``None``.
    """
    if not tables.overlap:
        return None
    sequence, problem = problem_along(tables, order, fusion_group, passing, **rules)
    limits_s = (at_least_s, at_most_s)
    found = _cheapest(tables, sequence, problem, passing, (1, tables.num_chips), limits_s, replicates=True)
    return None if found is None else stages(sequence, *found)


def least_streamed_s(
    tables: CostTables,
    order: IntArray,
    fusion_group: IntArray,
    *,
    passing: Passing,
    replicates: bool = False,
    **rules: Unpack[SegmentRules],
) -> float:
    """What slicings of ``order`` take at least, what they stream of weights included.

    Close to what the cheapest takes where the host's link binds; found in a hundredth of the time.
    Arguments as for :func:`slice_order_streamed`; relays and the traffic of cuts are left out.
    """
    sequence, problem = problem_along(tables, order, fusion_group, passing, **rules)
    chips = tables.num_chips if replicates else most_chips(tables, sequence, None)
    upper_s = _streaming_all_s(tables, problem)
    s_per_byte = tables.host_in_s_per_byte if tables.overlap else 0.0
    lower_s = least_s(problem, chips)
    if s_per_byte == 0.0 or lower_s >= upper_s:
        return lower_s
    reads = weight_reads(tables, sequence)
    memory = _memory(tables, sequence, passing)
    floor = StreamedFloor(problem, reads, memory, chips, chips if replicates else 1)
    return _lifted_s(floor, lower_s, upper_s, sequence.input_bytes * s_per_byte, s_per_byte)


def _memory(tables: CostTables, sequence: KernelSequence, passing: Passing) -> SegmentMemory:
    """Of segments whose weights, and the buffer they stream through, are accounted for beside."""
    return segment_memory(
        tables,
        sequence,
        relayed=passing == "relayed",
        with_stream_buffer=False,
    )


def _cheapest(
    tables: CostTables,
    sequence: KernelSequence,
    problem: SliceProblem,
    passing: Passing,
    num_chips: tuple[int, int],
    limits_s: tuple[float, float],
    *,
    replicates: bool,
) -> StreamedCuts | None:
    """Where holes between activations are too much, of chips with that much less memory."""
    needed = segment_memory(tables, sequence, relayed=passing == "relayed")
    for _ in range(TRIES):
        found = _cheapest_without_holes(
            tables, sequence, problem, passing, num_chips, limits_s, replicates=replicates
        )
        shortage = 0 if found is None else shortage_bytes(needed, found.cuts)
        if shortage <= 0:
            return found
        tables = tables._replace(sram_bytes=tables.sram_bytes - shortage)
    return None


def _cheapest_without_holes(
    tables: CostTables,
    sequence: KernelSequence,
    problem: SliceProblem,
    passing: Passing,
    num_chips: tuple[int, int],
    limits_s: tuple[float, float],
    *,
    replicates: bool,
) -> StreamedCuts | None:
    min_chips, chips = num_chips
    s_per_byte = tables.host_in_s_per_byte if tables.overlap else 0.0
    input_s = sequence.input_bytes * s_per_byte
    host_s = input_s + least_streamed_bytes(tables) * s_per_byte
    lower_s = max(limits_s[0], least_s(problem, chips), host_s)
    upper_s = min(limits_s[1], _streaming_all_s(tables, problem))
    if lower_s >= upper_s:
        return None
    reads = weight_reads(tables, sequence)
    memory = _memory(tables, sequence, passing)
    classes = chip_classes(tables, problem, chips)
    most_chips = chips if replicates else 1
    floor, step = None, math.inf
    if s_per_byte > 0.0:
        for num_cells in (CELLS, FINE_CELLS):
            floor = StreamedFloor(problem, reads, memory, chips, most_chips, num_cells)
            lower_s = _lifted_s(floor, lower_s, upper_s, input_s, s_per_byte)
            if lower_s >= upper_s:
                return None
            most_bytes = (upper_s - input_s) / s_per_byte
            if floor.windows(problem, upper_s, most_bytes).num_segments <= FEW_SEGMENTS:
                break
        else:
            step = FIRST_STEP
    best: StreamedCuts | None = None
    num_segments = math.inf
    while True:
        # Close to the bound few cuts are of use.
        limit_s = min(lower_s * (1.0 + step), upper_s) if lower_s > 0.0 else upper_s
        most_bytes = (limit_s - input_s) / s_per_byte if s_per_byte > 0.0 else math.inf
        windows = None if floor is None else floor.windows(problem, limit_s, most_bytes)
        if best is not None and (windows is None or windows.num_segments > num_segments / WORTH_ANOTHER):
            return best
        table = segment_table(
            tables,
            sequence,
            problem,
            memory,
            classes,
            reads=reads,
            windows=windows,
            most_chips=most_chips,
            longest_s=limit_s,
            most_streamed_bytes=most_bytes,
        )
        blocked = np.ascontiguousarray(problem.blocked[:chips, table.cut])
        of_cuts = StreamedProblem(
            table,
            classes.of_chip,
            blocked,
            len(classes.kind) == 1 and not blocked.any(),
            replicates,
            problem.crossing_bytes[table.cut] * problem.hop_s_per_byte.max() * replicates,
            problem.floor_s,
            input_s,
            s_per_byte,
        )
        found = cheapest_streamed_cuts(of_cuts, lower_s, limit_s, min_chips=min_chips)
        if found is not None:
            best, upper_s = found, found.interval_s
        if limit_s >= upper_s and (found is None or table.is_complete):
            return best
        is_cheap = found is None and table.is_complete and table.cost_s.size <= FEW_SEGMENTS
        step = step * STEP_GROWTH if is_cheap else math.inf
        if found is None and table.is_complete:
            lower_s = limit_s
        if found is not None and windows is not None:
            num_segments = windows.num_segments


def _lifted_s(
    floor: StreamedFloor, lower_s: float, upper_s: float, input_s: float, s_per_byte: float
) -> float:
    """What slicings within ``upper_s`` cost at least; ``upper_s`` where there are none."""

    def link_s(interval_s: float) -> float:
        return input_s + floor.least_bytes(interval_s) * s_per_byte

    least_link_s = link_s(upper_s)  # within less time no less is streamed
    if least_link_s > upper_s * (1.0 + DOUBT):
        return upper_s
    lower_s = middle_s = max(lower_s, least_link_s)
    step = FIRST_STEP
    for _ in range(LIFTS):
        reached_s = link_s(middle_s)
        if reached_s <= middle_s * (1.0 + DOUBT):
            lower_s, upper_s = max(lower_s, reached_s), middle_s
        else:
            lower_s = middle_s
            step *= STEP_GROWTH
        if upper_s - lower_s <= CLOSE * upper_s:
            break
        middle_s = min(lower_s * (1.0 + step), 0.5 * (lower_s + upper_s))
    return lower_s


def _streaming_all_s(tables: CostTables, problem: SliceProblem) -> float:
    """Every slicing takes less."""
    is_weight = tables.tensor_kind[tables.reader_tensor] == WEIGHT
    streamed_s = float(tables.read_bytes[is_weight].sum()) * tables.host_in_s_per_byte
    return (one_chip_s(problem) + streamed_s) * 1.001 + 1e-30
