"""The adjacent core of SAMPLE and FIX: placements under the adjacent rule, without backtracking.

The rule is ``f(u) <= f(v) <= f(u) + 1`` for every edge. It implies acyclic dataflow and the
chip triangle rule in each of its forms. A weakly connected component uses consecutive chips,
so moving components down makes the used chips 0 … k - 1 (no skipping).

Axes: ``S`` samples, ``U`` units, ``D`` chips.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from go_opt.common.arrays import CodeArray, FloatArray, IntArray
from go_opt.common.compiling import compiled, int64, uncounted_inner
from go_opt.errors import InvalidInputError
from go_opt.solver.problem.problem import PlacementProblem
from go_opt.solver.propagation.adjacent_cover import Cover, anchor, close_gaps, what_to_cover
from go_opt.solver.propagation.adjacent_domains import (
    Domains,
    draw_chip,
    fix,
    reset,
    start_domains,
    working_domains,
)

DRAWN, ANCHORED, GAPS, CONTRADICTION = range(4)
MAX_ANCHORINGS: Final = 8


class AdjacentPlacements(NamedTuple):
    """Placements, and the status of each.

    * ``DRAWN``: every unit was drawn or kept within its domain;
    * ``ANCHORED``: some chips stayed unused, so the search first fixed some units, ignoring their
      rows, and placed the others again;
    * ``GAPS``: with the caller's bounds, no placement without unused chips was found, which is no
      proof; the placement breaks only the no-skip rule. A connected graph never has this status
      under the prefix rule;
    * ``CONTRADICTION``: no placement meets the caller's bounds; the placement is -1.
    """

    placement: IntArray  # [S, U]
    status: CodeArray  # [S]


def sample_adjacent(
    problem: PlacementProblem,
    log_probs: FloatArray,
    *,
    orders: IntArray | None = None,
    seed: int = 0,
    num_samples: int = 1,
    first_chip: ArrayLike | None = None,
    last_chip: ArrayLike | None = None,
) -> AdjacentPlacements:
    """Draws placements unit by unit, each from its row restricted to its current domain.

    Every placement within the rule and the bounds can be drawn if each of its chips has mass.
    A row without mass on a domain counts as uniform there.

    Args:
      log_probs: [U, D], or [S, U, D] with separate rows per sample; on any scale, -inf is no mass.
      orders: [S or 1, U] the units in the order they are visited; by default random ones.
      first_chip: [U] or one number, the lowest chip of each unit; 0 by default.
      last_chip: [U] or one number, the highest chip of each unit; ``D - 1`` by default.

    Raises:
      InfeasibleError: all chips must be used, but no placement does, whatever the bounds.
    """
    rows = checked_rows(problem, log_probs, num_samples)
    proposals = np.zeros((num_samples, 0), np.int32)
    return _placed(problem, rows, proposals, orders, seed, first_chip, last_chip)


def fix_adjacent(
    problem: PlacementProblem,
    proposals: IntArray,
    *,
    orders: IntArray | None = None,
    seed: int = 0,
    log_probs: FloatArray | None = None,
    first_chip: ArrayLike | None = None,
    last_chip: ArrayLike | None = None,
) -> AdjacentPlacements:
    """Repairs proposals: keeps each value that is still possible, then places the other units.

    A valid proposal is returned unchanged.

    Args:
      proposals: [S, U] chips; values outside 0 … D - 1 are never kept.
      log_probs: [U, D] or [S, U, D]: rows from which the other units are drawn. Without rows, each
        takes the nearest chip of its domain.
      orders, first_chip, last_chip: as for :func:`sample_adjacent`, with its errors.
    """
    proposals = np.ascontiguousarray(proposals, dtype=np.int32)
    if proposals.ndim != 2 or proposals.shape[1] != problem.num_units:
        raise InvalidInputError(
            f"proposals has shape {proposals.shape}, must be (any, {problem.num_units}).", field="proposals"
        )
    rows = None if log_probs is None else checked_rows(problem, log_probs, len(proposals))
    return _placed(problem, rows, proposals, orders, seed, first_chip, last_chip)


def _placed(
    problem: PlacementProblem,
    rows: FloatArray | None,
    proposals: IntArray,
    orders: IntArray | None,
    seed: int,
    first_chip: ArrayLike | None,
    last_chip: ArrayLike | None,
) -> AdjacentPlacements:
    """FIX of the proposals [S, U], or SAMPLE where they have no columns."""
    num_samples, is_sample = len(proposals), proposals.shape[1] == 0
    shape = (num_samples, problem.num_units)
    out = AdjacentPlacements(
        np.full(shape, -1, dtype=np.int32), np.full(num_samples, CONTRADICTION, dtype=np.int8)
    )
    start = start_domains(problem, first_chip, last_chip)
    cover = what_to_cover(problem, start)
    if start is None or cover is None:
        return out
    rng = np.random.default_rng(seed)
    visiting = visiting_orders(problem, rng, num_samples) if orders is None else orders
    wishes = np.zeros((num_samples, 0))
    if cover.may_anchor:
        # Sources with low proposals and sinks with high ones make the best anchors.
        of_proposals = np.clip(proposals, 0, problem.num_chips - 1) / problem.num_chips
        wishes = rng.random(shape) if is_sample else of_proposals
    uniforms = np.zeros((num_samples, 0)) if rows is None else rng.random(shape)
    rows = np.zeros((1, 1, 1)) if rows is None else rows
    _place(problem, start, cover, working_domains(start), rows, visiting, uniforms, wishes, proposals, out)
    return out


def visiting_orders(problem: PlacementProblem, rng: np.random.Generator, num_samples: int) -> IntArray:
    """Returns a random order [S, U] of the units for each sample."""
    orders = np.tile(np.arange(problem.num_units), (num_samples, 1))
    for order in orders:
        rng.shuffle(order)  # in a third less time than ``permuted``, or than numbers of 32 bits
    return orders.astype(np.int32)


def checked_rows(problem: PlacementProblem, log_probs: FloatArray, num_samples: int) -> FloatArray:
    """Returns the log-probabilities [1 or S, U, D], or raises if their shape or values are invalid."""
    rows = np.ascontiguousarray(log_probs, dtype=np.float64)
    rows = rows[None] if rows.ndim == 2 else rows
    wanted = (problem.num_units, problem.num_chips)
    if rows.ndim != 3 or rows.shape[1:] != wanted or len(rows) not in (1, num_samples):
        raise InvalidInputError(
            f"log_probs has shape {np.shape(log_probs)}, must be {wanted} or {(num_samples, *wanted)}.",
            field="log_probs",
        )
    if not rows.max(initial=-np.inf) < np.inf:  # also true for NaN
        raise InvalidInputError("log_probs holds NaN or infinity.", field="log_probs")
    return rows


@compiled
def _place(
    problem: PlacementProblem,
    start: Domains,
    cover: Cover,
    domains: Domains,
    rows: FloatArray,
    orders: IntArray,
    uniforms: FloatArray,
    wishes: FloatArray,
    proposals: IntArray,
    out: AdjacentPlacements,
) -> None:
    anchorings = MAX_ANCHORINGS if wishes.shape[1] > 0 else 0
    for s in range(len(proposals)):
        order = orders[s % len(orders)]
        for attempt in range(anchorings + 1):
            reset(domains, start)
            turn = (attempt - 1) / MAX_ANCHORINGS
            if attempt > 0 and not anchor(problem, domains, cover, wishes[s], turn):
                continue
            if proposals.shape[1] > 0:
                _keep_possible(domains, order, proposals[s])
            _fill(domains, rows[s % len(rows)], order, uniforms[s], proposals[s])
            for unit in range(len(order)):
                out.placement[s, unit] = domains.lower[unit]
            if close_gaps(problem, start, cover, out.placement[s]):
                out.status[s] = DRAWN if attempt == 0 else ANCHORED
                break
            out.status[s] = GAPS


@uncounted_inner
def _keep_possible(domains: Domains, order: IntArray, proposal: IntArray) -> None:
    """Fixes every unit whose proposal is in its domain when it is visited."""
    lower, upper = domains.lower, domains.upper
    for unit in order:
        chip = int64(proposal[unit])
        if lower[unit] <= chip and chip <= upper[unit] and lower[unit] < upper[unit]:
            fix(domains, unit, chip)


@uncounted_inner
def _fill(
    domains: Domains, rows: FloatArray, order: IntArray, uniforms: FloatArray, proposal: IntArray
) -> None:
    """Fixes the open units: draws their chips if there are ``uniforms``, else takes the nearest chips."""
    # Tuple fields are reference-counted on each access: as locals, only once per call.
    lower, upper = domains.lower, domains.upper
    visit = 0
    for unit in order:
        low = int64(lower[unit])
        high = int64(upper[unit])
        if low == high:
            continue
        if len(uniforms) > 0:
            fix(domains, unit, draw_chip(rows[unit], low, high, uniforms[visit]))
            visit += 1
        else:
            fix(domains, unit, min(max(int64(proposal[unit]), low), high))
