"""Bounds along an edge ``(u, v)``: ``f(u) + rise <= f(v) <= f(u) + span``; bounds are complete for them.

The rise is acyclic dataflow: 1 at a cut point, else 0. The span is implied: ``f(v) - f(u) <= 1 + |Q|``
follows from acyclic dataflow and no skipping. Every chip strictly between the chips of u
and v runs some unit. An ancestor of u is not above u's chip, a descendant of v not below
v's chip. Under the longest-path rule, a unit on a path from u to v is not strictly between
either: the direct dependency would have a detour. So ``Q`` is the set of units that are
neither ancestors of u nor descendants of v nor, under that rule, between u and v. Likewise
chips below ``f(u)`` run none of u's descendants, which bounds ``f(u)`` from above. If all chips
are used, chips above ``f(u)`` run none of u's ancestors, which bounds it from below.

The adjacent rule is a span of 1. Without these rules nothing binds.
:mod:`go_opt.solver.propagation.propagators.reachability` counts ``Q``.
"""

from __future__ import annotations

from go_opt.common.compiling import uncounted_inner
from go_opt.solver.propagation.propagators.domains import Store, narrow_range
from go_opt.solver.propagation.propagators.tables import RuleTables


@uncounted_inner
def propagate(tables: RuleTables, store: Store, unit: int) -> None:
    for i in range(tables.succ_ptr[unit], tables.succ_ptr[unit + 1]):
        lowest, highest = store.low[unit] + tables.succ_rise[i], store.high[unit] + tables.succ_span[i]
        narrow_range(store, tables.succ[i], lowest, highest)
    for i in range(tables.pred_ptr[unit], tables.pred_ptr[unit + 1]):
        lowest, highest = store.low[unit] - tables.pred_span[i], store.high[unit] - tables.pred_rise[i]
        narrow_range(store, tables.pred[i], lowest, highest)
