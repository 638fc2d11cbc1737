"""The exact dynamic program over down-sets on a ring of like chips.

Chips ``0 … d`` hold a down-set; chip d holds the difference of two, ``J \\ I``. With ``w`` the
work of a down-set and ``x`` the seconds of what crosses its border, it costs

* overlapped: ``max(w(J) - w(I), x(I), x(J))``,
* summed: ``w(J) - w(I) + x(I) + x(J)``.

So of the down-sets ``I`` inside ``J`` at which a chip may start, only the greatest
``start(I)`` counts: ``w(I)``, or ``w(I) - x(I)`` summed. For a candidate interval, level by
level of chips, the greatest start is carried along the covers while its chip is not full
(:func:`_carry`): O(C) a level instead of one step for each pair of down-sets. Under the
adjacent rule a chip that starts at ``I`` ends no earlier than the readers of all that is
made in ``I``, with their ancestors: its start is carried from there on. Bisection finds
the least interval. Memory and streaming are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from go_opt.env.cost import CostTables
from go_opt.env.kernels.numbering import kernel_seconds
from go_opt.model.graph import NO_PRODUCER
from go_opt.solver.exact.lattice import DownSets, has_unit
from go_opt.solver.problem.passing import Passing
from go_opt.solver.problem.problem import PlacementProblem
from go_opt.solver.problem.unit_traffic import UnitTraffic, host_seconds, unit_traffic

TOLERANCE: Final = 1e-10
ROUNDING: Final = 1e-12
NEVER: Final = -1


class RingProblem(NamedTuple):
    """Units on chips all alike, link d from chip d to the next. Axes: ``U`` units, ``K`` tensors."""

    units: PlacementProblem
    traffic: UnitTraffic
    unit_s: NDArray[np.float64]  # [U]
    link_s: NDArray[np.float64]  # [K] of each tensor of `traffic` on one link
    num_chips: int
    overlap: bool
    is_adjacent: bool  # no tensor passes a chip; else they pass at no cost
    floor_s: float  # no interval is less: the host's links where they overlap


class Chain(NamedTuple):
    """Down-sets from none to all; their differences are the chips' units."""

    down_sets: NDArray[np.int64]  # [chips used + 1]
    objective_s: float


def ring_problem(tables: CostTables, units: PlacementProblem, *, passing: Passing) -> RingProblem:
    """The placement of units, each a kernel of its own, on the ring of ``tables``.

    Where transfers add up, an input that several kernels read is charged to one of
    them: the objective is a lower bound there, else exact.

    Raises:
      ValueError: tensors are relayed, or the chips are not alike.
    """
    if passing == "relayed":
        raise ValueError("relays are no part of the dynamic program over down-sets.")
    if not tables.is_ring or len(np.unique(tables.chip_kind)) > 1:
        raise ValueError("the chips are not a ring or a chain of one kind.")
    kind = tables.chip_kind[0]
    pays = tables.overlap or bool(tables.pays_transfers[kind])
    unit_s = kernel_seconds(tables, units.unit_of_op)[kind]
    traffic = unit_traffic(tables, units.unit_of_op)
    host_in_s, host_out_s = host_seconds(tables, units.unit_of_op)
    if not tables.overlap and pays:
        unit_s = unit_s + host_in_s + host_out_s
    s_per_byte = float(tables.link_s_per_byte[0]) if len(tables.link_s_per_byte) and pays else 0.0
    moves = traffic.home != NO_PRODUCER
    return RingProblem(
        units=units,
        traffic=traffic,
        unit_s=unit_s,
        link_s=traffic.num_bytes * moves * s_per_byte,
        num_chips=tables.num_chips,
        overlap=tables.overlap,
        is_adjacent=passing == "adjacent",
        floor_s=float(max(host_in_s.sum(), host_out_s.sum())) if tables.overlap else 0.0,
    )


