"""The chip triangle rule, on the dependency graph of the chips of decided units.

There is a direct dependency ``a -> b`` between chips if an edge leads from a unit on a to a
unit on b. A direct dependency must not have a detour:

* longest path: ``a -> b`` and a path of two or more dependencies from a to b;
* three chips: ``a -> b``, ``a -> c`` and ``c -> b``.

Dependencies only accumulate while units are decided, so a detour among decided units is
final, and a reader of a unit on chip a cannot be on a chip to which a has a detour. Under the
longest-path rule :mod:`go_opt.solver.propagation.propagators.detours` prunes more. The adjacent
form is a span of 1 (:mod:`go_opt.solver.propagation.propagators.edges`). The rule applies only
with acyclic dataflow, so dependencies lead upwards.
"""

from __future__ import annotations

from go_opt.common.compiling import int64, uncounted_inner
from go_opt.solver.problem.problem import TRIANGLE_ADJACENT, TRIANGLE_OFF, TRIANGLE_THREE_CHIP
from go_opt.solver.propagation.propagators import detours
from go_opt.solver.propagation.propagators.domains import (
    CONTRADICTION,
    LINKS_CHANGED,
    NO_BITS,
    NUM_DECIDED,
    NUM_LINKED,
    ONE_BIT,
    WORD_BITS,
    Store,
    chip_bit,
    has_chip,
    lowest_bit,
    remove,
)
from go_opt.solver.propagation.propagators.tables import RuleTables


@uncounted_inner
def propagate(tables: RuleTables, store: Store) -> None:
    state = store.state
    first = state[NUM_LINKED]
    if tables.triangle in (TRIANGLE_OFF, TRIANGLE_ADJACENT) or first == state[NUM_DECIDED]:
        return
    while state[NUM_LINKED] < state[NUM_DECIDED]:
        _link(tables, store, store.decided[state[NUM_LINKED]], int64(1))
        state[NUM_LINKED] += 1
    if tables.looks_far:
        detours.propagate(tables, store)
        return
    if state[LINKS_CHANGED]:
        _find_far(tables, store)
        if detours.has_detour(store):
            state[CONTRADICTION] = 1
            return
        state[LINKS_CHANGED] = 0
    # No neighbour of a newly decided unit may use a chip with a detour to or from its chip.
    for i in range(first, state[NUM_LINKED]):
        unit = store.decided[i]
        chip = store.low[unit]
        for j in range(tables.succ_ptr[unit], tables.succ_ptr[unit + 1]):
            remove(store, tables.succ[j], store.far[chip])
        for j in range(tables.pred_ptr[unit], tables.pred_ptr[unit + 1]):
            remove(store, tables.pred[j], store.far_into[chip])


@uncounted_inner
def unlink_after(tables: RuleTables, store: Store, num_decided: int) -> None:
    """Removes the dependencies of all but the first ``num_decided`` decided units."""
    state = store.state
    while state[NUM_LINKED] > num_decided:
        state[NUM_LINKED] -= 1
        _link(tables, store, store.decided[state[NUM_LINKED]], int64(-1))


@uncounted_inner
def _link(tables: RuleTables, store: Store, unit: int, change: int) -> None:
    """Adds the dependencies between ``unit`` and the linked units (``change`` 1), or removes them (-1)."""
    chip = store.low[unit]
    for i in range(tables.succ_ptr[unit], tables.succ_ptr[unit + 1]):
        if store.is_linked[tables.succ[i]]:
            _count_edge(store, chip, store.low[tables.succ[i]], change)
    for i in range(tables.pred_ptr[unit], tables.pred_ptr[unit + 1]):
        if store.is_linked[tables.pred[i]]:
            _count_edge(store, store.low[tables.pred[i]], chip, change)
    store.is_linked[unit] = change > 0


@uncounted_inner
def _count_edge(store: Store, a: int, b: int, change: int) -> None:
    had_edges = store.link_edges[a, b] > 0
    store.link_edges[a, b] += change
    if a != b and had_edges != (store.link_edges[a, b] > 0):
        store.links[a, b // WORD_BITS] ^= chip_bit(b)
        store.state[LINKS_CHANGED] = 1


@uncounted_inner
def _find_far(tables: RuleTables, store: Store) -> None:
    """Fills ``reach``, ``far`` and ``far_into`` from ``links``, highest chip first: links lead upwards."""
    num_words = store.links.shape[1]
    for i in range(tables.num_chips):
        a = tables.num_chips - 1 - i
        for word in range(num_words):
            store.reach[a, word] = store.links[a, word]
            store.far[a, word] = NO_BITS
            store.far_into[a, word] = NO_BITS
        for word in range(num_words):
            bits = store.links[a, word]
            while bits != NO_BITS:
                c = word * WORD_BITS + lowest_bit(bits)
                bits &= bits - ONE_BIT
                for w in range(num_words):
                    beyond = store.reach[c, w]
                    if tables.triangle == TRIANGLE_THREE_CHIP:
                        beyond = store.links[c, w]
                    store.far[a, w] |= beyond
                    store.reach[a, w] |= store.reach[c, w]
        for b in range(a + 1, tables.num_chips):
            if has_chip(store.far[a], b):
                store.far_into[b, a // WORD_BITS] |= chip_bit(a)
