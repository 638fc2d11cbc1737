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
from go_opt.solver.problem.user_constraints import UserConstraint
from go_opt.solver.propagation.propagators.domains import ALL_BITS, WORD_BITS, draw_chip

MAX_ANCHORINGS: Final = 8
NO_UNIT: Final = -1


# How a placement was found.
KEPT, SEARCHED, BACKTRACKED, ADJACENT, LIMIT, CONFLICT = range(6)  # by SAMPLE and FIX
# By the adjacent core. DRAWN: every unit was drawn or kept within its domain. ANCHORED: some chips stayed
# unused, so the core first fixed some units, ignoring their rows, and placed the others again. GAPS: with the
# caller's bounds, no placement without unused chips was found, which is no proof; the placement breaks only
# the no-skip rule. A connected graph never ends so under the prefix rule. CONTRADICTION: no placement meets
# the caller's bounds.
DRAWN, ANCHORED, GAPS, CONTRADICTION = range(6, 10)


class Placements(NamedTuple):
    """Placements, and how each was found."""

    placement: IntArray  # [S, U], of ops under constraints [S, N]; -1 if none was found
    ending: CodeArray  # [S] KEPT … CONTRADICTION
    backtracks: int = 0  # of the whole batch
    # Constraints that cannot all hold. None: there is no proof; empty: the target's own rules suffice.
    conflict: tuple[UserConstraint, ...] | None = None

    @property
    def found(self) -> BoolArray:
        """Returns [S] True if there is a valid placement."""
        return ~np.isin(self.ending, (LIMIT, CONFLICT, GAPS, CONTRADICTION))

    @property
    def backtracked(self) -> BoolArray:
        """Returns [S] True if the search backtracked at least once, whatever the result."""
        return (self.ending != KEPT) & (self.ending != SEARCHED)

    @property
    def fell_back(self) -> BoolArray:
        """Returns [S] True if the adjacent core made the placement."""
        return self.ending == ADJACENT

    @property
    def limit_reached(self) -> bool:
        """Whether the search ended without a placement and without a proof."""
        return self.conflict is None and not bool(self.found.any())


def place_adjacent(
    problem: PlacementProblem,
    *,
    log_probs: FloatArray | None = None,
    proposals: IntArray | None = None,
    orders: IntArray | None = None,
    seed: int = 0,
    num_samples: int = 1,
    first_chip: ArrayLike | None = None,
    last_chip: ArrayLike | None = None,
) -> Placements:
    """SAMPLE: draws placements unit by unit, each from its row restricted to its current domain; or FIX.

    Every placement within the rule and the bounds can be drawn if each of its chips has mass.
    A row without mass on a domain counts as uniform there. FIX keeps each proposed chip that is still
    possible, then places the other units; a valid proposal is returned unchanged.

    Args:
      log_probs: [U, D], or [S, U, D] with separate rows per sample; on any scale, -inf is no mass.
        FIX draws the other units from them; without rows, each takes the nearest chip of its domain.
      proposals: [S, U] chips to be fixed, S of them; values outside 0 … D - 1 are never kept. None: SAMPLE.
      orders: [S or 1, U] the units in the order they are visited; by default random ones.
      first_chip: [U] or one number, the lowest chip of each unit; 0 by default.
      last_chip: [U] or one number, the highest chip of each unit; ``D - 1`` by default.

    Raises:
      InfeasibleError: all chips must be used, but no placement does, whatever the bounds.
    """
    is_sample = proposals is None
    proposals = np.zeros((num_samples, 0), np.int32) if proposals is None else checked(problem, proposals)
    num_samples = len(proposals)
    rows = None if log_probs is None else checked_rows(problem, log_probs, num_samples)
    shape = (num_samples, problem.num_units)
    placement, ending = np.full(shape, -1, np.int32), np.full(num_samples, CONTRADICTION, np.int8)
    start = start_domains(problem, first_chip, last_chip)
    cover = _what_to_cover(problem, start)
    if start is None or cover is None:
        return Placements(placement, ending)
    rng = np.random.default_rng(seed)
    visiting = visiting_orders(problem, rng, num_samples) if orders is None else orders
    preferences = np.zeros((num_samples, 0))
    if cover.may_anchor:
        # Sources with low proposals and sinks with high ones make the best anchors.
        of_proposals = np.clip(proposals, 0, problem.num_chips - 1) / problem.num_chips
        preferences = rng.random(shape) if is_sample else of_proposals
    uniforms = np.zeros((num_samples, 0)) if rows is None else rng.random(shape)
    rows = np.zeros((1, 1, 1)) if rows is None else rows
    domains = start._replace(lower=start.lower.copy(), upper=start.upper.copy())
    drawn = rows, visiting, uniforms, preferences, proposals
    _place(problem, start, cover, domains, drawn, placement, ending)
    return Placements(placement, ending)


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


