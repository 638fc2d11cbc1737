"""The exact dynamic program over down-sets on chips of several kinds around a host.

Every tensor goes by the host: its home chip sends it once, each chip that reads it takes
it once, and no other chip has to do with it. So the load of a chip depends on its own
units alone, ``S = J \\ I``: its work ``w``, what it takes ``in`` and what it sends ``out``,

* overlapped: ``max(w, in, out)``,
* summed: ``w + in + out``; a kind that does not pay for transfers, ``w`` alone,

and chips of different kinds may come in any order. ``least[I, s]`` is the least interval of
down-set ``I`` on a number of chips of each kind (state ``s``); from each ``I`` all down-sets
around it are visited whose chip stays below the upper bound: what a chip computes, takes
and stores only grows, so the walk ends where that alone is too much. Weights stay
resident and are limited; activations are taken to fit.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from go_opt.solver.exact.lattice import DownSets, has_unit
from go_opt.solver.exact.ring import Chain
from go_opt.solver.problem.problem import PlacementProblem
from go_opt.solver.problem.unit_traffic import UnitTraffic

NONE: Final = -1


class StarProblem(NamedTuple):
    """Units on chips of ``Q`` kinds around a host. Axes: ``U`` units, ``K`` tensors, ``D`` chips."""

    units: PlacementProblem
    traffic: UnitTraffic
    unit_s: NDArray[np.float64]  # [Q, U] infinite where the kind may not run the unit
    move_s: NDArray[np.float64]  # [K] from a chip to the host, or from the host to a chip
    unit_bytes: NDArray[np.int64]  # [U] weights of that unit alone
    shared_bytes: NDArray[np.int64]  # [K] of weights that several units read, else 0
    limit_bytes: NDArray[np.float64]  # [Q] weights a chip may hold
    pays: NDArray[np.bool_]  # [Q] whether the kind pays for transfers
    chip_kind: NDArray[np.int32]  # [D]
    overlap: bool
    floor_s: float  # no interval is less: the host's links where they overlap


class StarChain(NamedTuple):
    """The cheapest chain below a bound, if there is one, and the chip of each of its steps."""

    chain: Chain | None
    chips: NDArray[np.int64] | None
    is_complete: bool  # False: the pairs were too many, and nothing is proven


def cheapest_star_chain(problem: StarProblem, sets: DownSets, upper_s: float, max_pairs: float) -> StarChain:
    """The cheapest chain of ``sets`` below ``upper_s``, by at most ``max_pairs`` pairs of down-sets."""
    counts = np.bincount(problem.chip_kind, minlength=len(problem.unit_s))
    next_state = _next_states(counts)
    shape = (sets.num_sets, next_state.shape[1])
    least = np.full(shape, math.inf)
    back = np.full(shape, NONE, np.int64)
    kind_of = np.full(shape, NONE, np.int8)
    least[0, 0] = problem.floor_s
    is_complete = _relax_all(
        sets, problem.traffic, problem.unit_s, problem.move_s, problem.unit_bytes, problem.shared_bytes,
        problem.limit_bytes, problem.pays, problem.overlap, upper_s, float(max_pairs),
        next_state, least, back, kind_of,
    )  # fmt: skip
    state = int(np.argmin(least[-1]))
    if least[-1, state] >= upper_s:
        return StarChain(None, None, is_complete)
    objective_s = float(least[-1, state])
    down_sets, kinds = [sets.num_sets - 1], []
    while down_sets[-1] != 0:
        here = down_sets[-1]
        kinds.append(int(kind_of[here, state]))
        down_sets.append(int(back[here, state]))
        state = int(np.flatnonzero(next_state[kinds[-1]] == state)[0])
    chips = _chips(problem.chip_kind, np.array(kinds[::-1], np.int64))
    return StarChain(Chain(np.array(down_sets[::-1]), objective_s), chips, is_complete)


def _next_states(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """[Q, S] the state with one more chip of a kind, NONE where all are used; states count chips used."""
    states = np.arange(np.prod(counts + 1)).reshape(counts + 1)
    after = np.full((len(counts), *states.shape), NONE, np.int64)
    for q, count in enumerate(counts):
        rows = np.moveaxis(after[q], q, 0)
        rows[:count] = np.moveaxis(states, q, 0)[1:]
    return after.reshape(len(counts), -1)


def _chips(chip_kind: NDArray[np.int32], kinds: NDArray[np.int64]) -> NDArray[np.int64]:
    """The chips of a sequence of kinds: those of each kind in ascending order."""
    chips = np.empty(len(kinds), np.int64)
    for kind in np.unique(kinds):
        wanted = np.flatnonzero(kinds == kind)
        chips[wanted] = np.flatnonzero(chip_kind == kind)[: len(wanted)]
    return chips


@njit(cache=True, nogil=True)
def _relax_all(
    sets, traffic, unit_s, move_s, unit_bytes, shared_bytes,
    limit_bytes, pays, overlap, upper_s, max_pairs, next_state, least, back, kind_of,
):  # fmt: skip
    """Fill the tables; False where that takes more than ``max_pairs`` pairs."""
    num_pairs = 0
    num_sets, num_states = least.shape
    num_kinds = len(unit_s)
    seen = np.full(num_sets, NONE, np.int64)
    stack = np.empty(num_sets, np.int64)
    open_states = np.empty(num_states, np.int64)
    work_s = np.zeros((num_sets, num_kinds))  # of the units between the start and a down-set
    in_s, out_s = np.zeros(num_sets), np.zeros(num_sets)
    held_bytes = np.zeros(num_sets, np.int64)
    for i in range(num_sets - 1):
        num_open = _open_states(least[i], next_state, upper_s, open_states)
        if num_open == 0:
            continue
        if num_pairs > max_pairs:
            return False
        for q in range(num_kinds):
            work_s[i, q] = 0.0
        in_s[i], out_s[i], held_bytes[i] = 0.0, 0.0, 0
        stack[0] = i
        size = 1
        while size > 0:
            size -= 1
            j = stack[size]
            for c in range(sets.cover_ptr[j], sets.cover_ptr[j + 1]):
                grown, unit = sets.cover[c], sets.cover_unit[c]
                if seen[grown] == i:
                    continue
                seen[grown] = i
                num_pairs += 1
                _add_unit(
                    sets.words, traffic, move_s, unit_bytes, shared_bytes,
                    i, j, grown, unit, in_s, out_s, held_bytes,
                )  # fmt: skip
                goes_on = False
                for q in range(num_kinds):
                    work_s[grown, q] = work_s[j, q] + unit_s[q, unit]
                    load_s = work_s[grown, q]
                    if pays[q]:
                        load_s = max(load_s, in_s[grown]) if overlap else load_s + in_s[grown]
                    # No more units can make up for this: it only grows.
                    if load_s >= upper_s or held_bytes[grown] > limit_bytes[q]:
                        continue
                    goes_on = True
                    if pays[q]:
                        load_s = max(load_s, out_s[grown]) if overlap else load_s + out_s[grown]
                    if load_s < upper_s:
                        for o in range(num_open):
                            state = open_states[o]
                            to = next_state[q, state]
                            interval_s = max(least[i, state], load_s)
                            if to != NONE and interval_s < least[grown, to]:
                                least[grown, to] = interval_s
                                back[grown, to] = i
                                kind_of[grown, to] = q
                if goes_on:
                    stack[size] = grown
                    size += 1
    return True


@njit(cache=True, nogil=True)
def _add_unit(words, traffic, move_s, unit_bytes, shared_bytes, i, j, grown, unit, in_s, out_s, held_bytes):
    """What a chip with the units from ``i`` to ``j`` takes, sends and holds with one unit more."""
    in_s[grown], out_s[grown] = in_s[j], out_s[j]
    held_bytes[grown] = held_bytes[j] + unit_bytes[unit]
    for w in range(traffic.write_ptr[unit], traffic.write_ptr[unit + 1]):
        out_s[grown] += move_s[traffic.write[w]]
    for r in range(traffic.read_ptr[unit], traffic.read_ptr[unit + 1]):
        k = traffic.read[r]
        if move_s[k] == 0.0 and shared_bytes[k] == 0:
            continue
        home = traffic.home[k]
        if home >= 0 and not has_unit(words, i, home):
            is_done = True
            for q in range(traffic.reader_ptr[k], traffic.reader_ptr[k + 1]):
                is_done &= has_unit(words, grown, traffic.reader[q])
            if is_done:
                out_s[grown] -= move_s[k]
            continue
        is_here = False
        for q in range(traffic.reader_ptr[k], traffic.reader_ptr[k + 1]):
            reader = traffic.reader[q]
            is_here |= has_unit(words, j, reader) and not has_unit(words, i, reader)
        if not is_here:
            in_s[grown] += move_s[k]
            held_bytes[grown] += shared_bytes[k]


@njit(cache=True, nogil=True)
def _open_states(least, next_state, upper_s, open_states):
    """The states worth going on from: below the bound, and better than with a chip less."""
    num_kinds, num_states = next_state.shape
    is_open = np.ones(num_states, np.bool_)
    for state in range(num_states):
        for q in range(num_kinds):
            to = next_state[q, state]
            if to != NONE and least[state] <= least[to]:
                is_open[to] = False
    num_open = 0
    for state in range(num_states):
        if is_open[state] and least[state] < upper_s:
            open_states[num_open] = state
            num_open += 1
    return num_open
