"""The state of annealing: a placement of units with every load it causes, kept up to date.

Moving a unit costs O(its tensors). A tensor with home chip h and farthest reader chip f
stands in the *span* h … f - 1: it loads these links, and unless tensors pass for nothing
every chip of h … f holds it in a double buffer, and those between relay it. Spans are
signed, so that they stay right while a reader waits to be moved behind its producer.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from go_opt.solver.annealing.columns import (
    BEST,
    CHIP,
    COMPUTE,
    FARTHEST,
    FIRST,
    FOLLOWING,
    FROM_HOST,
    HELD,
    HIGH,
    HOME,
    HOST_IN,
    HOST_OUT,
    INSIDE,
    IS_OUTPUT,
    IS_WEIGHT,
    KIND,
    LAST,
    LINK,
    LOG_CHIP,
    LOG_UNIT,
    LOW,
    MOVING,
    NONE,
    PASSING,
    PLACE,
    PRECEDING,
    READERS,
    READS,
    RELAYED,
    RELAYS,
    ROW,
    SIZE,
    SIZES,
    STORED,
    TICKS,
    UNITS,
    USED,
    WEIGHTS,
    WRITES,
)
from go_opt.solver.problem.passing import FREE


@njit(cache=True, nogil=True)
def place_all(units, entries, tensors, readers_on, chips, lists, numbers):
    """Place units, all on chip 0, as in the best placement; every chip is to be priced."""
    for i in range(len(units) - 2, -1, -1):
        unit = lists[MOVING, i]
        place_unit(units, entries, tensors, readers_on, chips, numbers, unit, units[unit, BEST])
    numbers[LOW], numbers[HIGH] = 0, len(chips) - 1


@njit(cache=True, nogil=True)
def move_unit(units, entries, tensors, readers_on, chips, lists, numbers, unit, chip):
    """Place ``unit`` on ``chip`` so that it can be taken back."""
    n = numbers[SIZES + LOG_UNIT]
    lists[LOG_UNIT, n] = unit
    lists[LOG_CHIP, n] = units[unit, CHIP]
    numbers[SIZES + LOG_UNIT] = n + 1
    place_unit(units, entries, tensors, readers_on, chips, numbers, unit, chip)


@njit(cache=True, nogil=True)
def take_back(units, entries, tensors, readers_on, chips, lists, numbers):
    """Undo every move in the log."""
    for i in range(numbers[SIZES + LOG_UNIT] - 1, -1, -1):
        place_unit(
            units, entries, tensors, readers_on, chips, numbers, lists[LOG_UNIT, i], lists[LOG_CHIP, i]
        )
    numbers[SIZES + LOG_UNIT] = 0


@njit(cache=True, nogil=True)
def place_unit(units, entries, tensors, readers_on, chips, numbers, unit, chip):
    """Place ``unit`` on ``chip``, whatever the rules say, and keep every load up to date."""
    source = units[unit, CHIP]
    if source == chip:
        return
    passing = numbers[PASSING]
    more, less = np.int64(1), np.int64(-1)  # literals would compile twice
    low, high = min(source, chip), max(source, chip)
    _link_out(units, chips, unit, source)
    _link_in(units, chips, unit, chip, chip < source)
    chips[source, COMPUTE] -= units[unit, TICKS + chips[source, KIND]]
    chips[chip, COMPUTE] += units[unit, TICKS + chips[chip, KIND]]
    chips[source, UNITS] -= 1
    chips[chip, UNITS] += 1
    numbers[USED] += chips[chip, UNITS] == 1
    numbers[USED] -= chips[source, UNITS] == 0
    for i in range(units[unit, READS], units[unit + 1, READS]):
        tensor = entries[i]
        size, home, row = tensors[tensor, SIZE], tensors[tensor, HOME], tensors[tensor, ROW]
        stored = tensors[tensor, STORED]
        far = tensors[tensor, FARTHEST]
        has_left, has_come, farthest = 1, 1, chip
        if row != NONE:
            readers_on[row + source] -= 1
            readers_on[row + chip] += 1
            has_left = 1 if readers_on[row + source] == 0 else 0
            has_come = 1 if readers_on[row + chip] == 1 else 0
            farthest = max(far, chip)
            while readers_on[row + farthest] == 0:
                farthest -= 1
        tensors[tensor, FARTHEST] = farthest
        if home == IS_WEIGHT:
            chips[source, WEIGHTS] -= stored * has_left
            chips[chip, WEIGHTS] += stored * has_come
        elif home == FROM_HOST:
            chips[source, HELD] -= 2 * stored * has_left
            chips[source, HOST_IN] -= size * has_left
            chips[chip, HELD] += 2 * stored * has_come
            chips[chip, HOST_IN] += size * has_come
        else:
            home_chip = units[home, CHIP]
            if passing == FREE and source != home_chip:
                chips[source, HELD] -= 2 * stored * has_left
            if passing == FREE and chip != home_chip:
                chips[chip, HELD] += 2 * stored * has_come
            if farthest != far:
                is_output = tensors[tensor, IS_OUTPUT]
                _add_ends(chips, passing, home_chip, far, -size, -stored, is_output, less)
                _add_span(chips, passing, far, farthest, size, stored, more)
                _add_ends(chips, passing, home_chip, farthest, size, stored, is_output, more)
                low, high = min(low, farthest), max(high, farthest)
                if far <= home_chip or farthest <= home_chip:
                    low, high = min(low, home_chip), max(high, home_chip)
    for i in range(units[unit, WRITES], units[unit + 1, WRITES]):
        tensor = entries[i]
        size, stored, is_output = tensors[tensor, SIZE], tensors[tensor, STORED], tensors[tensor, IS_OUTPUT]
        chips[source, HOST_OUT] -= size * is_output
        chips[chip, HOST_OUT] += size * is_output
        if tensors[tensor, READERS] == 0:
            _add_ends(chips, passing, source, source, -size, -stored, is_output, less)
            _add_ends(chips, passing, chip, chip, size, stored, is_output, more)
            continue
        far = tensors[tensor, FARTHEST]
        if passing == FREE:
            chips[source, HELD] += 2 * stored * _is_read_on(tensors, readers_on, tensor, source)
            chips[chip, HELD] -= 2 * stored * _is_read_on(tensors, readers_on, tensor, chip)
        _add_ends(chips, passing, source, far, -size, -stored, is_output, less)
        _add_span(chips, passing, source, chip, -size, -stored, less)
        _add_ends(chips, passing, chip, far, size, stored, is_output, more)
        if far <= source or far <= chip:
            low, high = min(low, far), max(high, far)
    units[unit, CHIP] = chip
    numbers[LOW] = min(numbers[LOW], low)
    numbers[HIGH] = max(numbers[HIGH], high)


@njit(cache=True, nogil=True)
def _link_out(units, chips, unit, chip):
    before, after = units[unit, PRECEDING], units[unit, FOLLOWING]
    if before == NONE:
        chips[chip, FIRST] = after
    else:
        units[before, FOLLOWING] = after
    if after == NONE:
        chips[chip, LAST] = before
    else:
        units[after, PRECEDING] = before


@njit(cache=True, nogil=True)
def _link_in(units, chips, unit, chip, from_behind):
    """Units keep the order on a chip; the search for the place starts where it most likely is."""
    place = units[unit, PLACE]
    before, after = np.int64(NONE), np.int64(NONE)
    if from_behind:
        before = chips[chip, LAST]
        while before != NONE and units[before, PLACE] > place:
            after = before
            before = units[before, PRECEDING]
    else:
        after = chips[chip, FIRST]
        while after != NONE and units[after, PLACE] < place:
            before = after
            after = units[after, FOLLOWING]
    units[unit, PRECEDING] = before
    units[unit, FOLLOWING] = after
    if before == NONE:
        chips[chip, FIRST] = unit
    else:
        units[before, FOLLOWING] = unit
    if after == NONE:
        chips[chip, LAST] = unit
    else:
        units[after, PRECEDING] = unit


@njit(cache=True, nogil=True)
def _is_read_on(tensors, readers_on, tensor, chip):
    row = tensors[tensor, ROW]
    if row == NONE:
        return 1 if tensors[tensor, FARTHEST] == chip else 0
    return 1 if readers_on[row + chip] > 0 else 0


@njit(cache=True, nogil=True)
def _add_span(chips, passing, begin, end, size, stored, count):
    """Chips from ``begin`` to before ``end`` pass ``size`` on; taken away where end < begin."""
    if end < begin:
        begin, end, size, stored, count = end, begin, -size, -stored, -count
    for chip in range(begin, end):
        chips[chip, LINK] += size
        if passing != FREE:
            chips[chip, HELD] += 2 * stored
            chips[chip, RELAYED] += size
            chips[chip, RELAYS] += count


@njit(cache=True, nogil=True)
def _add_ends(chips, passing, home, far, size, stored, is_output, count):
    """What depends on the ends of a span alone: the home relays nothing, the last chip holds it too."""
    if far > home and passing != FREE:
        chips[home, RELAYED] -= size
        chips[home, RELAYS] -= count
        chips[far, HELD] += 2 * stored
    elif far > home or is_output:
        chips[home, HELD] += 2 * stored
    else:
        chips[home, INSIDE] += stored
