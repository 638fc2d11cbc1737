"""Least bytes streamed by chips between two down-sets (:mod:`go_opt.solver.certify.build`)."""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

import numpy as np

from go_opt.common.arrays import IntArray, LongArray, allocated
from go_opt.common.compiling import int64, uncounted, uncounted_inner
from go_opt.solver.certify.problem import NEVER_FITS, UnitGraph
from go_opt.solver.certify.states import StatePool

CACHE_SIZE: Final = 2**17  # pairs of states
UNKNOWN: Final = -1
PAIR, THEN_FREE, STREAMED, RESIDENT = range(4)  # columns of ``known``, adjacent for the CPU cache


class FitScratch(NamedTuple):
    """Scratch and cached results of :func:`least_streamed_on_chip`. Axes as in ``UnitGraph``."""

    stamp: Annotated[LongArray, "1"]
    seen_tensor: Annotated[LongArray, "K"]  # stamp of the last pair that counted it
    seen_input: Annotated[LongArray, "I"]
    seen_weight: Annotated[LongArray, "G"]
    dies: Annotated[LongArray, "U"]  # stamp of the last pair in which something …
    dying_bytes: Annotated[LongArray, "U"]  # … is alive up to and with this unit
    known: Annotated[LongArray, "C, 4"]  # pairs of states, their free units then, streamed and resident bytes
    weighed: Annotated[IntArray, "S"]  # free units of each state when its weights were summed
    low_bytes: Annotated[LongArray, "S"]  # weights that its smallest down-set reads
    high_bytes: Annotated[LongArray, "S"]  # weights that its largest down-set reads


def fit_scratch(graph: UnitGraph, capacity: int = 0) -> FitScratch:
    """Returns fresh scratch for ``capacity`` states of ``graph``."""
    size = CACHE_SIZE if graph.counts_memory else 0
    return allocated(
        FitScratch,
        {"K": len(graph.enter_bytes), "I": len(graph.input_bytes), "G": len(graph.stored_bytes)}
        | {"U": graph.num_units, "S": capacity},
        known=np.full((size, 4), UNKNOWN, np.int64),
        weighed=np.full(capacity, UNKNOWN, np.int32),
    )


@uncounted_inner
def weigh(graph: UnitGraph, pool: StatePool, scratch: FitScratch, state: int) -> None:
    """Updates ``low_bytes`` and ``high_bytes`` of ``state`` if it was split since the last call."""
    if scratch.weighed[state] != pool.num_free[state]:
        scratch.weighed[state] = pool.num_free[state]
        scratch.low_bytes[state] = _weight_bytes(graph, scratch, pool.inside[state], int64(1))
        scratch.high_bytes[state] = _weight_bytes(graph, scratch, pool.outside[state], int64(0))


@uncounted_inner
def _weight_bytes(graph: UnitGraph, scratch: FitScratch, units: LongArray, bit: int) -> int:
    """Returns the stored bytes of weights read by the units whose bit in ``units`` [W] is ``bit``."""
    scratch.stamp[0] += 1
    stamp = scratch.stamp[0]
    total = int64(0)
    for unit in range(len(graph.unit_ticks)):
        if ((units[unit >> 6] >> (unit & 63)) & 1) == bit:
            for i in range(graph.weight_ptr[unit], graph.weight_ptr[unit + 1]):
                weight = graph.weight[i]
                if scratch.seen_weight[weight] != stamp:
                    scratch.seen_weight[weight] = stamp
                    total += graph.stored_bytes[weight]
    return total


@uncounted_inner
def most_shed_bytes(graph: UnitGraph, spare: int) -> int:
    """Returns the most stored bytes of weights that stream in ``spare`` touched bytes; parts count."""
    shed = int64(0)
    for weight in range(len(graph.stored_bytes)):
        touched, stored = graph.touched_bytes[weight], graph.stored_bytes[weight]
        if stored > 0 and touched > spare:
            return shed + int64(np.ceil(stored * (spare / touched)))
        if stored > 0:
            spare -= touched
            shed += stored
    return shed


