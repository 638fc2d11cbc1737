"""The chip triangle rule, on the dependency graph of the chips of decided units.

There is a direct dependency ``a -> b`` between chips if an edge leads from a unit on a to a
unit on b. A direct dependency must not have a detour:

* longest path: ``a -> b`` and a path of two or more dependencies from a to b;
* three chips: ``a -> b``, ``a -> c`` and ``c -> b``.

Dependencies only accumulate while units are decided, so a detour among decided units is
final, and a reader of a unit on chip a cannot be on a chip to which a has a detour. The adjacent
form is a span of 1 (:mod:`go_opt.solver.propagation.propagators.rules`). The rule applies only
with acyclic dataflow, so dependencies lead upwards.

The longest-path rule is propagated through ancestors and descendants at any distance. Chip a *leads
to* chip b if a unit decided on a has a descendant decided on b: a path of dependencies will run from
a to b, whatever is decided in between. Let ``above(w)`` be the chips of w's decided ancestors and
``below(w)`` those of its decided descendants. An undecided unit w

1. cannot lie strictly between a and b where ``a -> b`` is a direct dependency, a is in or
   leads to ``above(w)``, and b is in or led to from ``below(w)``: w would be a detour;
2. lies no higher than m if it reads a unit on a, a leads to m, and m is in ``above(w)``;
   no lower than n if a unit on b reads it, n leads to b, and n is in ``below(w)``;
3. cannot lie on b if it reads a unit on a and a leads to b through a third chip; nor on a
   if a unit on b reads it and a leads to b through a third chip.

One pass takes O(E W), plus all long dependencies for each unit. It runs whenever units are
decided: O(U E W) for a whole placement.
"""

from __future__ import annotations

from go_opt.common.arrays import WordArray
from go_opt.common.compiling import int64, uncounted_inner
from go_opt.solver.problem.problem import TRIANGLE_ADJACENT, TRIANGLE_OFF, TRIANGLE_THREE_CHIP
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
    highest_bit,
    lowest_bit,
    narrow_range,
    range_bits,
    remove,
    remove_range,
)
from go_opt.solver.propagation.propagators.tables import RuleTables


@uncounted_inner
def propagate_triangle(tables: RuleTables, store: Store) -> None:
    state = store.state
    first = state[NUM_LINKED]
    if tables.triangle in (TRIANGLE_OFF, TRIANGLE_ADJACENT) or first == state[NUM_DECIDED]:
        return
    while state[NUM_LINKED] < state[NUM_DECIDED]:
        _link(tables, store, store.decided[state[NUM_LINKED]], int64(1))
        state[NUM_LINKED] += 1
    if tables.looks_far:
        _look_far(tables, store)
        return
    if state[LINKS_CHANGED]:
        _find_far(tables, store)
        if _has_detour(store):
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


@uncounted_inner
def _look_far(tables: RuleTables, store: Store) -> None:
    _spread(tables, store)
    _find_paths(tables, store)
    if _has_detour(store):
        store.state[CONTRADICTION] = 1
        return
    num_long = _list_long_links(tables, store)
    for unit in tables.topological:
        if store.size[unit] > 1:
            _prune(tables, store, unit, num_long)


@uncounted_inner
def _spread(tables: RuleTables, store: Store) -> None:
    """Fills ``above`` and ``below`` of every unit."""
    num_units = len(store.size)
    num_words = store.above.shape[1]
    for i in range(num_units):
        unit = tables.topological[i]
        for word in range(num_words):
            store.above[unit, word] = NO_BITS
        for j in range(tables.pred_ptr[unit], tables.pred_ptr[unit + 1]):
            _join(store, store.above, unit, tables.pred[j])
    for i in range(num_units):
        unit = tables.topological[num_units - 1 - i]
        for word in range(num_words):
            store.below[unit, word] = NO_BITS
        for j in range(tables.succ_ptr[unit], tables.succ_ptr[unit + 1]):
            _join(store, store.below, unit, tables.succ[j])


