"""States of the refinement: intervals of down-sets that can be split in two.

A state is the set of down-sets between the units forced in, ``inside`` (closed under ancestors),
and the complement of those forced out, ``outside`` (closed under descendants). It stores the
range of their work and a lower bound on their cut. Splitting at a free unit v forces v with its
ancestors in, or v with its descendants out; each down-set is in exactly one of the two halves.

Axes: ``S`` states, ``W`` words of a set of units, ``X`` words of a set of tensors; unit u is
bit ``u % 64`` of word ``u // 64``.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, CodeArray, IntArray, LongArray
from go_opt.common.compiling import int32, int64, uncounted_inner
from go_opt.solver.certify.problem.problem import MOST_TICKS, UnitGraph
from go_opt.solver.certify.states.min_cut import (
    FREE,
    INSIDE,
    OUTSIDE,
    Workspace,
    least_work_and_cut,
    min_cut,
)
from go_opt.solver.problem.forwarding_mode import ADJACENT, RELAYED

MOST_CANDIDATES: Final = 48  # units tried per split, evenly spread; fewer than twice as many
# Under the adjacent rule, states bound the work this many chips earlier and later.
MOST_STEPS: Final = 4
NOTHING, EVERYTHING, ANYTHING = range(3)  # the first states


class StatePool(NamedTuple):
    """All states, in order of creation."""

    inside: LongArray  # [S, W]
    outside: LongArray  # [S, W]
    pulled: LongArray  # [S, W] adjacent: inside with its readers and their ancestors
    last_inside: IntArray  # [S] last word of inside (adjacent: pulled) that is not zero
    first_outside: IntArray  # [S] first word of outside that is not zero
    low: LongArray  # [S] least work of a down-set of the state
    high: LongArray  # [S] most work of a down-set of the state
    pulled_low: LongArray  # [S, MOST_STEPS] adjacent: least work done 1, 2, … chips later
    pushed_high: LongArray  # [S, MOST_STEPS] adjacent: most work done 1, 2, … chips earlier
    cut: LongArray  # [S] lower bound on the cut's ticks
    cut_bytes: LongArray  # [S] lower bound on the cut's bytes
    need: LongArray  # [S] without overlap: lower bound on work plus cut
    give: LongArray  # [S] without overlap: upper bound on work minus cut
    num_free: IntArray  # [S] 0: a single down-set
    crosses: LongArray  # [S, X] relayed: tensors produced inside, with a reader not inside
    ends: LongArray  # [S, X] relayed: tensors read outside
    num_states: LongArray  # [1]


def state_pool(graph: UnitGraph, capacity: int) -> StatePool:
    """Returns a pool for ``capacity`` states with the first three: nothing, everything, any down-set."""
    words = (graph.num_units + 63) // 64
    tensor_words = (len(graph.tensor_bytes) + 63) // 64 if graph.passing == RELAYED else 0
    steps = MOST_STEPS if graph.passing == ADJACENT else 0
    pool = StatePool(
        inside=np.zeros((capacity, words), np.int64),
        outside=np.zeros((capacity, words), np.int64),
        pulled=np.zeros((capacity, words if graph.passing == ADJACENT else 0), np.int64),
        last_inside=np.zeros(capacity, np.int32),
        first_outside=np.zeros(capacity, np.int32),
        low=np.zeros(capacity, np.int64),
        high=np.zeros(capacity, np.int64),
        pulled_low=np.zeros((capacity, steps), np.int64),
        pushed_high=np.zeros((capacity, steps), np.int64),
        cut=np.zeros(capacity, np.int64),
        cut_bytes=np.zeros(capacity, np.int64),
        need=np.zeros(capacity, np.int64),
        give=np.zeros(capacity, np.int64),
        num_free=np.zeros(capacity, np.int32),
        crosses=np.zeros((capacity, tensor_words), np.int64),
        ends=np.zeros((capacity, tensor_words), np.int64),
        num_states=np.full(1, 3, np.int64),
    )
    all_units = _packed(np.ones(graph.num_units, np.bool_), words)
    total = int(graph.unit_ticks.sum())
    pool.outside[NOTHING] = pool.inside[EVERYTHING] = all_units
    if graph.passing == ADJACENT:
        pool.pulled[EVERYTHING] = all_units
    elif graph.passing == RELAYED:
        pool.ends[NOTHING] = _packed(graph.relay_ticks > 0, tensor_words)
    pool.last_inside[:3] = -1, words - 1, -1
    pool.first_outside[:3] = 0, words, words
    pool.low[EVERYTHING] = pool.pulled_low[EVERYTHING] = total
    pool.high[EVERYTHING] = pool.high[ANYTHING] = total
    pool.need[EVERYTHING] = pool.give[EVERYTHING] = pool.give[ANYTHING] = total
    pool.pushed_high[[EVERYTHING, ANYTHING]] = total
    pool.num_free[ANYTHING] = graph.num_units
    return pool


def _packed(members: BoolArray, words: int) -> LongArray:
    padded = np.zeros(64 * words, np.bool_)
    padded[: len(members)] = members
    return np.packbits(padded, bitorder="little").view(np.int64)


@uncounted_inner
def read_sides(pool: StatePool, state: int, side: CodeArray) -> None:
    """Unpacks the sets of ``state`` into ``side`` [U]."""
    for unit in range(len(side)):
        word = unit >> 6
        bit = unit & 63
        if (pool.inside[state, word] >> bit) & 1:
            side[unit] = INSIDE
        elif (pool.outside[state, word] >> bit) & 1:
            side[unit] = OUTSIDE
        else:
            side[unit] = FREE


@uncounted_inner
def write_state(
    graph: UnitGraph, pool: StatePool, work: Workspace, state: int, at_least_bytes: int, enough_bytes: int
) -> None:
    """Writes ``state`` from ``work.side``; the cut's bound may stay loose beyond ``enough_bytes``."""
    num_units = len(graph.unit_ticks)
    side = work.side
    num_free = int64(0)
    low = int64(0)
    high = int64(0)
    pool.last_inside[state] = -1
    pool.first_outside[state] = pool.inside.shape[1]
    for word in range(pool.inside.shape[1]):
        inside = int64(0)
        outside = int64(0)
        for bit in range(min(64, num_units - 64 * word)):
            unit = 64 * word + bit
            if side[unit] == INSIDE:
                inside |= int64(1) << bit
                low += graph.unit_ticks[unit]
            elif side[unit] == OUTSIDE:
                outside |= int64(1) << bit
            else:
                work.free[num_free] = unit
                num_free += 1
                high += graph.unit_ticks[unit]
        pool.inside[state, word] = inside
        pool.outside[state, word] = outside
        if inside != 0:
            pool.last_inside[state] = word
        if outside != 0 and pool.first_outside[state] > word:
            pool.first_outside[state] = word
    pool.num_free[state] = num_free
    pool.low[state] = low
    pool.high[state] = high + low
    size = max(at_least_bytes, min_cut(graph, work, num_free, enough_bytes))
    pool.cut_bytes[state] = size
    pool.cut[state] = int64(min(np.float64(MOST_TICKS), np.floor(size * graph.ticks_per_byte)))
    pool.need[state] = low + pool.cut[state]
    pool.give[state] = pool.high[state] - pool.cut[state]
    if num_free > 0 and size < enough_bytes and not graph.overlap and not graph.replicates:
        per_byte = graph.ticks_per_byte
        pool.need[state] = low + least_work_and_cut(graph, work, num_free, per_byte, int64(INSIDE))
        ticks = least_work_and_cut(graph, work, num_free, per_byte, int64(OUTSIDE))
        pool.give[state] = pool.high[state] - ticks
    if graph.passing == ADJACENT:
        _write_pulled(graph, pool, work, state)
        _write_pushed(graph, pool, work, state)
    elif graph.passing == RELAYED:
        _write_tensors(graph, pool, side, state)


