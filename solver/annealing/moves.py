"""Moves of annealing: units to other chips, and what must go with them.

A unit that goes up pushes its readers so that none falls behind, and where no tensor may
pass a chip it pulls what it reads so that none is left two chips behind; down, the other
way round. The least such closure is what :func:`close` finds: chips are a system of
difference constraints, so going on until nothing is violated is enough.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import njit

from go_opt.solver.annealing.columns import (
    CHIP,
    FIRST,
    FOLLOWING,
    GOAL,
    HIGH,
    IS_MOVING,
    IS_WAITING,
    LAST,
    LOW,
    MOVING,
    NO_SKIP,
    NONE,
    PASSING,
    PRECEDING,
    PREDECESSORS,
    SECONDS,
    SIZES,
    SUCCESSORS,
    UNITS,
    USED,
    WAITING,
)
from go_opt.solver.annealing.state import move_unit
from go_opt.solver.problem.passing import ADJACENT
from go_opt.solver.problem.problem import NO_SKIP_ALL, NO_SKIP_OFF

UP, DOWN = 1, -1
MOST_STEPS: Final = 64  # along a chip's units to the one that is wanted
# Shares of moves: at the chip or link that binds; of these, by a unit of each of some chips;
# of all others, to the chip of a neighbour where that may be far; with one that goes the other way.
AT_BINDING: Final = 0.5
RIPPLES: Final = 0.2
JUMPS: Final = 0.2
SWAPS: Final = 0.1
FEW_UNITS: Final = 8  # that most moves may take along,
MANY_UNITS: Final = 64  # … and the others
MANY: Final = 0.05


@njit(cache=True, nogil=True)
def want(units, lists, numbers, unit, goal):
    """Ask for ``unit`` to go to chip ``goal``."""
    units[unit, GOAL] = goal
    if units[unit, IS_MOVING] == 0:
        units[unit, IS_MOVING] = 1
        lists[MOVING, numbers[SIZES + MOVING]] = unit
        numbers[SIZES + MOVING] += 1
    if units[unit, IS_WAITING] == 0:
        units[unit, IS_WAITING] = 1
        lists[WAITING, numbers[SIZES + WAITING]] = unit
        numbers[SIZES + WAITING] += 1


@njit(cache=True, nogil=True)
def close(units, entries, tensors, readers_on, chips, lists, numbers, allowed, direction, most):
    """Move the wanted units and their closure; False, and nothing moved, where that cannot be.

    All go in one ``direction``, to allowed chips, and no more than ``most`` units.
    """
    pushed, pulled = (SUCCESSORS, PREDECESSORS) if direction == UP else (PREDECESSORS, SUCCESSORS)
    is_adjacent = numbers[PASSING] == ADJACENT
    is_possible = True
    while numbers[SIZES + WAITING] > 0:
        numbers[SIZES + WAITING] -= 1
        unit = lists[WAITING, numbers[SIZES + WAITING]]
        units[unit, IS_WAITING] = 0
        goal = units[unit, GOAL]
        is_possible = is_possible and 0 <= goal < len(chips) and numbers[SIZES + MOVING] <= most
        is_possible = is_possible and (len(allowed) == 0 or allowed[unit, goal])
        if not is_possible:
            continue
        _push(units, entries, lists, numbers, unit, pushed, goal, direction)
        if is_adjacent:
            _push(units, entries, lists, numbers, unit, pulled, goal - direction, direction)
    for i in range(numbers[SIZES + MOVING]):
        unit = lists[MOVING, i]
        units[unit, IS_MOVING] = 0
        if is_possible:
            move_unit(units, entries, tensors, readers_on, chips, lists, numbers, unit, units[unit, GOAL])
    numbers[SIZES + MOVING] = 0
    return is_possible


@njit(cache=True, nogil=True)
def _push(units, entries, lists, numbers, unit, neighbours, limit, direction):
    """Neighbours that are not beyond ``limit`` yet go there."""
    for i in range(units[unit, neighbours], units[unit + 1, neighbours]):
        other = entries[i]
        chip = units[other, GOAL] if units[other, IS_MOVING] else units[other, CHIP]
        if (limit - chip) * direction > 0:
            want(units, lists, numbers, other, limit)


@njit(cache=True, nogil=True)
def is_gapless(chips, numbers):
    """Whether chips are used as the no-skip rule asks, if they were before the last move."""
    if numbers[NO_SKIP] == NO_SKIP_OFF:
        return True
    used = numbers[USED]
    if numbers[NO_SKIP] == NO_SKIP_ALL and used < len(chips):
        return False
    for chip in range(numbers[LOW], numbers[HIGH] + 1):
        is_used = chips[chip, UNITS] > 0
        if is_used != (chip < used):
            return False
    return True


@njit(cache=True, nogil=True)
def unit_near_end(units, chips, chip, direction, share):
    """A unit of ``chip``, ``share`` of the way from the end that faces ``direction``, or NONE."""
    unit = chips[chip, LAST] if direction == UP else chips[chip, FIRST]
    for _ in range(int(share * min(chips[chip, UNITS], MOST_STEPS))):
        unit = units[unit, PRECEDING] if direction == UP else units[unit, FOLLOWING]
    return unit


@njit(cache=True, nogil=True)
def shift_chips(
    units, entries, tensors, readers_on, chips, lists, numbers, allowed, begin, end, share, direction
):
    """Everything on chips ``begin`` … ``end - 1`` goes one chip on, and a share of the chip behind.

    Up, the chip behind is ``begin - 1`` and gives its last units; down, it is ``end`` and gives
    its first. So one chip is split, and at the far end two become one.
    """
    for chip in range(begin, end):
        unit = chips[chip, FIRST]
        while unit != NONE:
            want(units, lists, numbers, unit, chip + direction)
            unit = units[unit, FOLLOWING]
    behind = begin - 1 if direction == UP else end
    if 0 <= behind < len(chips):
        unit = chips[behind, LAST] if direction == UP else chips[behind, FIRST]
        for _ in range(int(share * chips[behind, UNITS])):
            want(units, lists, numbers, unit, behind + direction)
            unit = units[unit, PRECEDING] if direction == UP else units[unit, FOLLOWING]
    return close(units, entries, tensors, readers_on, chips, lists, numbers, allowed, direction, len(units))


@njit(cache=True, nogil=True)
def propose(units, entries, tensors, readers_on, chips, lists, numbers, terms, allowed, rng):
    """Move something, or nothing where what was drawn cannot move."""
    num_units = len(units) - 1
    if rng.random() * num_units < 1.0:  # it costs as many moves
        _move_chips(units, entries, tensors, readers_on, chips, lists, numbers, terms, allowed, rng)
        return
    direction = UP if rng.random() < 0.5 else DOWN
    if rng.random() < AT_BINDING:
        chip = _binding_chip(terms, len(chips), numbers[USED], rng.random())
        if rng.random() < RIPPLES:
            _ripple(units, entries, tensors, readers_on, chips, lists, numbers, allowed, chip, direction, rng)
            return
        unit = unit_near_end(units, chips, chip, direction, rng.random())
        if unit == NONE:
            return
    else:
        unit = int(rng.random() * num_units)
    goal = units[unit, CHIP] + direction
    if numbers[PASSING] != ADJACENT and rng.random() < JUMPS:
        goal = _neighbour_chip(units, entries, unit, rng.random())
        if goal == units[unit, CHIP]:
            return
        direction = UP if goal > units[unit, CHIP] else DOWN
    most = MANY_UNITS if rng.random() < MANY else FEW_UNITS
    want(units, lists, numbers, unit, goal)
    if not close(units, entries, tensors, readers_on, chips, lists, numbers, allowed, direction, most):
        return
    if rng.random() < SWAPS:
        # A swap: something else goes the other way.
        other = unit_near_end(units, chips, goal, -direction, rng.random())
        if other != NONE and other != unit:
            want(units, lists, numbers, other, goal - direction)
            close(units, entries, tensors, readers_on, chips, lists, numbers, allowed, -direction, most)


@njit(cache=True, nogil=True)
def _binding_chip(terms, num_chips, used, draw):
    """A chip at the largest term: of a link one of both ends, of the host's links any."""
    binding = 0
    for term in range(2 * num_chips + 1):
        if terms[SECONDS, term] > terms[SECONDS, binding]:
            binding = term
    if binding < num_chips:
        return binding
    if binding < 2 * num_chips:
        return min(binding - num_chips + int(2.0 * draw), num_chips - 1)
    return int(draw * used)