def cheapest_ring_chain(problem: RingProblem, sets: DownSets, upper_s: float) -> Chain | None:
    """The cheapest chain of ``sets`` below ``upper_s``; ``None`` where there is none."""
    work_s, cut_s, opens = _measure(problem, sets)
    num_sets = sets.num_sets
    start = work_s if problem.overlap else work_s - cut_s
    best, origin = np.empty(num_sets), np.empty(num_sets, np.int64)
    chips, back = np.empty(num_sets, np.int64), np.empty(num_sets, np.int64)
    fresh = np.empty(num_sets, np.int64)
    is_new = np.zeros(num_sets, np.bool_)

    def within(interval_s: float) -> Chain | None:
        used = _carry(
            sets.cover_ptr, sets.cover, work_s, cut_s, start, opens, problem.overlap, problem.num_chips,
            interval_s, best, origin, chips, back, fresh, is_new,
        )  # fmt: skip
        if not used:
            return None
        chain = [num_sets - 1]
        while chain[-1] != 0:
            chain.append(int(back[chain[-1]]))
        down_sets = np.array(chain[::-1])
        return Chain(down_sets, max(problem.floor_s, _cost_s(problem, work_s, cut_s, down_sets)))

    return _least(problem, float(work_s[-1]), float(cut_s.max()), upper_s, within)


def _least(
    problem: RingProblem,
    total_s: float,
    widest_s: float,
    upper_s: float,
    within: Callable[[float], Chain | None],
) -> Chain | None:
    """The chain of the least interval: after each one found a little less is tried, then half way down."""
    lower_s = max(total_s / problem.num_chips, problem.floor_s) * (1.0 - ROUNDING)
    best = within(min(upper_s * (1.0 - ROUNDING), total_s + 2.0 * widest_s + problem.floor_s))
    if best is None or best.objective_s >= upper_s:
        return None
    while best.objective_s - lower_s > TOLERANCE * best.objective_s:
        better = within(best.objective_s * (1.0 - TOLERANCE))
        if better is None:
            break
        best = better
        middle_s = (lower_s + best.objective_s) / 2.0
        better = within(middle_s)
        if better is None:
            lower_s = middle_s
        else:
            best = better
    return best


def _cost_s(
    problem: RingProblem, work_s: NDArray[np.float64], cut_s: NDArray[np.float64], chain: NDArray[np.int64]
) -> float:
    compute_s, cuts_s = np.diff(work_s[chain]), cut_s[chain]
    if problem.overlap:
        return float(max(compute_s.max(), cuts_s.max()))
    return float((compute_s + cuts_s[:-1] + cuts_s[1:]).max())


