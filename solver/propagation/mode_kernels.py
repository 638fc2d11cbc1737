"""Kernels of SAMPLE and FIX under the full rule: short searches that drive the engine.

Axes: ``S`` samples, ``U`` units, ``D`` chips, ``W`` words. Log-probabilities and visiting orders
have one row, or S.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import CodeArray, FloatArray, IntArray, LongArray, WordArray
from go_opt.common.compiling import compiled, compiled_inline, compiled_inner, int64, uncounted_inner
from go_opt.solver.propagation.propagators.domains import (
    ALL_BITS,
    BACKTRACKS,
    FAILED,
    MAX_BACKTRACKS,
    NO_BITS,
    WORD_BITS,
    Store,
    chip_bit,
    has_chip,
    narrow_range,
)
from go_opt.solver.propagation.propagators.tables import RuleTables
from go_opt.solver.propagation.search import EXHAUSTED, decide, reset, settle

KEPT, SEARCHED, BACKTRACKED, ADJACENT, LIMIT, CONFLICT = range(6)
FIRST_TRY: Final = 60  # backtracks before the first restart


class Draws(NamedTuple):
    """Results of the kernels, one row per sample."""

    placement: IntArray  # [S, U]
    proposal: IntArray  # [S, U]
    ending: CodeArray  # [S] KEPT … CONFLICT


@compiled
def place_all(
    tables: RuleTables,
    store: Store,
    rows: FloatArray,
    orders: IntArray,
    is_sample: bool,
    max_backtracks: int,
    rng: np.random.Generator,
    draws: Draws,
) -> None:
    """SAMPLE: keeps an independent draw from the rows if it is valid, else draws during a search.

    FIX: keeps a valid proposal, else searches for a placement that keeps the possible values; other
    units are drawn from the rows, or take the nearest chip if there are no rows.
    """
    work = _working_space(store)
    for s in range(len(draws.placement)):
        row = rows[s % len(rows)] if len(rows) > 0 else np.zeros((0, 0))
        if is_sample:
            _fill(work.chips)
            for unit in range(len(store.low)):
                draws.proposal[s, unit] = draw_chip(
                    work.chips, 0, tables.num_chips - 1, row[unit], rng.random()
                )
        if _keep_proposal(tables, store, draws.proposal[s], s, draws):
            continue
        begin = store.state[BACKTRACKS]
        _set_order(work, orders[s % len(orders)])
        while _may_try_again(store, begin, max_backtracks, s, draws):
            _failures_first(work)
            place = _search(tables, store, row, work, is_sample, rng, s, draws)
            _finish(tables, store, place, begin, s, draws)


class Work(NamedTuple):
    """Scratch for one sample."""

    order: LongArray  # [2, U] units in the order of a first and a second pass
    failures: LongArray  # [U] backtracks at each unit
    chips: WordArray  # [W] a set of chips


@compiled_inner
def _working_space(store: Store) -> Work:
    num_units, num_words = store.domain.shape
    order = np.zeros((2, num_units), np.int64)
    return Work(order, np.zeros(num_units, np.int64), np.zeros(num_words, np.uint64))


@uncounted_inner
def _set_order(work: Work, order: IntArray) -> None:
    for i in range(len(order)):
        work.order[0, i] = order[i]
        work.failures[i] = 0


@uncounted_inner
def _failures_first(work: Work) -> None:
    """Moves units with backtracks to the front; the second pass uses the same order as the first."""
    num_units = len(work.failures)
    size = 0
    for wants_failures in (True, False):
        for i in range(num_units):
            if (work.failures[work.order[0, i]] > 0) == wants_failures:
                work.order[1, size] = work.order[0, i]
                size += 1
    for i in range(num_units):
        work.order[0, i] = work.order[1, i]


@uncounted_inner
def _may_try_again(store: Store, begin: int, max_backtracks: int, s: int, draws: Draws) -> bool:
    """Returns whether to try again; sets the next backtrack limit, small at first for cheap restarts."""
    used = store.state[BACKTRACKS] - begin
    if used > 0 and (draws.ending[s] != LIMIT or used >= max_backtracks):
        return False
    budget = max(FIRST_TRY, used // 4)
    store.state[MAX_BACKTRACKS] = store.state[BACKTRACKS] + min(budget, max_backtracks - used)
    return used > 0 or draws.ending[s] == CONFLICT


@compiled_inline
def _keep_proposal(tables: RuleTables, store: Store, proposal: IntArray, s: int, draws: Draws) -> bool:
    """Returns whether the proposal is valid; if so, it becomes the placement. Resets the store."""
    is_valid = True
    for unit in range(len(store.low)):
        chip = int64(proposal[unit])
        if chip < 0 or chip >= tables.num_chips or not has_chip(store.domain[unit], chip):
            is_valid = False
            break
        if narrow_range(store, unit, chip, chip) == FAILED:
            is_valid = False
            break
    is_valid = settle(tables, store, is_valid) != EXHAUSTED
    reset(tables, store)
    if is_valid:
        draws.ending[s] = KEPT
        for unit in range(len(store.low)):
            draws.placement[s, unit] = proposal[unit]
    return is_valid


@compiled_inline
def _search(
    tables: RuleTables,
    store: Store,
    row: FloatArray,
    work: Work,
    is_sample: bool,
    rng: np.random.Generator,
    s: int,
    draws: Draws,
) -> int:
    """Visits all units, in FIX twice: the first time only possible proposals are decided."""
    num_units = len(store.low)
    chips = work.chips
    passes = 1 if is_sample else 2
    place = 0
    while 0 <= place < passes * num_units:
        is_last_pass = place >= (passes - 1) * num_units
        unit = work.order[place // num_units, place % num_units]
        wanted = int64(draws.proposal[s, unit])
        if not is_sample and 0 <= wanted < tables.num_chips and has_chip(store.domain[unit], wanted):
            _only(chips, wanted)
        elif not is_last_pass:
            for word in range(len(chips)):
                chips[word] = store.domain[unit, word]
        elif len(row) > 0:
            _only(chips, draw_open(store, unit, row[unit], rng.random()))
        else:
            _only(chips, _nearest(store, unit, wanted))
        before = place
        place = settle(tables, store, decide(store, unit, chips))
        if place <= before:
            work.failures[unit] += 1
    return place


@uncounted_inner
def _finish(tables: RuleTables, store: Store, place: int, begin: int, s: int, draws: Draws) -> None:
    """Records the ending and the placement of a try, and resets the store."""
    if place < 0:
        draws.ending[s] = CONFLICT if place == EXHAUSTED else LIMIT
    else:
        draws.ending[s] = BACKTRACKED if store.state[BACKTRACKS] > begin else SEARCHED
        for unit in range(len(store.low)):
            draws.placement[s, unit] = store.low[unit]
    reset(tables, store)


@uncounted_inner
def _only(chips: WordArray, chip: int) -> None:
    for word in range(len(chips)):
        chips[word] = NO_BITS
    chips[chip // WORD_BITS] = chip_bit(chip)


@uncounted_inner
def _fill(chips: WordArray) -> None:
    for word in range(len(chips)):
        chips[word] = ALL_BITS


@uncounted_inner
def _nearest(store: Store, unit: int, wanted: int) -> int:
    """Returns the open chip nearest to ``wanted``; the lower chip on a tie."""
    best = store.low[unit]
    for chip in range(store.low[unit], store.high[unit] + 1):
        if has_chip(store.domain[unit], chip) and abs(chip - wanted) < abs(best - wanted):
            best = chip
    return best


@uncounted_inner
def draw_open(store: Store, unit: int, row: FloatArray, uniform: float) -> int:
    """Draws an open chip of ``unit`` from ``row``; see :func:`draw_chip`."""
    return draw_chip(store.domain[unit], store.low[unit], store.high[unit], row, uniform)


@uncounted_inner
def draw_chip(chips: WordArray, low: int, high: int, row: FloatArray, uniform: float) -> int:
    """Draws a chip of the set ``chips`` [W], all within ``low … high``.

    ``row`` [D] holds log-probabilities on any scale. If it has no mass on the set, the draw is uniform.
    """
    top = -np.inf
    for chip in range(low, high + 1):
        if has_chip(chips, chip):
            top = max(top, row[chip])
    total = 0.0
    for chip in range(low, high + 1):
        if has_chip(chips, chip):
            total += 1.0 if top == -np.inf else np.exp(row[chip] - top)
    left = uniform * total
    drawn = low
    for chip in range(low, high + 1):
        if has_chip(chips, chip):
            weight = 1.0 if top == -np.inf else np.exp(row[chip] - top)
            if weight > 0.0:
                drawn = chip
                left -= weight
                if left < 0.0:
                    break
    return drawn