def checked(problem: PlacementProblem, proposals: IntArray) -> IntArray:
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
    drawn: tuple[FloatArray, IntArray, FloatArray, FloatArray, IntArray],
    placement: IntArray,
    ending: CodeArray,
) -> None:
    rows, orders, uniforms, preferences, proposals = drawn
    all_chips = np.full((problem.num_chips + WORD_BITS - 1) // WORD_BITS, ALL_BITS, np.uint64)
    anchorings = MAX_ANCHORINGS if preferences.shape[1] > 0 else 0
    for s in range(len(proposals)):
        order = orders[s % len(orders)]
        for attempt in range(anchorings + 1):
            for unit in range(len(order)):
                domains.lower[unit] = start.lower[unit]
                domains.upper[unit] = start.upper[unit]
            turn = (attempt - 1) / MAX_ANCHORINGS
            if attempt > 0 and not _anchor(problem, domains, cover, preferences[s], turn):
                continue
            if proposals.shape[1] > 0:
                for unit in order:
                    chip = int64(proposals[s, unit])
                    low, high = int64(domains.lower[unit]), int64(domains.upper[unit])
                    if low < high and low <= chip <= high:
                        _fix(problem, domains, unit, chip)
            visit = 0
            for unit in order:
                low, high = int64(domains.lower[unit]), int64(domains.upper[unit])
                if low < high and uniforms.shape[1] > 0:
                    row = rows[s % len(rows), unit]
                    _fix(problem, domains, unit, draw_chip(all_chips, low, high, row, uniforms[s, visit]))
                    visit += 1
                elif low < high:
                    _fix(problem, domains, unit, min(max(int64(proposals[s, unit]), low), high))
            for unit in range(len(order)):
                placement[s, unit] = domains.lower[unit]
            if _close_gaps(problem, start, cover, placement[s]):
                ending[s] = DRAWN if attempt == 0 else ANCHORED
                break
            ending[s] = GAPS


class Domains(NamedTuple):
    """Domains of one sample, with scratch for propagation."""

    lower: IntArray  # [U] first chip of the domain
    upper: IntArray  # [U] last chip of the domain
    rise_to: LongArray  # [E] the least rises, parallel to the predecessors of the problem
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
    start = Domains(
        lower=(first if first_chip is None else np.maximum(first, first_chip)).astype(np.int32),
        upper=(last if last_chip is None else np.minimum(last, last_chip)).astype(np.int32),
        rise_to=problem.rise[np.argsort(problem.successor, kind="stable")],
        queue=np.zeros(num_units, dtype=np.int32),
        is_queued=np.zeros(num_units, dtype=np.bool_),
    )
    return start if _propagate_all(problem, start) else None


def chip_runs(problem: PlacementProblem) -> tuple[IntArray, IntArray]:
    """The longest run of chips that may run each unit, as :func:`longest_stretches` gives it."""
    return longest_stretches(problem.can_run[problem.chip_kind].T)


@uncounted
def _propagate_all(problem: PlacementProblem, domains: Domains) -> bool:
    """Propagates all bounds to the fixpoint; returns False if some domain is empty."""
    num_units = len(domains.lower)
    for unit in range(num_units):
        if domains.lower[unit] > domains.upper[unit]:
            return False
        domains.queue[unit] = unit
        domains.is_queued[unit] = True
    return _drain(problem, domains, num_units)


@uncounted_inner
def _fix(problem: PlacementProblem, domains: Domains, unit: int, chip: int) -> None:
    """Fixes ``unit`` to a chip of its domain and propagates; no domain can become empty."""
    domains.lower[unit] = chip
    domains.upper[unit] = chip
    domains.queue[0] = unit
    domains.is_queued[unit] = True
    _drain(problem, domains, 1)


@uncounted_inner
def _drain(problem: PlacementProblem, domains: Domains, waiting: int) -> bool:
    """Propagates from ``queue[:waiting]`` to the fixpoint; returns False if a domain is empty."""
    # Tuple fields are reference-counted on each access: as locals, only once per call.
    readers = problem.successor_ptr, problem.successor, problem.rise
    producers = problem.predecessor_ptr, problem.predecessor, domains.rise_to
    lower, upper, queue, is_queued = domains.lower, domains.upper, domains.queue, domains.is_queued
    first = 0
    while waiting > 0:
        unit = queue[first]
        is_queued[unit] = False
        first = first + 1 if first + 1 < len(queue) else 0
        waiting -= 1
        low = lower[unit]
        high = upper[unit]
        for to_readers in (True, False):
            ptr, neighbour, rise = readers if to_readers else producers
            for i in range(ptr[unit], ptr[unit + 1]):
                other = neighbour[i]
                lowest = low + rise[i] if to_readers else low - 1
                highest = high + 1 if to_readers else high - rise[i]
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
        _fix(problem, domains, int32(source), chip)
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
        _fix(problem, domains, int32(sink), highest)
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
