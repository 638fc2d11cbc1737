"""The chip triangle rule, on the dependency graph of the chips of decided units.

There is a direct dependency ``a -> b`` between chips if an edge leads from a unit on a to a
unit on b. A direct dependency must not have a detour:

* longest path: ``a -> b`` and a path of two or more dependencies from a to b;
* three chips: ``a -> b``, ``a -> c`` and ``c -> b``.

Dependencies only accumulate while units are decided, so a detour among decided units is
final, and a reader of a unit on chip a cannot be on a chip to which a has a detour. Under the
longest-path rule :mod:`go_opt.solver.propagation.propagators.detours` prunes more. The adjacent
form is a span of 1 (:mod:`go_opt.solver.propagation.propagators.span`). The rule applies only
with acyclic dataflow, so dependencies lead upwards.
"""

from __future__ import annotations

import numpy as np

from go_opt.common.arrays import IntArray
from go_opt.common.compiling import uncounted_inner
from go_opt.solver.problem.problem import (
    TRIANGLE_ADJACENT,
    TRIANGLE_LONGEST_PATH,
    TRIANGLE_OFF,
    TRIANGLE_THREE_CHIP,
)
from go_opt.solver.propagation.propagators import detours
from go_opt.solver.propagation.propagators.domains import (
    FAILED,
    LINKS_CHANGED,
    NO_BITS,
    NUM_DECIDED,
    NUM_LINKED,
    ONE_BIT,
    UNCHANGED,
    WORD_BITS,
    Store,
    chip_bit,
    has_chip,
    lowest_bit,
    remove,
)
from go_opt.solver.propagation.propagators.tables import RuleTables


@uncounted_inner
def propagate(tables: RuleTables, store: Store, unit: int) -> int:
    state = store.state
    if tables.triangle == TRIANGLE_OFF or (tables.triangle == TRIANGLE_ADJACENT and tables.acyclic):
        return UNCHANGED
    first = state[NUM_LINKED]
    if first == state[NUM_DECIDED]:
        return UNCHANGED
    while state[NUM_LINKED] < state[NUM_DECIDED]:
        _link(tables, store, store.decided[state[NUM_LINKED]])
        state[NUM_LINKED] += 1
    if tables.looks_far:
        return detours.propagate(tables, store)
    if state[LINKS_CHANGED]:
        _find_far(tables, store)
        if detours.has_detour(store):
            return FAILED
        state[LINKS_CHANGED] = 0
    return _prune(tables, store, first)


def holds(tables: RuleTables, placement: IntArray) -> bool:
    source, reader = (placement[ends] for ends in tables.edges())
    depends = np.zeros((tables.num_chips, tables.num_chips), dtype=np.bool_)
    depends[source, reader] = source != reader
    if tables.triangle == TRIANGLE_ADJACENT:
        return bool((reader - source <= 1).all())
    if tables.triangle == TRIANGLE_THREE_CHIP:
        return not (depends & (depends.astype(int) @ depends.astype(int) > 0)).any()
    if tables.triangle == TRIANGLE_LONGEST_PATH:
        longest = depends.astype(int)
        for a in range(tables.num_chips - 1, -1, -1):
            for c in np.flatnonzero(depends[a]):
                longest[a] = np.maximum(longest[a], np.where(longest[c] > 0, longest[c] + 1, 0))
        return not (depends & (longest > 1)).any()
    return True


@uncounted_inner
def unlink_after(tables: RuleTables, store: Store, num_decided: int) -> None:
    """Removes the dependencies of all but the first ``num_decided`` decided units."""
    state = store.state
    while state[NUM_LINKED] > num_decided:
        state[NUM_LINKED] -= 1
        _unlink(tables, store, store.decided[state[NUM_LINKED]])


@uncounted_inner
def _link(tables: RuleTables, store: Store, unit: int) -> None:
    store.is_linked[unit] = True
    for i in range(tables.succ_ptr[unit], tables.succ_ptr[unit + 1]):
        if store.is_linked[tables.succ[i]]:
            _add_edge(store, store.low[unit], store.low[tables.succ[i]])
    for i in range(tables.pred_ptr[unit], tables.pred_ptr[unit + 1]):
        if store.is_linked[tables.pred[i]]:
            _add_edge(store, store.low[tables.pred[i]], store.low[unit])


@uncounted_inner
def _unlink(tables: RuleTables, store: Store, unit: int) -> None:
    for i in range(tables.succ_ptr[unit], tables.succ_ptr[unit + 1]):
        if store.is_linked[tables.succ[i]]:
            _drop_edge(store, store.low[unit], store.low[tables.succ[i]])
    for i in range(tables.pred_ptr[unit], tables.pred_ptr[unit + 1]):
        if store.is_linked[tables.pred[i]]:
            _drop_edge(store, store.low[tables.pred[i]], store.low[unit])
    store.is_linked[unit] = False


@uncounted_inner
def _add_edge(store: Store, a: int, b: int) -> None:
    if a == b:
        return
    store.link_edges[a, b] += 1
    if store.link_edges[a, b] == 1:
        store.links[a, b // WORD_BITS] |= chip_bit(b)
        store.state[LINKS_CHANGED] = 1


@uncounted_inner
def _drop_edge(store: Store, a: int, b: int) -> None:
    if a == b:
        return
    store.link_edges[a, b] -= 1
    if store.link_edges[a, b] == 0:
        store.links[a, b // WORD_BITS] &= ~chip_bit(b)
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


@uncounted_inner
def _prune(tables: RuleTables, store: Store, first: int) -> int:
    """Removes the chips with a detour to or from newly decided units from their neighbours' domains."""
    result = UNCHANGED
    for i in range(first, store.state[NUM_LINKED]):
        unit = store.decided[i]
        chip = store.low[unit]
        for j in range(tables.succ_ptr[unit], tables.succ_ptr[unit + 1]):
            status = remove(store, tables.succ[j], store.far[chip])
            if status == FAILED:
                return FAILED
            result = max(result, status)
        for j in range(tables.pred_ptr[unit], tables.pred_ptr[unit + 1]):
            status = remove(store, tables.pred[j], store.far_into[chip])
            if status == FAILED:
                return FAILED
            result = max(result, status)
    return result
