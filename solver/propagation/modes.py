"""SAMPLE and FIX: batches of valid placements from a policy's log-probabilities or proposals.

Under the full rule the placement is the proposal itself if it is valid. Otherwise a short search drives the
engine within ``max_backtracks``; if this fails, the adjacent core makes the placement. Under the adjacent
rule the core makes all. Axes: ``S`` samples, ``U`` units, ``D`` chips, ``W`` words. Log-probabilities and
visiting orders have one row, or S.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeVar

import numpy as np

from go_opt.common.arrays import BoolArray, CodeArray, FloatArray, IntArray, LongArray, WordArray
from go_opt.common.compiling import compiled, compiled_inline, compiled_inner, int64, uncounted_inner
from go_opt.errors import InfeasibleError, InvalidInputError
from go_opt.solver.problem.problem import PlacementProblem
from go_opt.solver.propagation.adjacent import (
    ANCHORED,
    DRAWN,
    checked_proposals,
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
_Rows = TypeVar("_Rows", FloatArray, IntArray)
RULES: Final = ("full", "adjacent")
MAX_BACKTRACKS: Final = 300
FIRST_TRY: Final = 60  # backtracks before the first restart
KEPT, SEARCHED, BACKTRACKED, ADJACENT, LIMIT, CONFLICT = range(6)


class Placements(NamedTuple):
    """Placements, and how each was found."""

    placement: IntArray  # [S, U]; -1 if none was found (user constraints only)
    proposal: IntArray  # [S, U]
    ending: CodeArray  # [S] KEPT … CONFLICT
    backtracks: int = 0  # of the whole batch

    @property
    def found(self) -> BoolArray:
        """Returns [S] True if there is a valid placement."""
        return (self.ending != LIMIT) & (self.ending != CONFLICT)

    @property
    def backtracked(self) -> BoolArray:
        """Returns [S] True if the search backtracked at least once, whatever the result."""
        return (self.ending != KEPT) & (self.ending != SEARCHED)

    @property
    def fell_back(self) -> BoolArray:
        """Returns [S] True if the adjacent core made the placement."""
        return self.ending == ADJACENT


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
    proposals = checked_proposals(problem, proposals)
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
    shape = (num_samples, tables.num_units)
    made = Placements(
        np.full(shape, -1, np.int32),
        np.zeros(shape, np.int32) if is_sample else proposals,
        np.full(num_samples, LIMIT if rule == "adjacent" else CONFLICT, np.int8),
    )
    orders = visiting_orders(problem, np.random.default_rng((seed, 0)), num_samples)
    if rule == "full":
        solver = Solver(tables)
        before = solver.backtracks
        if not solver.is_exhausted:
            rng = np.random.default_rng((seed, 1))
            _place_all(tables, solver.store, rows, orders, is_sample, max_backtracks, rng, made)
        made = made._replace(backtracks=solver.backtracks - before)
    rest = np.flatnonzero(made.ending == LIMIT)
    if not len(rest):
        return made
    try:
        placed = place_adjacent(
            problem,
            _rows_of(rows, rest) if len(rows) else None,
            proposals[rest],
            _rows_of(orders, rest),
            seed,
            *longest_stretches(unpack_chips(tables.allowed, tables.num_chips)),
        )
    except InfeasibleError:
        if rule == "adjacent":
            raise
        return made
    # The adjacent rule implies the others, except limits of the user.
    has_limits = len(tables.limits.chip) > 0
    for s, placement, status in zip(rest, *placed, strict=True):
        if status in (DRAWN, ANCHORED) and not (has_limits and not holds(tables, placement)):
            is_kept = not is_sample and (placement == proposals[s]).all()
            made.placement[s] = placement
            made.ending[s] = ADJACENT if rule == "full" else KEPT if is_kept else SEARCHED
    return made


def _rows_of(rows: _Rows, samples: LongArray) -> _Rows:
    """Returns the rows of ``samples``, or all rows if samples share them."""
    return rows[samples] if len(rows) > 1 else rows


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
    made: Placements,
) -> None:
    """SAMPLE: keeps an independent draw from the rows if it is valid, else draws during a search.

    FIX: keeps a valid proposal, else searches for a placement that keeps the possible values; other
    units are drawn from the rows, or take the nearest chip if there are no rows.
    """
    work = _working_space(store)
    num_units = len(store.low)
    for s in range(len(made.placement)):
        row = rows[s % len(rows)] if len(rows) > 0 else np.zeros((0, 0))
        if is_sample:
            for word in range(len(work.chips)):
                work.chips[word] = ALL_BITS
            for unit in range(num_units):
                made.proposal[s, unit] = draw_chip(
                    work.chips, 0, tables.num_chips - 1, row[unit], rng.random()
                )
        if _keep_proposal(tables, store, s, made):
            continue
        begin = store.state[BACKTRACKS]
        for i in range(num_units):
            work.order[0, i] = orders[s % len(orders), i]
            work.failures[i] = 0
        while _may_try_again(store, begin, max_backtracks, s, made):
            _failures_first(work)
            place = _search(tables, store, row, work, is_sample, rng, s, made)
            if place < 0:
                made.ending[s] = CONFLICT if place == EXHAUSTED else LIMIT
            else:
                made.ending[s] = BACKTRACKED if store.state[BACKTRACKS] > begin else SEARCHED
                for unit in range(num_units):
                    made.placement[s, unit] = store.low[unit]
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
def _may_try_again(store: Store, begin: int, max_backtracks: int, s: int, made: Placements) -> bool:
    """Returns whether to try again; sets the next backtrack limit, small at first for cheap restarts."""
    used = store.state[BACKTRACKS] - begin
    if used > 0 and (made.ending[s] != LIMIT or used >= max_backtracks):
        return False
    budget = max(FIRST_TRY, used // 4)
    store.state[MOST_BACKTRACKS] = store.state[BACKTRACKS] + min(budget, max_backtracks - used)
    return used > 0 or made.ending[s] == CONFLICT


@compiled_inline
def _keep_proposal(tables: RuleTables, store: Store, s: int, made: Placements) -> bool:
    """Returns whether the proposal is valid; if so, it becomes the placement. Resets the store."""
    for unit in range(len(store.low)):
        chip = int64(made.proposal[s, unit])
        narrow_range(store, unit, chip, chip)
        if store.state[CONTRADICTION]:
            break
    is_valid = settle(tables, store) != EXHAUSTED
    reset(tables, store)
    if is_valid:
        made.ending[s] = KEPT
        for unit in range(len(store.low)):
            made.placement[s, unit] = made.proposal[s, unit]
    return is_valid


@compiled_inline
def _search(
    tables: RuleTables,
    store: Store,
    row: FloatArray,
    work: _Work,
    is_sample: bool,
    rng: np.random.Generator,
    s: int,
    made: Placements,
) -> int:
    """Visits all units, in FIX twice: the first time only possible proposals are decided."""
    num_units = len(store.low)
    chips = work.chips
    passes = 1 if is_sample else 2
    place = 0
    while 0 <= place < passes * num_units:
        is_last_pass = place >= (passes - 1) * num_units
        unit = work.order[place // num_units, place % num_units]
        wanted = int64(made.proposal[s, unit])
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
