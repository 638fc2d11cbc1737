"""Every placement under the adjacent rule on tiny problems, by plain enumeration."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import ArrayLike

from go_opt.common.arrays import BoolArray, IntArray
from go_opt.solver.problem.problem import NO_SKIP_ALL, PlacementProblem


def edges_of(problem: PlacementProblem) -> list[tuple[int, int]]:
    """Edges between units, sorted."""
    source = np.repeat(np.arange(problem.num_units), np.diff(problem.successor_ptr))
    return sorted(zip(source.tolist(), problem.successor.tolist(), strict=True))


def obeys(problem: PlacementProblem, placements: IntArray, *, no_skip: bool = True) -> BoolArray:
    """[B] whether each of ``placements`` [B, U] keeps every rule of the adjacent core."""
    legal = ((placements >= 0) & (placements < problem.num_chips)).all(axis=1)
    if problem.num_edges:
        source, reader = np.array(edges_of(problem)).T
        span = placements[:, reader] - placements[:, source]
        legal &= ((span >= 0) & (span <= 1)).all(axis=1)
    if no_skip:
        last = placements.max(axis=1, initial=0)
        used = np.zeros(
            (len(placements), max(problem.num_chips, int(last.max(initial=0)) + 1)), dtype=np.bool_
        )
        used[np.arange(len(placements))[:, None], np.clip(placements, 0, None)] = True
        legal &= used.sum(axis=1) == last + 1
        if problem.no_skip == NO_SKIP_ALL:
            legal &= last == problem.num_chips - 1
    return legal


def adjacent_placements(
    problem: PlacementProblem,
    *,
    no_skip: bool,
    first_chip: ArrayLike = 0,
    last_chip: ArrayLike = 1 << 20,
) -> IntArray:
    """[B, U] all of them, within the bounds."""
    chips = itertools.product(range(problem.num_chips), repeat=problem.num_units)
    rows = np.array(list(chips), dtype=np.int32)
    within = ((rows >= first_chip) & (rows <= last_chip)).all(axis=1)
    return rows[within & obeys(problem, rows, no_skip=no_skip)]
