"""The entry points of slicing: each takes an order and its kernels, and returns a placement."""

from __future__ import annotations

import math
from typing import Final, NamedTuple, Unpack

import numpy as np

from go_opt.common.arrays import IntArray, LongArray
from go_opt.env.cost.tables import CostTables
from go_opt.model.graph import WEIGHT
from go_opt.model.plan import Candidate
from go_opt.solver.problem.forwarding_mode import ForwardingMode
from go_opt.solver.problem.segment_rules import SegmentRules
from go_opt.solver.problem.sequence import KernelSequence
from go_opt.solver.problem.streamed_bytes import least_streamed_bytes
from go_opt.solver.slicing.cuts import RELATIVE_TOLERANCE, cheapest_cuts
from go_opt.solver.slicing.latency import SampleLatency, cheapest_cuts_with_latency, sample_latency
from go_opt.solver.slicing.memory import (
    SegmentMemory,
    bytes_of_states,
    least_needed_bytes,
    segment_memory,
    shortage_bytes,
    states_of_stages,
    weight_reads,
    without_states,
)
from go_opt.solver.slicing.problem import (
    SliceProblem,
    is_allowed,
    least_s,
    one_chip_s,
    problem_along,
    slicing_cost_s,
    slicing_of,
)
from go_opt.solver.slicing.replicated import cheapest_replicated_cuts, replicated_cost_s, stage_sizes
from go_opt.solver.slicing.streamed import (
    Cuts,
    StreamedProblem,
    cheapest_streamed_cuts,
    waits_for_weights,
)
from go_opt.solver.slicing.table import MOST_SEGMENTS, chip_classes, segment_table, stage_classes

TRIES: Final = 4  # with less memory each time
NEAR: Final = 1.25  # times a lower bound: segments within it are short, so they are tried first
CLOSE: Final = 1e-3  # relative tolerance of the interval of stages that forward weights
MOST_FORWARDING_SEGMENTS: Final = 120_000  # about half a second


class _Stages(NamedTuple):
    """What stages may be, and what counts."""

    relayed: bool  # tensors that pass a chip are copied there
    streams: bool = True  # streamed weights count
    replicates: bool = False
    forwards: bool = False  # replicas may forward streamed weights to each other
    waits: bool = False  # an estimate of what chips wait for weights counts
    latency: SampleLatency | None = None


def slice_order(
    tables: CostTables,
    order: IntArray,
    fusion_group: IntArray,
    *,
    forwarding: ForwardingMode,
    min_chips: int = 1,
    max_chips: int | None = None,
    at_most_s: float = math.inf,
    **rules: Unpack[SegmentRules],
) -> Candidate | None:
    """Returns the cheapest slicing of ``order`` whose activations fit; ``None`` if there is none.

    Streamed weights do not count. Without memory limits and forbidden chips, the problem is a relaxation. Its
    optimum is a lower bound, and the answer if it happens to satisfy both. For long sequences that it does
    not answer, not every cut is tried.

    Args:
      order, fusion_group, forwarding, rules: see :func:`~go_opt.solver.slicing.problem.problem_along`;
        the buffers of relays also take memory.
      min_chips: use no fewer chips than this.
      max_chips: use no more chips than this; all by default.
      at_most_s: ignore slicings slower than this.
    """
    sequence, problem = problem_along(tables, order, fusion_group, forwarding, **rules)
    stages = _Stages(forwarding == "relayed", streams=False)
    chips = _most_chips(tables, sequence, max_chips)
    lower_s = least_s(problem, chips)
    if problem.kinds_are_alike:
        cuts = cheapest_cuts(problem, chips, at_most_s)
        if cuts is None:
            return None
        lower_s = slicing_cost_s(problem, cuts)
        is_open = len(cuts) > min_chips and is_allowed(problem, cuts)
        if is_open and _fit(tables, sequence, cuts, relayed=stages.relayed):
            return slicing_of(sequence, cuts, lower_s)
    limits_s = (lower_s, at_most_s * (1.0 + 2.0 * RELATIVE_TOLERANCE))
    return _sliced(tables, sequence, problem, stages, (min_chips, chips), limits_s)


