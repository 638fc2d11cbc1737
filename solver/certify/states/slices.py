"""The cheapest slicing of an order of units, in ticks.

This is the dynamic program of :mod:`go_opt.solver.slicing.cuts` on a :class:`UnitGraph`. With
replication open, a segment takes as many chips as its work and its streamed weights need.
Copies, repeated input reads and streaming time are costed exactly afterwards.
"""

from __future__ import annotations

import numpy as np

from go_opt.common.arrays import IntArray, LongArray
from go_opt.common.compiling import compiled, int64, uncounted_inner
from go_opt.solver.certify.problem.memory import UnitMemory
from go_opt.solver.certify.problem.problem import MOST_TICKS, UnitGraph
from go_opt.solver.certify.problem.streams import NEVER_FITS, forwarded_bytes, spare_bytes, streamed_bytes
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
    change = np.zeros(num_units + 2, np.int64)
    np.add.at(change, home + 1, graph.tensor_bytes)
    np.add.at(change, last + 1, -graph.tensor_bytes)
    cut = np.minimum(np.cumsum(change)[: num_units + 1] * graph.ticks_per_byte, MOST_TICKS).astype(np.int64)
    reach = np.zeros(num_units + 1, np.int64)
    if graph.passing == ADJACENT:
        unit = np.repeat(np.arange(num_units), np.diff(graph.next_ptr))
        np.maximum.at(reach, place[unit] + 1, place[graph.next] + 1)
    reach = np.maximum(np.maximum.accumulate(reach), np.arange(1, num_units + 2))
    work = np.concatenate([[0], np.cumsum(graph.unit_ticks[order])])
    before = np.zeros(num_units + 1, np.int64)
    best = None
    for step in range(STEPS + 1):
        ticks = most_ticks if step == 0 else (least_ticks + most_ticks) // 2
        if graph.replicates:
            is_within = _reach_end_in_stages(graph, order, work, cut, reach, ticks, before)
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


@compiled
def _reach_end_in_stages(
    graph: UnitGraph,
    order: IntArray,
    work: LongArray,
    cut: LongArray,
    reach: LongArray,
    ticks: int,
    before: LongArray,
) -> bool:
    """Like :func:`_reach_end`, with stages; after q chips, only the last start counts: it has least left."""
    last = len(work) - 1
    num_chips = graph.num_chips
    memory = graph.memory
    spare, a_chip = spare_bytes(memory.chip, ticks), forwarded_bytes(memory.chip, ticks)
    chips = np.full(last + 1, num_chips + 1, np.int64)
    start_at = np.full(num_chips, -1, np.int64)
    held = np.zeros(num_chips, np.int64)  # from each start on
    alive = np.zeros(num_chips, np.int64)
    shared_at = np.full(len(memory.shared_bytes), -1, np.int64)  # last place of a reader
    shared_before = np.full(len(memory.shared), -1, np.int64)  # place of the reader before this one
    chips[0] = 0
    entering = int64(0)
    for j in range(1, last + 1):
        unit = order[j - 1]
        for r in range(memory.shared_ptr[unit], memory.shared_ptr[unit + 1]):
            shared_before[r] = shared_at[memory.shared[r]]
            shared_at[memory.shared[r]] = j - 1
        for q in range(num_chips):
            held[q] += _held_anew(memory, shared_before, unit, start_at[q])
            alive[q] = max(alive[q], memory.alive_bytes[unit])
        while entering < j and reach[entering] <= j:
            i = entering
            entering += 1
            if chips[i] < num_chips and cut[i] <= ticks:
                q = chips[i]
                start_at[q] = i
                held[q] = 0
                alive[q] = 0
                for place in range(i, j):
                    held[q] += _held_anew(memory, shared_before, order[place], i)
                    alive[q] = max(alive[q], memory.alive_bytes[order[place]])
        if cut[j] > ticks:
            continue
        for q in range(num_chips):
            i = start_at[q]
            if i < 0:
                continue
            streams = streamed_bytes(memory, held[q], alive[q])
            excess = streams - spare
            if streams == NEVER_FITS or (excess > 0 and a_chip == 0):
                continue
            size = _chips_of(work[j] - work[i], cut[i], cut[j], graph.overlap, ticks)
            if excess > 0:
                size = max(size, 1 - (-excess // a_chip))
            if q + size < chips[j]:
                chips[j] = q + size
                before[j] = i
    return chips[last] <= num_chips


@uncounted_inner
def _held_anew(memory: UnitMemory, shared_before: LongArray, unit: int, start: int) -> int:
    """Returns the bytes that ``unit`` adds to a stage that begins at ``start``."""
    held = memory.held_bytes[unit]
    for r in range(memory.shared_ptr[unit], memory.shared_ptr[unit + 1]):
        if shared_before[r] < start:
            held += memory.shared_bytes[memory.shared[r]]
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
