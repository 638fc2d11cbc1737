"""Random clusters: ranges found against brute force, and against the bound."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest

from go_opt.errors import InfeasibleError
from go_opt.serving.mixed.bound import upper_bound
from go_opt.serving.mixed.search import plan_ranges
from tests.go_opt.serving.test_mixed import best_by_force, case_of, random_text


def after(slices: int) -> Callable[[], bool]:
    """Stops after so many slices of annealings, however fast the machine is."""
    done = itertools.count(1)
    return lambda: next(done) >= slices


@pytest.mark.parametrize("seed", range(12))
def test_no_ranges_are_above_the_bound_and_the_search_finds_the_best(seed: int) -> None:
    case = case_of(random_text(seed), layers=5)
    best = best_by_force(case)
    assert upper_bound(case) >= best * (1 - 1e-9)
    if best == 0.0:
        with pytest.raises(InfeasibleError):
            plan_ranges(case, math.inf, should_stop=after(4))
        return
    plan = plan_ranges(case, math.inf, seed, after(40))
    assert plan.throughput_per_s == pytest.approx(best, rel=1e-6)
    assert plan.verify() == []
