"""Covering: each chip that must be used needs a unit, and no unit serves two chips.

Implied by no skipping. A matching of these chips with units that may use them is kept from
call to call. The matching is only a hint, so it needs no trail: if a chip is no longer open to
its unit, an augmenting path finds another unit. If there is no such path, this is a contradiction.
Chips with a decided unit need no match.
"""

from __future__ import annotations

from go_opt.common.compiling import uncounted_inner
from go_opt.solver.problem.problem import NO_SKIP_ALL, NO_SKIP_OFF
from go_opt.solver.propagation.propagators.domains import CONTRADICTION, HIGHEST_LOW, Store, has_chip
from go_opt.solver.propagation.propagators.tables import RuleTables


@uncounted_inner
def propagate(tables: RuleTables, store: Store) -> None:
    if tables.no_skip == NO_SKIP_OFF:
        return
    needed = tables.num_chips - 1 if tables.no_skip == NO_SKIP_ALL else store.state[HIGHEST_LOW]
    for chip in range(needed + 1):
        if store.occupied[chip] > 0 or _serves(store, store.server[chip], chip):
            continue
        if not _find_server(store, chip, needed):
            store.state[CONTRADICTION] = 1
            return


@uncounted_inner
def _serves(store: Store, unit: int, chip: int) -> bool:
    return (
        unit >= 0
        and store.size[unit] > 1
        and store.served[unit] == chip
        and has_chip(store.domain[unit], chip)
    )


@uncounted_inner
def _find_server(store: Store, chip: int, needed: int) -> bool:
    """Matches ``chip`` along an augmenting path, breadth first; returns False if there is none."""
    num_units = len(store.size)
    for unit in range(num_units):
        store.asked_by[unit] = -1
    store.chip_queue[0] = chip
    size = 1
    at = 0
    while at < size:
        asking = store.chip_queue[at]
        at += 1
        for unit in range(num_units):
            if store.asked_by[unit] >= 0 or store.size[unit] < 2 or not has_chip(store.domain[unit], asking):
                continue
            store.asked_by[unit] = asking
            served = store.served[unit]
            is_free = (
                served < 0 or served > needed or store.occupied[served] > 0 or store.server[served] != unit
            )
            if is_free or not _serves(store, unit, served):
                _hand_over(store, unit, chip)
                return True
            store.chip_queue[size] = served
            size += 1
    return False


@uncounted_inner
def _hand_over(store: Store, unit: int, chip: int) -> None:
    """Rematches every chip along the path that ends at ``unit`` with the unit it asked for."""
    while True:
        asking = store.asked_by[unit]
        before = store.server[asking]
        store.server[asking] = unit
        store.served[unit] = asking
        if asking == chip:
            return
        unit = before