def slice_order_replicated(
    tables: CostTables,
    order: IntArray,
    fusion_group: IntArray,
    *,
    forwarding: ForwardingMode,
    at_most_s: float = math.inf,
    **rules: Unpack[SegmentRules],
) -> Candidate | None:
    """Returns the cheapest slicing of ``order`` into replicated stages.

    Needs a one-directional ring that overlaps transfers. The cost ignores streamed weights, and that replicas
    may have more sequences than others, except where chips differ in kind, links or allowed ops, or where
    states fit no chip of the stages that are best without them. Returns ``None`` if the search, whose work is
    bounded, finds none that fits within ``at_most_s``.

    Args:
      order, fusion_group, forwarding, rules: see :func:`~go_opt.solver.slicing.problem.problem_along`.
      at_most_s: ignore slicings slower than this.
    """
    sequence, problem = problem_along(tables, order, fusion_group, forwarding, **rules)
    stages = _Stages(forwarding == "relayed", replicates=True)
    if not tables.overlap:
        return None
    chips = tables.num_chips
    if not problem.chips_are_alike:
        return _sliced(tables, sequence, problem, stages, (1, chips), (0.0, at_most_s))
    host_bytes = sequence.input_bytes + least_streamed_bytes(tables)
    lower_s = max(least_s(problem, chips), host_bytes * tables.host_in_s_per_byte)
    # No segment takes longer than all kernels on one chip, but the host's link may.
    upper_s = min(at_most_s, max(lower_s, one_chip_s(problem)))
    # Without memory limits the problem is a relaxation.
    cuts = cheapest_replicated_cuts(problem, chips, lower_s, upper_s)
    if cuts is None:
        return None
    lower_s, sizes = replicated_cost_s(problem, cuts, chips), stage_sizes(problem, cuts, chips)
    if _fit(tables, sequence, cuts, sizes, relayed=stages.relayed):
        return slicing_of(sequence, cuts, lower_s, sizes)
    if tables.sequences == 0:
        stages, at_most_s = stages._replace(streams=False), upper_s * (1.0 + 2.0 * RELATIVE_TOLERANCE)
    return _sliced(tables, sequence, problem, stages, (1, chips), (lower_s, at_most_s))


def _fit(
    tables: CostTables,
    sequence: KernelSequence,
    cuts: LongArray,
    sizes: LongArray | None = None,
    *,
    relayed: bool,
) -> bool:
    """Returns whether memories hold the stages; replicas have a sequence each if there are any."""
    if sizes is None or tables.sequences == 0:
        return shortage_bytes(segment_memory(tables, sequence, relayed=relayed), cuts) <= 0
    if sizes.max() > tables.sequences:
        return False
    kept = states_of_stages(tables, bytes_of_states(tables, sequence), cuts, sizes)
    return shortage_bytes(segment_memory(without_states(tables), sequence, relayed=relayed), cuts, kept) <= 0


