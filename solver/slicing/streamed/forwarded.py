"""SLICE into replicated stages whose chips forward their streamed weights to each other.

A stage of k chips that streams s bytes per inference loads the host's link with ``s / k`` if its chips
forward weights. Each link between its chips carries the same amount, in addition to the stage's input
and output. Large stages are therefore better than the smallest that their work allows. For a candidate
interval T let ``g[b, d]`` be the fewest bytes per inference that d chips take from the host, if they
cover the kernels before candidate cut b, each within T:

    g[b, d + k] = min over a, k of g[a, d] + s(a, b)      where work(a, b) <= k T
                    min over a, k of g[a, d] + s(a, b) / k    where, too, s(a, b) / k <= (T - border) rate

with the seconds of the busier of its two cuts as ``border``. Tables of which an inference reads only
some rows are not forwarded; their part of s is not divided. (The other weights of a kernel that reads
such a table are not forwarded either; only the evaluation knows that.) T is feasible if the host's link
carries the inputs and ``g[M, d]`` within T: O(A W D log D) for windows of W of A candidate cuts. Waiting for
streamed weights is ignored, or estimated (:mod:`go_opt.solver.slicing.streamed.waiting`); the
evaluation of the plan counts it.
"""

from __future__ import annotations

import math
from typing import Final, Unpack

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import BoolArray, FloatArray, IntArray, LongArray
from go_opt.common.compiling import compiled, int64
from go_opt.env.cost import CostTables
from go_opt.model.plan import Candidate
from go_opt.solver.problem.forwarding_mode import ForwardingMode
from go_opt.solver.problem.segment_rules import SegmentRules
from go_opt.solver.slicing.along import problem_along, slicing_of
from go_opt.solver.slicing.segments.memory import segment_memory, shortage_bytes, without_stream_buffer
from go_opt.solver.slicing.segments.problem import least_s
from go_opt.solver.slicing.streamed.segment_table import SegmentTable, chip_classes, segment_table
from go_opt.solver.slicing.streamed.waiting import waits_for_weights
from go_opt.solver.slicing.streamed.weight_streams import weight_reads

MOST_SEGMENTS: Final = 120_000  # about half a second
CLOSE: Final = 1e-3  # relative tolerance of the interval
NEXT_SIZE: Final = 4  # after a stage of k chips, the next size tried is k + 1 + k // 4


def slice_order_forwarded(
    tables: CostTables,
    order: IntArray,
    fusion_group: IntArray,
    *,
    passing: ForwardingMode,
    at_most_s: float,
    waits: bool = False,
    **rules: Unpack[SegmentRules],
) -> Candidate | None:
    """Returns a slicing of ``order`` close to the least interval, with stages that forward their weights.

    Needs identical chips on a one-directional ring that overlap transfers, and may all run all ops. States of
    sequences count as if each chip of a stage had all.
    Otherwise returns ``None``, also if no slicing is found that fits within ``at_most_s``.

    Args:
      order, fusion_group, passing, rules: see :func:`~go_opt.solver.slicing.along.problem_along`.
      at_most_s: finite.
      waits: count an estimate of what chips wait for weights that come one kernel ahead.
    """
    sequence, problem = problem_along(tables, order, fusion_group, passing, **rules)
    chips = tables.num_chips
    hops = problem.hop_s_per_byte[:-1]
    is_even = chips > 1 and bool((hops == hops[0]).all())
    if not (tables.overlap and problem.chips_are_alike and is_even):
        return None
    memory = segment_memory(tables, sequence, relayed=passing == "relayed")
    table = segment_table(
        tables,
        problem,
        without_stream_buffer(memory),
        chip_classes(tables, problem, chips),
        reads=weight_reads(tables, sequence),
        most_chips=chips,
        longest_s=at_most_s,
        most_streamed_bytes=at_most_s / tables.host_in_s_per_byte * chips,
        most_segments=MOST_SEGMENTS,
    )
    hop_s = float(hops[0])
    cut_s = problem.crossing_bytes[table.cut] * hop_s
    input_s = sequence.input_bytes * tables.host_in_s_per_byte
    none = np.zeros(len(table.cut))
    waited = waits_for_weights(tables, sequence, table.cut, hop_s) if waits else (none, none, none)

    def slicing_within(interval_s: float) -> tuple[LongArray, LongArray, BoolArray] | None:
        found = _fewest_bytes(table, cut_s, *waited, hop_s, interval_s, chips, tables.sequences)
        from_host, start, size, forwards = found
        used = int(np.argmin(from_host[-1]))
        host_s = input_s + from_host[-1, used] * tables.host_in_s_per_byte
        return _walk_back(table.cut, start, size, forwards, used) if host_s <= interval_s else None

    lower_s, upper_s = max(least_s(problem, chips), problem.floor_s), at_most_s
    best = slicing_within(upper_s)
    if best is None:
        return None
    while upper_s - lower_s > CLOSE * upper_s:
        middle_s = math.sqrt(lower_s * upper_s) if lower_s > 0.0 else 0.5 * upper_s
        found = slicing_within(middle_s)
        if found is None:
            lower_s = middle_s
        else:
            best, upper_s = found, middle_s
    cuts, sizes, forwards = best
    if shortage_bytes(memory, cuts) > 0:
        return None
    return slicing_of(sequence, cuts, upper_s, sizes, forwards)


