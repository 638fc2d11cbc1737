"""The entry point of slicing that counts streamed weights: takes an order, returns a placement."""

from __future__ import annotations

import math
from typing import Unpack

import numpy as np

from go_opt.common.arrays import IntArray, LongArray
from go_opt.env.cost import CostTables
from go_opt.model.graph import WEIGHT
from go_opt.model.plan import Candidate
from go_opt.solver.problem.forwarding_mode import ForwardingMode
from go_opt.solver.problem.segment_rules import SegmentRules
from go_opt.solver.problem.sequence import KernelSequence
from go_opt.solver.problem.streamed_bytes import least_streamed_bytes
from go_opt.solver.slicing.along import problem_along, slicing_of
from go_opt.solver.slicing.segments.memory import (
    SegmentMemory,
    bytes_of_states,
    segment_memory,
    states_of_stages,
    without_states,
    without_stream_buffer,
)
from go_opt.solver.slicing.segments.problem import SliceProblem, least_s, one_chip_s
from go_opt.solver.slicing.slice import most_chips, with_addresses
from go_opt.solver.slicing.streamed.cuts import Cuts, StreamedProblem, cheapest_streamed_cuts
from go_opt.solver.slicing.streamed.latency import (
    SampleLatency,
    cheapest_cuts_with_latency,
    sample_latency,
)
from go_opt.solver.slicing.streamed.segment_table import chip_classes, segment_table, stage_classes
from go_opt.solver.slicing.streamed.weight_streams import weight_reads


def slice_order_streamed(
    tables: CostTables,
    order: IntArray,
    fusion_group: IntArray,
    *,
    passing: ForwardingMode,
    replicates: bool = False,
    counts_latency: bool = False,
    min_chips: int = 1,
    max_chips: int | None = None,
    at_least_s: float = 0.0,
    at_most_s: float = math.inf,
    **rules: Unpack[SegmentRules],
) -> Candidate | None:
    """Returns the cheapest slicing of ``order`` that fits, with streamed weights in its cost.

    Returns ``None`` if no slicing takes less than ``at_most_s``. For long sequences not every cut is
    tried, so the slicing may not be the cheapest; its cost is still exact.

    Args:
      order, fusion_group, passing, rules: see :func:`~go_opt.solver.slicing.along.problem_along`.
      replicates: slice into replicated stages. Needs a one-directional ring; returns ``None`` unless
        transfers overlap compute. Every link counts as slow as the slowest.
      counts_latency: the interval is at least latency / sequences, for sequences in flight; without replicas
        or a least number of chips. Returns ``None`` if chips differ. See
        :mod:`go_opt.solver.slicing.streamed.latency`.
      min_chips: use no fewer chips than this.
      max_chips: use no more chips than this; all by default.
      at_least_s: a lower bound, such as the optimum without streamed weights.
      at_most_s: ignore slicings that take this long or longer.
    """
    if replicates and not tables.overlap:
        return None
    sequence, problem = problem_along(tables, order, fusion_group, passing, **rules)
    most = tables.num_chips if replicates else most_chips(tables, sequence, max_chips)
    num_chips, limits_s = (min_chips, most), (at_least_s, at_most_s)

    keeps = replicates and problem.chips_are_alike and tables.sequences > 0
    state_bytes = bytes_of_states(tables, sequence) if keeps else None
    latency = sample_latency(tables, sequence) if counts_latency else None

    def cuts_of(found: Cuts) -> LongArray:
        return found[0]

    def cheapest(memory: SegmentMemory) -> Cuts | None:
        return _cheapest_without_holes(
            tables, sequence, problem, memory, num_chips, limits_s, replicates, latency, state_bytes
        )

    def kept(found: Cuts) -> LongArray | None:
        return None if state_bytes is None else states_of_stages(tables, state_bytes, *found[:2])

    of_segments = tables if state_bytes is None else without_states(tables)
    memory = segment_memory(of_segments, sequence, relayed=passing == "relayed")
    found = with_addresses(memory, None, cheapest, cuts_of, kept)
    if found is None:
        return None
    cuts, sizes, interval_s = found
    return slicing_of(sequence, cuts, interval_s, sizes if replicates else None)


def _cheapest_without_holes(
    tables: CostTables,
    sequence: KernelSequence,
    problem: SliceProblem,
    memory: SegmentMemory,
    num_chips: tuple[int, int],
    limits_s: tuple[float, float],
    replicates: bool,
    latency: SampleLatency | None,
    state_bytes: LongArray | None,
) -> Cuts | None:
    min_chips, chips = num_chips
    tables = tables._replace(sram_bytes=memory.sram_bytes)
    s_per_byte = tables.host_in_s_per_byte if tables.overlap else 0.0
    input_s = sequence.input_bytes * s_per_byte
    host_s = input_s + least_streamed_bytes(tables) * s_per_byte
    lower_s = max(limits_s[0], least_s(problem, chips), host_s)
    longest_s = _streaming_all_s(tables, problem)
    if latency is not None:
        longest_s = max(longest_s, latency.longest_s)
    upper_s = min(limits_s[1], longest_s)
    if lower_s >= upper_s:
        return None
    classes = chip_classes(tables, problem, chips)
    if state_bytes is not None:
        classes = stage_classes(classes, tables.sequences, state_bytes)
    table = segment_table(
        tables,
        problem,
        without_stream_buffer(memory),
        classes,
        reads=weight_reads(tables, sequence),
        most_chips=chips if replicates else 1,
        longest_s=upper_s,
        most_streamed_bytes=(upper_s - input_s) / s_per_byte if s_per_byte > 0.0 else math.inf,
    )
    blocked = np.ascontiguousarray(problem.blocked[:chips, table.cut])
    of_cuts = StreamedProblem(
        table,
        classes.of_chip,
        classes.stage_chips,
        blocked,
        len(classes.kind) == 1 and not blocked.any(),
        replicates,
        problem.crossing_bytes[table.cut] * problem.hop_s_per_byte.max() * replicates,
        problem.floor_s,
        input_s,
        s_per_byte,
    )
    if latency is None:
        return cheapest_streamed_cuts(of_cuts, lower_s, upper_s, min_chips=min_chips)
    return cheapest_cuts_with_latency(of_cuts, latency, lower_s, upper_s) if of_cuts.are_alike else None


def _streaming_all_s(tables: CostTables, problem: SliceProblem) -> float:
    """Returns an interval that every slicing stays below."""
    is_weight = tables.tensor_kind[tables.reader_tensor] == WEIGHT
    streamed_s = float(tables.read_bytes[is_weight].sum()) * tables.host_in_s_per_byte
    return (one_chip_s(problem) + streamed_s) * 1.001 + 1e-30
