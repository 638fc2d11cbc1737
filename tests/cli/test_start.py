"""``--start`` and ``--placement``: what a search begins with, and a split costed as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

import go_opt
from tests.cli.conftest import Cli

MODEL = "zoo:squeezenet"


@pytest.fixture
def split(tmp_path: Path) -> Path:
    """Four chips with as many ops each."""
    names = go_opt.load(MODEL).op_names
    rows = [f"{name},{op * 4 // len(names)}\n" for op, name in enumerate(names)]
    path = tmp_path / "split.csv"
    path.write_text("op,chip\n" + "".join(rows))
    return path


def test_a_split_is_costed_and_improved(cli: Cli, split: Path, tmp_path: Path) -> None:
    costed = cli("evaluate", MODEL, "--placement", split, "--json")
    assert costed.code == 0
    assert costed.err == ["start: 65 of 65 ops"]
    plan = tmp_path / "plan.json"
    found = cli("optimize", MODEL, "--placement", split, "--max-evaluations", "3", "--json", "--out", plan)
    assert found.code == 0
    assert found.json["interval_s"] <= costed.json["interval_s"]
    again = cli("optimize", MODEL, "--start", plan, "--max-evaluations", "2", "--json", "--seed", "7")
    assert again.json["interval_s"] <= found.json["interval_s"]


def test_what_a_split_breaks_is_said(cli: Cli, tmp_path: Path) -> None:
    names = go_opt.load(MODEL).op_names
    (tmp_path / "back.csv").write_text(f"{names[0]},3\n{names[-1]},0\n")
    run = cli("evaluate", MODEL, "--placement", tmp_path / "back.csv")
    assert run.code == 3
    assert "acyclic" in run.out


def test_plans_are_remembered(cli: Cli, tmp_path: Path) -> None:
    """An interrupted or small search begins with the plan of the last; other files stay as they are."""
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "notes.txt").write_text("mine")
    first = cli("optimize", MODEL, "--remember", kept, "--max-evaluations", "30", "--json").json
    again = cli("optimize", MODEL, "--remember", kept, "--max-evaluations", "1", "--json").json
    assert again["interval_s"] <= first["interval_s"]
    assert again["method"] == "remembered plan"
    assert (kept / "notes.txt").read_text() == "mine"
    (plan,) = kept.glob("*.json")
    assert cli("verify", MODEL, plan).code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["optimize", MODEL, "--remember", "a", "--fewest-chips", "--rate", "1/s"], "--remember: --fewest"),
        (["optimize", MODEL, "--remember", "a", "--server", "localhost:1"], "--remember: a service keeps"),
        (["optimize", MODEL, "--remember", "/dev/null"], "folder '/dev/null' cannot be made"),
        (["serve", "--remember"], "--remember needs --data-dir"),
        (["evaluate", MODEL], "give PLAN or --placement, one of them"),
        (["evaluate", MODEL, "plan.json", "--dim", "a=1"], "--dim is that of PLAN"),
        (["optimize", MODEL, "--start", "a", "--placement", "b"], "give one of them"),
    ],
)
def test_usage(cli: Cli, arguments: list[str], message: str) -> None:
    cli(*arguments).is_refused(message)
