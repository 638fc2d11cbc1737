"""``go-opt bench``: tables, JSON, going on where it stopped, Ctrl-C, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from go_opt.bench import processes
from go_opt.bench.matches import Match, Record
from go_opt.bench.rivals import Point
from tests.cli.conftest import Cli

SECONDS = {"greedy": 4e-6, "slice": 3e-6, "portfolio": 2e-6}


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[Match]:
    """Matches are answered at once; the list says which were played."""
    asked: list[Match] = []

    def play_all(matches: list[Match], jobs: int) -> Iterator[Record]:
        for match in matches:
            asked.append(match)
            reached_s = SECONDS[match.method] * (1 + match.seed)
            yield Record(match, 58, reached_s, (Point(1, 0.01, reached_s),), 1, 0.02, 1e-6)

    monkeypatch.setattr(processes, "play_all", play_all)
    return asked


def test_one_run_for_real(cli: Cli) -> None:
    run = cli("bench", "dcn_v2", "--methods", "slice,portfolio", "--max-evaluations", 8, "--seeds", 1)
    assert run.code == 0
    assert "dcn_v2" in run.out
    assert "portfolio against the best rival of each graph" in run.out
    assert run.err[0].startswith("1/2 dcn_v2, slice, seed 0: ")


def test_json(cli: Cli, played: list[Match]) -> None:
    names = "greedy,slice,portfolio"
    rows = cli("bench", "vgg16", "zoo:squeezenet", "--methods", names, "--link-scale", 8, "--json").json
    assert [row["graph"] for row in rows] == ["vgg16"] * 18 + ["squeezenet"] * 18
    one = {"graph": "vgg16", "method": "slice", "seed": 1, "samples": 1, "interval_s": 6e-6}
    assert [row for row in rows[:18] if row["method"] == "slice" and row["seed"] == 1] == [one, one]
    assert len(played) == 2 * 3 * 3
    assert {(match.budget_s, match.max_evaluations, match.link_scale, match.relays) for match in played} == {
        (10.0, None, 8.0, True)
    }


def test_json_of_a_run(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def play_all(matches: list[Match], jobs: int) -> Iterator[Record]:
        points = Point(3, 0.1, 4e-6), Point(7, 0.2, 2e-6)
        yield Record(matches[0], 58, 2e-6, points, 20, 0.3)
        yield Record(matches[1], 58, evaluations=20)
        yield Record(matches[2], error="it did not end in time")

    monkeypatch.setattr(processes, "play_all", play_all)
    rows = cli("bench", "vgg16", "--methods", "policy", "--seeds", 3, "--max-evaluations", 20, "--json").json
    assert {(row.pop("graph"), row.pop("method")) for row in rows} == {("vgg16", "policy")}
    assert rows == [
        {"seed": 0, "samples": 3, "interval_s": 4e-6},
        {"seed": 0, "samples": 7, "interval_s": 2e-6},
        {"seed": 0, "samples": 20, "interval_s": 2e-6},
        {"seed": 1, "samples": 20, "interval_s": None},
        {"seed": 2, "samples": 0, "interval_s": None, "error": "it did not end in time"},
    ]


def test_a_run_goes_on_where_it_stopped(cli: Cli, played: list[Match]) -> None:
    args = ("bench", "vgg16", "--methods", "greedy,slice", "--out", "runs.jsonl", "--no-relays")
    first = cli(*args, "--seeds", 2)
    assert len(played) == 4
    again = cli(*args, "--seeds", 3)
    assert [(match.method, match.seed) for match in played[4:]] == [("greedy", 2), ("slice", 2)]
    assert again.err[0].startswith("5/6 vgg16, greedy, seed 2")
    assert first.code == again.code == 0
    # Other conditions are other matches.
    cli(*args, "--seeds", 3, "--budget", "1s")
    assert len(played) == 12


def test_ctrl_c_keeps_what_was_reached(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    def play_all(matches: list[Match], jobs: int) -> Iterator[Record]:
        yield Record(matches[0], 58, 2e-6, (Point(1, 0.01, 2e-6),), 1, 0.02)
        raise KeyboardInterrupt

    monkeypatch.setattr(processes, "play_all", play_all)
    run = cli("bench", "vgg16", "--methods", "greedy,slice", "--out", "runs.jsonl")
    assert run.code == 0
    assert "2 us" in run.out
    assert run.err[-1] == "interrupted; what follows is of the runs that ended."
    lines = (tmp_path / "runs.jsonl").read_text().splitlines()
    assert [json.loads(line)["method"] for line in lines] == ["greedy"]


def test_ctrl_c_before_anything(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def play_all(matches: list[Match], jobs: int) -> Iterator[Record]:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(processes, "play_all", play_all)
    run = cli("bench", "vgg16", "--methods", "greedy")
    assert run.code == 130
    assert run.err == ["go-opt: interrupted."]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("vgg17",), ("vgg17", "vgg16")),
        (("split:tests",), ("split", "tests")),
        (("family:vgg",), ("family", "vgg")),
        (("vgg16", "--methods", "magic"), ("magic", "genetic")),
        (("vgg16", "--seeds", "0"), ("--seeds",)),
        (("vgg16", "--jobs", "0"), ("--jobs",)),
        (("vgg16", "--max-evaluations", "-1"), ("--max-evaluations",)),
        (("vgg16", "--budget", "soon"), ("--budget", "soon")),
        (("vgg16", "--link-scale", "0"), ("link_scale",)),
        (("vgg16", "--target", "mcm-6x7"), ("mcm-6x7",)),
        (("vgg16", "--decide", "some"), ("decide",)),
        (("vgg16", "--out", "no/such/folder.jsonl"), ("--out",)),
    ],
)
def test_bad_input(cli: Cli, played: list[Match], args: tuple[str, ...], words: tuple[str, ...]) -> None:
    cli("bench", *args).is_refused(*words)
    assert played == []
