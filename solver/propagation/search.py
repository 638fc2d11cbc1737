"""Decisions, propagation to a fixpoint, and going back: the engine that searches drive.

    solver = Solver(rule_tables(problem))
    place = 0
    while 0 <= place < len(order):
        unit = order[place]
        place = solver.set_domain(unit, choose(solver.get_domain(unit)))

Each :meth:`Solver.set_domain` is one decision, so the number of decisions that stand is
also the place in the visiting order where to go on; a contradiction lowers it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from go_opt.common.arrays import IntArray, LongArray, WordArray
from go_opt.common.compiling import compiled, compiled_inline, compiled_inner
from go_opt.errors import InvalidInputError
from go_opt.solver.propagation.propagators import acyclic, between, capacity, cover, no_skip, span, triangle
from go_opt.solver.propagation.propagators.domains import (
    BACKTRACKS,
    DEAD_ENDS,
    FAILED,
    HIGHEST_LOW,
    MAX_BACKTRACKS,
    NUM_DECIDED,
    NUM_DECISIONS,
    PROPAGATIONS,
    QUEUE_SIZE,
    TRAIL_SIZE,
    Store,
    dequeue,
    narrow_to,
    new_store,
    pack_chips,
    remove,
    restore,
    unpack_chips,
)
from go_opt.solver.propagation.propagators.tables import RuleTables

EXHAUSTED: Final = -1  # no valid placement is left
LIMIT_REACHED: Final = -2  # as many backtracks as were allowed


@dataclass(frozen=True)
class Statistics:
    """What a search cost."""

    propagations: int  # units taken off the work list
    narrowings: int  # words of domains that lost chips
    backtracks: int  # decisions taken back
    dead_ends: int  # of those, decisions with no other value open

    def __sub__(self, other: Statistics) -> Statistics:
        return Statistics(
            self.propagations - other.propagations,
            self.narrowings - other.narrowings,
            self.backtracks - other.backtracks,
            self.dead_ends - other.dead_ends,
        )


class Solver:
    """One search over the placements of a problem, driven from outside.

    Without interference it is complete: ``EXHAUSTED`` proves that no valid placement is
    left, and a placement is complete and valid once every unit has one chip.

    Args:
      max_decisions: how many may stand at once; two a unit where it is not given.
      max_backtracks: in all; past it :meth:`set_domain` returns ``LIMIT_REACHED``.
    """

    def __init__(
        self, tables: RuleTables, *, max_decisions: int | None = None, max_backtracks: int | None = None
    ) -> None:
        self.tables = tables
        self.store = new_store(
            tables.allowed, tables.num_chips, max_decisions, num_limits=len(tables.limits.chip)
        )
        if max_backtracks is not None:
            self.store.state[MAX_BACKTRACKS] = max_backtracks
        is_empty = bool((self.store.size == 0).any())
        self.is_exhausted = is_empty or not start(tables, self.store)

    @property
    def num_decisions(self) -> int:
        """Decisions that stand: where to go on in the visiting order."""
        return int(self.store.state[NUM_DECISIONS])

    @property
    def statistics(self) -> Statistics:
        """Since the solver was made."""
        return Statistics(*(int(count) for count in self.store.counters))

    @property
    def is_complete(self) -> bool:
        """Whether every unit has one chip: then :attr:`placement` is valid."""
        return not self.is_exhausted and bool((self.store.size == 1).all())

    @property
    def placement(self) -> IntArray:
        """[U] the lowest chip open to each unit."""
        return self.store.low.astype(np.int32)

    def get_domain(self, unit: int) -> LongArray:
        """The chips open to ``unit``, ascending."""
        return np.flatnonzero(unpack_chips(self.store.domain[unit], self.tables.num_chips))

    def set_domain(self, unit: int, chips: int | Iterable[int]) -> int:
        """Decide that ``unit`` is on one of ``chips``, and propagate.

        A contradiction takes decisions back, to the last one whose other values are still
        open; what it was narrowed to is excluded there. Returns the number of decisions
        that stand, or ``EXHAUSTED``, or ``LIMIT_REACHED``. Chips that are not open to ``unit``
        are a contradiction that excludes nothing.
        """
        if self.is_exhausted:
            return EXHAUSTED
        if self.num_decisions == len(self.store.choice_unit):
            raise InvalidInputError(f"more than {self.num_decisions} decisions stand.", field="unit")
        is_open = decide(self.store, int(unit), self._words(chips))
        place = int(settle(self.tables, self.store, is_open))
        self.is_exhausted = place == EXHAUSTED
        return place

    def reject(self) -> int:
        """Take the last decision back, as if it had led to a contradiction; returns as above."""
        place = EXHAUSTED if self.is_exhausted else int(settle(self.tables, self.store, False))
        self.is_exhausted = place == EXHAUSTED
        return place

    def reset(self) -> None:
        """Take every decision back, with all that was excluded on the way."""
        if self.store.state[TRAIL_SIZE] or not self.is_exhausted:
            reset(self.tables, self.store)
            self.is_exhausted = False

    def _words(self, chips: int | Iterable[int]) -> WordArray:
        wanted = np.atleast_1d(np.fromiter([chips] if np.isscalar(chips) else chips, dtype=np.int64))  # type: ignore[arg-type]
        if len(wanted) and (wanted.min() < 0 or wanted.max() >= self.tables.num_chips):
            last = self.tables.num_chips - 1
            raise InvalidInputError(f"chips {wanted.tolist()} are not all within 0 to {last}.", field="chips")
        open_chips = np.zeros(self.tables.num_chips, np.bool_)
        open_chips[wanted] = True
        return pack_chips(open_chips)


def start(tables: RuleTables, store: Store) -> bool:
    """Propagate the initial domains; whether they may still hold a placement."""
    if settle(tables, store, True) == EXHAUSTED:
        return False
    _remember(store, len(store.choice_unit))
    return True


@compiled
def reset(tables: RuleTables, store: Store) -> None:
    """Back to the domains after :func:`start`."""
    _return_to(tables, store, len(store.choice_unit))
    store.state[NUM_DECISIONS] = 0


@compiled
def decide(store: Store, unit: int, chips: WordArray) -> bool:
    """Note the decision for ``chips`` [W] and narrow ``unit``; whether it has any chip left."""
    state = store.state
    at = state[NUM_DECISIONS]
    _remember(store, at)
    store.choice_unit[at] = unit
    for word in range(len(chips)):
        store.choice[at, word] = chips[word]
    state[NUM_DECISIONS] = at + 1
    return narrow_to(store, unit, chips) != FAILED


@compiled
def settle(tables: RuleTables, store: Store, is_consistent: bool) -> int:
    """Propagate; from a contradiction, take decisions back until one has another value.

    The decisions that stand; or ``EXHAUSTED``; or ``LIMIT_REACHED``, the domains as they are.
    Whatever calls this is compiled with the whole engine in it: let few kernels do so.
    """
    state, has_gone_back = store.state, False
    while not (is_consistent and _propagate(tables, store)):
        store.counters[DEAD_ENDS] += has_gone_back
        if state[NUM_DECISIONS] == 0:
            return EXHAUSTED
        if store.counters[BACKTRACKS] >= state[MAX_BACKTRACKS]:
            return LIMIT_REACHED
        state[NUM_DECISIONS] -= 1
        at = state[NUM_DECISIONS]
        store.counters[BACKTRACKS] += 1
        has_gone_back = True
        _return_to(tables, store, at)
        is_consistent = remove(store, store.choice_unit[at], store.choice[at]) != FAILED
    return state[NUM_DECISIONS]


@compiled_inline
def _propagate(tables: RuleTables, store: Store) -> bool:
    """Run all propagators to a fixpoint; whether no domain became empty."""
    unit = 0
    while True:
        # The cheap local rules empty the work list before the global ones look once.
        while store.state[QUEUE_SIZE] > 0:
            unit = dequeue(store)
            store.counters[PROPAGATIONS] += 1
            if acyclic.propagate(tables, store, unit) == FAILED:
                return False
            if span.propagate(tables, store, unit) == FAILED:
                return False
            if between.propagate(tables, store, unit) == FAILED:
                return False
        if no_skip.propagate(tables, store, unit) == FAILED:
            return False
        if triangle.propagate(tables, store, unit) == FAILED:
            return False
        if store.state[QUEUE_SIZE] == 0 and cover.propagate(tables, store, unit) == FAILED:
            return False
        if capacity.propagate(tables, store, unit) == FAILED:
            return False
        if store.state[QUEUE_SIZE] == 0:
            return True


@compiled
def _remember(store: Store, at: int) -> None:
    store.mark[at, 0] = store.state[TRAIL_SIZE]
    store.mark[at, 1] = store.state[NUM_DECIDED]
    store.mark[at, 2] = store.state[HIGHEST_LOW]


@compiled_inner
def _return_to(tables: RuleTables, store: Store, at: int) -> None:
    triangle.unlink_after(tables, store, store.mark[at, 1])
    restore(store, store.mark[at, 0], store.mark[at, 1], store.mark[at, 2])


def holds(tables: RuleTables, placement: IntArray) -> bool:
    """Whether ``placement`` [U] obeys every rule: from the definitions, in plain NumPy."""
    open_chips = unpack_chips(tables.allowed, tables.num_chips)
    return bool(open_chips[np.arange(tables.num_units), placement].all()) and all(
        rule.holds(tables, placement) for rule in (acyclic, no_skip, triangle, capacity)
    )
