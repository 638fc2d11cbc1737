"""One match in this process: the same limits and rules for the portfolio and its rivals."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from go_opt.bench import processes
from go_opt.bench.matches import Match
from go_opt.bench.processes import play
from go_opt.errors import InfeasibleError, ModelError, TargetError
from go_opt.result import Step

MATCH = Match("zoo:dcn_v2", "mcm-6x6", "portfolio", 0, max_evaluations=20)


@pytest.mark.parametrize("method", ["slice", "genetic", "portfolio"])
@pytest.mark.parametrize("relays", [False, True])
def test_a_match_is_played(method: str, relays: bool) -> None:
    match = Match("zoo:dcn_v2", "mcm-6x6", method, 0, max_evaluations=20, link_scale=8.0, relays=relays)
    record = play(match)
    assert (record.match, record.ops, record.error) == (match, 52, "")
    assert 0 < record.bound_s <= record.interval_s or method != "portfolio"
    assert record.curve[-1].interval_s == record.interval_s
    assert 1 <= record.evaluations <= 20


def test_the_portfolio_is_held_to_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [
        Step("greedy", 5.0, 5.0, 1, 0.2),
        Step("slice", 3.0, 3.0, 2, 0.9),
        Step("slice", 4.0, 3.0, 3, 0.95),
        Step("late", 1.0, 1.0, 4, 1.2),
    ]
    result = SimpleNamespace(
        history=steps,
        plan=None,
        evaluations=4,
        wall_s=1.2,
        lower_bound_s=0.5,
        method="late",
        status="FEASIBLE",
    )
    monkeypatch.setattr(processes.api, "optimize", lambda *args, **options: result)
    record = play(Match("zoo:dcn_v2", "mcm-6x6", "portfolio", 0, budget_s=1.0))
    assert record.curve == ((1, 0.2, 5.0), (2, 0.9, 3.0))
    assert (record.interval_s, record.bound_s) == (3.0, 0.5)
    result.history = steps[3:]
    assert play(Match("zoo:dcn_v2", "mcm-6x6", "portfolio", 0, budget_s=1.0)).interval_s == 1.0


def test_no_plan_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def optimize(*args, **options):
        raise InfeasibleError("nothing fits.")

    monkeypatch.setattr(processes.api, "optimize", optimize)
    record = play(MATCH)
    assert math.isinf(record.interval_s)
    assert record.notes == ("nothing fits.",)


def test_what_cannot_be_loaded() -> None:
    with pytest.raises(ModelError):
        play(Match("gone.onnx", "mcm-6x6", "slice", 0, 1.0))
    with pytest.raises(TargetError):
        play(Match("zoo:dcn_v2", "mcm-7x7", "slice", 0, 1.0))
