"""docs/constraints.md: its Python runs, its TOML and CSV are read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from go_opt.costs.measured_costs import COLUMNS
from go_opt.given_request import parse_constraints

TEXT = (Path(__file__).parents[2] / "docs" / "constraints.md").read_text("utf-8")


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)
    return str(found)


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block("python"), "docs/constraints.md", "exec"), {})
    said = capsys.readouterr().out
    assert said.startswith("infeasible: no placement obeys pin ")
    assert said.endswith(" to chip 2, beside the rules of mcm-6x6.\n")
    assert "cut after" not in said


def test_the_files_are_files_of_their_kind() -> None:
    assert len(parse_constraints(block("toml"), "docs")) == 7
    assert block("csv").splitlines()[0] == ",".join(COLUMNS)
