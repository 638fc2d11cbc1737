"""Units between the ends of an edge: ``f(x) = f(u)`` or ``f(x) = f(v)``.

The longest-path rule implies this for an edge ``(u, v)`` and every unit x on a path from u to v:
with x on a third chip, the direct dependency would have a detour through that chip. Hence,

* if ``high(u) < low(x)``, x is with v: ``high(v) <= high(x)`` and ``low(x) >= low(v)``;
* if ``high(x) < low(v)``, x is with u: ``low(u) >= low(x)`` and ``high(x) <= high(u)``;
* x is on no chip above ``high(u)`` and below ``low(v)``.
"""

from __future__ import annotations

from go_opt.common.compiling import uncounted_inner
from go_opt.solver.propagation.propagators.domains import Store, narrow_range, remove_range
from go_opt.solver.propagation.propagators.tables import RuleTables


@uncounted_inner
def propagate(tables: RuleTables, store: Store, unit: int) -> None:
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
    if store.high[u] < store.low[x]:
        narrow_range(store, v, 0, store.high[x])
        narrow_range(store, x, store.low[v], last)
    elif store.high[x] < store.low[v]:
        narrow_range(store, u, store.low[x], last)
        narrow_range(store, x, 0, store.high[u])
    else:
        remove_range(store, x, store.high[u] + 1, store.low[v] - 1)
