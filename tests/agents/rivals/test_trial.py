"""A trial: every plan counted, timed and verified, the clock injected."""

from __future__ import annotations

import math

import numpy as np
import pytest

from go_opt.bench.rivals import Limits, Rival, Trial, compete
from go_opt.bench.rivals.trial import SpentError
from go_opt.errors import InvalidInputError
from tests.agents.rivals.cases import Clock, toy_problem

ONE_CHIP = np.zeros(6, np.int32)
TWO_CHIPS = np.array([0, 0, 0, 1, 1, 1], np.int32)  # its residual passes no chip
BACKWARD = np.array([1, 0, 0, 0, 0, 0], np.int32)


def trial(clock: Clock | None = None, **limits) -> Trial:
    return Trial(toy_problem(), Limits(**limits), "by hand", clock or Clock())


def evaluate(trial: Trial, *placements):
    problem = trial.problem
    rows = np.stack(placements)
    return trial(rows, *(np.tile(row, (len(rows), 1)) for row in (problem.order, problem.kernels)))


def test_evaluations_are_counted_and_the_better_plans_kept() -> None:
    clock = Clock()
    spent = trial(clock, evaluations=10)
    clock.now_s += 2.0
    one_s = evaluate(spent, ONE_CHIP)[0]
    clock.now_s += 1.0
    both_s = evaluate(spent, ONE_CHIP, TWO_CHIPS)
    assert both_s[0] == one_s
    assert both_s[1] < one_s
    assert (spent.evaluations, spent.left) == (3, 7)
    outcome = spent.outcome()
    assert outcome.curve == ((1, 2.0, one_s), (3, 3.0, both_s[1]))
    assert outcome.plan is not None
    assert outcome.plan.placement.tolist() == TWO_CHIPS.tolist()
    assert outcome.interval_s == both_s[1]


def test_what_the_verifier_refuses_counts_as_an_evaluation_and_no_more() -> None:
    spent = trial(evaluations=10)
    assert math.isinf(evaluate(spent, BACKWARD)[0])
    assert (spent.evaluations, spent.best) == (1, None)
    # It would have been faster, so the next best of the batch is kept.
    assert np.isfinite(evaluate(spent, BACKWARD, ONE_CHIP)).tolist() == [False, True]
    assert spent.outcome().curve[0].evaluations == 3


def test_evaluations_end_exactly() -> None:
    spent = trial(evaluations=3)
    evaluate(spent, ONE_CHIP)
    with pytest.raises(SpentError):
        evaluate(spent, ONE_CHIP, ONE_CHIP, TWO_CHIPS)  # the last of them is one too many
    assert spent.evaluations == 3
    assert spent.outcome().plan.placement.tolist() == ONE_CHIP.tolist()
    with pytest.raises(SpentError):
        spent.count_miss()
    assert spent.evaluations == 3


def test_time_ends_and_what_comes_late_does_not_count() -> None:
    clock = Clock()
    spent = trial(clock, budget_s=5.0)
    evaluate(spent, ONE_CHIP)
    clock.now_s += 4.0
    assert spent.left_s == 1.0
    # The evaluation itself takes the time beyond the end.
    before = spent.problem.interval_s

    class Slow:
        def __getattr__(self, name):
            return getattr(toy, name)

        def interval_s(self, *plans):
            clock.now_s += 2.0
            return before(*plans)

    toy, spent.problem = spent.problem, Slow()
    with pytest.raises(SpentError):
        evaluate(spent, TWO_CHIPS)
    assert spent.evaluations == 2
    assert spent.outcome().plan.placement.tolist() == ONE_CHIP.tolist()


def test_a_first_plan_counts_however_late() -> None:
    clock = Clock()
    spent = trial(clock, budget_s=1.0)
    clock.now_s += 7.0
    with pytest.raises(SpentError):
        evaluate(spent, TWO_CHIPS)
    assert spent.outcome().curve[0].elapsed_s == 7.0


def test_a_rival_that_never_stops_is_stopped() -> None:
    def search(trial: Trial, seed: int) -> None:
        while True:
            evaluate(trial, ONE_CHIP)

    rival = Rival("endless", search)
    assert compete(rival, toy_problem(), Limits(evaluations=7), 0, Clock()).evaluations == 7
    outcome = compete(rival, toy_problem(), Limits(budget_s=10.0), 0, Clock(step_s=0.5))
    assert 10.0 <= outcome.wall_s <= 13.0


def test_some_limit_is_needed() -> None:
    with pytest.raises(InvalidInputError, match="budget or a number"):
        Limits()


def test_who_ends_by_itself_is_answered_beyond_the_last_evaluation() -> None:
    spent = trial(evaluations=2)
    rows = np.stack([ONE_CHIP, TWO_CHIPS, TWO_CHIPS])
    order, kernels = (np.tile(row, (3, 1)) for row in (spent.problem.order, spent.problem.kernels))
    for finite in ([True, True, False], [False, False, False]):
        assert np.isfinite(spent.evaluate(rows, order, kernels)).tolist() == finite
    assert (spent.evaluations, spent.left) == (2, 0)
