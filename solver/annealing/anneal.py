"""Annealing directly on a placement: the strongest search found on branchy graphs.

A move takes a unit, a stretch of units or whole chips up or down, with what must go along
(:mod:`go_opt.solver.annealing.moves`); the objective is a p-norm of the interval's terms
whose power alternates: low ones see all terms, high ones the largest. Simulated annealing
(Kirkpatrick, Gelatt, Vecchi, "Optimization by simulated annealing", Science 1983) accepts a
move that raises the logarithm of the norm by x with probability ``exp(-x / temperature)``;
about half of the moves look at the chip or link that binds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

from go_opt.env.cost import CostTables
from go_opt.solver.annealing.columns import (
    ALL_OVER,
    BEFORE_START,
    BEST,
    BEST_S,
    CHIP,
    DIRTY,
    HIGH,
    IS_DIRTY,
    LOG_UNIT,
    LOW,
    MOVES,
    POWER,
    SIZES,
    SUM,
    TEMPERATURE,
)
from go_opt.solver.annealing.moves import is_gapless, propose
from go_opt.solver.annealing.state import place_all, take_back
from go_opt.solver.annealing.tables import annealing_tables
from go_opt.solver.annealing.terms import (
    drop,
    ease_s,
    keep,
    largest_s,
    price,
    rescale,
)
from go_opt.solver.problem.passing import Passing
from go_opt.solver.problem.problem import PlacementProblem

POWERS: Final = (5.0, 8.0, 16.0)
TURN: Final = 512  # moves before the next power
COOL: Final = 16  # moves before the temperature falls
HOT: Final = 0.1
COLD: Final = 0.005  # of the temperature at the start
LEAST_SUM: Final = 1e-3  # of powers over the largest term, before rounding counts


@dataclass(frozen=True, eq=False)
class Annealed:
    """The best placement met."""

    placement: NDArray[np.int32]  # [N] chip of each op
    objective_s: float  # by the search's own terms; infinite where activations never fitted
    moves: int


class Annealing:
    """One chain; :meth:`run` it in slices of any size, the result is the same.

    Args:
      problem: its units; kernels of ``fusion_group``, or several with one chip.
      order: [N] a topological order in which the ops of a kernel stand next to each other.
      placement: [N] to start from; obeys the rules, ``passing`` in place of the triangle rule.
      moves: until the temperature has fallen to its end; it stays there afterwards.
      hot: temperature at the start, of the logarithm of the objective.
      allowed: [U, D] chips each unit may use; by default those whose kind can run it.
    """

    def __init__(
        self,
        tables: CostTables,
        problem: PlacementProblem,
        order: NDArray[np.int32],
        fusion_group: NDArray[np.int32],
        placement: NDArray[np.int32],
        *,
        passing: Passing,
        moves: int,
        seed: int,
        hot: float = HOT,
        allowed: NDArray[np.bool_] | None = None,
    ) -> None:
        self._unit_of_op = problem.unit_of_op
        self._state = annealing_tables(tables, problem, order, fusion_group, placement, passing, allowed)
        self._rng = np.random.default_rng(seed)
        self._schedule = (float(hot), float(max(1, moves)))
        self.run(0)

    def run(self, moves: int) -> None:
        """Make ``moves`` more moves; other threads run meanwhile."""
        _run(self._state, self._rng, self._schedule, moves)

    @property
    def best(self) -> Annealed:
        """The best placement so far."""
        state = self._state
        placement = state.units[self._unit_of_op, BEST].astype(np.int32)
        return Annealed(placement, float(state.figures[BEST_S]), int(state.numbers[MOVES]))


def anneal(
    tables: CostTables,
    problem: PlacementProblem,
    order: NDArray[np.int32],
    fusion_group: NDArray[np.int32],
    placement: NDArray[np.int32],
    *,
    passing: Passing,
    moves: int,
    seed: int,
    hot: float = HOT,
    allowed: NDArray[np.bool_] | None = None,
) -> Annealed:
    """The best placement of one chain of ``moves``; arguments as of :class:`Annealing`."""
    chain = Annealing(
        tables, problem, order, fusion_group, placement,
        passing=passing, moves=moves, seed=seed, hot=hot, allowed=allowed,
    )  # fmt: skip
    chain.run(moves)
    return chain.best


@njit(cache=True, nogil=True)
def _run(state, rng, schedule, moves):
    # A tuple costs a count of each field in every call: kernels take the arrays they need.
    units, entries, tensors, readers_on, chips, rates, lists, numbers, terms, figures, priority, allowed = (
        state
    )
    hot, all_moves = schedule
    if numbers[MOVES] == BEFORE_START:
        place_all(units, entries, tensors, readers_on, chips, lists, numbers)
        price(units, entries, tensors, chips, rates, lists, numbers, terms, figures, priority)
        keep(chips, numbers, terms, figures)
        numbers[MOVES] = 0
        figures[BEST_S] = largest_s(terms) if numbers[ALL_OVER] == 0 else np.inf
    for _ in range(moves):
        i = numbers[MOVES]
        numbers[MOVES] += 1
        if i % TURN == 0:
            rescale(terms, figures, POWERS[i // TURN % len(POWERS)], ease_s(numbers, rates))
        if i % COOL == 0:
            figures[TEMPERATURE] = hot * COLD ** min(1.0, i / all_moves)
        over = numbers[ALL_OVER]
        propose(units, entries, tensors, readers_on, chips, lists, numbers, terms, allowed, rng)
        if numbers[SIZES + LOG_UNIT] == 0:
            continue
        if not is_gapless(chips, numbers):
            take_back(units, entries, tensors, readers_on, chips, lists, numbers)
            numbers[LOW], numbers[HIGH] = len(chips), -1
            continue
        total = price(units, entries, tensors, chips, rates, lists, numbers, terms, figures, priority)
        if _is_accepted(figures, total, numbers[ALL_OVER] - over, rng):
            _note_moved(units, lists, numbers)
            keep(chips, numbers, terms, figures)
            if figures[SUM] < LEAST_SUM:
                rescale(terms, figures, figures[POWER], ease_s(numbers, rates))
            if numbers[ALL_OVER] == 0:
                _note_best(units, lists, numbers, figures, largest_s(terms))
        else:
            take_back(units, entries, tensors, readers_on, chips, lists, numbers)
            drop(chips, numbers)


@njit(cache=True, nogil=True)
def _is_accepted(figures, total, more_over, rng):
    if more_over != 0:
        return more_over < 0
    if total <= figures[SUM]:
        return True
    if figures[SUM] <= 0.0:
        return False
    worse = np.log(total / figures[SUM]) / figures[POWER]
    return rng.random() < np.exp(-worse / figures[TEMPERATURE])


@njit(cache=True, nogil=True)
def _note_moved(units, lists, numbers):
    for i in range(numbers[SIZES + LOG_UNIT]):
        unit = lists[LOG_UNIT, i]
        if units[unit, IS_DIRTY] == 0:
            units[unit, IS_DIRTY] = 1
            lists[DIRTY, numbers[SIZES + DIRTY]] = unit
            numbers[SIZES + DIRTY] += 1


@njit(cache=True, nogil=True)
def _note_best(units, lists, numbers, figures, reached_s):
    if reached_s >= figures[BEST_S]:
        return
    figures[BEST_S] = reached_s
    for i in range(numbers[SIZES + DIRTY]):
        unit = lists[DIRTY, i]
        units[unit, BEST] = units[unit, CHIP]
        units[unit, IS_DIRTY] = 0
    numbers[SIZES + DIRTY] = 0
