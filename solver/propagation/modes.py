"""SAMPLE and FIX: batches of valid placements from a policy's log-probabilities or proposals.

Under the full rule the placement is the proposal itself if it is valid. Otherwise a short search drives the
engine within ``max_backtracks``; if this fails, the adjacent core makes the placement. Under the adjacent
rule the core makes all. Axes: ``S`` samples, ``U`` units, ``D`` chips, ``W`` words. Log-probabilities and
visiting orders have one row, or S.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import numpy as np

from go_opt.common.arrays import CodeArray, FloatArray, IntArray, LongArray, WordArray
from go_opt.common.compiling import compiled, compiled_inline, compiled_inner, int64, uncounted_inner
from go_opt.errors import InfeasibleError, InvalidInputError
from go_opt.solver.problem.problem import PlacementProblem
from go_opt.solver.propagation.adjacent import (
    ADJACENT,
    ANCHORED,
    BACKTRACKED,
    CONFLICT,
    DRAWN,
    KEPT,
    LIMIT,
    SEARCHED,
    Placements,
    checked,
    checked_rows,
    longest_stretches,
    place_adjacent,
    visiting_orders,
)
from go_opt.solver.propagation.propagators.domains import (
    ALL_BITS,
    BACKTRACKS,
    CONTRADICTION,
    NO_BITS,
    WORD_BITS,
    Store,
    chip_bit,
    draw_chip,
    has_chip,
    narrow_range,
    unpack_chips,
)
from go_opt.solver.propagation.propagators.domains import (
    MAX_BACKTRACKS as MOST_BACKTRACKS,
)
from go_opt.solver.propagation.propagators.tables import RuleTables, rule_tables
from go_opt.solver.propagation.search import EXHAUSTED, Solver, decide, holds, reset, settle

Rule = Literal["full", "adjacent"]
RULES: Final = ("full", "adjacent")
MAX_BACKTRACKS: Final = 300
FIRST_TRY: Final = 60  # backtracks before the first restart


def sample(
    problem: PlacementProblem,
    log_probs: FloatArray,
    *,
    seed: int = 0,
    num_samples: int = 1,
    rule: Rule = "full",
    max_backtracks: int = MAX_BACKTRACKS,
    tables: RuleTables | None = None,
) -> Placements:
    """Draws placements unit by unit, each from its row restricted to its current domain.

    A row without mass on a domain counts as uniform there.

    Args:
      log_probs: [U, D], or [S, U, D] with separate rows per sample; any scale, -inf is no mass.
      max_backtracks: limit of the engine for each sample.
      tables: precomputed tables of ``problem``, which may include user constraints.

    Raises:
      InfeasibleError: under the adjacent rule, all chips must be used and no placement does.
    """
    rows = checked_rows(problem, log_probs, num_samples)
    nothing = np.zeros((num_samples, 0), np.int32)
    return _placements(problem, tables, rows, nothing, rule, max_backtracks, seed)


def fix(
    problem: PlacementProblem,
    proposals: IntArray,
    *,
    log_probs: FloatArray | None = None,
    seed: int = 0,
    rule: Rule = "full",
    max_backtracks: int = MAX_BACKTRACKS,
    tables: RuleTables | None = None,
) -> Placements:
    """Repairs proposals: keeps each value that is still possible, then places the other units.

    A valid proposal is returned unchanged.

    Args:
      proposals: [S, U] chips; values outside 0 … D - 1 are never kept.
      log_probs: [U, D] or [S, U, D]: rows from which the other units are drawn. Without rows, each
        takes the nearest chip of its domain.
      max_backtracks, tables: as for :func:`sample`, with its errors.
    """
    proposals = checked(problem, proposals)
    proposals = np.where((proposals >= 0) & (proposals < problem.num_chips), proposals, np.int32(-1))
    rows = _NO_ROWS if log_probs is None else checked_rows(problem, log_probs, len(proposals))
    return _placements(problem, tables, rows, proposals, rule, max_backtracks, seed)


_NO_ROWS: Final = np.zeros((0, 0, 0))


def _placements(
    problem: PlacementProblem,
    tables: RuleTables | None,
    rows: FloatArray,
    proposals: IntArray,
    rule: Rule,
    max_backtracks: int,
    seed: int,
) -> Placements:
    """FIX of the proposals [S, U], or SAMPLE where they have no columns."""
    if rule not in RULES:
        raise InvalidInputError(f"rule is {rule!r}, must be one of {', '.join(RULES)}.", field="rule")
    tables = rule_tables(problem) if tables is None else tables
    num_samples, is_sample = len(proposals), proposals.shape[1] == 0
    placement = np.full((num_samples, tables.num_units), -1, np.int32)
    wanted = np.zeros_like(placement) if is_sample else proposals
    ending = np.full(num_samples, LIMIT if rule == "adjacent" else CONFLICT, np.int8)
    orders = visiting_orders(problem, np.random.default_rng((seed, 0)), num_samples)
    backtracks = 0
    if rule == "full":
        solver = Solver(tables)
        before = solver.backtracks
        if not solver.is_exhausted:
            rng, made = np.random.default_rng((seed, 1)), (wanted, placement, ending)
            _place_all(tables, solver.store, rows, orders, is_sample, max_backtracks, rng, made)
        backtracks = solver.backtracks - before
    rest = np.flatnonzero(ending == LIMIT)
    if not len(rest):
        return Placements(placement, ending, backtracks)
    first_chip, last_chip = longest_stretches(unpack_chips(tables.allowed, tables.num_chips))
    try:
        placed = place_adjacent(
            problem,
            log_probs=None if not len(rows) else rows[rest] if len(rows) > 1 else rows,
            proposals=None if is_sample else proposals[rest],
            orders=orders[rest],
            seed=seed,
            num_samples=len(rest),
            first_chip=first_chip,
            last_chip=last_chip,
        )
    except InfeasibleError:
        if rule == "adjacent":
            raise
        return Placements(placement, ending, backtracks)
    # The adjacent rule implies the others, except limits of the user.
    has_limits = len(tables.limit_chip) > 0
    for s, row, status in zip(rest, placed.placement, placed.ending, strict=True):
        if status in (DRAWN, ANCHORED) and not (has_limits and not holds(tables, row)):
            is_kept = not is_sample and (row == proposals[s]).all()
            placement[s] = row
            ending[s] = ADJACENT if rule == "full" else KEPT if is_kept else SEARCHED
    return Placements(placement, ending, backtracks)


# Of each sample: its proposal, its placement ([S, U] each), and how that was found.
_Made = tuple[IntArray, IntArray, CodeArray]


class _Work(NamedTuple):
    """Scratch for one sample."""

    order: LongArray  # [2, U] units in the order of a first and a second pass
    failures: LongArray  # [U] backtracks at each unit
    chips: WordArray  # [W] a set of chips


@compiled
def _place_all(
    tables: RuleTables,
    store: Store,
    rows: FloatArray,
    orders: IntArray,
    is_sample: bool,
    max_backtracks: int,
    rng: np.random.Generator,
    made: _Made,
) -> None:
    """SAMPLE: keeps an independent draw from the rows if it is valid, else draws during a search.

    FIX: keeps a valid proposal, else searches for a placement that keeps the possible values; other
    units are drawn from the rows, or take the nearest chip if there are no rows.
    """
    work = _working_space(store)
    proposal, placement, ending = made
    num_units = len(store.low)
    for s in range(len(placement)):
        row = rows[s % len(rows)] if len(rows) > 0 else np.zeros((0, 0))
        if is_sample:
            for word in range(len(work.chips)):
                work.chips[word] = ALL_BITS
            for unit in range(num_units):
                proposal[s, unit] = draw_chip(work.chips, 0, tables.num_chips - 1, row[unit], rng.random())
        if _keep_proposal(tables, store, s, made):
            continue
        begin = store.state[BACKTRACKS]
        for i in range(num_units):
            work.order[0, i] = orders[s % len(orders), i]
            work.failures[i] = 0
        while _may_try_again(store, begin, max_backtracks, ending[s]):
            _failures_first(work)
            place = _search(tables, store, row, work, is_sample, rng, proposal[s])
            if place < 0:
                ending[s] = CONFLICT if place == EXHAUSTED else LIMIT
            else:
                ending[s] = BACKTRACKED if store.state[BACKTRACKS] > begin else SEARCHED
                for unit in range(num_units):
                    placement[s, unit] = store.low[unit]
            reset(tables, store)


@compiled_inner
def _working_space(store: Store) -> _Work:
    num_units, num_words = store.domain.shape
    order = np.zeros((2, num_units), np.int64)
    return _Work(order, np.zeros(num_units, np.int64), np.zeros(num_words, np.uint64))


@uncounted_inner
def _failures_first(work: _Work) -> None:
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
def _may_try_again(store: Store, begin: int, max_backtracks: int, ending: int) -> bool:
    """Returns whether to try again; sets the next backtrack limit, small at first for cheap restarts."""
    used = store.state[BACKTRACKS] - begin
    if used > 0 and (ending != LIMIT or used >= max_backtracks):
        return False
    budget = max(FIRST_TRY, used // 4)
    store.state[MOST_BACKTRACKS] = store.state[BACKTRACKS] + min(budget, max_backtracks - used)
    return used > 0 or ending == CONFLICT


@compiled_inline
def _keep_proposal(tables: RuleTables, store: Store, s: int, made: _Made) -> bool:
    """Returns whether the proposal is valid; if so, it becomes the placement. Resets the store."""
    proposal, placement, ending = made
    for unit in range(len(store.low)):
        chip = int64(proposal[s, unit])
        narrow_range(store, unit, chip, chip)
        if store.state[CONTRADICTION]:
            break
    is_valid = settle(tables, store) != EXHAUSTED
    reset(tables, store)
    if is_valid:
        ending[s] = KEPT
        for unit in range(len(store.low)):
            placement[s, unit] = proposal[s, unit]
    return is_valid


@compiled_inline
def _search(
    tables: RuleTables,
    store: Store,
    row: FloatArray,
    work: _Work,
    is_sample: bool,
    rng: np.random.Generator,
    proposal: IntArray,
) -> int:
    """Visits all units, in FIX twice: the first time only possible proposals are decided."""
    num_units = len(store.low)
    chips = work.chips
    passes = 1 if is_sample else 2
    place = 0
    while 0 <= place < passes * num_units:
        is_last_pass = place >= (passes - 1) * num_units
        unit = work.order[place // num_units, place % num_units]
        wanted = int64(proposal[unit])
        if not is_sample and 0 <= wanted < tables.num_chips and has_chip(store.domain[unit], wanted):
            _only(chips, wanted)
        elif not is_last_pass:
            for word in range(len(chips)):
                chips[word] = store.domain[unit, word]
        elif len(row) > 0:
            open_chips, low, high = store.domain[unit], store.low[unit], store.high[unit]
            _only(chips, draw_chip(open_chips, low, high, row[unit], rng.random()))
        else:
            _only(chips, _nearest(store, unit, wanted))
        before = place
        decide(store, unit, chips)
        place = settle(tables, store)
        if place <= before:
            work.failures[unit] += 1
    return place


@uncounted_inner
def _only(chips: WordArray, chip: int) -> None:
    for word in range(len(chips)):
        chips[word] = NO_BITS
    chips[chip // WORD_BITS] = chip_bit(chip)


@uncounted_inner
def _nearest(store: Store, unit: int, wanted: int) -> int:
    """Returns the open chip nearest to ``wanted``; the lower chip on a tie."""
    best = store.low[unit]
    for chip in range(store.low[unit], store.high[unit] + 1):
        if has_chip(store.domain[unit], chip) and abs(chip - wanted) < abs(best - wanted):
            best = chip
    return best
