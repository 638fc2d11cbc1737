"""A proof in the background reaches what one that is waited for does, and its thread ends when asked."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import go_opt
from go_opt.env import cost_tables, loop_roles
from go_opt.result import Request
from go_opt.search.methods import refining as refining_module
from go_opt.search.methods.refining import BackgroundRefining, has_core_to_spare
from go_opt.search.state import Search
from go_opt.solver import Refinement
from go_opt.solver.certify.joint_floors import joint_refinement_problem
from tests.go_opt.test_optimizer import assert_consistent
from tests.strategies import random_graph, small_mcm, toy_graph


def test_it_proves_the_same() -> None:
    graph = random_graph(np.random.default_rng(5), 10)
    problem = joint_refinement_problem(graph, cost_tables(graph, small_mcm(4)), loop_roles(graph))
    waited_for = Refinement(problem)
    waited_for.run(3000)
    assert waited_for.is_over
    refining = BackgroundRefining(problem, proves=True)
    refining.consider(np.zeros(10, np.int32))
    until_s = time.monotonic() + 60.0
    while not refining.is_over and time.monotonic() < until_s:
        refining.run()
        assert refining.reached()[0].seconds <= waited_for.upper_s
    assert refining.is_over
    bound, found = refining.reached()
    assert bound.seconds == pytest.approx(waited_for.lower_bound_s, rel=1e-6)
    assert found is not None
    assert found.expected_s == pytest.approx(waited_for.upper_s, rel=1e-6)
    assert bound.reason
    refining.close()


def test_errors_are_raised_where_it_is_received(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph(np.random.default_rng(6), 8)
    problem = joint_refinement_problem(graph, cost_tables(graph, small_mcm(2)), loop_roles(graph))

    def fails(self: Refinement, expansions: int) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr(Refinement, "run", fails)
    monkeypatch.setattr(Refinement, "is_over", False)
    refining = BackgroundRefining(problem, proves=True)
    refining.close()
    with pytest.raises(ZeroDivisionError):
        refining.reached()


def running() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "go-opt proof"]


def test_a_thread_ends_when_it_is_closed() -> None:
    graph = random_graph(np.random.default_rng(5), 12)
    problem = joint_refinement_problem(graph, cost_tables(graph, small_mcm(4)), loop_roles(graph))
    refining = BackgroundRefining(problem, proves=True)
    refining.close()
    refining._thread.join(60.0)
    assert refining.is_over
    assert running() == []


def test_a_search_counted_in_evaluations_has_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def has_core(**options: float) -> bool:
        return has_core_to_spare(Search(toy_graph(), small_mcm(2), Request(**options)))  # type: ignore[arg-type]

    monkeypatch.setattr(refining_module, "num_cores", lambda: 2)
    assert has_core(budget_s=3600.0)
    assert not has_core(max_evaluations=5)
    assert not has_core(budget_s=5.0, max_evaluations=5)
    monkeypatch.setattr(refining_module, "num_cores", lambda: 1)
    assert not has_core(budget_s=3600.0)


def test_an_answer_with_a_thread_is_as_valid_and_leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refining_module, "num_cores", lambda: 2)
    graph, target = toy_graph(), small_mcm(3)
    result = go_opt.optimize(graph, target, budget_s=1.0, policy=None)
    assert_consistent(graph, target, result)
    for thread in running():
        thread.join(60.0)
    assert running() == []
