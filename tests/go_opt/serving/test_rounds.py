"""Rounds of turns: by hand, and loads against every other succession."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from go_opt.serving.together.sharing import Part, loaded, round_s


def test_rounds_by_hand() -> None:
    # Two chips, 1 s each, an inference each second: three of each model.
    one = Part(np.array([1.0, 1.0]), 1.0, 2.0, 3, 0.0)
    # No weights to load: the second model follows on each chip, and no time is lost.
    assert round_s([one, one], np.zeros(2)) == pytest.approx(6.0)
    # The first chip lacks 4 s of weights. It begins its last inference 2 s after its first, and is loaded
    # 4 s later; the first inference of the next turn has ended then: turns begin each 5 s.
    assert round_s([one, one], np.array([4.0, 0.0])) == pytest.approx(2 * 5.0)
    # The second chip, free at 3, is loaded at 7, and begins at 6: also each 5 s.
    assert round_s([one, one], np.array([0.0, 4.0])) == pytest.approx(2 * 5.0)
    # Both: the link loads 8 s a turn, one after the other.
    assert round_s([one, one], np.array([4.0, 4.0])) == pytest.approx(2 * 8.0)
    # Half of the link is taken until the first chip begins its last inference, which loads wait for anyway.
    half = one._replace(host_share=0.5)
    assert round_s([half, half], np.array([4.0, 0.0])) == pytest.approx(2 * (2.0 + 3.0))
    # A model that comes later to the second chip: it idles before, and the next begins there without a wait.
    slow = one._replace(latency_s=4.0)
    assert round_s([one, slow], np.zeros(2)) == pytest.approx(6.0)


def in_succession(free: np.ndarray, loads: np.ndarray, ranks: tuple[int, ...]) -> np.ndarray:
    """When each is loaded if the lowest rank goes first, in small steps."""
    left, done, now = loads.copy(), free.copy(), 0
    while left.any():
        ready = [chip for chip in range(len(left)) if left[chip] and free[chip] <= now]
        if ready:
            chip = min(ready, key=lambda one: ranks[one])
            left[chip] -= 1
            done[chip] = now + 1
        now += 1
    return done


@pytest.mark.parametrize("seed", range(12))
def test_no_other_succession_is_earlier(seed: int) -> None:
    random = np.random.default_rng(seed)
    free, loads, due = random.integers(0, 6, 4), random.integers(0, 4, 4), random.permutation(8)[:4]
    found = loaded(free.astype(float), due.astype(float), loads.astype(float), 0.0, 0.0, 0.0)
    late = [
        (in_succession(free, loads, ranks) - due)[loads > 0].max(initial=-100)
        for ranks in permutations(range(4))
    ]
    assert (found - due)[loads > 0].max(initial=-100) == pytest.approx(min(late))
    assert found == pytest.approx(in_succession(free, loads, tuple(due.tolist())))
