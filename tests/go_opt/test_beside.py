"""A thread that makes plans beside the other methods: what it finds counts, and it ends with them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import repeat

import numpy as np
import pytest

import go_opt
from go_opt.result import Request, Step
from go_opt.search.methods import beside as threads
from go_opt.search.methods.beside import beside, has_core_to_spare
from go_opt.search.methods.proposal import Tried
from go_opt.search.state import Search
from go_opt.solver.orders.order_search import OrderPlan
from tests.go_opt.test_optimizer import assert_consistent
from tests.strategies import small_mcm, toy_graph

AN_HOUR = Request(budget_s=3600.0)


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "num_cores", lambda: 2)
    monkeypatch.setattr(threads, "until_compiled", lambda: iter(()))


def search_of(request: Request, steps: list[Step]) -> Search:
    return Search(toy_graph(), small_mcm(2), request, None, steps.append)


def tried(*intervals_s: float | None) -> Iterator[Tried]:
    """Plans that say they take so long, each on the chip of its number."""
    order = np.arange(6, dtype=np.int32)
    for number, interval_s in enumerate(intervals_s):
        plan = None if interval_s is None else OrderPlan(order * 0 + number, order, order, interval_s)
        yield f"slice {number}", plan


def endless() -> Iterator[Tried]:
    return repeat(("slice", None))


def running() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "go-opt beside"]


def until_the_thread_ends() -> Iterator[None]:
    """One turn, in which everything is tried."""
    while running():
        time.sleep(0.001)
    yield None


def test_the_best_of_what_was_tried_is_proposed_and_the_rest_are_misses() -> None:
    steps: list[Step] = []
    plans = beside(search_of(AN_HOUR, steps), until_the_thread_ends(), tried(5.0, None, 3.0, 4.0))
    (found,) = filter(None, plans)
    assert found.method == "slice 2"
    assert found.placement.tolist() == [2] * 6
    assert sorted(step.method for step in steps) == ["slice 0", "slice 1", "slice 3"]


def test_it_goes_on_when_the_other_methods_are_through() -> None:
    found = [*filter(None, beside(search_of(AN_HOUR, []), iter(()), tried(None, None, 7.0)))]
    assert [proposal.method for proposal in found] == ["slice 2"]


def test_the_thread_ends_with_the_generator() -> None:
    plans = beside(search_of(AN_HOUR, []), repeat(None), endless())
    assert next(plans) is None
    assert len(running()) == 1
    plans.close()
    assert running() == []


def test_an_error_in_the_thread_is_raised_in_the_search() -> None:
    def broken() -> Iterator[Tried]:
        yield "slice", None
        raise ZeroDivisionError("in the thread")

    with pytest.raises(ZeroDivisionError, match="in the thread"):
        list(beside(search_of(AN_HOUR, []), until_the_thread_ends(), broken()))
    assert running() == []


def test_an_error_of_the_other_methods_ends_the_thread() -> None:
    def interrupted() -> Iterator[None]:
        yield None
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(beside(search_of(AN_HOUR, []), interrupted(), endless()))
    assert running() == []


def test_nothing_begins_that_would_come_too_late() -> None:
    def slow() -> Iterator[Tried]:
        for method, plan in tried(2.0, 1.0):
            time.sleep(0.3)
            yield method, plan

    search = search_of(Request(budget_s=0.5), [])
    found = [*filter(None, beside(search, iter(()), slow()))]
    assert [proposal.method for proposal in found] == ["slice 0"]
    assert search.left_s > 0.0


def test_a_search_counted_in_evaluations_has_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_core_to_spare(search_of(AN_HOUR, []))
    assert not has_core_to_spare(search_of(Request(max_evaluations=5), []))
    assert not has_core_to_spare(search_of(Request(budget_s=5.0, max_evaluations=5), []))
    monkeypatch.setattr(threads, "num_cores", lambda: 1)
    assert not has_core_to_spare(search_of(AN_HOUR, []))


def test_an_answer_with_a_thread_is_as_valid_and_leaves_none_behind() -> None:
    graph, target = toy_graph(), small_mcm(3)
    result = go_opt.optimize(graph, target, budget_s=1.0, policy=None)
    assert_consistent(graph, target, result)
    assert running() == []
