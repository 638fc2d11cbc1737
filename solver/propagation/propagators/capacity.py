"""Capacity: limits on the bytes of weights or the seconds of work on a chip, from above or below.

The load of a chip is the sum of its units' own amounts, ``Σ amount(u)``, plus each shared item
(a weight tensor) that some unit on it needs, once. The least load comes from the units decided
on the chip, the most from all units to which the chip is open. A unit cannot use the chip if it
raises the least above ``at_most``. A unit must use it if the most falls below ``at_least`` without it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from go_opt.common.arrays import LongArray
from go_opt.common.compiling import compiled_inner, uncounted_inner
from go_opt.solver.propagation.propagators.domains import (
    CONTRADICTION,
    NUM_RESTORES,
    WORD_BITS,
    Store,
    chip_bit,
    has_chip,
    narrow_range,
    write,
)
from go_opt.solver.propagation.propagators.tables import Limits, RuleTables

# Sums of seconds in different orders differ in the last digits.
SLACK: Final = 1e-9


@compiled_inner
def propagate(tables: RuleTables, store: Store) -> None:
    for limit in range(len(tables.limits.chip)):
        if _has_changed(tables, store, limit):
            _propagate_limit(tables, store, limit)


@uncounted_inner
def _has_changed(tables: RuleTables, store: Store, limit: int) -> bool:
    """Returns whether the least load may have grown or the most may have fallen; records the counts.

    While domains only narrow, equal counts mean equal sets; after backtracking they may not.
    """
    chip = tables.limits.chip[limit]
    seen = store.limit_seen[limit]
    has_changed = (
        seen[2] != store.state[NUM_RESTORES]
        or (tables.limits.at_most[limit] < np.inf and seen[1] != store.occupied[chip])
        or (tables.limits.at_least[limit] > 0.0 and seen[0] != store.support[chip])
    )
    seen[0] = store.support[chip]
    seen[1] = store.occupied[chip]
    seen[2] = store.state[NUM_RESTORES]
    return has_changed


@compiled_inner
def _propagate_limit(tables: RuleTables, store: Store, limit: int) -> None:
    limits = tables.limits
    chip = limits.chip[limit]
    at_most = limits.at_most[limit] * (1.0 + SLACK)
    at_least = limits.at_least[limit] * (1.0 - SLACK)
    users = np.zeros(len(limits.item_amount), np.int64)  # units that may bring an item here
    holders = np.zeros(len(limits.item_amount), np.int64)  # units that certainly bring it
    least = 0.0
    most = 0.0
    for unit in range(len(store.size)):
        if not has_chip(store.domain[unit], chip):
            continue
        most += _amount_of(limits, limit, unit, users, 0)
        _count_items(limits, unit, users)
        if store.size[unit] == 1:
            least += _amount_of(limits, limit, unit, holders, 0)
            _count_items(limits, unit, holders)
    if least > at_most or most < at_least:
        store.state[CONTRADICTION] = 1
        return
    for unit in range(len(store.size)):
        if store.size[unit] == 1 or not has_chip(store.domain[unit], chip):
            continue
        if least + _amount_of(limits, limit, unit, holders, 0) > at_most:
            write(store, unit, chip // WORD_BITS, ~chip_bit(chip))
        elif most - _amount_of(limits, limit, unit, users, 1) < at_least:
            narrow_range(store, unit, chip, chip)


@uncounted_inner
def _amount_of(limits: Limits, limit: int, unit: int, users: LongArray, num_users: int) -> float:
    """Returns the amount of ``unit`` and its items with ``num_users`` users: 0 none yet, 1 only ``unit``."""
    amount = limits.amount[limit, unit]
    if limits.shares[limit]:
        for i in range(limits.item_ptr[unit], limits.item_ptr[unit + 1]):
            if users[limits.item[i]] == num_users:
                amount += limits.item_amount[limits.item[i]]
    return amount


@uncounted_inner
def _count_items(limits: Limits, unit: int, users: LongArray) -> None:
    for i in range(limits.item_ptr[unit], limits.item_ptr[unit + 1]):
        users[limits.item[i]] += 1