@uncounted_inner
def _write_pulled(graph: UnitGraph, pool: StatePool, work: Workspace, state: int) -> None:
    """Writes the work that the adjacent rule pulls forward, chip by chip.

    One chip later, all readers of units inside and their ancestors are done; two chips later, their readers.
    """
    num_units = len(graph.unit_ticks)
    ticks = pool.low[state]
    size = int64(0)  # of work.free: units in pulling order
    for unit in range(num_units):
        work.is_taken[unit] = work.side[unit] == INSIDE
    for unit in range(num_units):
        if work.side[unit] != INSIDE:
            for e in range(graph.last_ptr[unit], graph.last_ptr[unit + 1]):
                if work.side[graph.last[e]] == INSIDE:
                    size = _take(work.free, work.is_taken, size, int32(unit))
    begin = int64(0)
    for word in range(pool.pulled.shape[1]):
        pool.pulled[state, word] = pool.inside[state, word]
    for step in range(MOST_STEPS):
        i = begin
        while i < size:
            unit = work.free[i]
            i += 1
            ticks += graph.unit_ticks[unit]
            for e in range(graph.predecessor_ptr[unit], graph.predecessor_ptr[unit + 1]):
                size = _take(work.free, work.is_taken, size, graph.predecessor[e])
            if step == 0:
                word = unit >> 6
                pool.pulled[state, word] |= int64(1) << (unit & 63)
                pool.last_inside[state] = max(pool.last_inside[state], word)
        pool.pulled_low[state, step] = ticks
        end = size
        for unit in work.free[begin:end]:
            for e in range(graph.next_ptr[unit], graph.next_ptr[unit + 1]):
                size = _take(work.free, work.is_taken, size, graph.next[e])
        begin = end


