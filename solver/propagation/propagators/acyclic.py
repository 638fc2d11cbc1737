"""Acyclic dataflow: ``f(u) + r <= f(v)`` for every edge ``(u, v)``, r = 1 at a cut point, else 0.

Bounds are complete for it: ``low(v) >= low(u) + r`` and ``high(u) <= high(v) - r``.
"""

from __future__ import annotations

from go_opt.common.arrays import IntArray
from go_opt.common.compiling import uncounted_inner
from go_opt.solver.propagation.propagators.domains import FAILED, UNCHANGED, Store, narrow_range
from go_opt.solver.propagation.propagators.tables import RuleTables


@uncounted_inner
def propagate(tables: RuleTables, store: Store, unit: int) -> int:
    if not tables.acyclic:
        return UNCHANGED
    result = UNCHANGED
    for i in range(tables.succ_ptr[unit], tables.succ_ptr[unit + 1]):
        lowest = store.low[unit] + tables.succ_rise[i]
        status = narrow_range(store, tables.succ[i], lowest, tables.num_chips - 1)
        if status == FAILED:
            return FAILED
        result = max(result, status)
    for i in range(tables.pred_ptr[unit], tables.pred_ptr[unit + 1]):
        status = narrow_range(store, tables.pred[i], 0, store.high[unit] - tables.pred_rise[i])
        if status == FAILED:
            return FAILED
        result = max(result, status)
    return result


def holds(tables: RuleTables, placement: IntArray) -> bool:
    source, reader = tables.edges()
    return not tables.acyclic or bool((placement[source] + tables.succ_rise <= placement[reader]).all())
