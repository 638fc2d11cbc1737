"""Units between the ends of an edge: ``f(x) = f(u)`` or ``f(x) = f(v)``.

The longest-path rule implies this for an edge ``(u, v)`` and every unit x on a path from u to v:
with x on a third chip, the direct dependency would have a detour through that chip. Hence,

* if ``high(u) < low(x)``, x is with v: ``high(v) <= high(x)`` and ``low(x) >= low(v)``;
* if ``high(x) < low(v)``, x is with u: ``low(u) >= low(x)`` and ``high(x) <= high(u)``;
* x is on no chip above ``high(u)`` and below ``low(v)``.
"""

from __future__ import annotations

from go_opt.common.compiling import uncounted_inner
from go_opt.solver.propagation.propagators.domains import (
    FAILED,
    UNCHANGED,
    WORD_BITS,
    Store,
    narrow_range,
    range_bits,
    write,
)
from go_opt.solver.propagation.propagators.tables import RuleTables


@uncounted_inner
def propagate(tables: RuleTables, store: Store, unit: int) -> int:
    if len(tables.between) == 0:
        return UNCHANGED
    result = UNCHANGED
    for i in range(tables.around_ptr[unit], tables.around_ptr[unit + 1]):
        edge = tables.around[i]
        status = _keep_with_an_end(tables, store, tables.succ_source[edge], unit, tables.succ[edge])
        if status == FAILED:
            return FAILED
        result = max(result, status)
    for edge in range(tables.succ_ptr[unit], tables.succ_ptr[unit + 1]):
        for i in range(tables.between_ptr[edge], tables.between_ptr[edge + 1]):
            status = _keep_with_an_end(tables, store, unit, tables.between[i], tables.succ[edge])
            if status == FAILED:
                return FAILED
            result = max(result, status)
    for j in range(tables.pred_ptr[unit], tables.pred_ptr[unit + 1]):
        edge = tables.pred_edge[j]
        for i in range(tables.between_ptr[edge], tables.between_ptr[edge + 1]):
            status = _keep_with_an_end(tables, store, tables.pred[j], tables.between[i], unit)
            if status == FAILED:
                return FAILED
            result = max(result, status)
    return result


@uncounted_inner
def _keep_with_an_end(tables: RuleTables, store: Store, u: int, x: int, v: int) -> int:
    last = tables.num_chips - 1
    if store.high[u] < store.low[x]:
        if store.high[x] == store.high[v] and store.low[x] == store.low[v]:
            return UNCHANGED
        status = narrow_range(store, v, 0, store.high[x])
        if status == FAILED:
            return FAILED
        return worse(status, narrow_range(store, x, store.low[v], last))
    if store.high[x] < store.low[v]:
        if store.high[x] == store.high[u] and store.low[x] == store.low[u]:
            return UNCHANGED
        status = narrow_range(store, u, store.low[x], last)
        if status == FAILED:
            return FAILED
        return worse(status, narrow_range(store, x, 0, store.high[u]))
    return leave_out(store, x, store.high[u] + 1, store.low[v] - 1)


@uncounted_inner
def leave_out(store: Store, unit: int, low: int, high: int) -> int:
    """Removes the chips ``low … high``."""
    result = UNCHANGED
    if low > high or high < store.low[unit] or low > store.high[unit]:
        return UNCHANGED
    for word in range(low // WORD_BITS, high // WORD_BITS + 1):
        status = write(store, unit, word, ~range_bits(word, low, high))
        if status == FAILED:
            return FAILED
        result = max(result, status)
    return result


@uncounted_inner
def worse(status: int, other: int) -> int:
    return FAILED if other == FAILED else max(status, other)
