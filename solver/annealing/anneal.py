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

from go_opt.common.arrays import IntArray, Record
from go_opt.common.compiling import uncounted, uncounted_inner
from go_opt.solver.annealing.moves import is_gapless, propose
from go_opt.solver.annealing.records import NONE, AnnealingState, Prices
from go_opt.solver.annealing.state import place_unit, take_back
from go_opt.solver.annealing.tables import AnnealingProblem, annealing_state
from go_opt.solver.annealing.terms import drop, keep, largest_s, price, rescale

POWERS: Final = (5.0, 8.0, 16.0)
TURN: Final = 512  # moves before the next power
COOL: Final = 16  # moves before the temperature falls
HOT: Final = 0.1
COLD: Final = 0.005  # of the temperature at the start
LEAST_SUM: Final = 1e-3  # of powers over the largest term, before rounding counts


@dataclass(frozen=True, eq=False)
class Annealed:
    """The best placement met."""

    placement: IntArray  # [N] chip of each op
    objective_s: float  # by the search's own terms; infinite where activations never fitted
    moves: int


class Annealing:
    """One chain; :meth:`run` it in slices of any size, the result is the same."""

    def __init__(
        self,
        problem: AnnealingProblem,
        placement: IntArray,
        *,
        moves: int,
        seed: int,
        hot: float = HOT,
    ) -> None:
        """Start from ``placement`` [N], which obeys the rules, passing in place of the triangle rule.

        Args:
          moves: until the temperature has fallen to its end; it stays there afterwards.
          hot: temperature at the start, of the logarithm of the objective.
        """
        self._unit_of_op = problem.units.unit_of_op
        self._state, self._prices = annealing_state(problem, placement)
        self._rng = np.random.default_rng(seed)
        self._hot, self._moves = float(hot), float(max(1, moves))
        _start(self._state, self._prices)

    def run(self, moves: int) -> None:
        """Make ``moves`` more moves; other threads run meanwhile."""
        _run(self._state, self._prices, self._rng, self._hot, self._moves, moves)

    @property
    def best(self) -> Annealed:
        """The best placement so far."""
        run = self._state.run[0]
        placement = self._state.units["best"][self._unit_of_op].astype(np.int32)
        return Annealed(placement, float(run.best_s), int(run.moves))


def anneal(
    problem: AnnealingProblem, placement: IntArray, *, moves: int, seed: int, hot: float = HOT
) -> Annealed:
    """The best placement of one chain of ``moves``; arguments as of :class:`Annealing`."""
    chain = Annealing(problem, placement, moves=moves, seed=seed, hot=hot)
    chain.run(moves)
    return chain.best


@uncounted
def _start(state: AnnealingState, prices: Prices) -> None:
    """Place the units, all on chip 0, as in the best placement, and price every chip."""
    run = state.run[0]
    unit = state.chips[0].last
    while unit != NONE:
        before = state.units[unit].preceding
        place_unit(state, unit, state.units[unit].best)
        unit = before
    run.low = 0
    run.high = len(state.chips) - 1
    price(state, prices)
    keep(state, prices)
    run.best_s = largest_s(prices) if run.over_bytes == 0 else np.inf


@uncounted
def _run(
    state: AnnealingState, prices: Prices, rng: np.random.Generator, hot: float, all_moves: float, moves: int
) -> None:
    run = state.run[0]
    for _ in range(moves):
        if run.moves % TURN == 0:
            rescale(state, prices, POWERS[run.moves // TURN % len(POWERS)])
        if run.moves % COOL == 0:
            run.temperature = hot * COLD ** min(1.0, run.moves / all_moves)
        run.moves += 1
        over_bytes = run.over_bytes
        propose(state, prices.terms, rng)
        if run.logged == 0:
            continue
        if not is_gapless(state):
            take_back(state)
            run.low = len(state.chips)
            run.high = -1
            continue
        total = price(state, prices)
        if _is_accepted(run, total, run.over_bytes - over_bytes, rng):
            _note_moved(state)
            keep(state, prices)
            if run.powered_sum < LEAST_SUM:
                rescale(state, prices, run.power)
            if run.over_bytes == 0:
                _note_best(state, largest_s(prices))
        else:
            take_back(state)
            drop(state)


@uncounted_inner
def _is_accepted(run: Record, total: float, more_over: int, rng: np.random.Generator) -> bool:
    if more_over != 0:
        return more_over < 0
    if total <= run.powered_sum:
        return True
    if run.powered_sum <= 0.0:
        return False
    worse = np.log(total / run.powered_sum) / run.power
    return rng.random() < np.exp(-worse / run.temperature)


@uncounted_inner
def _note_moved(state: AnnealingState) -> None:
    run = state.run[0]
    for i in range(run.logged):
        unit = state.lists[i].logged_unit
        if not state.units[unit].is_dirty:
            state.units[unit].is_dirty = 1
            state.lists[run.dirty].dirty = unit
            run.dirty += 1


@uncounted_inner
def _note_best(state: AnnealingState, reached_s: float) -> None:
    run = state.run[0]
    if reached_s >= run.best_s:
        return
    run.best_s = reached_s
    for i in range(run.dirty):
        unit = state.units[state.lists[i].dirty]
        unit.best = unit.chip
        unit.is_dirty = 0
    run.dirty = 0
