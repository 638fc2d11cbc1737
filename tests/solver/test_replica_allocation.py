"""How many chips a stage gets, against every way to share them."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from go_opt.solver.problem.replica_allocation import allocated_chips
from tests.strategies import examples


@settings(max_examples=examples(100))
@given(
    work=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    free=st.integers(0, 4),
    floor=st.integers(0, 12),
)
def test_chips_are_allotted_for_the_least_interval(work: list[int], free: int, floor: int) -> None:
    chips = len(work) + free
    sizes = allocated_chips(np.array(work, dtype=np.float64), chips, float(floor))
    reached = max(floor, *(w / r for w, r in zip(work, sizes.tolist(), strict=True)))
    within = [s for s in product(range(1, chips + 1), repeat=len(work)) if sum(s) <= chips]
    least = min(max(floor, *(w / r for w, r in zip(work, s, strict=True))) for s in within)
    assert sizes.min() >= 1
    assert sizes.sum() <= chips
    assert reached == pytest.approx(least)
    fewest = min(sum(s) for s in within if max(w / r for w, r in zip(work, s, strict=True)) <= least)
    if least > floor:
        assert sizes.sum() == fewest
