"""A search ends early once it has spent as much without a gain as before it."""

from __future__ import annotations

import time

import numpy as np
import pytest

import go_opt
from go_opt.result import OptimizeResult, Request
from go_opt.search.shared.context import LEAST, LEAST_S, Context, Gains
from tests.strategies import random_graph, small_mcm

GRAPH, TARGET = random_graph(np.random.default_rng(3), 30), small_mcm(4, overlap=False)


def searched(**options: object) -> OptimizeResult:
    return go_opt.optimize(GRAPH, TARGET, decide="placement", relays=False, policy=None, **options)


def gained(request: Request, evaluations: int) -> Gains:
    """A small gain and a notable one, which came last."""
    gains = Gains(request, Context(request.time_limit_s))
    gains.note(10.0, 1.0, 1)
    gains.note(9.0, 1.0, evaluations)
    gains.note(8.999, 1.0005, evaluations + 1)
    return gains


@pytest.mark.parametrize(("evaluations", "until"), [(20, 220), (199, 399), (500, 1000)])
def test_by_evaluations(evaluations: int, until: int) -> None:
    gains = gained(Request(max_evaluations=10**6), evaluations)
    assert not gains.are_over(until - 1)
    assert gains.are_over(until)
    assert not gained(Request(max_evaluations=10**6, early_end=False), evaluations).are_over(10**6)


def test_by_time_and_evaluations() -> None:
    gains = gained(Request(budget_s=60.0), 20)
    assert not gains.are_over(10**6)
    time.sleep(LEAST_S)
    assert not gains.are_over(20 + LEAST - 1)
    assert gains.are_over(20 + LEAST)


def test_a_better_bound_is_a_gain() -> None:
    gains = gained(Request(max_evaluations=10**6), 20)
    gains.note(9.0, 1.1, 210)
    assert not gains.are_over(250)


def test_an_attempt_fails_at_its_end() -> None:
    """A chain of annealing gains while it cools down; close to the bound nothing is left."""
    for bound_s, is_over in ((1.0, False), (8.95, True)):
        gains = Gains(Request(max_evaluations=10**6), Context(1.0))
        gains.note(9.0, bound_s, 20)
        gains.note(9.0, bound_s, 300, pending=250)
        gains.note(9.0, bound_s, 301)  # of another method in between
        assert gains.are_over(301) == is_over
        gains.note(9.0, bound_s, 320, pending=0)
        assert gains.are_over(320)


def test_equal_limits_give_equal_answers() -> None:
    one, other = searched(max_evaluations=1000), searched(max_evaluations=1000)
    assert one.evaluations == other.evaluations < 1000
    assert one.plan.order.tolist() == other.plan.order.tolist()
    until = next(step.evaluations for step in one.history if step.best_s <= one.history[-1].best_s * 1.001)
    assert one.evaluations >= until + max(LEAST, until)


def test_it_may_be_left_out() -> None:
    assert (
        searched(max_evaluations=800).evaluations < searched(max_evaluations=800, early_end=False).evaluations
    )
