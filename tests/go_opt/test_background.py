"""A thread that makes plans in the background: what it finds counts, and it ends with the other methods."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import repeat

import numpy as np
import pytest

import go_opt
from go_opt.result import Request
from go_opt.search.methods import background
from go_opt.search.methods.background import has_core_to_spare, in_background
from go_opt.search.methods.events import Event, Miss, Proposal, Waiting
from go_opt.search.state import Search
from tests.go_opt.test_optimizer import assert_consistent
from tests.strategies import small_mcm, toy_graph

AN_HOUR = Request(budget_s=3600.0)


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "num_cores", lambda: 2)
    monkeypatch.setattr(background, "are_compiled", lambda: True)


def search_of(request: Request) -> Search:
    return Search(toy_graph(), small_mcm(2), request)


def tried(*intervals_s: float | None) -> Iterator[Event]:
    """Plans that say they take so long, each on the chip of its number."""
    order = np.arange(6, dtype=np.int32)
    for number, interval_s in enumerate(intervals_s):
        if interval_s is None:
            yield Miss(f"slice {number}")
        else:
            yield Proposal(f"slice {number}", order * 0 + number, order, order, expected_s=interval_s)


def endless() -> Iterator[Event]:
    return repeat(Miss("slice"))


def running() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "go-opt background"]


def proposed(events: Iterator[Event]) -> list[Proposal]:
    return [event for event in events if isinstance(event, Proposal)]


def until_the_thread_ends() -> Iterator[Event]:
    """One turn, in which everything is tried."""
    while running():
        time.sleep(0.001)
    yield Waiting()


def test_the_best_of_what_was_tried_is_proposed_and_the_rest_are_misses() -> None:
    tries = tried(5.0, None, 3.0, 4.0)
    events = list(in_background(search_of(AN_HOUR), until_the_thread_ends(), tries))
    (found,) = proposed(iter(events))
    assert found.method == "slice 2"
    assert found.placement.tolist() == [2] * 6
    misses = [event.method for event in events if isinstance(event, Miss)]
    assert misses == ["slice 0", "slice 1", "slice 3"]


def test_it_goes_on_when_the_other_methods_are_through() -> None:
    found = proposed(in_background(search_of(AN_HOUR), iter(()), tried(None, None, 7.0)))
    assert [proposal.method for proposal in found] == ["slice 2"]


def test_the_thread_ends_with_the_generator() -> None:
    with closing(in_background(search_of(AN_HOUR), repeat(Waiting()), endless())) as events:
        assert next(events) == Waiting()
        assert len(running()) == 1
    assert running() == []


def test_an_error_in_the_thread_is_raised_in_the_search() -> None:
    def broken() -> Iterator[Event]:
        yield Miss("slice")
        raise ZeroDivisionError("in the thread")

    with pytest.raises(ZeroDivisionError, match="in the thread"):
        list(in_background(search_of(AN_HOUR), until_the_thread_ends(), broken()))
    assert running() == []


def test_an_error_of_the_other_methods_ends_the_thread() -> None:
    def interrupted() -> Iterator[Event]:
        yield Waiting()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(in_background(search_of(AN_HOUR), interrupted(), endless()))
    assert running() == []


def test_nothing_begins_that_would_come_too_late() -> None:
    def slow() -> Iterator[Event]:
        for event in tried(2.0, 1.0):
            time.sleep(0.3)
            yield event

    search = search_of(Request(budget_s=0.5))
    found = proposed(in_background(search, iter(()), slow()))
    assert [proposal.method for proposal in found] == ["slice 0"]
    assert search.left_s > 0.0


def test_a_search_counted_in_evaluations_has_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_core_to_spare(search_of(AN_HOUR))
    assert not has_core_to_spare(search_of(Request(max_evaluations=5)))
    assert not has_core_to_spare(search_of(Request(budget_s=5.0, max_evaluations=5)))
    monkeypatch.setattr(background, "num_cores", lambda: 1)
    assert not has_core_to_spare(search_of(AN_HOUR))


def test_an_answer_with_a_thread_is_as_valid_and_leaves_none_behind() -> None:
    graph, target = toy_graph(), small_mcm(3)
    result = go_opt.optimize(graph, target, budget_s=1.0, policy=None)
    assert_consistent(graph, target, result)
    assert running() == []
