"""The adjacent core of SAMPLE and FIX: placements under the adjacent rule, without backtracking.

The rule is ``f(u) + r <= f(v) <= f(u) + 1`` for every edge (r = 1 at a cut point, else 0). It implies acyclic
dataflow and the chip triangle rule in each of its forms. Bounds propagation is complete for it: once all
domains are intervals at the fixpoint, any value of any domain extends to a placement (difference
constraints). So each unit is fixed once, without trail and backtracking.

A weakly connected component uses consecutive chips, so moving components down makes the used
chips 0 … k - 1 (no skipping). If all chips must be used, or bounds keep components from moving, some units
are fixed in advance so that every required chip is covered (:func:`_anchor`).

Axes: ``S`` samples, ``U`` units, ``D`` chips, ``C`` components.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from go_opt.common.arrays import BoolArray, CodeArray, FloatArray, IntArray, LongArray
from go_opt.common.compiling import compiled, compiled_inner, int32, int64, uncounted, uncounted_inner
from go_opt.errors import InfeasibleError, InvalidInputError
from go_opt.solver.problem.problem import (
    NO_SKIP_ALL,
    NO_SKIP_OFF,
    PlacementProblem,
    component_width,
    span_from_sources,
)
from go_opt.solver.propagation.propagators.domains import ALL_BITS, WORD_BITS, draw_chip

DRAWN, ANCHORED, GAPS, CONTRADICTION = range(4)
MAX_ANCHORINGS: Final = 8
NO_UNIT: Final = -1


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
    nothing = np.zeros((num_samples, 0), np.int32)
    return place_adjacent(problem, rows, nothing, orders, seed, first_chip, last_chip)


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
    proposals = checked_proposals(problem, proposals)
    rows = None if log_probs is None else checked_rows(problem, log_probs, len(proposals))
    return place_adjacent(problem, rows, proposals, orders, seed, first_chip, last_chip)


def place_adjacent(
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
    cover = _what_to_cover(problem, start)
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
    domains = start._replace(lower=start.lower.copy(), upper=start.upper.copy())
    _place(problem, start, cover, domains, rows, visiting, uniforms, wishes, proposals, out)
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


def checked_proposals(problem: PlacementProblem, proposals: IntArray) -> IntArray:
    """Returns the proposals [S, U], chips within -1 … D, or raises if their shape or type is invalid."""
    given = np.asarray(proposals)
    if given.ndim != 2 or given.shape[1] != problem.num_units or given.dtype.kind not in "iu":
        raise InvalidInputError(
            f"proposals has shape {given.shape} of {given.dtype}, must be integers "
            f"(samples, {problem.num_units}).",
            field="proposals",
        )
    return np.ascontiguousarray(np.clip(given, -1, problem.num_chips), dtype=np.int32)


@compiled
def _place(
    problem: PlacementProblem,
    start: Domains,
    cover: _Cover,
    domains: Domains,
    rows: FloatArray,
    orders: IntArray,
    uniforms: FloatArray,
    wishes: FloatArray,
    proposals: IntArray,
    out: AdjacentPlacements,
) -> None:
    all_chips = np.full((problem.num_chips + WORD_BITS - 1) // WORD_BITS, ALL_BITS, np.uint64)
    anchorings = MAX_ANCHORINGS if wishes.shape[1] > 0 else 0
    for s in range(len(proposals)):
        order = orders[s % len(orders)]
        for attempt in range(anchorings + 1):
            for unit in range(len(order)):
                domains.lower[unit] = start.lower[unit]
                domains.upper[unit] = start.upper[unit]
            turn = (attempt - 1) / MAX_ANCHORINGS
            if attempt > 0 and not _anchor(problem, domains, cover, wishes[s], turn):
                continue
            if proposals.shape[1] > 0:
                for unit in order:
                    chip = int64(proposals[s, unit])
                    low, high = int64(domains.lower[unit]), int64(domains.upper[unit])
                    if low < high and low <= chip <= high:
                        _fix(domains, unit, chip)
            visit = 0
            for unit in order:
                low, high = int64(domains.lower[unit]), int64(domains.upper[unit])
                if low < high and uniforms.shape[1] > 0:
                    row = rows[s % len(rows), unit]
                    _fix(domains, unit, draw_chip(all_chips, low, high, row, uniforms[s, visit]))
                    visit += 1
                elif low < high:
                    _fix(domains, unit, min(max(int64(proposals[s, unit]), low), high))
            for unit in range(len(order)):
                out.placement[s, unit] = domains.lower[unit]
            if _close_gaps(problem, start, cover, out.placement[s]):
                out.status[s] = DRAWN if attempt == 0 else ANCHORED
                break
            out.status[s] = GAPS


class Domains(NamedTuple):
    """Domains of one sample, with scratch for propagation."""

    lower: IntArray  # [U] first chip of the domain
    upper: IntArray  # [U] last chip of the domain
    neighbour_ptr: LongArray  # [U + 1]
    neighbour: IntArray  # [2 E] readers and producers of each unit
    least: CodeArray  # [2 E] for bounds [l, h] of the unit, the neighbour is at l + least or above
    most: CodeArray  # [2 E] … and at h + most or below
    queue: IntArray  # [U] ring of units whose bounds changed
    is_queued: BoolArray  # [U]


def longest_stretches(open_chips: BoolArray) -> tuple[IntArray, IntArray]:
    """First and last chip [U] of the longest run of the open chips [U, D]; first > last: none is open.

    The core supports only intervals. If a unit's chips have gaps, it uses only one run of
    them: the result is valid, but some placements are never drawn.
    """
    num_units, num_chips = open_chips.shape
    first, run, longest = np.zeros((3, num_units), np.int32)
    last = np.full(num_units, -1, np.int32)
    for chip in range(num_chips):
        run = np.where(open_chips[:, chip], run + 1, 0)
        is_longer = run > longest
        longest = np.where(is_longer, run, longest)
        first = np.where(is_longer, chip + 1 - run, first)
        last = np.where(is_longer, chip, last)
    return first.astype(np.int32), last.astype(np.int32)


def start_domains(
    problem: PlacementProblem, first_chip: ArrayLike | None, last_chip: ArrayLike | None
) -> Domains | None:
    """Returns the domains before any unit is visited; ``None`` if the bounds contradict each other."""
    num_units = problem.num_units
    first, last = chip_runs(problem)
    units = np.arange(num_units)
    rows = (
        np.repeat(units, np.diff(problem.successor_ptr)),
        np.repeat(units, np.diff(problem.predecessor_ptr)),
    )
    by_unit = np.argsort(np.concatenate(rows), kind="stable")
    rise, rise_to = problem.rise, problem.rise[np.argsort(problem.successor, kind="stable")]
    start = Domains(
        lower=(first if first_chip is None else np.maximum(first, first_chip)).astype(np.int32),
        upper=(last if last_chip is None else np.minimum(last, last_chip)).astype(np.int32),
        neighbour_ptr=problem.successor_ptr + problem.predecessor_ptr,
        neighbour=np.concatenate([problem.successor, problem.predecessor])[by_unit],
        least=np.concatenate([rise, np.full_like(rise, -1)])[by_unit].astype(np.int8),
        most=np.concatenate([np.ones_like(rise), -rise_to])[by_unit].astype(np.int8),
        queue=np.zeros(num_units, dtype=np.int32),
        is_queued=np.zeros(num_units, dtype=np.bool_),
    )
    return start if _propagate_all(start) else None


def chip_runs(problem: PlacementProblem) -> tuple[IntArray, IntArray]:
    """The longest run of chips that may run each unit, as :func:`longest_stretches` gives it."""
    return longest_stretches(problem.can_run[problem.chip_kind].T)


@uncounted
def _propagate_all(domains: Domains) -> bool:
    """Propagates all bounds to the fixpoint; returns False if some domain is empty."""
    num_units = len(domains.lower)
    for unit in range(num_units):
        if domains.lower[unit] > domains.upper[unit]:
            return False
        domains.queue[unit] = unit
        domains.is_queued[unit] = True
    return _drain(domains, num_units)


@uncounted_inner
def _fix(domains: Domains, unit: int, chip: int) -> None:
    """Fixes ``unit`` to a chip of its domain and propagates; no domain can become empty."""
    domains.lower[unit] = chip
    domains.upper[unit] = chip
    domains.queue[0] = unit
    domains.is_queued[unit] = True
    _drain(domains, 1)


@uncounted_inner
def _drain(domains: Domains, waiting: int) -> bool:
    """Propagates from ``queue[:waiting]`` to the fixpoint; returns False if a domain is empty."""
    # Tuple fields are reference-counted on each access: as locals, only once per call.
    neighbour_ptr, neighbour = domains.neighbour_ptr, domains.neighbour
    least, most = domains.least, domains.most
    lower, upper, queue, is_queued = domains.lower, domains.upper, domains.queue, domains.is_queued
    first = 0
    while waiting > 0:
        unit = queue[first]
        is_queued[unit] = False
        first = first + 1 if first + 1 < len(queue) else 0
        waiting -= 1
        low = lower[unit]
        high = upper[unit]
        for i in range(neighbour_ptr[unit], neighbour_ptr[unit + 1]):
            other = neighbour[i]
            lowest = low + least[i]
            highest = high + most[i]
            first_chip, last_chip = lower[other], upper[other]
            if lowest <= first_chip and highest >= last_chip:
                continue
            first_chip, last_chip = max(lowest, first_chip), min(highest, last_chip)
            lower[other] = first_chip
            upper[other] = last_chip
            if first_chip > last_chip:
                return False
            if not is_queued[other]:
                is_queued[other] = True
                last = first + waiting
                queue[last if last < len(queue) else last - len(queue)] = other
                waiting += 1
    return True


class _Cover(NamedTuple):
    """Chips that must be covered, and the units and components that can cover them."""

    last_chip: int  # chips 0 … last_chip must be used; -1: the rule is off
    uses_all: bool
    may_anchor: bool  # False if moving components down is always enough
    span: IntArray  # [U] see span_from_sources; 0 if any source is suitable
    width: IntArray  # [C] the most chips a component can use; 1 if any source is suitable


def _what_to_cover(problem: PlacementProblem, start: Domains | None) -> _Cover | None:
    """Returns the chips to cover given ``start``; ``None`` if the bounds certainly forbid it.

    Raises:
      InfeasibleError: all chips must be used, but no placement does, whatever the bounds.
    """
    last_of_all = problem.num_chips - 1
    if problem.no_skip == NO_SKIP_ALL:
        span = span_from_sources(problem)
        width = component_width(problem, span)
        most = int(width.sum())
        if most < problem.num_chips:
            raise InfeasibleError(
                f"not all {problem.num_chips} chips can be used: this graph uses at most {most} where every "
                "edge spans at most one chip."
            )
        if start is None or start.lower.min() > 0 or start.upper.max() < last_of_all:
            return None
        return _Cover(last_of_all, True, True, span, width)
    span = np.zeros(problem.num_units, dtype=np.int32)
    width = np.ones(problem.num_components, dtype=np.int32)
    if problem.no_skip == NO_SKIP_OFF:
        return _Cover(-1, False, False, span, width)
    if start is None or start.lower.min() > 0:
        return None
    # A single component only skips chips below itself. Several components must cover all chips
    # up to the highest chip that bounds force any unit onto.
    last_chip = 0 if problem.num_components == 1 else int(start.lower.max())
    return _Cover(last_chip, False, bool((start.lower > 0).any()), span, width)


@compiled_inner
def _anchor(
    problem: PlacementProblem, domains: Domains, cover: _Cover, preference: FloatArray, turn: float
) -> bool:
    """Fixes sources and sinks so that chips 0 … last_chip are covered; returns False on failure.

    For each component, a source takes the next chip to cover, then a sink takes the highest
    chip it can. Ties go to the source of least and the sink of greatest preference. Adding
    ``turn`` modulo 1 to preferences makes another try choose other units.
    """
    used = np.zeros(problem.num_components, np.bool_)
    following = int64(0)
    while following <= cover.last_chip:
        source = NO_UNIT
        best = np.inf
        for unit in range(len(domains.lower)):
            if problem.predecessor_ptr[unit] < problem.predecessor_ptr[unit + 1]:
                continue
            component = problem.component[unit]
            wanted = min(cover.last_chip - following, cover.width[component] - 1)
            if used[component] or domains.lower[unit] > following or cover.span[unit] < wanted:
                continue
            if (preference[unit] + turn) % 1.0 < best:
                best = (preference[unit] + turn) % 1.0
                source = unit
        if source == NO_UNIT:
            return False
        component = problem.component[source]
        used[component] = True
        chip = min(following, int64(domains.upper[source]))
        _fix(domains, int32(source), chip)
        highest = _raise_a_sink(problem, domains, component, cover.last_chip, chip, preference, turn)
        following = max(following, highest + 1)
    return True


@uncounted_inner
def _raise_a_sink(
    problem: PlacementProblem,
    domains: Domains,
    component: int,
    last_chip: int,
    chip: int,
    preference: FloatArray,
    turn: float,
) -> int:
    """Fixes a sink of ``component`` as high as possible; returns its chip (``chip`` if no sink is higher)."""
    sink = NO_UNIT
    highest = int64(chip)
    best = -np.inf
    for unit in range(len(domains.lower)):
        is_sink = problem.successor_ptr[unit] == problem.successor_ptr[unit + 1]
        if not is_sink or problem.component[unit] != component:
            continue
        reached = min(int64(domains.upper[unit]), last_chip)
        wish = (preference[unit] + turn) % 1.0
        if reached > highest or (reached == highest and sink != NO_UNIT and wish > best):
            highest = reached
            sink = unit
            best = wish
    if sink != NO_UNIT:
        _fix(domains, int32(sink), highest)
    return highest


@compiled_inner
def _close_gaps(problem: PlacementProblem, start: Domains, cover: _Cover, chips: IntArray) -> bool:
    """Moves components of ``chips`` [U] down as far as needed and allowed; returns False if gaps remain.

    Lowest component first: a component above the first uncovered chip moves down to that chip,
    or as far as the bounds in ``start`` allow all its units to move.
    """
    if cover.last_chip < 0:
        return True
    num_components = problem.num_components
    num_chips = problem.num_chips
    low = np.empty(num_components, np.int64)
    high = np.empty(num_components, np.int64)
    slack = np.empty(num_components, np.int64)
    for c in range(num_components):
        low[c] = num_chips
        high[c] = -1
        slack[c] = num_chips
    for unit in range(len(chips)):
        c = problem.component[unit]
        low[c] = min(low[c], chips[unit])
        high[c] = max(high[c], chips[unit])
        slack[c] = min(slack[c], chips[unit] - start.lower[unit])
    first = np.empty(num_chips, np.int64)
    following = np.empty(num_components, np.int64)
    for chip in range(num_chips):
        first[chip] = -1
    for c in range(num_components):
        following[c] = first[low[c]]
        first[low[c]] = c
    covered = int64(0)
    moves = False
    for chip in range(num_chips):
        c = first[chip]
        while c >= 0:
            shift = min(max(int64(0), chip - covered), slack[c])
            if chip - shift > covered:
                return False
            covered = max(covered, high[c] - shift + 1)
            slack[c] = shift
            moves |= shift > 0
            c = following[c]
    if moves:
        for unit in range(len(chips)):
            chips[unit] -= slack[problem.component[unit]]
    return covered == num_chips if cover.uses_all else covered > cover.last_chip
