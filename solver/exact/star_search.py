"""Annealing on placements around a host: one unit at a time to another chip.

For what the dynamic program over down-sets cannot do: chips that may depend on each other in
any way, and graphs of too many down-sets. Chips stand at places; with acyclic dataflow
results go to no earlier place, and two places may swap their chips. The objective is
the logarithm of ``(Σ_d load_d^8)^(1/8)``, which also rewards loads below the largest; a
move changes the loads by the tensors of its unit alone. Axes: ``P`` places, ``Q`` kinds.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from go_opt.solver.exact.star import StarProblem

HOTTEST: Final = 0.03  # of a relative change of the objective
COLDEST: Final = 0.0003
SWAPS: Final = 0.02  # share of moves that swap the chips of two places


class _State(NamedTuple):
    place: NDArray[np.int64]  # [U]
    chip: NDArray[np.int64]  # [P] chip that stands there
    readers: NDArray[np.int64]  # [K, P] units there that read a tensor
    away: NDArray[np.int64]  # [K] units elsewhere than its home that read a tensor
    work_s: NDArray[np.float64]  # [P, Q]
    blocked: NDArray[np.int64]  # [P, Q] units there that the kind may not run
    in_s: NDArray[np.float64]  # [P]
    out_s: NDArray[np.float64]  # [P]
    held_bytes: NDArray[np.int64]  # [P]


def anneal_star(
    problem: StarProblem, placement: NDArray[np.int32], *, goes_anywhere: bool, moves: int, seed: int
) -> tuple[NDArray[np.int32], float]:
    """[U] the best placement met, no worse than ``placement``, which must keep the rules; and its cost.

    Args:
      goes_anywhere: whether chips may depend on each other in a circle.
      moves: tried in all.
    """
    num_chips, num_units = len(problem.chip_kind), problem.units.num_units
    chip = np.arange(num_chips) if goes_anywhere else _chips_in_order(problem, placement)
    place_of = np.argsort(chip)
    shape = (num_chips, len(problem.unit_s))
    num_tensors = len(problem.move_s)
    state = _State(
        place=np.zeros(num_units, np.int64),
        chip=chip,
        readers=np.zeros((num_tensors, num_chips), np.int64),
        away=np.zeros(num_tensors, np.int64),
        work_s=np.zeros(shape),
        blocked=np.zeros(shape, np.int64),
        in_s=np.zeros(num_chips),
        out_s=np.zeros(num_chips),
        held_bytes=np.zeros(num_chips, np.int64),
    )
    best = placement.astype(np.int64)
    units = problem.units
    best_s = _anneal(
        problem.traffic, problem.unit_s, problem.move_s, problem.unit_bytes, problem.shared_bytes,
        problem.limit_bytes, problem.pays, problem.chip_kind, problem.overlap, goes_anywhere,
        units.successor_ptr, units.successor, units.predecessor_ptr, units.predecessor,
        state, place_of[best], best, moves, np.random.default_rng(seed),
    )  # fmt: skip
    return best.astype(np.int32), max(float(best_s), problem.floor_s)


def _chips_in_order(problem: StarProblem, placement: NDArray[np.int32]) -> NDArray[np.int64]:
    """The chips in an order in which none reads from a later one."""
    # Most searches are not around a host, and networkx takes a while to load.
    import networkx as nx

    units = problem.units
    source = np.repeat(np.arange(units.num_units), np.diff(units.successor_ptr))
    depends = nx.DiGraph()
    depends.add_nodes_from(range(len(problem.chip_kind)))
    pairs = zip(placement[source].tolist(), placement[units.successor].tolist(), strict=True)
    depends.add_edges_from((a, b) for a, b in pairs if a != b)
    return np.array(list(nx.lexicographical_topological_sort(depends)), np.int64)


@njit(cache=True, nogil=True)
def _anneal(
    traffic, unit_s, move_s, unit_bytes, shared_bytes,
    limit_bytes, pays, chip_kind, overlap, goes_anywhere,
    successor_ptr, successor, predecessor_ptr, predecessor,
    state, start, best, moves, rng,
):  # fmt: skip
    num_units = len(state.place)
    num_places = len(state.chip)
    for unit in range(num_units):
        _add(traffic, unit_s, unit_bytes, state, unit, start[unit], 1)
        state.place[unit] = start[unit]
    _count(traffic, move_s, shared_bytes, state)
    load_s = np.zeros(num_places)
    level = _objective(limit_bytes, pays, chip_kind, overlap, state, load_s)
    best_s = load_s.max()
    for move in range(moves):
        heat = HOTTEST * (COLDEST / HOTTEST) ** (move / moves)
        first = 0
        second = 0
        unit = -1
        if num_places > 1 and rng.random() < SWAPS and not goes_anywhere:
            first = int(rng.random() * num_places)
            second = int(rng.random() * num_places)
            _swap(state, first, second)
        else:
            unit = int(rng.random() * num_units)
            lowest, highest = 0, num_places - 1
            if not goes_anywhere:
                for p in range(predecessor_ptr[unit], predecessor_ptr[unit + 1]):
                    lowest = max(lowest, state.place[predecessor[p]])
                for s in range(successor_ptr[unit], successor_ptr[unit + 1]):
                    highest = min(highest, state.place[successor[s]])
            first = state.place[unit]
            second = lowest + int(rng.random() * (highest - lowest + 1))
            _move(traffic, unit_s, move_s, unit_bytes, shared_bytes, state, unit, second)
        if first == second:
            continue
        now = _objective(limit_bytes, pays, chip_kind, overlap, state, load_s)
        if now > level and rng.random() >= np.exp((level - now) / heat):
            if unit < 0:
                _swap(state, first, second)
            else:
                _move(traffic, unit_s, move_s, unit_bytes, shared_bytes, state, unit, first)
            continue
        level = now
        if load_s.max() < best_s * (1.0 - 1e-12):
            best_s = load_s.max()
            for u in range(num_units):
                best[u] = state.chip[state.place[u]]
    return best_s


@njit(cache=True, nogil=True)
def _objective(limit_bytes, pays, chip_kind, overlap, state, load_s):
    """The logarithm of the 8-norm of the loads, which go to ``load_s``; infinite where a rule is broken."""
    largest = 0.0
    for p in range(len(load_s)):
        q = chip_kind[state.chip[p]]
        if state.blocked[p, q] > 0 or state.held_bytes[p] > limit_bytes[q]:
            load_s[p] = np.inf
            return np.inf
        load_s[p] = state.work_s[p, q]
        if pays[q] and overlap:
            load_s[p] = max(load_s[p], state.in_s[p], state.out_s[p])
        elif pays[q]:
            load_s[p] += state.in_s[p] + state.out_s[p]
        largest = max(largest, load_s[p])
    if largest == 0.0:
        return -np.inf
    total = 0.0
    for p in range(len(load_s)):
        share = load_s[p] / largest
        total += share * share * share * share * share * share * share * share
    return np.log(largest) + np.log(total) / 8.0


@njit(cache=True, nogil=True)
def _swap(state, first, second):
    chip = state.chip[first]
    state.chip[first] = state.chip[second]
    state.chip[second] = chip


@njit(cache=True, nogil=True)
def _add(traffic, unit_s, unit_bytes, state, unit, place, sign):
    """A unit comes (1) or goes (-1): its work, its weights, and it as a reader."""
    for q in range(len(unit_s)):
        if np.isinf(unit_s[q, unit]):
            state.blocked[place, q] += sign
        else:
            state.work_s[place, q] += sign * unit_s[q, unit]
    state.held_bytes[place] += sign * unit_bytes[unit]
    for r in range(traffic.read_ptr[unit], traffic.read_ptr[unit + 1]):
        state.readers[traffic.read[r], place] += sign


@njit(cache=True, nogil=True)
def _count(traffic, move_s, shared_bytes, state):
    """What crosses borders, from who reads what where."""
    for k in range(len(move_s)):
        home = state.place[traffic.home[k]] if traffic.home[k] >= 0 else -1
        for p in range(len(state.chip)):
            if p != home and state.readers[k, p] > 0:
                state.away[k] += state.readers[k, p]
                state.in_s[p] += move_s[k]
                state.held_bytes[p] += shared_bytes[k]
        if home >= 0 and state.away[k] > 0:
            state.out_s[home] += move_s[k]


@njit(cache=True, nogil=True)
def _move(traffic, unit_s, move_s, unit_bytes, shared_bytes, state, unit, to):
    """The unit goes to another place; what it reads and makes crosses other borders."""
    at = state.place[unit]
    if at == to:
        return
    for r in range(traffic.read_ptr[unit], traffic.read_ptr[unit + 1]):
        k = traffic.read[r]
        home = state.place[traffic.home[k]] if traffic.home[k] >= 0 else -1
        before = state.away[k]
        if at != home:
            state.away[k] -= 1
            if state.readers[k, at] == 1:
                state.in_s[at] -= move_s[k]
                state.held_bytes[at] -= shared_bytes[k]
        if to != home:
            state.away[k] += 1
            if state.readers[k, to] == 0:
                state.in_s[to] += move_s[k]
                state.held_bytes[to] += shared_bytes[k]
        if home >= 0 and (before > 0) != (state.away[k] > 0):
            state.out_s[home] += move_s[k] if before == 0 else -move_s[k]
    _add(traffic, unit_s, unit_bytes, state, unit, at, -1)
    _add(traffic, unit_s, unit_bytes, state, unit, to, 1)
    for w in range(traffic.write_ptr[unit], traffic.write_ptr[unit + 1]):
        k = traffic.write[w]
        if state.away[k] > 0:
            state.out_s[at] -= move_s[k]
        # Those who read it there have it to fetch now, those here no more.
        if state.readers[k, at] > 0:
            state.in_s[at] += move_s[k]
        if state.readers[k, to] > 0:
            state.in_s[to] -= move_s[k]
        state.away[k] += state.readers[k, at] - state.readers[k, to]
        if state.away[k] > 0:
            state.out_s[to] += move_s[k]
    state.place[unit] = to
