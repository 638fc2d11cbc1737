"""Matches in processes of their own: all are answered, whatever becomes of the process."""

from __future__ import annotations

import multiprocessing
import time

import pytest

from go_opt.bench import processes
from go_opt.bench.matches import Match
from go_opt.bench.processes import play_all


def match(seed: int, **fields) -> Match:
    return Match(**{"model": "zoo:dcn_v2", "target": "mcm-6x6", "method": "slice", "seed": seed} | fields)


def none_is_left() -> bool:
    return multiprocessing.active_children() == []


def test_two_at_a_time() -> None:
    matches = [
        match(0, max_evaluations=3),
        match(1, max_evaluations=3),
        match(0, model="gone.json", budget_s=1.0),
    ]
    records = {record.match: record for record in play_all(matches, 2)}
    assert set(records) == set(matches)
    assert records[matches[0]].interval_s == records[matches[1]].interval_s < 1.0
    assert "gone.json" in records[matches[2]].error
    assert none_is_left()


def _die(match: Match, answers) -> None:
    raise SystemExit(7)


def _sleep(match: Match, answers) -> None:
    time.sleep(600)


def test_a_process_that_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_play", _die)
    (record,) = play_all([match(0, budget_s=1.0)], 1)
    assert record.error == "its process ended with code 7"
    assert none_is_left()


def test_a_process_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_play", _sleep)
    monkeypatch.setattr(processes, "OVERTIME_S", 0.1)
    (record,) = play_all([match(0, budget_s=0.1)], 1)
    assert record.error == "it did not end in time"
    assert none_is_left()


def test_closing_ends_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_play", _sleep)

    def interrupted(connections, timeout=None):
        raise KeyboardInterrupt

    monkeypatch.setattr(processes, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(play_all([match(0, budget_s=1.0), match(1, budget_s=1.0)], 2))
    assert none_is_left()
