"""Interval-state refinement: lower bound, exact search and plan in one, for placements along a ring.

    refinement = Refinement(refinement_problem(graph, tables, forwarding="relayed"))
    while not refinement.run(1000): ...      # may stop at any time, and go on
    refinement.lower_bound_s, refinement.reason, refinement.placement, refinement.upper_s

States are intervals of down-sets (:mod:`go_opt.solver.certify.states`). A dynamic program
checks whether they contain a chain within a candidate interval
(:mod:`go_opt.solver.certify.chains`). If not, the candidate is a proven lower bound. A
chain of single down-sets is a plan. The states of any other chain are split
(:mod:`go_opt.solver.certify.states`). The first candidate is just below the best plan.
Each time a candidate takes too long, the next is half as far above the bound; refuted candidates
double this distance again.

The result depends only on the problem, the plans offered and the number of expansions.
"""

from __future__ import annotations

import math
from operator import itemgetter
from typing import Final

import numpy as np

from go_opt.common.arrays import IntArray
from go_opt.solver.certify.chains import OUT_OF_ROOM, ChainSearch, chain_search, find_chain, find_near
from go_opt.solver.certify.min_cut import workspace
from go_opt.solver.certify.plans import unit_plan
from go_opt.solver.certify.problem import MOST_TICKS, RefinementProblem, UnitGraph, trivial_bound
from go_opt.solver.certify.slices import slice_units
from go_opt.solver.certify.states import EVERYTHING, FORCED_IN, FORCED_OUT, StatePool, split_chain, state_pool


def refuted_because(
    problem: RefinementProblem,
    units: UnitGraph,
    pool: StatePool,
    search: ChainSearch,
    ticks: int,
    dead_ticks: int,
) -> str:
    """Returns a sentence on where the chains of ``units`` within ``ticks`` end.

    A label of the search bounds the work done by a number of chips. Chains whose remaining work
    is too much for the remaining chips have no labels.
    """
    tick_us = problem.tick_s * 1e6
    memory = ""
    if units.counts_memory and find_chain(problem.units, pool, search, ticks, dead_ticks) != 0:
        memory = (
            f"; {units.chip.sram_bytes / 1e6:.3g} MB of memory per chip are too few: too many weights "
            "would have to stream from the host, or activations do not fit"
        )
    find_chain(units, pool, search, ticks, dead_ticks)
    labels = int(search.level_end.max())
    states, done = search.label_state[:labels], search.label_work[:labels]
    if not units.overlap and not units.replicates:
        # A label at its upper bound stands for the most work of its state.
        done = np.where(done < pool.give[states] + pool.cut[states], done, pool.high[states])
    furthest = int(np.argmax(done))
    chip = int(np.searchsorted(search.level_end[search.level_end > 0], furthest, side="right"))
    state, work = int(states[furthest]), int(done[furthest])
    inside = np.unpackbits(pool.inside[state].view(np.uint8), bitorder="little")[: units.num_units]
    to_do = np.flatnonzero(inside == 0)
    filled = int(np.searchsorted(np.cumsum(units.unit_ticks[to_do]), ticks))
    first, last = problem.name_of(int(to_do[0])), problem.name_of(int(to_do[min(filled, len(to_do) - 1)]))
    enters = f", which read at least {pool.cut_bytes[state] / 1e6:.3g} MB" if pool.cut_bytes[state] else ""
    return (
        f"no placement on {units.num_chips} chips has an interval of {ticks * tick_us:.4g} us: at most "
        f"{work * tick_us:.4g} of {pool.high[EVERYTHING] * tick_us:.4g} us of work fit before chip {chip}, "
        f"which cannot continue with ops {first!r} … {last!r}{enters}{memory}"
    )


# The search ignores improvements below this share: half the gap that OPTIMAL allows.
TOLERANCE: Final = 5e-7
FIRST_CAPACITY: Final = 256
# Memory counts once the best placement without it is within this factor of the bound.
CLOSE: Final = 1.05
# Expansions before the next candidate is tried; doubled after each round of candidates.
PATIENCE: Final = 128
LEAST_SHARE: Final = 1 / 32
# With memory, this many pairs of states, or labels, take about as long as one expansion.
PAIRS: Final = 64
LABELS: Final = 256
FIRST_SHARE: Final = 1 / 4  # of the distance from the bound to the best plan, with memory


