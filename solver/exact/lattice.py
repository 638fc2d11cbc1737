"""Down-sets of a DAG of units: what may lie before a cut (the ideals of its partial order).

A down-set holds with a unit all that the unit reads. One covers another where it holds one
unit more; from the empty set all are reached along covers. Found breadth first, so that
they stand in order of size; a set is looked up by a hash that one unit changes by one
exclusive or (Zobrist). Axes: ``I`` down-sets, ``U`` units, ``W = ceil(U / 64)`` words of a
set, ``C`` covers.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from go_opt.solver.problem.problem import PlacementProblem

FIRST_ROOM: Final = 4096  # down-sets there is room for at first
COVERS_EACH: Final = 8  # covers there is room for, a down-set
FULL: Final = -1
_SEED: Final = 20


class DownSets(NamedTuple):
    """Down-sets in order of size, the empty one first and that of all units last."""

    words: NDArray[np.uint64]  # [I, W] unit u is bit u % 64 of word u // 64
    cover_ptr: NDArray[np.int64]  # [I + 1]
    cover_unit: NDArray[np.int32]  # [C] the unit that is added
    cover: NDArray[np.int64]  # [C] the down-set that has it too

    @property
    def num_sets(self) -> int:
        return len(self.words)


def all_down_sets(units: PlacementProblem, max_sets: int) -> DownSets | None:
    """Every down-set of the units; ``None`` where there are more than ``max_sets``."""
    room = min(FIRST_ROOM, max_sets)
    while True:
        found = _with_room(units, room)
        if found is not None or room == max_sets:
            return found
        room = min(4 * room, max_sets)


def prefix_sets(order: NDArray[np.int32]) -> DownSets:
    """The down-sets along one topological order of the units: its prefixes."""
    num_units = len(order)
    words = np.zeros((num_units + 1, _num_words(num_units)), np.uint64)
    for place, unit in enumerate(order):
        words[place + 1] = words[place]
        words[place + 1, unit >> 6] |= np.uint64(1) << np.uint64(unit & 63)
    places = np.arange(num_units + 1, dtype=np.int64)
    return DownSets(
        words=words,
        cover_ptr=np.append(places, num_units),
        cover_unit=order.astype(np.int32),
        cover=places[1:],
    )


def _num_words(num_units: int) -> int:
    return (num_units + 63) // 64


def _with_room(units: PlacementProblem, room: int) -> DownSets | None:
    num_words = _num_words(units.num_units)
    words = np.zeros((room, num_words), np.uint64)
    cover_ptr = np.zeros(room + 1, np.int64)
    cover_unit = np.empty(COVERS_EACH * room, np.int32)
    cover = np.empty(COVERS_EACH * room, np.int64)
    slots = np.full(1 << (2 * room).bit_length(), FULL, np.int64)
    keys = np.random.default_rng(_SEED).integers(0, 2**63, units.num_units, dtype=np.uint64)
    count = _grow(
        units.successor_ptr, units.successor, units.predecessor_ptr, units.predecessor,
        keys, slots, words, cover_ptr, cover_unit, cover,
    )  # fmt: skip
    if count == FULL:
        return None
    num_covers = cover_ptr[count]
    return DownSets(words[:count], cover_ptr[: count + 1], cover_unit[:num_covers], cover[:num_covers])


@njit(cache=True, nogil=True)
def has_unit(words, down_set, unit):
    """Whether a down-set holds a unit."""
    return (words[down_set, unit >> 6] >> np.uint64(unit & 63)) & np.uint64(1) != 0


@njit(cache=True, nogil=True)
def _grow(
    successor_ptr, successor, predecessor_ptr, predecessor,
    keys, slots, words, cover_ptr, cover_unit, cover,
):  # fmt: skip
    """Fill ``words`` and the covers; returns the number of down-sets, FULL where they have no room."""
    num_units = len(keys)
    num_words = words.shape[1]
    mask = len(slots) - 1
    key = np.zeros(len(words), np.uint64)  # of each down-set
    parent = np.zeros(len(words), np.int64)  # the down-set that first led here, and by which unit
    added = np.full(len(words), -1, np.int32)
    slots[0] = 0
    count = 1
    covers = 0
    grown = np.empty(num_words, np.uint64)
    this = 0
    while this < count:
        # What may come next: what might have before, and what the unit added makes ready.
        start = covers
        before = parent[this]
        unit = added[this]
        most = cover_ptr[before + 1] - cover_ptr[before] if this > 0 else num_units
        if unit >= 0:
            most += successor_ptr[unit + 1] - successor_ptr[unit]
        if covers + most > len(cover):
            return FULL
        if this == 0:
            for u in range(num_units):
                if predecessor_ptr[u] == predecessor_ptr[u + 1]:
                    cover_unit[covers] = u
                    covers += 1
        else:
            for c in range(cover_ptr[before], cover_ptr[before + 1]):
                if cover_unit[c] != unit:
                    cover_unit[covers] = cover_unit[c]
                    covers += 1
            for s in range(successor_ptr[unit], successor_ptr[unit + 1]):
                u = successor[s]
                is_ready = True
                for p in range(predecessor_ptr[u], predecessor_ptr[u + 1]):
                    is_ready &= has_unit(words, this, predecessor[p])
                if is_ready:
                    cover_unit[covers] = u
                    covers += 1
        cover_ptr[this + 1] = covers
        for c in range(start, covers):
            u = cover_unit[c]
            for w in range(num_words):
                grown[w] = words[this, w]
            grown[u >> 6] |= np.uint64(1) << np.uint64(u & 63)
            new_key = key[this] ^ keys[u]
            slot = np.int64(new_key & np.uint64(mask))
            while slots[slot] != FULL and not _is_same(words, slots[slot], grown):
                slot = (slot + 1) & mask
            if slots[slot] == FULL:
                if count == len(words):
                    return FULL
                slots[slot] = count
                for w in range(num_words):
                    words[count, w] = grown[w]
                key[count] = new_key
                parent[count] = this
                added[count] = u
                count += 1
            cover[c] = slots[slot]
        this += 1
    return count


@njit(cache=True, nogil=True)
def _is_same(words, down_set, other):
    differs = np.uint64(0)
    for w in range(len(other)):
        differs |= words[down_set, w] ^ other[w]
    return differs == 0
