"""``go-opt`` on plans with split ops, from the search to every command that reads the plan."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Cli

COMMON = ("zoo:gpt2_step", "--no-state", "--max-evaluations", "100", "--policy", "none")
SPLIT = "split 'node_linear' is split into 8 along 'j', each with a piece of its weights: they take"
ROW = {
    "op": "node_linear",
    "factor": "j",
    "parts": 8,
    "joined": False,
    "collective": False,
    "bucket": 0,
    "level": 0,
}


def on_one_line(text: str) -> str:
    return " ".join(text.split())


def test_from_the_search_to_the_page(cli: Cli, tmp_path: Path) -> None:
    found = cli("optimize", *COMMON, "--out", "plan.json")
    assert SPLIT in on_one_line(found.out)
    assert json.loads((tmp_path / "plan.json").read_text())["splits"] == [ROW]
    assert SPLIT in on_one_line(cli("evaluate", "zoo:gpt2_step", "plan.json").out)
    assert cli("verify", "zoo:gpt2_step", "plan.json").code == 0
    assert SPLIT.removeprefix("split ") in on_one_line(cli("explain", "plan.json").out)
    assert cli("explain", "plan.json", "node_linear/part 2 of 8").code == 0
    assert cli("trace", "zoo:gpt2_step", "plan.json", "--out", "trace.json").code == 0
    assert cli("report", "zoo:gpt2_step", "plan.json", "--out", "page.html").code == 0
    page = (tmp_path / "page.html").read_text()
    assert "node_linear/part 2 of 8" in page
    assert "node_linear into 8" in page
    again = cli("optimize", *COMMON, "--start", "plan.json", "--json").json
    assert again["splits"] == [ROW]


def test_no_splits(cli: Cli) -> None:
    asked = (*COMMON, "--no-rewrite")  # so that the diff names parts alone
    found = cli("optimize", *asked, "--no-splits", "--out", "whole.json")
    assert "split " not in found.out
    cli("optimize", *asked, "--out", "parts.json")
    text = cli("diff", "whole.json", "parts.json", "--model", "zoo:gpt2_step").out
    assert "node_linear/part 1 of 8" in text


def test_a_plan_that_splits_what_is_not_there_is_refused(cli: Cli, tmp_path: Path) -> None:
    cli("optimize", *COMMON, "--out", "plan.json")
    plan = json.loads((tmp_path / "plan.json").read_text())
    for change, sentence in (
        ({"op": "logits"}, "the graph has no op 'logits'"),
        ({"parts": 1}, "splits[0].parts"),
        ({"factor": "rows"}, "splits: op 'node_linear' cannot be split along 'rows'"),
        ({"kind": "columns"}, "splits of an earlier version are no longer read"),
        ({"joined": "no"}, "splits[0].joined must be true or false"),
    ):
        plan["splits"] = [ROW | change]
        (tmp_path / "wrong.json").write_text(json.dumps(plan))
        cli("evaluate", "zoo:gpt2_step", "wrong.json").is_refused(sentence)