class Refinement:
    """Refines states until bound and placement meet."""

    def __init__(self, problem: RefinementProblem) -> None:
        """Starts from the slicing of the default order."""
        self.problem = problem
        self.placement: IntArray | None = None
        self.replication: IntArray | None = None
        self.upper_s = math.inf
        self.expansions = 0
        self._units = problem.units
        self._is_free = problem.tight is not None  # memory does not count yet
        self._checked: IntArray | None = None
        # The least interval with memory found so far, and first chips and chips of the units' stages.
        self._fitting = math.inf, np.zeros(0, np.int32), np.zeros(0, np.int32)
        trivial = trivial_bound(problem)
        self._trivial_s, self._trivial_reason = trivial.seconds, trivial.reason
        self._refuted = math.floor(trivial.seconds / problem.tick_s * (1.0 - 1e-12)) - 1
        self._begin()
        self._slice(np.arange(self._units.num_units, dtype=np.int32))

    def _begin(self) -> None:
        graph = self._units
        self._work = workspace(graph)
        self._pool = state_pool(graph, FIRST_CAPACITY)
        self._search = chain_search(graph, FIRST_CAPACITY)
        self._counted = 0  # pairs of states whose streamed bytes were computed
        self._share = 1.0  # of the distance from the bound to the best plan
        self._patience = self._round = PATIENCE
        self._most = MOST_TICKS  # larger candidates cannot be refuted
        self._take(np.zeros(graph.num_units, np.int32))

    @property
    def lower_bound_s(self) -> float:
        """No placement has a smaller interval."""
        return min(self.upper_s, max(self._trivial_s, (self._refuted + 1) * self.problem.tick_s))

    @property
    def is_optimal(self) -> bool:
        """Whether the bound and the best placement meet, up to :data:`TOLERANCE`."""
        return self._is_met and not self._is_free

    @property
    def _is_met(self) -> bool:
        # If streaming alone exceeds MOST_TICKS, all candidates are refuted, but the two do not meet.
        return (
            self._refuted >= self._target
            and (self.upper_s <= self.lower_bound_s * (1.0 + 2.0 * TOLERANCE) or math.isinf(self.upper_s))
        ) or self.upper_s <= self._trivial_s * (1.0 + TOLERANCE)

    @property
    def is_over(self) -> bool:
        """Whether more expansions are useless: the placement is optimal, or chains are no longer exact.

        Chains are inexact for replicated stages without overlap of transfers and compute, and may
        be inexact if memory is tight.
        """
        is_all = self._refuted >= min(self._target, self._most)
        return (self._is_met or is_all) and not self._is_free

    @property
    def reason(self) -> str:
        """One sentence, with names, on why no placement is faster than the bound."""
        if (self._refuted + 1) * self.problem.tick_s <= self._trivial_s:
            return self._trivial_reason
        return refuted_because(
            self.problem, self._units, self._pool, self._search, self._refuted, self._target
        )

    def consider(self, placement: IntArray) -> bool:
        """Considers a placement [U] of another method; returns whether it is the best so far.

        With replication open, its chips stand for stages, and new stage sizes are chosen.
        """
        if self._is_free and self.problem.tight is not None:
            found = unit_plan(self.problem, self.problem.tight, placement)
            self._fitting = min(self._fitting, found, key=itemgetter(0))
        return self._take(placement)

    def _take(self, placement: IntArray) -> bool:
        interval_s, first, size = unit_plan(self.problem, self._units, placement)
        if interval_s > self.upper_s or (interval_s == self.upper_s and self.placement is not None):
            return False
        self.upper_s, self.placement, self.replication = interval_s, first, size
        return True

    def run(self, expansions: int) -> bool:
        """Runs at least ``expansions`` expansions unless the search ends; returns whether it is over."""
        limit = self.expansions + expansions
        while self.expansions < limit and not self.is_over:
            if self._is_free and self._counts_memory_now():
                continue
            most = min(self._target, self._most)
            if self._units is self.problem.tight:
                # Segments within long intervals hold many units and take long to check.
                most = min(most, 2 * self._refuted)
            open_ticks = most - self._refuted
            ticks = self._refuted + max(1, int(open_ticks * self._share))
            length = self._find(ticks)
            self._count_pairs()
            if length == OUT_OF_ROOM or self._pool.num_states[0] + length > len(self._pool.low):
                self._grow()
            elif length == 0:
                self._refuted = ticks
                self._share = min(1.0, 2.0 * self._share)
                self._patience = self._round
            elif self._pool.num_free[self._search.chain[:length]].any():
                self._split(length)
            else:
                if not self._take(self._placement_of(length)):
                    self._most = ticks - 1
                self._share = min(self._share, 0.5)
                self._patience = self._round
        return self.is_over

    def _find(self, ticks: int) -> int:
        """Returns the length of a chain within ``ticks``, from the near states or else from all."""
        search = (self._units, self._pool, self._search, ticks, self._target)
        return find_near(*search) or find_chain(*search)

    def _count_pairs(self) -> None:
        """Counts part of each search as expansions: with memory, it takes longer than its splits."""
        if self._units is self.problem.tight:
            counted = int(self._search.fits.stamp[0])
            self.expansions += (counted - self._counted) // PAIRS + int(
                self._search.level_end.max()
            ) // LABELS
            self._counted = counted

    def _counts_memory_now(self) -> bool:
        """Counts memory once the placement without it is nearly proven; returns whether anything changed.

        If that placement fits in memory, it is also the best with memory.
        """
        assert self.problem.tight is not None
        if not (self._is_met or self.upper_s <= CLOSE * self.lower_bound_s):
            return False
        if self.placement is not None and self.placement is not self._checked:
            self._checked = self.placement
            found = unit_plan(self.problem, self.problem.tight, self.placement)
            self._fitting = min(found, self._fitting, key=itemgetter(0))
        if self.placement is None or self._fitting[0] <= self.upper_s * (1.0 + TOLERANCE):
            self._is_free = not self._is_met
            return self._is_met
        self._is_free = False
        self._units = self.problem.tight
        self.upper_s, self.placement, self.replication = math.inf, None, None
        self._begin()
        self._share = FIRST_SHARE
        if self._fitting[0] < math.inf:
            self._take(self._fitting[1])
        return True

    @property
    def _target(self) -> int:
        """The most ticks of a placement worth finding."""
        return math.floor(min(self.upper_s / self.problem.tick_s, MOST_TICKS) * (1.0 - TOLERANCE))

    def _split(self, length: int) -> None:
        context = self._search.context
        splits = split_chain(
            self._units, self._pool, self._work, self._search.chain, length, context, self._target
        )
        self.expansions += splits
        self._patience -= splits
        if self._patience > 0:
            return
        # Slicing the order in which the chain takes its units often gives a near-optimal placement.
        earliest = ((context[:length] & FORCED_OUT) != 0).sum(axis=0)
        latest = ((context[:length] & FORCED_IN) == 0).sum(axis=0)
        self._slice(np.argsort(earliest + latest, kind="stable").astype(np.int32))
        self._share *= 0.5
        if self._share < LEAST_SHARE:
            self._share = 1.0
            self._round *= 2
        self._patience = self._round

    def _slice(self, order: IntArray) -> None:
        placement = slice_units(self._units, order, self._refuted, self._target)
        if placement is not None:
            self._take(placement)

    def _placement_of(self, length: int) -> IntArray:
        """Returns the placement [U] of a chain of single down-sets: how many sets lack each unit."""
        num_units = self._units.num_units
        placement = np.zeros(num_units, np.int32)
        for state in self._search.chain[1 : length - 1]:
            inside = np.unpackbits(self._pool.inside[state].view(np.uint8), bitorder="little")
            placement += 1 - inside[:num_units].astype(np.int32)
        return placement

    def _grow(self) -> None:
        graph, pool, search = self._units, self._pool, self._search
        capacity = 2 * len(pool.low)
        self._pool, self._search = state_pool(graph, capacity), chain_search(graph, capacity)
        self._counted = 0
        for name, values in pool._asdict().items():
            getattr(self._pool, name)[: len(values)] = values
        self._search.by_low[: len(search.by_low)] = search.by_low
        self._search.num_sorted[:] = search.num_sorted
