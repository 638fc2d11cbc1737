"""Moves of annealing: units to other chips, and what must go with them.

A unit that goes up pushes its readers so that none falls behind, and where no tensor may
pass a chip it pulls what it reads so that none is left two chips behind; down, the other
way round. The least such closure is what :func:`close` finds: chips are a system of
difference constraints, so going on until nothing is violated is enough.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from go_opt.common.arrays import RecordArray
from go_opt.common.compiling import int64, uncounted_inner
from go_opt.solver.annealing.records import NONE, AnnealingState
from go_opt.solver.annealing.state import move_unit
from go_opt.solver.problem.passing import ADJACENT
from go_opt.solver.problem.problem import NO_SKIP_ALL, NO_SKIP_OFF

# Arguments that are NumPy's integers: kernels are compiled again for every literal.
UP, DOWN = np.int64(1), np.int64(-1)
FEW_UNITS, MANY_UNITS = np.int64(8), np.int64(64)  # that most moves may take along, and the others
MANY: Final = 0.05
MOST_STEPS: Final = 64  # along a chip's units to the one that is wanted
# Shares of moves: at the chip or link that binds; of these, by a unit of each of some chips;
# of all others, to the chip of a neighbour where that may be far; with one that goes the other way.
AT_BINDING: Final = 0.5
RIPPLES: Final = 0.2
JUMPS: Final = 0.2
SWAPS: Final = 0.1


@uncounted_inner
def want(state: AnnealingState, number: int, goal: int) -> None:
    """Ask for a unit to go to chip ``goal``."""
    run, unit = state.run[0], state.units[number]
    unit.goal = goal
    if not unit.is_moving:
        unit.is_moving = 1
        state.lists[run.moving].moving = number
        run.moving += 1
    if not unit.is_waiting:
        unit.is_waiting = 1
        state.lists[run.waiting].waiting = number
        run.waiting += 1


@uncounted_inner
def close(state: AnnealingState, direction: int, most: int) -> bool:
    """Move the wanted units and their closure; False, and nothing moved, where that cannot be.

    All go in one ``direction``, to allowed chips, and no more than ``most`` units.
    """
    run = state.run[0]
    is_possible = True
    while run.waiting > 0:
        run.waiting -= 1
        number = state.lists[run.waiting].waiting
        unit = state.units[number]
        unit.is_waiting = 0
        goal = unit.goal
        is_possible = is_possible and 0 <= goal < len(state.chips) and run.moving <= most
        is_possible = is_possible and state.entries[unit.allowed + goal] != 0
        if not is_possible:
            continue
        behind = state.units[number + 1]
        pushed, pulled = (unit.successors, behind.successors), (unit.predecessors, behind.predecessors)
        if direction < 0:
            pushed, pulled = pulled, pushed
        _push(state, pushed, goal, direction)
        if run.passing == ADJACENT:
            _push(state, pulled, goal - direction, direction)
    for i in range(run.moving):
        number = state.lists[i].moving
        state.units[number].is_moving = 0
        if is_possible:
            move_unit(state, number, state.units[number].goal)
    run.moving = 0
    return is_possible


@uncounted_inner
def _push(state: AnnealingState, neighbours: tuple[int, int], limit: int, direction: int) -> None:
    """Neighbours that are not beyond ``limit`` yet go there."""
    for i in range(neighbours[0], neighbours[1]):
        other = state.units[state.entries[i]]
        chip = other.goal if other.is_moving else other.chip
        if (limit - chip) * direction > 0:
            want(state, state.entries[i], limit)


@uncounted_inner
def is_gapless(state: AnnealingState) -> bool:
    """Whether chips are used as the no-skip rule asks, if they were before the last move."""
    run = state.run[0]
    if run.no_skip == NO_SKIP_OFF:
        return True
    if run.no_skip == NO_SKIP_ALL and run.used < len(state.chips):
        return False
    for chip in range(run.low, run.high + 1):
        is_used = state.chips[chip].units > 0
        if is_used != (chip < run.used):
            return False
    return True


@uncounted_inner
def _unit_near_end(state: AnnealingState, chip: int, direction: int, share: float) -> int:
    """A unit of ``chip``, ``share`` of the way from the end that faces ``direction``, or NONE."""
    unit = state.chips[chip].last if direction > 0 else state.chips[chip].first
    for _ in range(int(share * min(state.chips[chip].units, MOST_STEPS))):
        unit = state.units[unit].preceding if direction > 0 else state.units[unit].following
    return unit


@uncounted_inner
def _want_share(state: AnnealingState, chip: int, direction: int, share: float) -> None:
    """Ask for a share of the units of ``chip`` to go to the next."""
    unit = state.chips[chip].last if direction > 0 else state.chips[chip].first
    for _ in range(int(share * state.chips[chip].units)):
        want(state, unit, chip + direction)
        unit = state.units[unit].preceding if direction > 0 else state.units[unit].following


@uncounted_inner
def propose(state: AnnealingState, terms: RecordArray, rng: np.random.Generator) -> None:
    """Move something, or nothing where what was drawn cannot move."""
    run, num_units = state.run[0], len(state.units) - 1
    if rng.random() * num_units < 1.0:  # it costs as many moves
        _move_chips(state, terms, rng)
        return
    direction = UP if rng.random() < 0.5 else DOWN
    if rng.random() < AT_BINDING:
        chip = _binding_chip(state, terms, rng.random())
        if rng.random() < RIPPLES:
            _ripple(state, chip, direction, rng)
            return
        unit = _unit_near_end(state, chip, direction, rng.random())
        if unit == NONE:
            return
    else:
        unit = int64(rng.random() * num_units)
    goal = state.units[unit].chip + direction
    if run.passing != ADJACENT and rng.random() < JUMPS:
        goal = _neighbour_chip(state, unit, rng.random())
        if goal == state.units[unit].chip:
            return
        direction = UP if goal > state.units[unit].chip else DOWN
    most = MANY_UNITS if rng.random() < MANY else FEW_UNITS
    want(state, unit, goal)
    if not close(state, direction, most):
        return
    if rng.random() < SWAPS:
        # A swap: something else goes the other way.
        other = _unit_near_end(state, goal, -direction, rng.random())
        if other != NONE and other != unit:
            want(state, other, goal - direction)
            close(state, -direction, most)


@uncounted_inner
def _binding_chip(state: AnnealingState, terms: RecordArray, draw: float) -> int:
    """A chip at the largest term: of a link one of both ends, of the host's links any."""
    binding, num_chips = 0, len(state.chips)
    for number in range(2 * num_chips + 1):
        if terms[number].seconds > terms[binding].seconds:
            binding = number
    if binding < num_chips:
        return binding
    if binding < 2 * num_chips:
        return min(binding - num_chips + int64(2.0 * draw), num_chips - 1)
    return int64(draw * state.run[0].used)