@uncounted_inner
def known_streamed(
    graph: UnitGraph, pool: StatePool, scratch: FitScratch, state: int, after: int
) -> tuple[int, int]:
    """Returns cached streamed bytes of :func:`least_streamed_on_chip`, and the most resident weight bytes.

    Splitting changes a state: it then has fewer free units, and forces more units in or out.
    """
    pair = int64(state) << 32 | after
    free = int64(pool.num_free[state]) << 32 | pool.num_free[after]
    known = scratch.known
    at = (int64(state) * 40503 + after) & (CACHE_SIZE - 1)
    if known[at, PAIR] == pair and (known[at, THEN_FREE] == free or known[at, STREAMED] == NEVER_FITS):
        return known[at, STREAMED], known[at, RESIDENT]
    first, last = int64(pool.first_outside[state]), int64(pool.last_inside[after])
    streamed, active, stays = least_streamed_on_chip(
        graph, pool.inside, pool.outside, scratch, int64(state), int64(after), first, last
    )
    # Units that may also be on the chip can add their own weights.
    resident = stays if free == 0 else graph.chip.sram_bytes - active
    known[at, PAIR], known[at, THEN_FREE] = pair, free
    known[at, STREAMED], known[at, RESIDENT] = streamed, resident
    return streamed, resident


@uncounted
def least_streamed_on_chip(
    graph: UnitGraph,
    inside: LongArray,
    outside: LongArray,
    scratch: FitScratch,
    state: int,
    after: int,
    first_word: int,
    last_word: int,
) -> tuple[int, int, int]:
    """Returns bounds for any chip between a down-set of ``state`` and one of ``after``.

    These are the least streamed bytes, or NEVER_FITS; the least bytes besides weights; and the
    resident bytes of the weights that the chip certainly reads.
    """
    scratch.stamp[0] += 1
    stamp = scratch.stamp[0]
    held = int64(0)
    stored = int64(0)
    most = int64(0)  # alive in addition to ``held``
    carried = int64(0)
    always = int64(0)  # streamed in any case
    for word in range(first_word, last_word + 1):
        forced = inside[after, word] & outside[state, word]
        if forced == 0:
            continue
        for bit in range(min(64, len(graph.unit_ticks) - 64 * word)):
            if not (forced >> bit) & 1:
                continue
            unit = 64 * word + bit
            held += graph.output_bytes[unit]
            for i in range(graph.input_ptr[unit], graph.input_ptr[unit + 1]):
                tensor = graph.input[i]
                if scratch.seen_input[tensor] != stamp:
                    scratch.seen_input[tensor] = stamp
                    held += graph.input_bytes[tensor]
            for i in range(graph.weight_ptr[unit], graph.weight_ptr[unit + 1]):
                weight = graph.weight[i]
                if scratch.seen_weight[weight] != stamp:
                    scratch.seen_weight[weight] = stamp
                    if graph.stored_bytes[weight] == 0:
                        always += graph.touched_bytes[weight]
                        continue
                    stored += graph.stored_bytes[weight]
            alive = carried
            for k in range(graph.produced_ptr[unit], graph.produced_ptr[unit + 1]):
                if _leaves(graph, outside, after, k):
                    held += graph.leave_bytes[k]
                    continue
                alive += graph.made_bytes[k]
                last = _last_on_chip(graph, inside, outside, state, after, k) if graph.is_in_order else -1
                if last >= 0:
                    carried += graph.made_bytes[k]
                    if scratch.dies[last] != stamp:
                        scratch.dies[last] = stamp
                        scratch.dying_bytes[last] = 0
                    scratch.dying_bytes[last] += graph.made_bytes[k]
            for r in range(graph.read_ptr[unit], graph.read_ptr[unit + 1]):
                tensor = int64(graph.read[r])
                producer = graph.tensor_producer[tensor]
                is_made_before = (inside[state, producer >> 6] >> (producer & 63)) & 1
                is_made_here = not is_made_before and (outside[state, producer >> 6] >> (producer & 63)) & 1
                if is_made_here and graph.is_in_order:
                    continue
                comes_in = is_made_before and graph.enter_bytes[tensor] > 0
                leaves = not comes_in and _leaves(graph, outside, after, tensor)
                if comes_in or (leaves and not is_made_here):
                    # A producer before or on this chip: the tensor either enters or leaves it.
                    if scratch.seen_tensor[tensor] != stamp:
                        scratch.seen_tensor[tensor] = stamp
                        held += graph.enter_bytes[tensor] if is_made_before else graph.leave_bytes[tensor]
                elif not leaves:
                    alive += graph.read_bytes[r]
            alive += _alive_across(graph, inside, outside, state, after, unit)
            most = max(most, alive)
            if scratch.dies[unit] == stamp:
                carried -= scratch.dying_bytes[unit]
            if held + most > graph.chip.sram_bytes:
                return int64(NEVER_FITS), held + most, int64(0)
    streamed, left = _streamed(graph, scratch, held + most + stored - graph.chip.sram_bytes)
    return always + streamed, held + most, stored - left


