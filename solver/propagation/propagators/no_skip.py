"""No skipping: the chips used are ``0 … k - 1``, none empty; option: all ``D`` are used.

Each chip up to the highest ``low(u)`` (or each chip, if all must be used) needs a unit to which
it is open; if there is only one such unit, it must take the chip. If a higher chip is open to
no unit, no unit can use that chip or any chip above it.
"""

from __future__ import annotations

from go_opt.common.compiling import uncounted_inner
from go_opt.solver.problem.problem import NO_SKIP_ALL, NO_SKIP_OFF
from go_opt.solver.propagation.propagators.domains import (
    CONTRADICTION,
    HIGHEST_LOW,
    SUPPORT_FELL,
    Store,
    has_chip,
    narrow_range,
)
from go_opt.solver.propagation.propagators.tables import RuleTables


@uncounted_inner
def propagate(tables: RuleTables, store: Store) -> None:
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
            narrow_range(store, _only_unit(store, chip), chip, chip)


@uncounted_inner
def _only_unit(store: Store, chip: int) -> int:
    unit = 0
    while not has_chip(store.domain[unit], chip):
        unit += 1
    return unit