@njit(cache=True, nogil=True)
def _neighbour_chip(units, entries, unit, draw):
    """The chip of a unit that reads from ``unit``, or that it reads."""
    begin, end = units[unit, SUCCESSORS], units[unit + 1, SUCCESSORS]
    first, last = units[unit, PREDECESSORS], units[unit + 1, PREDECESSORS]
    i = int(draw * (end - begin + last - first))
    if begin == end and first == last:
        return units[unit, CHIP]
    return units[entries[begin + i if i < end - begin else first + i - (end - begin)], CHIP]


@njit(cache=True, nogil=True)
def _ripple(units, entries, tensors, readers_on, chips, lists, numbers, allowed, chip, direction, rng):
    """A unit of each of a few consecutive chips goes to the next."""
    for _ in range(2 + int(rng.random() * rng.random() * 10)):
        if not 0 <= chip < len(chips):
            break
        unit = unit_near_end(units, chips, chip, direction, 0.0)
        if unit == NONE:
            break
        want(units, lists, numbers, unit, chip + direction)
        chip += direction
    close(
        units, entries, tensors, readers_on, chips, lists, numbers, allowed, direction, np.int64(MANY_UNITS)
    )


@njit(cache=True, nogil=True)
def _move_chips(units, entries, tensors, readers_on, chips, lists, numbers, terms, allowed, rng):
    """Split a chip, the binding one by preference, and merge two elsewhere or use one more."""
    used = numbers[USED]
    chip = min(_binding_chip(terms, len(chips), used, rng.random()), used - 1)
    if rng.random() < 0.3:
        chip = int(rng.random() * used)
    other = int(rng.random() * (used + 1))
    share = rng.random()
    begin, end, direction = (chip + 1, other, UP) if other > chip else (other + 1, chip, DOWN)
    if other == chip:
        end, share = used, 0.0
    shift_chips(
        units, entries, tensors, readers_on, chips, lists, numbers, allowed, begin, end, share, direction
    )