@uncounted_inner
def _alive_across(
    graph: UnitGraph, inside: LongArray, outside: LongArray, state: int, after: int, unit: int
) -> int:
    """Returns bytes alive while ``unit`` runs, produced before it, read after it, and not in ``held``."""
    alive = int64(0)
    for i in range(graph.across_ptr[unit], graph.across_ptr[unit + 1]):
        k = int64(graph.across[i])
        producer = graph.tensor_producer[k]
        if (inside[state, producer >> 6] >> (producer & 63)) & 1:
            continue  # it enters if the reader is on the chip
        reader = graph.across_reader[i]
        is_made_here = (outside[state, producer >> 6] >> (producer & 63)) & 1
        is_read_here = ((inside[after, reader >> 6] & outside[state, reader >> 6]) >> (reader & 63)) & 1
        if (is_made_here or is_read_here) and not _leaves(graph, outside, after, k):
            alive += graph.across_bytes[k]
    return alive


@uncounted_inner
def _leaves(graph: UnitGraph, outside: LongArray, after: int, k: int) -> bool:
    """Returns whether a reader of ``k`` is certainly on a later chip; outputs do not count."""
    if graph.leave_bytes[k] > 0:
        for r in range(graph.reader_ptr[k + 1] - 1, graph.reader_ptr[k] - 1, -1):
            reader = graph.reader[r]
            if (outside[after, reader >> 6] >> (reader & 63)) & 1:
                return True
    return False


@uncounted_inner
def _last_on_chip(
    graph: UnitGraph, inside: LongArray, outside: LongArray, state: int, after: int, k: int
) -> int:
    """Returns the last reader of tensor ``k`` that is certainly on the chip, or -1."""
    for r in range(graph.reader_ptr[k + 1] - 1, graph.reader_ptr[k] - 1, -1):
        reader = graph.reader[r]
        if ((inside[after, reader >> 6] & outside[state, reader >> 6]) >> (reader & 63)) & 1:
            return reader
    return -1


@uncounted_inner
def _streamed(graph: UnitGraph, scratch: FitScratch, excess: int) -> tuple[int, int]:
    """Returns touched and stored bytes of seen weights that stream, in order, to free ``excess`` bytes.

    The last streams in part. If weights of unknown touched bytes stream, the stored bytes are the excess
    plus the buffer.
    """
    streamed = int64(0)
    left = int64(0)
    is_known = True
    if excess > 0:
        excess += graph.chip.stream_buffer_bytes
        for weight in range(len(graph.stored_bytes)):
            if scratch.seen_weight[weight] != scratch.stamp[0] or graph.stored_bytes[weight] == 0:
                continue
            streamed += graph.touched_bytes[weight]
            left += graph.stored_bytes[weight]
            is_known &= graph.touched_bytes[weight] > 0
            if left >= excess:
                streamed -= min(left - excess, graph.touched_bytes[weight])
                left = excess
                break
    return streamed, left if is_known else max(excess, int64(0))
