"""Interval-state refinement: bound, exact search and plan in one, for placements along a ring.

    refinement = Refinement(refinement_problem(graph, tables, passing="relayed"))
    while not refinement.run(1000): ...      # may stop at any time, and go on
    refinement.lower_bound_s, refinement.reason, refinement.placement, refinement.upper_s

States are intervals of down-sets (:mod:`go_opt.solver.refinement_states`). A dynamic program
asks whether they hold a chain within a candidate interval
(:mod:`go_opt.solver.refinement_kernels`); if not, the candidate is a proven lower bound, and if
the chain is real, it is a plan. Otherwise its states are split
(:mod:`go_opt.solver.refinement_splits`). Candidates lie between what is refuted and what is
reached: first just below the best plan, then, each time that takes too long, half as far
above the bound, and up again as they are refuted.

The answer depends on the problem, the plans offered and the number of expansions alone.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from go_opt.solver.refinement_kernels import OUT_OF_ROOM, chain_search, find_chain
from go_opt.solver.refinement_plans import unit_plan
from go_opt.solver.refinement_problem import MOST_TICKS, RefinementProblem, trivial_bound
from go_opt.solver.refinement_reason import refuted_because
from go_opt.solver.refinement_slices import slice_units
from go_opt.solver.refinement_splits import FORCED_IN, FORCED_OUT, split_chain
from go_opt.solver.refinement_states import state_pool, workspace

# Chains that beat the best placement by less are not looked for: half of what OPTIMAL allows.
TOLERANCE: Final = 5e-7
FIRST_CAPACITY: Final = 256
# Expansions before another candidate is tried; doubled after each round of candidates.
PATIENCE: Final = 128
LEAST_SHARE: Final = 1 / 32


class Refinement:
    """Refines until bound and placement meet."""

    def __init__(
        self,
        problem: RefinementProblem,
        *,
        placement: NDArray[np.int32] | None = None,
        upper_s: float = math.inf,
    ) -> None:
        """Start from what other methods reached.

        Args:
          placement: [U] a placement to be beaten; by default the slicing of the default order.
          upper_s: the interval to be beaten, where it is known without a placement.
        """
        self.problem = problem
        self.placement: NDArray[np.int32] | None = None
        self.replication: NDArray[np.int32] | None = None
        self.upper_s = upper_s
        self.expansions = 0
        graph = problem.units
        trivial = trivial_bound(problem)
        self._trivial_s, self._trivial_reason = trivial.seconds, trivial.reason
        self._refuted = math.floor(trivial.seconds / problem.tick_s * (1.0 - 1e-12)) - 1
        self._work = workspace(graph)
        self._pool = state_pool(graph, FIRST_CAPACITY)
        self._search = chain_search(graph, FIRST_CAPACITY)
        self._share = 1.0  # of the way from what is refuted to what is reached
        self._patience = self._round = PATIENCE
        self._most = MOST_TICKS  # candidates beyond are not refuted by chains
        self.consider(np.zeros(graph.num_units, np.int32))
        if placement is not None:
            self.consider(placement)
        self._slice(np.arange(graph.num_units, dtype=np.int32))

    @property
    def lower_bound_s(self) -> float:
        """No placement is faster."""
        return min(self.upper_s, max(self._trivial_s, (self._refuted + 1) * self.problem.tick_s))

    @property
    def is_optimal(self) -> bool:
        """Whether bound and the best that is known meet, but for :data:`TOLERANCE`."""
        return self._refuted >= self._target or self.upper_s <= self._trivial_s * (1.0 + TOLERANCE)

    @property
    def is_over(self) -> bool:
        """Whether more expansions are of no use: it is optimal, or its chains are no longer exact.

        They are not where replicated stages do not overlap transfers and compute.
        """
        return self.is_optimal or self._refuted >= self._most

    @property
    def reason(self) -> str:
        """Why no placement is faster than the bound, one sentence with names."""
        if (self._refuted + 1) * self.problem.tick_s <= self._trivial_s:
            return self._trivial_reason
        find_chain(self.problem.units, self._pool, self._search, self._refuted, self._target)
        return refuted_because(self.problem, self._pool, self._search, self._refuted)

    def consider(self, placement: NDArray[np.int32]) -> bool:
        """Take a placement [U] of another method into account; whether it is the best so far.

        With replication open its chips stand for stages, whose sizes are chosen anew.
        """
        plan = unit_plan(self.problem, placement)
        if plan.interval_s > self.upper_s or (plan.interval_s == self.upper_s and self.placement is not None):
            return False
        self.upper_s, self.placement, self.replication = plan.interval_s, plan.placement, plan.replication
        return True

    def run(self, expansions: int) -> bool:
        """Split at least so many states, unless it is over before; whether it is."""
        limit = self.expansions + expansions
        while self.expansions < limit and not self.is_over:
            open_ticks = min(self._target, self._most) - self._refuted
            ticks = self._refuted + max(1, int(open_ticks * self._share))
            length = find_chain(self.problem.units, self._pool, self._search, ticks, self._target)
            if length == OUT_OF_ROOM or self._pool.num_states[0] + length > len(self._pool.low):
                self._grow()
            elif length == 0:
                self._refuted = ticks
                self._share = min(1.0, 2.0 * self._share)
                self._patience = self._round
            elif self._pool.num_free[self._search.chain[:length]].any():
                self._split(length)
            else:
                if not self.consider(self._placement_of(length)):
                    self._most = ticks - 1
                self._share = min(self._share, 0.5)
                self._patience = self._round
        return self.is_over

    @property
    def _target(self) -> int:
        """Ticks that a placement worth finding keeps within."""
        return math.floor(min(self.upper_s / self.problem.tick_s, MOST_TICKS) * (1.0 - TOLERANCE))

    def _split(self, length: int) -> None:
        context = self._search.context
        splits = split_chain(
            self.problem.units, self._pool, self._work, self._search.chain, length, context, self._target
        )
        self.expansions += splits
        self._patience -= splits
        if self._patience > 0:
            return
        # Slice the order in which the chain takes units in: often close to the best there is.
        earliest = ((context[:length] & FORCED_OUT) != 0).sum(axis=0)
        latest = ((context[:length] & FORCED_IN) == 0).sum(axis=0)
        self._slice(np.argsort(earliest + latest, kind="stable").astype(np.int32))
        self._share *= 0.5
        if self._share < LEAST_SHARE:
            self._share = 1.0
            self._round *= 2
        self._patience = self._round

    def _slice(self, order: NDArray[np.int32]) -> None:
        placement = slice_units(self.problem.units, order, self._refuted, self._target)
        if placement is not None:
            self.consider(placement)

    def _placement_of(self, length: int) -> NDArray[np.int32]:
        """[U] of a chain of single down-sets: the number of them that leave a unit out."""
        num_units = self.problem.units.num_units
        placement = np.zeros(num_units, np.int32)
        for state in self._search.chain[1 : length - 1]:
            inside = np.unpackbits(self._pool.inside[state].view(np.uint8), bitorder="little")
            placement += 1 - inside[:num_units].astype(np.int32)
        return placement

    def _grow(self) -> None:
        graph, pool, search = self.problem.units, self._pool, self._search
        capacity = 2 * len(pool.low)
        self._pool, self._search = state_pool(graph, capacity), chain_search(graph, capacity)
        for name, values in pool._asdict().items():
            getattr(self._pool, name)[: len(values)] = values
        self._search.by_low[: len(search.by_low)] = search.by_low
        self._search.num_sorted[:] = search.num_sorted
