"""The cheapest slicing of an order of units, in ticks.

This is the dynamic program of :mod:`go_opt.solver.slicing.cuts` on a :class:`UnitGraph`. With
replication open, a segment takes as many chips as its work and its streamed weights need, where all
tensors that cross its borders have buffers. Copies, repeated input reads, streaming time and memory are
costed exactly afterwards.
"""

from __future__ import annotations

import numpy as np

from go_opt.common.arrays import IntArray, LongArray
from go_opt.common.compiling import compiled, int64, uncounted_inner
from go_opt.solver.certify.problem import MOST_TICKS, UnitGraph, forwarded_bytes, spare_bytes
from go_opt.solver.problem.forwarding_mode import ADJACENT

STEPS = 12  # of the bisection; the error halves in each


def slice_units(graph: UnitGraph, order: IntArray, least_ticks: int, most_ticks: int) -> IntArray | None:
    """Returns segments [U] of a slicing of ``order`` within ``most_ticks``, close to the fastest, or None.

    The bisection assumes that no slicing is within ``least_ticks``.
    """
    num_units = graph.num_units
    place = np.empty(num_units, np.int64)
    place[order] = np.arange(num_units)
    home = place[graph.tensor_producer]
    last = np.maximum.reduceat(place[graph.reader], graph.reader_ptr[:-1]) if len(home) else home
    crossing = _crossing_bytes(graph.tensor_bytes, home, last, num_units)
    cut = np.minimum(crossing * graph.ticks_per_byte, MOST_TICKS).astype(np.int64)
    reach = np.zeros(num_units + 1, np.int64)
    if graph.forwarding == ADJACENT:
        unit = np.repeat(np.arange(num_units), np.diff(graph.next_ptr))
        np.maximum.at(reach, place[unit] + 1, place[graph.next] + 1)
    reach = np.maximum(np.maximum.accumulate(reach), np.arange(1, num_units + 2))
    work = np.concatenate([[0], np.cumsum(graph.unit_ticks[order])])
    before = np.zeros(num_units + 1, np.int64)
    if graph.replicates:
        enters = _crossing_bytes(graph.enter_bytes, home, last, num_units)
        leaves = _crossing_bytes(graph.leave_bytes, home, last, num_units)
        held, reads = (enters, leaves, *_held_bytes(graph)), _reads_before(graph, order)
    best = None
    for step in range(STEPS + 1):
        ticks = most_ticks if step == 0 else (least_ticks + most_ticks) // 2
        if graph.replicates:
            is_within = _reach_end_in_stages(graph, order, work, cut, reach, held, reads, ticks, before)
        else:
            is_within = _reach_end(work, cut, reach, graph.num_chips, graph.overlap, ticks, before)
        if not is_within:
            if best is None:
                return None
            least_ticks = ticks
            continue
        most_ticks = ticks
        cuts = [num_units]
        while cuts[-1] > 0:
            cuts.append(int(before[cuts[-1]]))
        best = np.array(cuts[::-1])
    assert best is not None
    placement = np.empty(num_units, np.int32)
    placement[order] = np.repeat(np.arange(len(best) - 1, dtype=np.int32), np.diff(best))
    return placement


@compiled
def _reach_end(
    work: LongArray,
    cut: LongArray,
    reach: LongArray,
    num_chips: int,
    overlap: bool,
    ticks: int,
    before: LongArray,
) -> bool:
    """Returns whether ``num_chips`` segments within ``ticks`` suffice; ``before[j]`` is the cut before j."""
    last = len(work) - 1
    chips = np.full(last + 1, num_chips + 1, np.int64)
    least = np.full(num_chips + 1, int64(2) ** 62, np.int64)  # least start value after q chips
    least_at = np.zeros(num_chips + 1, np.int64)
    chips[0] = 0
    entering = 0
    for j in range(1, last + 1):
        while entering < j and reach[entering] <= j:
            i = entering
            entering += 1
            if chips[i] >= num_chips or cut[i] > ticks:
                continue
            start = -work[i] + (0 if overlap else cut[i])
            if start < least[chips[i]]:
                least[chips[i]] = start
                least_at[chips[i]] = i
        if cut[j] > ticks:
            continue
        room = ticks - work[j] - (0 if overlap else cut[j])
        for q in range(num_chips):
            if least[q] <= room:
                chips[j] = q + 1
                before[j] = least_at[q]
                break
    return chips[last] <= num_chips


def _crossing_bytes(size_bytes: LongArray, home: LongArray, last: LongArray, num_units: int) -> LongArray:
    """Returns the bytes [U + 1] of the tensors made at ``home`` before each cut and read behind it."""
    change = np.zeros(num_units + 2, np.int64)
    np.add.at(change, home + 1, size_bytes)
    np.add.at(change, last + 1, -size_bytes)
    return np.cumsum(change)[: num_units + 1]


