"""The propagators of all rules but the triangle's (:mod:`go_opt.solver.propagation.propagators.triangle`).

A propagator removes chips that no valid placement uses, given the domains (of edges and units between: after
the domain of ``unit`` has changed), and notes a contradiction in the store. It never removes a chip of a
valid placement within the domains. Once every unit is decided, there is a contradiction unless the rule
holds.

* *Bounds along an edge* ``(u, v)``: ``f(u) + rise <= f(v) <= f(u) + span``; bounds are complete for them.
  The rise is acyclic dataflow: 1 at a cut point, else 0. The span is implied, or 1 under the adjacent rule;
  :mod:`go_opt.solver.propagation.propagators.tables` counts it.
* *Units between the ends of an edge*: ``f(x) = f(u)`` or ``f(x) = f(v)``. The longest-path rule implies this
  for an edge ``(u, v)`` and every unit x on a path from u to v: with x on a third chip, the direct
  dependency would have a detour through that chip.
* *No skipping*: the chips used are ``0 … k - 1``, none empty; option: all ``D`` are used. Each chip up to
  the highest ``low(u)`` (or each chip, if all must be used) needs a unit to which it is open; if there is
  only one such unit, it must take the chip. If a higher chip is open to no unit, no unit can use that chip
  or any chip above it.
* *Covering*: each chip that must be used needs a unit, and no unit serves two chips. Implied by no skipping.
  A matching of these chips with units that may use them is kept from call to call. The matching is only a
  hint, so it needs no trail: if a chip is no longer open to its unit, an augmenting path finds another unit.
  If there is no such path, this is a contradiction. Chips with a decided unit need no match.
* *Capacity*: limits on the bytes of weights or the seconds of work on a chip, from above or below. The load
  of a chip is the sum of its units' own amounts, ``Σ amount(u)``, plus each shared item (a weight tensor)
  that some unit on it needs, once. The least load comes from the units decided on the chip, the most from
  all units to which the chip is open. A unit cannot use the chip if it raises the least above the limit. A
  unit must use it if the most falls below the lower limit without it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from go_opt.common.arrays import LongArray
from go_opt.common.compiling import compiled_inner, uncounted_inner
from go_opt.solver.problem.problem import NO_SKIP_ALL, NO_SKIP_OFF
from go_opt.solver.propagation.propagators.domains import (
    CONTRADICTION,
    HIGHEST_LOW,
    NUM_RESTORES,
    SUPPORT_FELL,
    WORD_BITS,
    Store,
    chip_bit,
    has_chip,
    narrow_range,
    remove_range,
    write,
)
from go_opt.solver.propagation.propagators.tables import RuleTables

# Sums of seconds in different orders differ in the last digits.
SLACK: Final = 1e-9


@uncounted_inner
def propagate_edges(tables: RuleTables, store: Store, unit: int) -> None:
    for i in range(tables.succ_ptr[unit], tables.succ_ptr[unit + 1]):
        lowest, highest = store.low[unit] + tables.succ_rise[i], store.high[unit] + tables.succ_span[i]
        narrow_range(store, tables.succ[i], lowest, highest)
    for i in range(tables.pred_ptr[unit], tables.pred_ptr[unit + 1]):
        lowest, highest = store.low[unit] - tables.pred_span[i], store.high[unit] - tables.pred_rise[i]
        narrow_range(store, tables.pred[i], lowest, highest)


@uncounted_inner
def propagate_between(tables: RuleTables, store: Store, unit: int) -> None:
    if len(tables.between) == 0:
        return
    for i in range(tables.around_ptr[unit], tables.around_ptr[unit + 1]):
        edge = tables.around[i]
        _keep_with_an_end(tables, store, tables.succ_source[edge], unit, tables.succ[edge])
    for edge in range(tables.succ_ptr[unit], tables.succ_ptr[unit + 1]):
        for i in range(tables.between_ptr[edge], tables.between_ptr[edge + 1]):
            _keep_with_an_end(tables, store, unit, tables.between[i], tables.succ[edge])
    for j in range(tables.pred_ptr[unit], tables.pred_ptr[unit + 1]):
        edge = tables.pred_edge[j]
        for i in range(tables.between_ptr[edge], tables.between_ptr[edge + 1]):
            _keep_with_an_end(tables, store, tables.pred[j], tables.between[i], unit)


@uncounted_inner
def _keep_with_an_end(tables: RuleTables, store: Store, u: int, x: int, v: int) -> None:
    last = tables.num_chips - 1
    if store.high[u] < store.low[x]:  # x is with v
        narrow_range(store, v, 0, store.high[x])
        narrow_range(store, x, store.low[v], last)
    elif store.high[x] < store.low[v]:  # x is with u
        narrow_range(store, u, store.low[x], last)
        narrow_range(store, x, 0, store.high[u])
    else:
        remove_range(store, x, store.high[u] + 1, store.low[v] - 1)


@uncounted_inner
def propagate_no_skip(tables: RuleTables, store: Store) -> None:
    if tables.no_skip == NO_SKIP_OFF or not store.state[SUPPORT_FELL]:
        return
    store.state[SUPPORT_FELL] = 0
    needed = tables.num_chips - 1 if tables.no_skip == NO_SKIP_ALL else store.state[HIGHEST_LOW]
    for chip in range(tables.num_chips):
        if store.support[chip] == 0 and chip > needed:
            for unit in range(len(store.size)):
                narrow_range(store, unit, 0, chip - 1)
            return
        if store.support[chip] == 0:
            store.state[CONTRADICTION] = 1
            return
        if chip <= needed and store.support[chip] == 1 and store.occupied[chip] == 0:
            only = 0
            while not has_chip(store.domain[only], chip):
                only += 1
            narrow_range(store, only, chip, chip)


@uncounted_inner
def propagate_cover(tables: RuleTables, store: Store) -> None:
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


@compiled_inner
def propagate_limits(tables: RuleTables, store: Store) -> None:
    for limit in range(len(tables.limit_chip)):
        if _has_changed(tables, store, limit):
            _propagate_limit(tables, store, limit)


@uncounted_inner
def _has_changed(tables: RuleTables, store: Store, limit: int) -> bool:
    """Returns whether the least load may have grown or the most may have fallen; records the counts.

    While domains only narrow, equal counts mean equal sets; after backtracking they may not.
    """
    chip = tables.limit_chip[limit]
    seen = store.limit_seen[limit]
    has_changed = (
        seen[2] != store.state[NUM_RESTORES]
        or (tables.limit_most[limit] < np.inf and seen[1] != store.occupied[chip])
        or (tables.limit_least[limit] > 0.0 and seen[0] != store.support[chip])
    )
    seen[0] = store.support[chip]
    seen[1] = store.occupied[chip]
    seen[2] = store.state[NUM_RESTORES]
    return has_changed


@compiled_inner
def _propagate_limit(tables: RuleTables, store: Store, limit: int) -> None:
    chip = tables.limit_chip[limit]
    at_most = tables.limit_most[limit] * (1.0 + SLACK)
    at_least = tables.limit_least[limit] * (1.0 - SLACK)
    users = np.zeros(len(tables.item_amount), np.int64)  # units that may bring an item here
    holders = np.zeros(len(tables.item_amount), np.int64)  # units that certainly bring it
    least = 0.0
    most = 0.0
    for unit in range(len(store.size)):
        if not has_chip(store.domain[unit], chip):
            continue
        most += _amount_of(tables, limit, unit, users, 0)
        _count_items(tables, unit, users)
        if store.size[unit] == 1:
            least += _amount_of(tables, limit, unit, holders, 0)
            _count_items(tables, unit, holders)
    if least > at_most or most < at_least:
        store.state[CONTRADICTION] = 1
        return
    for unit in range(len(store.size)):
        if store.size[unit] == 1 or not has_chip(store.domain[unit], chip):
            continue
        if least + _amount_of(tables, limit, unit, holders, 0) > at_most:
            write(store, unit, chip // WORD_BITS, ~chip_bit(chip))
        elif most - _amount_of(tables, limit, unit, users, 1) < at_least:
            narrow_range(store, unit, chip, chip)


@uncounted_inner
def _amount_of(tables: RuleTables, limit: int, unit: int, users: LongArray, num_users: int) -> float:
    """Returns the amount of ``unit`` and its items with ``num_users`` users: 0 none yet, 1 only ``unit``."""
    amount = tables.limit_amount[limit, unit]
    if tables.limit_shares[limit]:
        for i in range(tables.item_ptr[unit], tables.item_ptr[unit + 1]):
            if users[tables.item[i]] == num_users:
                amount += tables.item_amount[tables.item[i]]
    return amount


@uncounted_inner
def _count_items(tables: RuleTables, unit: int, users: LongArray) -> None:
    for i in range(tables.item_ptr[unit], tables.item_ptr[unit + 1]):
        users[tables.item[i]] += 1
