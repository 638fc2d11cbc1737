"""States of the refinement: intervals of down-sets that can be split in two.

A state is the set of down-sets between the units forced in, ``inside`` (closed under ancestors),
and the complement of those forced out, ``outside`` (closed under descendants). It stores the
range of their work and a lower bound on their cut. Splitting at a free unit v forces v with its
ancestors in, or v with its descendants out; each down-set is in exactly one of the two halves.

Where a chain is not yet a placement, its states are split. A chain ``s_0, s_1, …`` is compatible only
between neighbours. The *context* of s_i is the units that earlier states force in and the units that later
states force out. A unit forced both ways proves that the chain contains no placement, so the state is split
at such a unit. Otherwise, if the context decides most of the free work, the state is split at a unit that
the context decides. If not, it is split where the free work is divided most evenly.

Axes: ``S`` states, ``W`` words of a set of units, ``X`` words of a set of tensors; unit u is
bit ``u % 64`` of word ``u // 64``.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, CodeArray, IntArray, LongArray, allocated
from go_opt.common.compiling import int64, uncounted, uncounted_inner
from go_opt.solver.certify.min_cut import (
    FREE,
    INSIDE,
    OUTSIDE,
    Workspace,
    least_work_and_cut,
    min_cut,
)
from go_opt.solver.certify.problem import MOST_TICKS, UnitGraph
from go_opt.solver.problem.forwarding_mode import ADJACENT, RELAYED

MOST_CANDIDATES: Final = 48  # units tried per split, evenly spread; fewer than twice as many
# Under the adjacent rule, states bound the work this many chips earlier and later.
MOST_STEPS: Final = 4
NOTHING, EVERYTHING, ANYTHING = range(3)  # the first states


class StatePool(NamedTuple):
    """All states, in order of creation."""

    inside: Annotated[LongArray, "S, W"]
    outside: Annotated[LongArray, "S, W"]
    pulled: Annotated[LongArray, "S, A"]  # adjacent: inside with its readers and their ancestors
    last_inside: Annotated[IntArray, "S"]  # last word of inside (adjacent: pulled) that is not zero
    first_outside: Annotated[IntArray, "S"]  # first word of outside that is not zero
    low: Annotated[LongArray, "S"]  # least work of a down-set of the state
    high: Annotated[LongArray, "S"]  # most work of a down-set of the state
    pulled_low: Annotated[LongArray, "S, P"]  # adjacent: least work done 1, 2, … chips later
    pushed_high: Annotated[LongArray, "S, P"]  # adjacent: most work done 1, 2, … chips earlier
    cut: Annotated[LongArray, "S"]  # lower bound on the cut's ticks
    cut_bytes: Annotated[LongArray, "S"]  # lower bound on the cut's bytes
    need: Annotated[LongArray, "S"]  # without overlap: lower bound on work plus cut
    give: Annotated[LongArray, "S"]  # without overlap: upper bound on work minus cut
    num_free: Annotated[IntArray, "S"]  # 0: a single down-set
    crosses: Annotated[LongArray, "S, X"]  # relayed: tensors produced inside, with a reader not inside
    ends: Annotated[LongArray, "S, X"]  # relayed: tensors read outside
    num_states: Annotated[LongArray, "1"]


def state_pool(graph: UnitGraph, capacity: int) -> StatePool:
    """Returns a pool for ``capacity`` states with the first three: nothing, everything, any down-set."""
    words = (graph.num_units + 63) // 64
    tensor_words = (len(graph.tensor_bytes) + 63) // 64 if graph.forwarding == RELAYED else 0
    is_adjacent = graph.forwarding == ADJACENT
    pool = allocated(
        StatePool,
        {"S": capacity, "W": words, "X": tensor_words}
        | {"A": words if is_adjacent else 0, "P": MOST_STEPS if is_adjacent else 0},
        num_states=np.full(1, 3, np.int64),
    )
    all_units = _packed(np.ones(graph.num_units, np.bool_), words)
    total = int(graph.unit_ticks.sum())
    pool.outside[NOTHING] = pool.inside[EVERYTHING] = all_units
    if graph.forwarding == ADJACENT:
        pool.pulled[EVERYTHING] = all_units
    elif graph.forwarding == RELAYED:
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
    if graph.forwarding == ADJACENT:
        for word in range(pool.pulled.shape[1]):
            pool.pulled[state, word] = pool.inside[state, word]
        _write_steps(graph, pool, work, state, True)
        _write_steps(graph, pool, work, state, False)
    elif graph.forwarding == RELAYED:
        _write_tensors(graph, pool, side, state)


@uncounted_inner
def _write_steps(graph: UnitGraph, pool: StatePool, work: Workspace, state: int, is_pulled: bool) -> None:
    """Writes the work that the adjacent rule pulls forward, chip by chip, or pushes back.

    One chip later, all readers of units inside and their ancestors are done; two chips later, their readers.
    One chip earlier, producers of units outside (and descendants) are outside.
    """
    num_units = len(graph.unit_ticks)
    near_ptr, near = (graph.next_ptr, graph.next) if is_pulled else (graph.last_ptr, graph.last)
    with_ptr, with_it = graph.predecessor_ptr, graph.predecessor
    if not is_pulled:
        with_ptr, with_it = graph.successor_ptr, graph.successor
    side = INSIDE if is_pulled else OUTSIDE
    ticks = pool.low[state] if is_pulled else pool.high[state]
    size = int64(0)  # of work.free: units in the order in which they are taken
    for unit in range(num_units):
        work.is_taken[unit] = work.side[unit] == side
    for unit in range(num_units):
        if work.side[unit] == side:
            for e in range(near_ptr[unit], near_ptr[unit + 1]):
                size = _take(work.free, work.is_taken, size, near[e])
    begin = int64(0)
    for step in range(MOST_STEPS):
        i = begin
        while i < size:
            unit = work.free[i]
            i += 1
            ticks += graph.unit_ticks[unit] if is_pulled else -graph.unit_ticks[unit]
            for e in range(with_ptr[unit], with_ptr[unit + 1]):
                size = _take(work.free, work.is_taken, size, with_it[e])
            if is_pulled and step == 0:
                word = unit >> 6
                pool.pulled[state, word] |= int64(1) << (unit & 63)
                pool.last_inside[state] = max(pool.last_inside[state], word)
        if is_pulled:
            pool.pulled_low[state, step] = ticks
        else:
            pool.pushed_high[state, step] = ticks
        end = size
        for unit in work.free[begin:end]:
            for e in range(near_ptr[unit], near_ptr[unit + 1]):
                size = _take(work.free, work.is_taken, size, near[e])
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


FORCED_IN, FORCED_OUT = np.int8(1), np.int8(2)  # bits of a context


@uncounted
def split_chain(
    graph: UnitGraph,
    pool: StatePool,
    work: Workspace,
    chain: IntArray,
    length: int,
    context: CodeArray,
    most_ticks: int,
) -> int:
    """Splits every state of ``chain`` that is not a single down-set; returns the number of splits.

    Writes ``context`` [D + 1, U]. The bound of a half's cut may stay loose beyond ``most_ticks``;
    no chain uses that half.
    """
    _write_context(graph, pool, work, chain, length, context)
    splits = 0
    for i in range(length):
        state = chain[i]
        is_new = pool.num_free[state] > 0
        for j in range(i):
            is_new &= chain[j] != state
        if is_new:
            _split_state(graph, pool, work, state, context[i], most_ticks)
            splits += 1
    return splits


@uncounted_inner
def _write_context(
    graph: UnitGraph, pool: StatePool, work: Workspace, chain: IntArray, length: int, context: CodeArray
) -> None:
    num_units = len(graph.unit_ticks)
    for i in range(length):
        read_sides(pool, chain[i], work.side)
        for unit in range(num_units):
            is_in = work.side[unit] == INSIDE
            if i > 0:
                is_in |= (context[i - 1, unit] & FORCED_IN) != 0
                if graph.forwarding == ADJACENT:
                    for e in range(graph.last_ptr[unit], graph.last_ptr[unit + 1]):
                        is_in |= (context[i - 1, graph.last[e]] & FORCED_IN) != 0
            context[i, unit] = FORCED_IN if is_in else 0
        _close(graph.successor_ptr, graph.successor, context[i], FORCED_IN)
    for i in range(length - 1, -1, -1):
        read_sides(pool, chain[i], work.side)
        for unit in range(num_units):
            is_out = work.side[unit] == OUTSIDE
            if i < length - 1:
                is_out |= (context[i + 1, unit] & FORCED_OUT) != 0
                if graph.forwarding == ADJACENT:
                    for e in range(graph.next_ptr[unit], graph.next_ptr[unit + 1]):
                        is_out |= (context[i + 1, graph.next[e]] & FORCED_OUT) != 0
            if is_out:
                context[i, unit] |= FORCED_OUT
        _close(graph.predecessor_ptr, graph.predecessor, context[i], FORCED_OUT)


@uncounted_inner
def _close(ptr: LongArray, neighbour: IntArray, context: CodeArray, forced: int) -> None:
    """Forces the neighbours of forced units: ancestors of units in, descendants of units out."""
    num_units = len(context)
    for i in range(num_units):
        unit = num_units - 1 - i if forced == FORCED_IN else i
        for e in range(ptr[unit], ptr[unit + 1]):
            context[unit] |= context[neighbour[e]] & forced


@uncounted_inner
def _split_state(
    graph: UnitGraph, pool: StatePool, work: Workspace, state: int, context: CodeArray, most_ticks: int
) -> None:
    """Replaces ``state`` by its half with the pivot in; appends the half with the pivot out."""
    read_sides(pool, state, work.side)
    pivot = _pivot(graph, work, context)
    cut_bytes = pool.cut_bytes[state]
    enough_bytes = int64(2) ** 60
    if graph.ticks_per_byte > 0:
        enough_bytes = int64(min(np.float64(enough_bytes), most_ticks / graph.ticks_per_byte + 2.0))
    _spread(graph.successor_ptr, graph.successor, graph.unit_ticks, work, pivot)
    _set_marked(work, OUTSIDE)
    other = pool.num_states[0]
    pool.num_states[0] += 1
    write_state(graph, pool, work, other, cut_bytes, enough_bytes)
    read_sides(pool, state, work.side)
    _spread(graph.predecessor_ptr, graph.predecessor, graph.unit_ticks, work, pivot)
    _set_marked(work, INSIDE)
    write_state(graph, pool, work, int64(state), cut_bytes, enough_bytes)


@uncounted_inner
def _pivot(graph: UnitGraph, work: Workspace, context: CodeArray) -> int:
    """Returns the candidate unit that makes the wider half narrowest."""
    num_units = len(work.side)
    count, ticks = work.context_units, work.context_ticks
    for forced in range(4):
        count[forced] = 0
        ticks[forced] = 0
    for unit in range(num_units):
        if work.side[unit] == FREE:
            count[context[unit]] += 1
            ticks[context[unit]] += graph.unit_ticks[unit]
    width = ticks[0] + ticks[1] + ticks[2] + ticks[3]
    num_free = count[0] + count[1] + count[2] + count[3]
    decided_only = count[0] == 0 or ticks[1] + ticks[2] > ticks[0]
    num_candidates = 0
    for unit in range(num_units):
        if work.side[unit] != FREE:
            continue
        forced = context[unit]
        if count[3] > 0:
            is_candidate = forced == 3
        elif decided_only:
            is_candidate = forced != 0
        else:
            is_candidate = forced == 0
        if is_candidate:
            work.free[num_candidates] = unit
            num_candidates += 1
    # A unit counts slightly more than its work, so that units without work are split too.
    per_unit = (width + 1.0) / num_free * 0.25
    everything = width + num_free * per_unit
    stride = max(1, num_candidates // MOST_CANDIDATES)
    best = work.free[num_candidates // 2]
    best_left = np.inf
    for i in range((num_candidates % stride) // 2, num_candidates, stride):
        unit = work.free[i]
        before, units_before = _spread(graph.predecessor_ptr, graph.predecessor, graph.unit_ticks, work, unit)
        after, units_after = _spread(graph.successor_ptr, graph.successor, graph.unit_ticks, work, unit)
        left_in = everything - before - units_before * per_unit
        left_out = everything - after - units_after * per_unit
        left = max(left_in, left_out) + 1e-3 * min(left_in, left_out)
        if left < best_left:
            best_left = left
            best = unit
    return best


@uncounted_inner
def _spread(
    ptr: LongArray, neighbour: IntArray, unit_ticks: LongArray, work: Workspace, unit: int
) -> tuple[int, int]:
    """Marks ``unit`` and the free units reachable from it; returns their work and their number."""
    work.stamp[0] += 1
    stamp = work.stamp[0]
    work.mark[unit] = stamp
    work.stack[0] = unit
    size = 1
    ticks = int64(0)
    units = 0
    while size > 0:
        size -= 1
        at = work.stack[size]
        ticks += unit_ticks[at]
        units += 1
        for i in range(ptr[at], ptr[at + 1]):
            to = neighbour[i]
            if work.side[to] == FREE and work.mark[to] != stamp:
                work.mark[to] = stamp
                work.stack[size] = to
                size += 1
    return ticks, units


@uncounted_inner
def _set_marked(work: Workspace, side: int) -> None:
    stamp = work.stamp[0]
    for unit in range(len(work.side)):
        if work.mark[unit] == stamp:
            work.side[unit] = side