def slice_order_streamed(
    tables: CostTables,
    order: IntArray,
    fusion_group: IntArray,
    *,
    forwarding: ForwardingMode,
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
      order, fusion_group, forwarding, rules: see :func:`~go_opt.solver.slicing.problem.problem_along`.
      replicates: slice into replicated stages. Needs a one-directional ring; returns ``None`` unless
        transfers overlap compute. Every link counts as slow as the slowest.
      counts_latency: the interval is at least latency / sequences, for sequences in flight; without replicas
        or a least number of chips. Returns ``None`` if chips differ. See
        :mod:`go_opt.solver.slicing.latency`.
      min_chips: use no fewer chips than this.
      max_chips: use no more chips than this; all by default.
      at_least_s: a lower bound, such as the optimum without streamed weights.
      at_most_s: ignore slicings that take this long or longer.
    """
    if replicates and not tables.overlap:
        return None
    sequence, problem = problem_along(tables, order, fusion_group, forwarding, **rules)
    most = tables.num_chips if replicates else _most_chips(tables, sequence, max_chips)
    latency = sample_latency(tables, sequence) if counts_latency else None
    stages = _Stages(forwarding == "relayed", replicates=replicates, latency=latency)
    return _sliced(tables, sequence, problem, stages, (min_chips, most), (at_least_s, at_most_s))


def slice_order_forwarded(
    tables: CostTables,
    order: IntArray,
    fusion_group: IntArray,
    *,
    forwarding: ForwardingMode,
    at_most_s: float,
    waits: bool = False,
    **rules: Unpack[SegmentRules],
) -> Candidate | None:
    """Returns a slicing of ``order`` close to the least interval, with stages that forward their weights.

    Needs identical chips on a one-directional ring that overlap transfers, and may all run all ops. States of
    all sequences count on each chip. Otherwise returns ``None``, also if no slicing is found that fits within
    ``at_most_s``. Waiting for streamed weights is ignored, or estimated; the plan's evaluation counts it.

    Args:
      order, fusion_group, forwarding, rules: see :func:`~go_opt.solver.slicing.problem.problem_along`.
      at_most_s: finite.
      waits: count an estimate of what chips wait for weights that come one kernel ahead.
    """
    sequence, problem = problem_along(tables, order, fusion_group, forwarding, **rules)
    if not (tables.overlap and problem.chips_are_alike and tables.num_chips > 1):
        return None
    stages = _Stages(forwarding == "relayed", replicates=True, forwards=True, waits=waits)
    return _sliced(tables, sequence, problem, stages, (1, tables.num_chips), (0.0, at_most_s))


def _sliced(
    tables: CostTables,
    sequence: KernelSequence,
    problem: SliceProblem,
    stages: _Stages,
    num_chips: tuple[int, int],
    limits_s: tuple[float, float],
) -> Candidate | None:
    """Returns the cheapest slicing whose segments fit once their activations have addresses.

    The table of segments ignores the holes between activations. If a segment does not fit because of them,
    the search runs again with less memory, by the shortage.

    Args:
      num_chips: the least and the most.
      limits_s: no slicing takes less than the first; only those that take less than the second are of use.
    """
    keeps = stages.replicates and not stages.forwards and problem.chips_are_alike and tables.sequences > 0
    state_bytes = bytes_of_states(tables, sequence) if keeps else None
    memory = segment_memory(without_states(tables) if keeps else tables, sequence, relayed=stages.relayed)
    less = memory
    for _ in range(TRIES):
        found = _cheapest(tables, sequence, problem, less, stages, num_chips, limits_s, state_bytes)
        if found is None:
            return None
        kept = None if state_bytes is None else states_of_stages(tables, state_bytes, found.cut, found.chips)
        shortage = shortage_bytes(memory, found.cut, kept)
        if shortage <= 0:
            sizes = found.chips if stages.replicates else None
            forwards = found.forwards if stages.forwards else None
            return slicing_of(sequence, found.cut, found.interval_s, sizes, forwards)
        less = less._replace(sram_bytes=less.sram_bytes - shortage)
    return None


def _cheapest(
    tables: CostTables,
    sequence: KernelSequence,
    problem: SliceProblem,
    memory: SegmentMemory,
    stages: _Stages,
    num_chips: tuple[int, int],
    limits_s: tuple[float, float],
    state_bytes: LongArray | None,
) -> Cuts | None:
    if stages.streams:  # weights count by themselves, and so does their buffer
        memory = memory._replace(buffer_bytes=np.zeros_like(memory.buffer_bytes))
    if least_needed_bytes(memory).max() > memory.sram_bytes[: num_chips[1]].max():
        return None
    chips, tables = num_chips[1], tables._replace(sram_bytes=memory.sram_bytes)
    s_per_byte = tables.host_in_s_per_byte if tables.overlap else 0.0
    input_s = sequence.input_bytes * s_per_byte
    is_shared = stages.streams and not stages.forwards
    host_s = input_s + (least_streamed_bytes(tables) * s_per_byte if is_shared else 0.0)
    lower_s = max(limits_s[0], least_s(problem, chips), host_s)
    longest_s = _longest_s(tables, problem, streams=stages.streams)
    if stages.latency is not None:
        longest_s = max(longest_s, stages.latency.longest_s)
    upper_s = min(limits_s[1], longest_s)
    if lower_s >= upper_s:
        return None
    is_near = not stages.replicates and stages.latency is None and 0.0 < lower_s * NEAR < upper_s
    found = None
    for within_s in (lower_s * NEAR, upper_s) if is_near else (upper_s,):
        cut = _table(tables, sequence, problem, memory, stages, chips, within_s, state_bytes)
        if stages.latency is not None:
            return (
                cheapest_cuts_with_latency(cut, stages.latency, lower_s, within_s) if cut.are_alike else None
            )
        tolerance = CLOSE if stages.forwards else RELATIVE_TOLERANCE
        found = cheapest_streamed_cuts(cut, lower_s, within_s, min_chips=num_chips[0], tolerance=tolerance)
        if found is not None:
            break
    return found


def _table(
    tables: CostTables,
    sequence: KernelSequence,
    problem: SliceProblem,
    memory: SegmentMemory,
    stages: _Stages,
    chips: int,
    upper_s: float,
    state_bytes: LongArray | None,
) -> StreamedProblem:
    """Returns the segments that slicings within ``upper_s`` may have, on the first ``chips`` chips."""
    s_per_byte = tables.host_in_s_per_byte if tables.overlap else 0.0
    input_s = sequence.input_bytes * s_per_byte
    classes = chip_classes(tables, problem, chips)
    if state_bytes is not None:
        classes = stage_classes(classes, tables.sequences, state_bytes)
    most_streamed_bytes = (upper_s - input_s) / s_per_byte if s_per_byte > 0.0 else math.inf
    table = segment_table(
        tables,
        problem,
        memory,
        classes,
        reads=weight_reads(tables, sequence, streams=stages.streams),
        most_chips=chips if stages.replicates else 1,
        longest_s=upper_s,
        most_streamed_bytes=most_streamed_bytes * (chips if stages.forwards else 1),
        most_segments=MOST_FORWARDING_SEGMENTS if stages.forwards else MOST_SEGMENTS,
    )
    hop_s = float(problem.hop_s_per_byte[: tables.num_chips - 1].max(initial=0.0)) * stages.forwards
    waits = np.zeros((3, len(table.cut)))
    if stages.waits:
        waits = waits_for_weights(tables, sequence, table.cut, hop_s)
    blocked = np.ascontiguousarray(problem.blocked[:chips, table.cut])
    return StreamedProblem(
        table,
        classes.of_chip,
        classes.stage_chips,
        blocked,
        not (classes.of_chip.any() or blocked.any()),
        stages.replicates,
        problem.crossing_bytes[table.cut] * problem.hop_s_per_byte.max() * stages.replicates,
        problem.floor_s,
        input_s,
        s_per_byte if stages.streams else 0.0,
        hop_s,
        tables.sequences,
        waits,
    )


def _longest_s(tables: CostTables, problem: SliceProblem, *, streams: bool) -> float:
    """Returns an interval that every slicing stays below."""
    is_weight = tables.tensor_kind[tables.reader_tensor] == WEIGHT
    streamed_s = float(tables.read_bytes[is_weight].sum()) * tables.host_in_s_per_byte * streams
    return (one_chip_s(problem) + streamed_s) * 1.001 + 1e-30


def _most_chips(tables: CostTables, sequence: KernelSequence, max_chips: int | None) -> int:
    """Returns the number of chips a slicing may use, at most the number of kernels."""
    return min(max_chips or tables.num_chips, tables.num_chips, sequence.num_kernels)


def greedy_slicing(
    tables: CostTables, order: IntArray, fusion_group: IntArray, *, adjacent: bool
) -> Candidate:
    """Returns the slicing of the greedy compiler heuristic along ``order``.

    Chips are filled up to equal shares of the work. With ``adjacent``, each cut is moved later so that the
    slicing keeps the adjacent rule.
    """
    forwarding: ForwardingMode = "adjacent" if adjacent else "free"
    sequence, problem = problem_along(tables, order, fusion_group, forwarding)
    cuts = _greedy_cuts(problem, tables.num_chips)
    return slicing_of(sequence, cuts, slicing_cost_s(problem, cuts))


def _greedy_cuts(problem: SliceProblem, max_chips: int) -> LongArray:
    """Returns cuts at equal shares of the work, each moved later if the adjacent rule requires it.

    Chip d ends at the last cut with at most ``(d + 1) / D`` of the work before it. If a tensor
    that enters the chip is read later, the chip ends after its last reader. All remaining
    kernels run on the last chip.
    """
    work_s = problem.prefix_s[problem.chip_kind[0]]
    shares_s = work_s[-1] * np.arange(1, max_chips) / max_chips
    wanted = np.searchsorted(work_s, shares_s * (1.0 + 1e-12), side="right") - 1
    cuts = [0]
    for cut in wanted:
        start = cuts[-1]
        if problem.reach[start] >= problem.num_kernels:
            break
        # A kernel larger than a share also uses up the shares of the next chips.
        if cut > start:
            cuts.append(int(max(cut, problem.reach[start])))
        if cuts[-1] >= problem.num_kernels:
            break
    if cuts[-1] < problem.num_kernels:
        cuts.append(problem.num_kernels)
    return np.array(cuts, dtype=np.int64)
