"""A proof in the background reaches what one that is waited for does, and ends when asked."""

from __future__ import annotations

import time

import numpy as np
import pytest

from go_opt.env import cost_tables, loop_roles
from go_opt.search.methods.refining import BackgroundRefining
from go_opt.solver import Refinement
from go_opt.solver.certify.problem.joint_floors import joint_refinement_problem
from tests.strategies import random_graph, small_mcm


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
        assert refining.reached().bound.seconds <= waited_for.upper_s
    assert refining.is_over
    reached = refining.reached()
    assert reached.bound.seconds == pytest.approx(waited_for.lower_bound_s, rel=1e-6)
    assert reached.upper_s == pytest.approx(waited_for.upper_s, rel=1e-6)
    assert reached.placement is not None
    assert reached.bound.reason
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
