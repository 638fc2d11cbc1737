"""The domain store against Python sets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.solver.propagation.propagators.domains import (
    CONTRADICTION,
    HIGHEST_LOW,
    NUM_DECIDED,
    QUEUE_SIZE,
    TRAIL_SIZE,
    dequeue,
    narrow_range,
    narrow_to,
    new_store,
    pack_chips,
    remove,
    restore,
    unpack_chips,
)
from tests.strategies import examples, seeds


@given(seed=seeds)
@settings(max_examples=examples(60))
@pytest.mark.parametrize("num_chips", [3, 64, 65, 200])
def test_writes_and_undo_match_sets(num_chips: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_units = int(rng.integers(1, 6))
    start = rng.random((num_units, num_chips)) < 0.8
    start[:, rng.integers(num_chips)] = True
    store = new_store(pack_chips(start), num_chips)
    sets = [set(np.flatnonzero(row)) for row in start]
    history = []
    for _ in range(20):
        check_store(store, sets, num_chips)
        history.append(([set(chips) for chips in sets], mark(store)))
        unit, kind = int(rng.integers(num_units)), int(rng.integers(3))
        low, high = np.sort(rng.integers(0, num_chips, 2))
        chosen = rng.random(num_chips) < 0.5
        words = pack_chips(chosen)
        if kind == 0:
            narrow_range(store, unit, low, high)
            wanted = set(range(low, high + 1))
        elif kind == 1:
            narrow_to(store, unit, words)
            wanted = set(np.flatnonzero(chosen))
        else:
            remove(store, unit, words)
            wanted = set(np.flatnonzero(~chosen))
        sets[unit] &= wanted
        assert store.state[CONTRADICTION] == (not sets[unit])
        if not sets[unit] or rng.random() < 0.2:
            sets, back = history[int(rng.integers(len(history)))]
            history = history[: [m for _, m in history].index(back)]
            restore(store, *back)


def mark(store):
    return tuple(int(store.state[field]) for field in (TRAIL_SIZE, NUM_DECIDED, HIGHEST_LOW))


def check_store(store, sets, num_chips) -> None:
    open_chips = unpack_chips(store.domain, num_chips)
    assert [set(np.flatnonzero(row)) for row in open_chips] == sets
    assert list(store.low) == [min(chips) for chips in sets]
    assert list(store.high) == [max(chips) for chips in sets]
    assert list(store.size) == [len(chips) for chips in sets]
    assert list(store.support) == [sum(c in chips for chips in sets) for c in range(num_chips)]
    assert list(store.occupied) == [sum(chips == {c} for chips in sets) for c in range(num_chips)]


def test_a_changed_unit_is_enqueued_once() -> None:
    store = new_store(pack_chips(np.ones((2, 4), np.bool_)), 4)
    while store.state[QUEUE_SIZE]:
        dequeue(store)
    narrow_range(store, 1, 0, 2)
    narrow_range(store, 1, 0, 1)
    assert store.state[QUEUE_SIZE] == 1
    assert dequeue(store) == 1


def test_undoing_empties_the_work_list() -> None:
    store = new_store(pack_chips(np.ones((2, 4), np.bool_)), 4)
    narrow_range(store, 1, 0, 2)
    restore(store, 0, 0, 0)
    assert store.state[QUEUE_SIZE] == 0
    assert not store.is_queued.any()