@uncounted_inner
def _neighbour_chip(state: AnnealingState, number: int, draw: float) -> int:
    """The chip of a unit that reads from a unit, or that it reads."""
    unit, behind = state.units[number], state.units[number + 1]
    readers = behind.successors - unit.successors
    i = int64(draw * (readers + behind.predecessors - unit.predecessors))
    if behind.successors == unit.successors and behind.predecessors == unit.predecessors:
        return unit.chip
    at = unit.successors + i if i < readers else unit.predecessors + i - readers
    return state.units[state.entries[at]].chip


@uncounted_inner
def _ripple(state: AnnealingState, chip: int, direction: int, rng: np.random.Generator) -> None:
    """A unit of each of a few consecutive chips goes to the next."""
    for _ in range(2 + int(rng.random() * rng.random() * 10)):
        if not 0 <= chip < len(state.chips):
            break
        unit = _unit_near_end(state, chip, direction, 0.0)
        if unit == NONE:
            break
        want(state, unit, chip + direction)
        chip += direction
    close(state, direction, MANY_UNITS)


@uncounted_inner
def _move_chips(state: AnnealingState, terms: RecordArray, rng: np.random.Generator) -> None:
    """Split a chip, the binding one by preference, and merge two elsewhere or use one more.

    Everything between that chip and another goes one chip on, and a share of the chip itself.
    """
    used = state.run[0].used
    chip = min(_binding_chip(state, terms, rng.random()), used - 1)
    if rng.random() < 0.3:
        chip = int64(rng.random() * used)
    other = int64(rng.random() * (used + 1))
    share = rng.random()
    if other == chip:
        chip, share = used, 0.0  # those behind it go one down
    direction = UP if other > chip else DOWN
    for between in range(min(chip, other) + 1, max(chip, other)):
        _want_share(state, between, direction, 1.0)
    if chip < len(state.chips):
        _want_share(state, chip, direction, share)
    close(state, direction, int64(len(state.units)))
