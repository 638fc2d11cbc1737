"""SAMPLE and FIX: batches of valid placements from a policy's log-probabilities or proposals.

Under the full rule the placement is the proposal itself if it is valid. Otherwise the engine
searches within ``max_backtracks``; if this fails, the adjacent core makes the placement. Under the
adjacent rule the core makes all. Axes as in :mod:`go_opt.solver.propagation.mode_kernels`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, TypeVar

import numpy as np

from go_opt.common.arrays import BoolArray, CodeArray, FloatArray, IntArray, LongArray
from go_opt.errors import InfeasibleError, InvalidInputError
from go_opt.solver.problem.problem import PlacementProblem
from go_opt.solver.propagation.adjacent import (
    ANCHORED,
    DRAWN,
    checked_rows,
    fix_adjacent,
    sample_adjacent,
    visiting_orders,
)
from go_opt.solver.propagation.adjacent_domains import longest_stretches
from go_opt.solver.propagation.mode_kernels import (
    ADJACENT,
    CONFLICT,
    KEPT,
    LIMIT,
    SEARCHED,
    Draws,
    place_all,
)
from go_opt.solver.propagation.propagators.domains import unpack_chips
from go_opt.solver.propagation.propagators.tables import RuleTables, rule_tables
from go_opt.solver.propagation.search import Solver, holds

Rule = Literal["full", "adjacent"]
_Rows = TypeVar("_Rows", FloatArray, IntArray)
RULES: Final = ("full", "adjacent")
MAX_BACKTRACKS: Final = 300


@dataclass(frozen=True, eq=False)
class Placements:
    """Placements, and how each was found."""

    placement: IntArray  # [S, U]; -1 if none was found (user constraints only)
    ending: CodeArray  # [S] KEPT … CONFLICT of the kernels
    backtracks: int  # of the whole batch

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
    batch = _batch(problem, tables, num_samples, rule, seed)
    backtracks = _search(batch, rows, max_backtracks, is_sample=True)
    _place_rest(batch, rows, is_sample=True)
    return Placements(batch.draws.placement, batch.draws.ending, backtracks)


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
    proposals = _checked_proposals(problem, proposals)
    rows = _NO_ROWS if log_probs is None else checked_rows(problem, log_probs, len(proposals))
    batch = _batch(problem, tables, len(proposals), rule, seed)
    batch.draws.proposal[:] = proposals
    backtracks = _search(batch, rows, max_backtracks, is_sample=False)
    _place_rest(batch, rows, is_sample=False)
    return Placements(batch.draws.placement, batch.draws.ending, backtracks)


_NO_ROWS: Final = np.zeros((0, 0, 0))


@dataclass(frozen=True, eq=False)
class _Batch:
    problem: PlacementProblem
    tables: RuleTables
    rule: Rule
    orders: IntArray  # [1 or S, U] units in the order they are visited
    seed: int
    draws: Draws


def _batch(
    problem: PlacementProblem,
    tables: RuleTables | None,
    num_samples: int,
    rule: Rule,
    seed: int,
) -> _Batch:
    if rule not in RULES:
        raise InvalidInputError(f"rule is {rule!r}, must be one of {', '.join(RULES)}.", field="rule")
    tables = rule_tables(problem) if tables is None else tables
    draws = Draws(
        placement=np.full((num_samples, tables.num_units), -1, np.int32),
        proposal=np.zeros((num_samples, tables.num_units), np.int32),
        ending=np.full(num_samples, LIMIT if rule == "adjacent" else CONFLICT, np.int8),
    )
    orders = visiting_orders(problem, np.random.default_rng((seed, 0)), num_samples)
    return _Batch(problem, tables, rule, orders, seed, draws)


def _search(batch: _Batch, rows: FloatArray, max_backtracks: int, *, is_sample: bool) -> int:
    """Runs the engine under the full rule; returns its backtracks."""
    if batch.rule == "adjacent":
        return 0
    solver = Solver(batch.tables)
    before = solver.backtracks
    if not solver.is_exhausted:
        rng = np.random.default_rng((batch.seed, 1))
        search = (is_sample, max_backtracks, rng, batch.draws)
        place_all(batch.tables, solver.store, rows, batch.orders, *search)
    return solver.backtracks - before


def _place_rest(batch: _Batch, rows: FloatArray, *, is_sample: bool) -> None:
    """Draws the samples without a placement, or repairs their proposals, with the adjacent core."""
    rest = np.flatnonzero(batch.draws.ending == LIMIT)
    if not len(rest):
        return
    problem, proposals = batch.problem, batch.draws.proposal[rest]
    log_probs = _rows_of(rows, rest)
    first, last = longest_stretches(unpack_chips(batch.tables.allowed, batch.tables.num_chips))
    core = (
        partial(sample_adjacent, problem, log_probs, num_samples=len(rest))
        if is_sample
        else partial(fix_adjacent, problem, proposals, log_probs=log_probs if len(rows) else None)
    )
    try:
        made = core(orders=_rows_of(batch.orders, rest), seed=batch.seed, first_chip=first, last_chip=last)
    except InfeasibleError:
        if batch.rule == "adjacent":
            raise
        return
    is_valid = _accept(batch, rest, made.placement, made.status)
    if batch.rule == "adjacent":
        is_kept = (made.placement == proposals).all(axis=1) & (not is_sample)
        batch.draws.ending[rest[is_valid]] = np.where(is_kept, KEPT, SEARCHED)[is_valid]


def _rows_of(rows: _Rows, samples: LongArray) -> _Rows:
    """Returns the rows of ``samples``, or all rows if samples share them."""
    return rows[samples] if len(rows) > 1 else rows


def _accept(batch: _Batch, rest: LongArray, placement: IntArray, status: CodeArray) -> BoolArray:
    """Copies the core's placements for which every rule holds; returns [R] whether it does."""
    is_valid = (status == DRAWN) | (status == ANCHORED)
    for i in np.flatnonzero(is_valid):
        is_valid[i] = holds(batch.tables, placement[i])
    batch.draws.placement[rest[is_valid]] = placement[is_valid]
    batch.draws.ending[rest[is_valid]] = ADJACENT
    return is_valid


def _checked_proposals(problem: PlacementProblem, proposals: IntArray) -> IntArray:
    checked = np.ascontiguousarray(proposals)
    if checked.ndim != 2 or checked.shape[1] != problem.num_units or checked.dtype.kind not in "iu":
        raise InvalidInputError(
            f"proposals has shape {checked.shape} of {checked.dtype}, must be integers "
            f"(samples, {problem.num_units}).",
            field="proposals",
        )
    return np.where((checked >= 0) & (checked < problem.num_chips), checked, -1).astype(np.int32)