@uncounted_inner
def _join(store: Store, chips: WordArray, unit: int, other: int) -> None:
    """Adds the set of ``other``, and its chip if decided, to the set of ``unit``."""
    for word in range(chips.shape[1]):
        chips[unit, word] |= chips[other, word]
    if store.size[other] == 1:
        chips[unit, store.low[other] // WORD_BITS] |= chip_bit(store.low[other])


@uncounted_inner
def _find_paths(tables: RuleTables, store: Store) -> None:
    """Fills ``into`` and ``reach``: which chip leads to which; ``far_into`` and ``far``: via a third chip."""
    num_chips, num_words = store.links.shape
    for a in range(num_chips):
        for word in range(num_words):
            store.into[a, word] = NO_BITS
            store.reach[a, word] = NO_BITS
            store.far[a, word] = NO_BITS
            store.far_into[a, word] = NO_BITS
    for i in range(store.state[NUM_DECIDED]):
        unit = store.decided[i]
        for word in range(num_words):
            store.into[store.low[unit], word] |= store.above[unit, word]
    for b in range(num_chips):
        store.into[b, b // WORD_BITS] &= ~chip_bit(b)
        for word in range(num_words):
            bits = store.into[b, word]
            while bits != NO_BITS:
                c = word * WORD_BITS + lowest_bit(bits)
                bits &= bits - ONE_BIT
                for w in range(num_words):
                    store.far_into[b, w] |= store.into[c, w]
        for word in range(num_words):
            store.into[b, word] |= store.far_into[b, word]
            bits = store.into[b, word]
            while bits != NO_BITS:
                a = word * WORD_BITS + lowest_bit(bits)
                bits &= bits - ONE_BIT
                store.reach[a, b // WORD_BITS] |= chip_bit(b)
                if has_chip(store.far_into[b], a):
                    store.far[a, b // WORD_BITS] |= chip_bit(b)


@uncounted_inner
def _has_detour(store: Store) -> bool:
    """Returns whether a direct dependency between two chips also has a path through a third chip."""
    for a in range(store.links.shape[0]):
        for word in range(store.links.shape[1]):
            if store.links[a, word] & store.far[a, word] != NO_BITS:
                return True
    return False


@uncounted_inner
def _list_long_links(tables: RuleTables, store: Store) -> int:
    """Fills ``long_links`` with the direct dependencies that skip a chip; returns their number."""
    count = 0
    for a in range(tables.num_chips):
        for word in range(store.links.shape[1]):
            bits = store.links[a, word] & ~range_bits(word, a, a + 1)
            while bits != NO_BITS:
                store.long_links[count, 0] = a
                store.long_links[count, 1] = word * WORD_BITS + lowest_bit(bits)
                bits &= bits - ONE_BIT
                count += 1
    return count


@uncounted_inner
def _prune(tables: RuleTables, store: Store, unit: int, num_long: int) -> None:
    """Applies the three rules to one unit."""
    for i in range(num_long):
        a = store.long_links[i, 0]
        b = store.long_links[i, 1]
        if store.low[unit] >= b or store.high[unit] <= a:
            continue
        if _meets(store.above[unit], a, store.reach[a]) and _meets(store.below[unit], b, store.into[b]):
            remove_range(store, unit, a + 1, b - 1)
    for i in range(tables.pred_ptr[unit], tables.pred_ptr[unit + 1]):
        if store.size[tables.pred[i]] == 1:
            _follow(store, unit, store.low[tables.pred[i]])
    for i in range(tables.succ_ptr[unit], tables.succ_ptr[unit + 1]):
        if store.size[tables.succ[i]] == 1:
            _precede(tables, store, unit, store.low[tables.succ[i]])


@uncounted_inner
def _follow(store: Store, unit: int, a: int) -> None:
    """Applies rules 2 and 3 to ``unit``, which reads a unit on chip ``a``."""
    remove(store, unit, store.far[a])
    for word in range(store.links.shape[1]):
        common = store.above[unit, word] & store.reach[a, word]
        if common != NO_BITS:
            narrow_range(store, unit, 0, word * WORD_BITS + lowest_bit(common))
            return


@uncounted_inner
def _precede(tables: RuleTables, store: Store, unit: int, b: int) -> None:
    """Applies rules 2 and 3 to ``unit``, which a unit on chip ``b`` reads."""
    remove(store, unit, store.far_into[b])
    num_words = store.links.shape[1]
    for i in range(num_words):
        word = num_words - 1 - i
        common = store.below[unit, word] & store.into[b, word]
        if common != NO_BITS:
            narrow_range(store, unit, word * WORD_BITS + highest_bit(common), tables.num_chips - 1)
            return


@uncounted_inner
def _meets(chips: WordArray, chip: int, others: WordArray) -> bool:
    """Returns whether the set ``chips`` [W] contains ``chip`` or one of ``others`` [W]."""
    for word in range(len(chips)):
        if chips[word] & others[word] != NO_BITS:
            return True
    return has_chip(chips, chip)