def _measure(
    problem: RingProblem, sets: DownSets
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """[I] each: work, what crosses the border, and the least end of a chip that starts there."""
    work_s, cut_s = np.full(sets.num_sets, math.inf), np.empty(sets.num_sets)
    opens = np.arange(sets.num_sets)
    _work_and_cut(sets, problem.traffic, problem.unit_s, problem.link_s, work_s, cut_s)
    if problem.is_adjacent:
        _first_ends(sets, _needed_by(problem.units), opens)
    return work_s, cut_s, opens


def _needed_by(units: PlacementProblem) -> NDArray[np.uint64]:
    """[U, W] the readers of each unit with all their ancestors."""
    num_words = (units.num_units + 63) // 64
    closed = np.zeros((units.num_units, num_words), np.uint64)  # a unit and its ancestors
    for unit in units.topological:
        closed[unit, unit >> 6] |= np.uint64(1) << np.uint64(unit & 63)
        for i in range(units.predecessor_ptr[unit], units.predecessor_ptr[unit + 1]):
            closed[unit] |= closed[units.predecessor[i]]
    needed = np.zeros_like(closed)
    for unit in range(units.num_units):
        for i in range(units.successor_ptr[unit], units.successor_ptr[unit + 1]):
            needed[unit] |= closed[units.successor[i]]
    return needed


@njit(cache=True, nogil=True)
def _work_and_cut(sets, traffic, unit_s, link_s, work_s, cut_s):
    work_s[0] = 0.0
    cut_s[0] = 0.0
    for i in range(len(work_s)):
        for c in range(sets.cover_ptr[i], sets.cover_ptr[i + 1]):
            j = sets.cover[c]
            if work_s[j] != np.inf:
                continue
            unit = sets.cover_unit[c]
            work_s[j] = work_s[i] + unit_s[unit]
            cut_s[j] = cut_s[i]
            for w in range(traffic.write_ptr[unit], traffic.write_ptr[unit + 1]):
                cut_s[j] += link_s[traffic.write[w]]
            for r in range(traffic.read_ptr[unit], traffic.read_ptr[unit + 1]):
                k = traffic.read[r]
                is_done = True
                for q in range(traffic.reader_ptr[k], traffic.reader_ptr[k + 1]):
                    is_done &= has_unit(sets.words, j, traffic.reader[q])
                if is_done:
                    cut_s[j] -= link_s[k]


@njit(cache=True, nogil=True)
def _first_ends(sets, needed, opens):
    """Per down-set the one that also holds the readers of all it makes, with their ancestors."""
    num_sets, num_words = sets.words.shape
    wanted = np.zeros((num_sets, num_words), np.uint64)
    for i in range(num_sets):
        for c in range(sets.cover_ptr[i], sets.cover_ptr[i + 1]):
            j = sets.cover[c]
            if opens[j] != j:
                continue
            # The same needs by whichever cover, so the first one sets them.
            unit = sets.cover_unit[c]
            for w in range(num_words):
                wanted[j, w] = wanted[i, w] | needed[unit, w] | sets.words[j, w]
            end = opens[i]
            at = sets.cover_ptr[end]
            while at < sets.cover_ptr[end + 1]:
                if has_unit(wanted, j, sets.cover_unit[at]):
                    end = sets.cover[at]
                    at = sets.cover_ptr[end]
                    continue
                at += 1
                # Among some down-sets only, the way there may lead past other units.
                if at == sets.cover_ptr[end + 1] and not _holds(sets.words, end, wanted, j):
                    end = sets.cover[sets.cover_ptr[end]]
                    at = sets.cover_ptr[end]
            opens[j] = end


@njit(cache=True, nogil=True)
def _holds(words, down_set, wanted, other):
    missing = np.uint64(0)
    for w in range(words.shape[1]):
        missing |= wanted[other, w] & ~words[down_set, w]
    return missing == 0


@njit(cache=True, nogil=True)
def _carry(
    cover_ptr, cover, work_s, cut_s, start, opens, overlap, num_chips, interval_s,
    best, origin, chips, back, fresh, is_new,
):  # fmt: skip
    """Whether chips can hold everything, none for longer than ``interval_s``; fills ``back``."""
    num_sets = len(work_s)
    for i in range(num_sets):
        best[i] = -np.inf
        chips[i] = NEVER
    chips[0] = 0
    fresh[0] = 0
    num_fresh = 1
    for level in range(1, num_chips + 1):
        first, last = num_sets, -1
        for f in range(num_fresh):
            i = fresh[f]
            j = opens[i]
            if work_s[j] - start[i] <= interval_s and start[i] > best[j]:
                best[j] = start[i]
                origin[j] = i
                is_new[j] = True
                first, last = min(first, j), max(last, j)
        num_fresh = 0
        j = first
        while j <= last:
            if is_new[j]:
                is_new[j] = False
                end = cut_s[j] if overlap else work_s[j] + cut_s[j] - best[j]
                if chips[j] == NEVER and end <= interval_s:
                    chips[j] = level
                    back[j] = origin[j]
                    fresh[num_fresh] = j
                    num_fresh += 1
                for c in range(cover_ptr[j], cover_ptr[j + 1]):
                    grown = cover[c]
                    if work_s[grown] - best[j] <= interval_s and best[j] > best[grown]:
                        best[grown] = best[j]
                        origin[grown] = origin[j]
                        is_new[grown] = True
                        last = max(last, grown)
            j += 1
        if chips[num_sets - 1] != NEVER:
            return True
    return False
