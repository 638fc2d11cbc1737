"""Chooses where to split the states of a chain that is not yet a placement.

A chain ``s_0, s_1, …`` is compatible only between neighbours. The *context* of s_i is the units
that earlier states force in and the units that later states force out. A unit forced both ways
proves that the chain contains no placement, so the state is split at such a unit. Otherwise, if
the context decides most of the free work, the state is split at a unit that the context decides.
If not, it is split where the free work is divided most evenly.
"""

from __future__ import annotations

import numpy as np

from go_opt.common.arrays import CodeArray, IntArray, LongArray
from go_opt.common.compiling import int64, uncounted, uncounted_inner
from go_opt.solver.certify.problem.problem import UnitGraph
from go_opt.solver.certify.states.min_cut import FREE, INSIDE, OUTSIDE, Workspace
from go_opt.solver.certify.states.states import MOST_CANDIDATES, StatePool, read_sides, write_state
from go_opt.solver.problem.forwarding_mode import ADJACENT

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
                if graph.passing == ADJACENT:
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
                if graph.passing == ADJACENT:
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
