"""``optimize A B --rates``: several models on one package, from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.serving import serve_in_thread

SEARCH = ("--target", "mcm-2x2", "--max-evaluations", "20", "--policy", "none", "--no-simulate")
MODELS = ("zoo:shufflenet", "zoo:mobilenet_v2")


def test_both_are_planned_and_verified(cli: Cli, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    answer = cli("optimize", *MODELS, "--rates", "4:2", *SEARCH, "--out", plan, "--json").json
    assert [(one["model"], one["rate"]) for one in answer["models"]] == [(MODELS[0], 2), (MODELS[1], 1)]
    assert answer["models"][0]["interval_s"] == pytest.approx(answer["interval_s"] / 2)
    assert answer["turns"]["sent_bytes"] == 0
    parts = [one["plan"] for one in answer["models"]]
    assert [name for part in parts for name in part["op_names"]] == answer["op_names"]
    for name in ("placement", "fusion_group", "replication"):
        assert [chip for part in parts for chip in part[name]] == answer[name]
    assert all(sorted(part["order"]) == list(range(len(part["op_names"]))) for part in parts)
    assert answer["answered_s"] == pytest.approx(answer["interval_s"] + answer["latency_s"])
    assert cli("verify", "union:2*zoo:shufflenet+1*zoo:mobilenet_v2", plan).code == 0
    assert "turns" in cli("optimize", *MODELS, *SEARCH).out


def test_a_service_finds_the_same(cli: Cli) -> None:
    here = cli("optimize", *MODELS, *SEARCH, "--json").json
    with serve_in_thread() as address:
        there = cli("optimize", *MODELS, *SEARCH, "--json", "--server", address).json
    for answer in (here, there):
        del answer["wall_s"], answer["history"]
    assert there == here


def test_what_is_refused(cli: Cli) -> None:
    cli("optimize", *MODELS, "--rates", "1:2:3", *SEARCH).is_refused("--rates has 3 numbers for 2 models")
    cli("optimize", MODELS[0], "--rates", "1:2").is_refused("--rates is for several models")
