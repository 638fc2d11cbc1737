"""``targets``, ``zoo`` and the help texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from go_opt.env import load_target
from tests.cli.conftest import Cli, graph_file

ZOO_FIELDS = {"name", "family", "split", "ops", "edges", "flops", "weight_bytes", "source"}
SHIPPED = {"mcm-6x6": 36, "mcm-2x2": 4, "gpu-2": 2, "gpu-4": 4, "gpu-8": 8}


def test_targets_list(cli: Cli) -> None:
    chips = {row["name"]: row["chips"] for row in cli("targets", "list", "--json").json}
    assert chips == SHIPPED
    table = cli("targets", "list").out
    assert all(name in table for name in SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shown_target_can_be_saved_and_used(cli: Cli, tmp_path: Path, name: str) -> None:
    shown = cli("targets", "show", name)
    assert shown.code == 0
    (tmp_path / "saved.toml").write_text(shown.out, "utf-8")
    assert load_target(tmp_path / "saved.toml").fingerprint == load_target(name).fingerprint
    args = ("optimize", graph_file(tmp_path / "m.json"), "--max-evaluations", "2", "--json", "--target")
    saved, shipped = cli(*args, "saved.toml").json, cli(*args, name).json
    assert saved["placement"] == shipped["placement"]
    assert saved["interval_s"] == shipped["interval_s"]


def test_zoo_list(cli: Cli) -> None:
    rows = cli("zoo", "list", "--json").json
    assert all(set(row) >= ZOO_FIELDS for row in rows)
    assert {row["split"] for row in rows} == {"train", "validation", "test"}
    assert len(rows) >= 6
    assert max(row["ops"] for row in rows) > 5000
    table = cli("zoo", "list").out
    assert all(row["name"] in table and row["source"] in table for row in rows)


@pytest.mark.parametrize(
    "command", ["", "optimize", "evaluate", "verify", "serve", "targets show", "zoo list"]
)
def test_help(cli: Cli, command: str) -> None:
    run = cli(*command.split(), "--help")
    assert (run.code, run.err) == (0, [])
    assert run.out.startswith(f"Usage: go-opt {command}".rstrip())


@pytest.mark.parametrize("group", ["", "targets", "zoo"])
def test_no_command_shows_the_help(cli: Cli, group: str) -> None:
    run = cli(*group.split())
    assert (run.code, run.out) == (2, "")
    assert run.err[0].startswith("Usage: go-opt")
