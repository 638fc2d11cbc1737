"""A method that fails costs the search that method, never the plan that was found."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import go_opt
from go_opt.env import load_target, load_zoo
from go_opt.errors import InfeasibleError
from go_opt.report.tables import print_result
from go_opt.result import OptimizeResult
from go_opt.result_json import result_to_dict
from go_opt.search import portfolio, split_race, state
from go_opt.search.methods.events import Event, Proposal
from go_opt.search.methods.first_plans import Start
from go_opt.search.shared.context import RAISES
from tests.exports import LIGHT

GRAPH, TARGET = load_zoo("mobilenet_v1"), load_target("mcm-2x2")


@pytest.fixture(autouse=True)
def _as_for_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RAISES)


def fails(*_: object, **__: object) -> Any:
    raise IndexError("index 2 is out of bounds")


def proposes_nonsense(start: Start) -> Iterator[Event]:
    short = np.zeros(3, np.int32)
    yield Proposal("nonsense", short, short, short)


def with_method(monkeypatch: pytest.MonkeyPatch, name: str, events: Any) -> None:
    """The method of the table replaced by ``events``."""
    methods = (replace(one, events=events) if one.name == name else one for one in portfolio.METHODS)
    monkeypatch.setattr(portfolio, "METHODS", tuple(methods))


def searched(**options: Any) -> OptimizeResult:
    asked: dict[str, Any] = {"max_evaluations": 40, "policy": None}
    return go_opt.optimize(GRAPH, TARGET, **(asked | options))


@pytest.mark.parametrize("method", [one.name for one in portfolio.METHODS])
def test_any_method_may_fail(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    with_method(monkeypatch, method, fails)
    options = {"objective": "latency"} if method in ("partitions", "upward ranks") else {}
    result = searched(**options)
    assert go_opt.verify(GRAPH, TARGET, result.plan) == []
    assert set(result.dropped_methods) <= {f"{method}: IndexError: index 2 is out of bounds"}
    assert method not in ("greedy", "slicing", "fixed orders", "guesses") or result.dropped_methods


def test_the_answer_the_screen_and_the_log_say_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with_method(monkeypatch, "fixed orders", fails)
    with caplog.at_level(logging.ERROR):
        result = searched()
    (line,) = result.dropped_methods
    assert line == "fixed orders: IndexError: index 2 is out of bounds"
    assert "'fixed orders' failed" in caplog.text
    assert json.loads(json.dumps(result_to_dict(GRAPH, result)))["dropped_methods"] == [line]
    screen = io.StringIO()
    print_result(Console(file=screen, width=200), GRAPH, TARGET, result)
    assert f"dropped     {line}" in screen.getvalue()


def test_plans_that_cannot_be_evaluated_count_as_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    with_method(monkeypatch, "fixed orders", proposes_nonsense)
    result = searched()
    assert [step.method for step in result.history].count("nonsense") == 1
    assert result.dropped_methods[0].startswith("nonsense: ")


def test_splits_may_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_race.SplitSearch, "_try", fails)
    squeezenet = LIGHT / "light_squeezenet.onnx"
    result = go_opt.optimize(squeezenet, TARGET, max_latency_s=1.0, max_evaluations=40)
    assert result.dropped_methods == ("splits: IndexError: index 2 is out of bounds",)
    assert result.plan.splits == ()


def test_the_simulation_may_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "simulated_answer", fails)
    result = searched()
    assert result.dropped_methods == ("simulation: IndexError: index 2 is out of bounds",)
    assert result.simulated_interval_s is None


def test_without_a_plan_the_reason_names_the_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    for one in portfolio.METHODS:
        with_method(monkeypatch, one.name, fails)
    with pytest.raises(InfeasibleError, match="Failed: greedy: IndexError"):
        searched(splits=False)


def test_tests_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RAISES, "1")
    with_method(monkeypatch, "fixed orders", fails)
    with pytest.raises(IndexError):
        searched()