def _held_bytes(graph: UnitGraph) -> tuple[LongArray, LongArray]:
    """Returns the bytes [U] occupied while a unit runs, and those [G] of a weight that stays on a chip."""
    alive_bytes = np.zeros(graph.num_units, np.int64)
    np.add.at(alive_bytes, graph.tensor_producer, graph.made_bytes)
    np.add.at(alive_bytes, np.repeat(np.arange(graph.num_units), np.diff(graph.read_ptr)), graph.read_bytes)
    unknown = graph.touched_bytes == 0
    least_bytes = np.minimum(graph.stored_bytes, graph.touched_bytes)
    return alive_bytes, np.where(unknown, graph.stored_bytes, least_bytes)


@compiled
def _reads_before(graph: UnitGraph, order: IntArray) -> tuple[LongArray, LongArray]:
    """Returns, of each read of an input and of a weight, the place of the read before it, -1: none."""
    inputs = np.full(len(graph.input), -1, np.int64)
    weights = np.full(len(graph.weight), -1, np.int64)
    input_at = np.full(len(graph.input_bytes), -1, np.int64)
    weight_at = np.full(len(graph.stored_bytes), -1, np.int64)
    for place in range(len(order)):
        for r in range(graph.input_ptr[order[place]], graph.input_ptr[order[place] + 1]):
            inputs[r] = input_at[graph.input[r]]
            input_at[graph.input[r]] = place
        for r in range(graph.weight_ptr[order[place]], graph.weight_ptr[order[place] + 1]):
            weights[r] = weight_at[graph.weight[r]]
            weight_at[graph.weight[r]] = place
    return inputs, weights


@compiled
def _reach_end_in_stages(
    graph: UnitGraph,
    order: IntArray,
    work: LongArray,
    cut: LongArray,
    reach: LongArray,
    held_bytes: tuple[LongArray, LongArray, LongArray, LongArray],
    reads: tuple[LongArray, LongArray],
    ticks: int,
    before: LongArray,
) -> bool:
    """Like :func:`_reach_end`, with stages; after q chips, only the last start counts: it has least left.

    Args:
      held_bytes: buffers [U + 1] behind and before a cut of the tensors that cross it; see `_held_bytes`.
    """
    enter_bytes, leave_bytes, alive_bytes, weight_bytes = held_bytes
    last, num_chips, overlap = len(work) - 1, graph.num_chips, graph.overlap
    spare, a_chip = spare_bytes(graph.chip, ticks), forwarded_bytes(graph.chip, ticks)
    chips = np.full(last + 1, num_chips + 1, np.int64)
    start_at = np.full(num_chips, -1, np.int64)
    held = np.zeros(num_chips, np.int64)  # from each start on
    alive = np.zeros(num_chips, np.int64)
    chips[0] = 0
    entering = int64(0)
    for j in range(1, last + 1):
        unit = order[j - 1]
        for q in range(num_chips):
            held[q] += _held_anew(graph, weight_bytes, reads, unit, start_at[q])
            alive[q] = max(alive[q], alive_bytes[unit])
        while entering < j and reach[entering] <= j:
            i = entering
            entering += 1
            if chips[i] < num_chips and cut[i] <= ticks:
                q = chips[i]
                start_at[q] = i
                held[q] = 0
                alive[q] = 0
                for place in range(i, j):
                    held[q] += _held_anew(graph, weight_bytes, reads, order[place], i)
                    alive[q] = max(alive[q], alive_bytes[order[place]])
        if cut[j] > ticks:
            continue
        for q in range(num_chips):
            i = start_at[q]
            if i < 0:
                continue
            active = enter_bytes[i] + leave_bytes[j] + alive[q]
            streams = held[q] + active - graph.chip.sram_bytes
            streams += graph.chip.stream_buffer_bytes if streams > 0 else 0
            excess = streams - spare
            if active > graph.chip.sram_bytes or (excess > 0 and a_chip == 0):
                continue
            size = _chips_of(work[j] - work[i], cut[i], cut[j], overlap, ticks)
            if excess > 0:
                size = max(size, 1 - (-excess // a_chip))
            if q + size < chips[j]:
                chips[j] = q + size
                before[j] = i
    return chips[last] <= num_chips


@uncounted_inner
def _held_anew(
    graph: UnitGraph, weight_bytes: LongArray, reads: tuple[LongArray, LongArray], unit: int, start: int
) -> int:
    """Returns the bytes that ``unit`` adds to a stage that begins at ``start``."""
    held = graph.output_bytes[unit]
    for r in range(graph.input_ptr[unit], graph.input_ptr[unit + 1]):
        if reads[0][r] < start:
            held += graph.input_bytes[graph.input[r]]
    for r in range(graph.weight_ptr[unit], graph.weight_ptr[unit + 1]):
        if reads[1][r] < start:
            held += weight_bytes[graph.weight[r]]
    return held


@uncounted_inner
def _chips_of(work: int, enters: int, leaves: int, overlap: bool, ticks: int) -> int:
    """Returns the chips that a stage needs within ``ticks``; 2**31 if no number is enough."""
    most = int64(0) if overlap else max(enters, leaves)
    per_chip = ticks - 2 * most
    if not overlap:
        work += enters + leaves - 2 * most
    if work <= 0 and per_chip >= 0:
        return 1
    if per_chip <= 0:
        return 1 if work <= per_chip else 2**31
    return max(1, -(-work // per_chip))
