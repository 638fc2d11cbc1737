"""Every better plan is told as it is found, as the answer would be then."""

from __future__ import annotations

from go_opt import api
from go_opt.env import load_zoo
from go_opt.result import OptimizeResult


def test_improvements_are_answers_each_better_than_the_last() -> None:
    seen: list[OptimizeResult] = []
    result = api.optimize(
        load_zoo("bert_base"), "mcm-6x6", max_evaluations=15, policy=None, on_improvement=seen.append
    )
    reached_s = [improvement.metrics.interval_s for improvement in seen]
    assert len(seen) >= 2
    assert reached_s == sorted(set(reached_s), reverse=True)
    assert seen[-1].plan is result.plan
    assert [improvement.evaluations for improvement in seen] == [len(i.history) for i in seen]
    assert all(result.history[: len(i.history)] == i.history for i in seen)


def test_a_search_can_be_stopped_by_what_it_found() -> None:
    seen: list[OptimizeResult] = []
    result = api.optimize(
        load_zoo("bert_base"),
        "mcm-6x6",
        budget_s=60,
        policy=None,
        on_improvement=seen.append,
        should_stop=lambda: bool(seen),
    )
    assert len(seen) == 1
    assert result.plan is seen[0].plan