@uncounted_inner
def _write_pushed(graph: UnitGraph, pool: StatePool, work: Workspace, state: int) -> None:
    """The same backwards: one chip earlier, producers of units outside (and descendants) are outside."""
    num_units = len(graph.unit_ticks)
    ticks = pool.high[state]
    size = int64(0)
    for unit in range(num_units):
        work.is_taken[unit] = work.side[unit] == OUTSIDE
    for unit in range(num_units):
        if work.side[unit] == OUTSIDE:
            for e in range(graph.last_ptr[unit], graph.last_ptr[unit + 1]):
                size = _take(work.free, work.is_taken, size, graph.last[e])
    begin = int64(0)
    for step in range(MOST_STEPS):
        i = begin
        while i < size:
            unit = work.free[i]
            i += 1
            ticks -= graph.unit_ticks[unit]
            for e in range(graph.successor_ptr[unit], graph.successor_ptr[unit + 1]):
                size = _take(work.free, work.is_taken, size, graph.successor[e])
        pool.pushed_high[state, step] = ticks
        end = size
        for unit in work.free[begin:end]:
            for e in range(graph.last_ptr[unit], graph.last_ptr[unit + 1]):
                size = _take(work.free, work.is_taken, size, graph.last[e])
        begin = end


@uncounted_inner
def _take(units: IntArray, is_taken: BoolArray, size: int, unit: int) -> int:
    """Appends ``unit`` to ``units`` unless it was taken before; returns the new size."""
    if not is_taken[unit]:
        is_taken[unit] = True
        units[size] = unit
        size += 1
    return size


@uncounted_inner
def _write_tensors(graph: UnitGraph, pool: StatePool, side: CodeArray, state: int) -> None:
    """Writes ``crosses`` and ``ends``; a chip between two states relays ``crosses & ends`` of them."""
    for word in range(pool.ends.shape[1]):
        pool.crosses[state, word] = 0
        pool.ends[state, word] = 0
    for k in range(len(graph.tensor_bytes)):
        if graph.relay_ticks[k] == 0:
            continue
        is_read_outside = False
        is_read_inside = True
        for r in range(graph.reader_ptr[k + 1] - 1, graph.reader_ptr[k] - 1, -1):
            is_read_outside |= side[graph.reader[r]] == OUTSIDE
            is_read_inside &= side[graph.reader[r]] == INSIDE
        word = k >> 6
        if is_read_outside:
            pool.ends[state, word] |= int64(1) << (k & 63)
        if side[graph.tensor_producer[k]] == INSIDE and not is_read_inside:
            pool.crosses[state, word] |= int64(1) << (k & 63)
