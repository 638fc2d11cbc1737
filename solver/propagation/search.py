"""The search engine: decisions, propagation to a fixpoint, and backtracking.

    solver = Solver(rule_tables(problem))
    place = 0
    while 0 <= place < len(order):
        unit = order[place]
        place = solver.set_domain(unit, choose(solver.get_domain(unit)))

Each :meth:`Solver.set_domain` is one decision, so the number of current decisions is also
the next place in the visiting order; a contradiction lowers it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from go_opt.common.arrays import IntArray, LongArray, WordArray
from go_opt.common.compiling import compiled, compiled_inline, uncounted, uncounted_inner
from go_opt.errors import InvalidInputError
from go_opt.solver.propagation.propagators.domains import (
    BACKTRACKS,
    CONTRADICTION,
    HIGHEST_LOW,
    MAX_BACKTRACKS,
    NUM_DECIDED,
    NUM_DECISIONS,
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
from go_opt.solver.propagation.propagators.rules import (
    propagate_between,
    propagate_cover,
    propagate_edges,
    propagate_limits,
    propagate_no_skip,
)
from go_opt.solver.propagation.propagators.tables import RuleTables
from go_opt.solver.propagation.propagators.triangle import propagate_triangle, unlink_after

EXHAUSTED: Final = -1  # no valid placement remains
LIMIT_REACHED: Final = -2  # the search reached its backtrack limit


class Solver:
    """One search over the placements of a problem; the caller makes the decisions.

    The search is complete: ``EXHAUSTED`` proves that no valid placement remains. A placement
    is complete and valid once every unit has one chip.

    Args:
      max_decisions: most decisions at the same time; two per unit by default.
      max_backtracks: limit for the whole search; then :meth:`set_domain` returns ``LIMIT_REACHED``.
    """

    def __init__(
        self, tables: RuleTables, *, max_decisions: int | None = None, max_backtracks: int | None = None
    ) -> None:
        self.tables = tables
        self.store = new_store(
            tables.allowed, tables.num_chips, max_decisions, num_limits=len(tables.limit_chip)
        )
        if max_backtracks is not None:
            self.store.state[MAX_BACKTRACKS] = max_backtracks
        is_empty = bool((self.store.size == 0).any())
        self.is_exhausted = is_empty or not start(tables, self.store)

    @property
    def num_decisions(self) -> int:
        """Returns the number of current decisions: the next place in the visiting order."""
        return int(self.store.state[NUM_DECISIONS])

    @property
    def backtracks(self) -> int:
        """Returns the number of decisions undone since the solver was made."""
        return int(self.store.state[BACKTRACKS])

    @property
    def is_complete(self) -> bool:
        """Returns whether every unit has one chip: then :attr:`placement` is valid."""
        return not self.is_exhausted and bool((self.store.size == 1).all())

    @property
    def placement(self) -> IntArray:
        """Returns the lowest open chip [U] of each unit."""
        return self.store.low.astype(np.int32)

    def get_domain(self, unit: int) -> LongArray:
        """Returns the open chips of ``unit``, ascending."""
        return np.flatnonzero(unpack_chips(self.store.domain[unit], self.tables.num_chips))

    def set_domain(self, unit: int, chips: int | Iterable[int]) -> int:
        """Decides that ``unit`` is on one of ``chips``, and propagates.

        On a contradiction the search backtracks to the last decision with other open values,
        and excludes the decided chips there. Returns the number of current decisions, or
        ``EXHAUSTED``, or ``LIMIT_REACHED``. If none of ``chips`` is open to ``unit``, this is
        a contradiction that excludes nothing.
        """
        if self.is_exhausted:
            return EXHAUSTED
        if self.num_decisions == len(self.store.choice_unit):
            raise InvalidInputError(f"more than {self.num_decisions} decisions stand.", field="unit")
        decide(self.store, int(unit), self._words(chips))
        return self._settled()

    def reject(self) -> int:
        """Undoes the last decision as if it were a contradiction; returns as :meth:`set_domain`."""
        self.store.state[CONTRADICTION] = 1
        return self._settled()

    def reset(self) -> None:
        """Undoes every decision and every exclusion."""
        if self.store.state[TRAIL_SIZE] or not self.is_exhausted:
            reset(self.tables, self.store)
            self.is_exhausted = False

    def _settled(self) -> int:
        place = EXHAUSTED if self.is_exhausted else int(settle(self.tables, self.store))
        self.is_exhausted = place == EXHAUSTED
        return place

    def _words(self, chips: int | Iterable[int]) -> WordArray:
        wanted = np.atleast_1d(np.fromiter([chips] if np.isscalar(chips) else chips, dtype=np.int64))  # type: ignore[arg-type]
        if len(wanted) and (wanted.min() < 0 or wanted.max() >= self.tables.num_chips):
            last = self.tables.num_chips - 1
            raise InvalidInputError(f"chips {wanted.tolist()} are not all within 0 to {last}.", field="chips")
        open_chips = np.zeros(self.tables.num_chips, np.bool_)
        open_chips[wanted] = True
        return pack_chips(open_chips)


def start(tables: RuleTables, store: Store) -> bool:
    """Propagates the initial domains; returns whether a placement may still exist."""
    if settle(tables, store) == EXHAUSTED:
        return False
    _remember(store, len(store.choice_unit))
    return True


@uncounted
def reset(tables: RuleTables, store: Store) -> None:
    """Restores the domains after :func:`start`."""
    _return_to(tables, store, len(store.choice_unit))
    store.state[NUM_DECISIONS] = 0


@uncounted
def decide(store: Store, unit: int, chips: WordArray) -> None:
    """Records the decision for ``chips`` [W] and narrows ``unit``."""
    state = store.state
    at = state[NUM_DECISIONS]
    _remember(store, at)
    store.choice_unit[at] = unit
    for word in range(len(chips)):
        store.choice[at, word] = chips[word]
    state[NUM_DECISIONS] = at + 1
    narrow_to(store, unit, chips)


@compiled
def settle(tables: RuleTables, store: Store) -> int:
    """Propagates; after a contradiction, undoes decisions until one has another value.

    Returns the number of current decisions, or ``EXHAUSTED``, or ``LIMIT_REACHED``, which leaves
    the domains as they are. Each caller is compiled with the whole engine, so keep callers few.
    """
    state = store.state
    while not _propagate(tables, store):
        if state[NUM_DECISIONS] == 0:
            return EXHAUSTED
        if state[BACKTRACKS] >= state[MAX_BACKTRACKS]:
            return LIMIT_REACHED
        state[NUM_DECISIONS] -= 1
        at = state[NUM_DECISIONS]
        state[BACKTRACKS] += 1
        _return_to(tables, store, at)
        remove(store, store.choice_unit[at], store.choice[at])
    return state[NUM_DECISIONS]


@compiled_inline
def _propagate(tables: RuleTables, store: Store) -> bool:
    """Runs all propagators to a fixpoint; returns whether there is no contradiction."""
    state = store.state
    while not state[CONTRADICTION]:
        # The cheap local rules empty the work list before each run of the global rules.
        while state[QUEUE_SIZE] > 0 and not state[CONTRADICTION]:
            unit = dequeue(store)
            propagate_edges(tables, store, unit)
            propagate_between(tables, store, unit)
        if not state[CONTRADICTION]:
            propagate_no_skip(tables, store)
        if not state[CONTRADICTION]:
            propagate_triangle(tables, store)
        if state[QUEUE_SIZE] == 0 and not state[CONTRADICTION]:
            propagate_cover(tables, store)
        if not state[CONTRADICTION]:
            propagate_limits(tables, store)
        if state[QUEUE_SIZE] == 0:
            break
    return not state[CONTRADICTION]


@uncounted
def _remember(store: Store, at: int) -> None:
    store.mark[at, 0] = store.state[TRAIL_SIZE]
    store.mark[at, 1] = store.state[NUM_DECIDED]
    store.mark[at, 2] = store.state[HIGHEST_LOW]


@uncounted_inner
def _return_to(tables: RuleTables, store: Store, at: int) -> None:
    unlink_after(tables, store, store.mark[at, 1])
    restore(store, store.mark[at, 0], store.mark[at, 1], store.mark[at, 2])


def holds(tables: RuleTables, placement: IntArray) -> bool:
    """Returns whether ``placement`` [U] obeys every rule."""
    only = pack_chips(placement[:, None] == np.arange(tables.num_chips))
    return Solver(tables._replace(allowed=tables.allowed & only)).is_complete