@compiled
def _fewest_bytes(
    table: SegmentTable,
    cut_s: FloatArray,
    waits_of_host_s: FloatArray,
    waits_of_link_s: FloatArray,
    waited_bytes: FloatArray,
    hop_s_per_byte: float,
    interval_s: float,
    max_chips: int,
    sequences: int,
) -> tuple[FloatArray, IntArray, IntArray, BoolArray]:
    """Returns the slicings within an interval; weights that a segment reads in part are not forwarded.

    Nor are weights where some chips of a stage would have more of the ``sequences`` than others.

    Returns:
      [A, D + 1] each, by the last cut and the number of chips: bytes per inference, infinite if there is no
      slicing; the cut before; the chips of the stage between the two; whether it forwards weights.
    """
    num_cuts = len(table.cut)
    from_host = np.full((num_cuts, max_chips + 1), np.inf)
    start = np.zeros((num_cuts, max_chips + 1), np.int32)
    stage_size = np.zeros((num_cuts, max_chips + 1), np.int32)
    forwards = np.zeros((num_cuts, max_chips + 1), np.bool_)
    fewest_chips = np.full(num_cuts, max_chips + 1, np.int64)
    from_host[0, 0] = 0.0
    fewest_chips[0] = 0
    for b in range(1, num_cuts):
        if cut_s[b] > interval_s:
            continue
        for a in range(table.first[b], b):
            place = table.offset[b] + a
            cost_s, streamed = table.cost_s[0, place], table.streamed_bytes[0, place]
            most = max_chips - fewest_chips[a]
            if most < 1 or cost_s > interval_s * most:
                continue
            waited = min(streamed, waited_bytes[b] - waited_bytes[a])
            waited /= max(waited_bytes[b] - waited_bytes[a], 1.0)
            alone_s = cost_s + waited * (waits_of_host_s[b] - waits_of_host_s[a])
            size = max(int64(math.ceil(alone_s / interval_s)), int64(1))
            least = int64(max_chips + 1)
            room_s = interval_s - max(cut_s[a], cut_s[b])
            own = table.in_part_bytes[0, place]
            passed = streamed - own
            if passed > 0.0 and passed * hop_s_per_byte <= room_s * most:
                together_s = cost_s + waited * (waits_of_link_s[b] - waits_of_link_s[a])
                work = int64(math.ceil(together_s / interval_s))
                least = max(work, int64(2), int64(math.ceil(passed * hop_s_per_byte / room_s)))
            is_forwarded = size > most
            if is_forwarded:
                size = least
            share = own + passed / size if is_forwarded else streamed
            while size <= most:
                is_uneven = is_forwarded and sequences % size > 0
                for d in range(fewest_chips[a], fewest_chips[a] if is_uneven else max_chips + 1 - size):
                    reached = from_host[a, d] + share
                    if reached < from_host[b, d + size]:
                        from_host[b, d + size] = reached
                        start[b, d + size] = a
                        stage_size[b, d + size] = size
                        forwards[b, d + size] = is_forwarded
                size = size + 1 + size // NEXT_SIZE if is_forwarded else least
                share, is_forwarded = own + passed / size, True
        for d in range(max_chips, -1, -1):
            if from_host[b, d] < np.inf:
                fewest_chips[b] = d
    return from_host, start, stage_size, forwards


def _walk_back(
    cut: LongArray, start: IntArray, stage_size: IntArray, forwards: BoolArray, chips: int
) -> tuple[LongArray, LongArray, BoolArray]:
    """Returns the cuts [S + 1], sizes [S] and forwarding stages [S] of the slicing on ``chips`` chips."""
    at, cuts, stages = len(cut) - 1, [int(cut[-1])], []
    while at > 0:
        size = int(stage_size[at, chips])
        stages.append((size, bool(forwards[at, chips])))
        at, chips = int(start[at, chips]), chips - size
        cuts.append(int(cut[at]))
    rows: NDArray[np.int64] = np.array(stages[::-1], dtype=np.int64)
    return np.array(cuts[::-1], dtype=np.int64), rows[:, 0].copy(), rows[:, 1] > 0
