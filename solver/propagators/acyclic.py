"""Acyclic dataflow: ``f(u) <= f(v)`` for every edge ``(u, v)``.

Bounds are complete for it: ``low(v) >= low(u)`` and ``high(u) <= high(v)``.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from go_opt.solver.domains import FAILED, UNCHANGED, narrow_range
from go_opt.solver.propagators.tables import RuleTables


@njit(cache=True, nogil=True)
def propagate(tables, store, unit):
    if not tables.acyclic:
        return UNCHANGED
    result = UNCHANGED
    for i in range(tables.succ_ptr[unit], tables.succ_ptr[unit + 1]):
        status = narrow_range(store, tables.succ[i], store.low[unit], tables.num_chips - 1)
        if status == FAILED:
            return FAILED
        result = max(result, status)
    for i in range(tables.pred_ptr[unit], tables.pred_ptr[unit + 1]):
        status = narrow_range(store, tables.pred[i], 0, store.high[unit])
        if status == FAILED:
            return FAILED
        result = max(result, status)
    return result


def holds(tables: RuleTables, placement: NDArray[np.int32]) -> bool:
    source, reader = tables.edges()
    return not tables.acyclic or bool((placement[source] <= placement[reader]).all())
