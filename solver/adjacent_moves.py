"""Moves between placements of the adjacent rule: a unit by one chip, and what must go with it."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from go_opt.solver.problem import PlacementProblem


def move_unit(
    problem: PlacementProblem, placement: NDArray[np.int32], unit: int, step: int
) -> NDArray[np.int32] | None:
    """The placement [U] nearest to ``placement`` with ``unit`` moved by ``step``, +1 or -1.

    Under ``f(u) <= f(v) <= f(u) + 1`` for every edge, a reader that falls behind and a producer
    that is left two chips behind move by one chip too, and so on. ``None`` where a unit would
    leave the chips, or a chip between used ones would be empty.
    """
    moved = placement.copy()
    return moved if _move(problem, moved, unit, step) else None


@njit(cache=True, nogil=True)
def _move(problem, placement, unit, step):
    """Move in place; whether it is legal."""
    num_units = len(placement)
    stack = np.empty(num_units, np.int32)
    is_moved = np.zeros(num_units, np.bool_)
    stack[0] = unit
    is_moved[unit] = True
    size = 1
    while size > 0:
        size -= 1
        current = stack[size]
        placement[current] += step
        chip = placement[current]
        if chip < 0 or chip >= problem.num_chips:
            return False
        for i in range(problem.successor_ptr[current], problem.successor_ptr[current + 1]):
            other = problem.successor[i]
            # Behind the unit, a reader is pushed up; two chips ahead, it is pulled down.
            if not is_moved[other] and not chip <= placement[other] <= chip + 1:
                is_moved[other] = True
                stack[size] = other
                size += 1
        for i in range(problem.predecessor_ptr[current], problem.predecessor_ptr[current + 1]):
            other = problem.predecessor[i]
            if not is_moved[other] and not placement[other] <= chip <= placement[other] + 1:
                is_moved[other] = True
                stack[size] = other
                size += 1
    return _is_gapless(placement, problem.num_chips)


@njit(cache=True, nogil=True)
def _is_gapless(placement, num_chips):
    is_used = np.zeros(num_chips, np.bool_)
    used = 0
    last = 0
    for chip in placement:
        used += not is_used[chip]
        is_used[chip] = True
        last = max(last, chip)
    return used == last + 1
