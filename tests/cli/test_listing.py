"""``targets``, ``zoo`` and the help texts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from go_opt.env import load_target, load_zoo, zoo_entries
from go_opt.env.target import target_schema
from go_opt.env.zoo import SPLITS, zoo_entry, zoo_families
from tests.cli.conftest import Cli, graph_file

ZOO_FIELDS = {
    *("name", "family", "split", "target", "ops", "edges", "flops", "weight_bytes", "state_bytes"),
    *("source", "fingerprint"),
}
SHIPPED = {"mcm-6x6": 36, "mcm-2x2": 4, "gpu-2": 2, "gpu-4": 4, "gpu-8": 8}
SHIPPED |= {
    "h100-sxm-1": 1,
    "h100-sxm-2": 2,
    "h100-sxm-4": 4,
    "h100-sxm-8": 8,
    "h100-pcie-2": 2,
    "h100-pcie-4": 4,
}
SHIPPED |= {"l4-1": 1, "rtx4090-2": 2, "jetson-orin": 3, "edgetpu-4": 4, "hailo8-1": 1, "hailo8-4": 4}
SHIPPED |= {"dgx-a100-8": 8, "dgx-h100-8": 8, "ethernet-a100-8": 8}
SHIPPED |= {"wormhole-8x4": 32, "gpu-2-graph": 2, "gpu-4-graph": 4, "gpu-8-graph": 8}


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


def test_zoo_list(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")  # narrow screens get parts of the table
    rows = cli("zoo", "list", "--json").json
    assert all(set(row) == ZOO_FIELDS for row in rows)
    assert [row["name"] for row in rows] == [entry.name for entry in zoo_entries()]
    table = cli("zoo", "list").out.splitlines()
    for row, line in zip(rows, table[1:], strict=False):
        assert line.split()[:6] == [
            *(row[field] for field in ("name", "family", "split", "target")),
            *(str(row[field]) for field in ("ops", "edges")),
        ]
        assert line.rstrip().endswith(row["source"])


def test_zoo_list_counts_each_target_apart(cli: Cli) -> None:
    entries = zoo_entries()
    lines = cli("zoo", "list").out.splitlines()[1 + len(entries) :]
    for line, target in zip(lines, sorted({entry.target for entry in entries}, reverse=True), strict=False):
        splits = [entry.split for entry in entries if entry.target == target]
        counts = [f"{splits.count(split)} {split}" for split in SPLITS]
        assert line == f"{target}: {len(splits)} graphs ({', '.join(counts)})"
    assert re.fullmatch(rf"in all: {len(entries)} graphs in [0-9.]+ [kM]B of files", lines[-1])


def test_zoo_show(cli: Cli) -> None:
    graph, entry = load_zoo("nasnet_mobile"), zoo_entry("nasnet_mobile")
    shown = cli("zoo", "show", "nasnet_mobile", "--json").json
    assert set(shown) > ZOO_FIELDS
    assert shown["fingerprint"] == graph.fingerprint
    assert shown["family_reason"] == zoo_families()["nasnet"].reason
    assert sum(row["ops"] for row in shown["op_types"]) == graph.num_ops
    assert sum(row["flops"] for row in shown["op_types"]) == pytest.approx(entry.flops)
    assert shown["weights"]["total_bytes"] == entry.weight_bytes
    image_bytes = 4 * 3 * 224**2
    assert shown["inputs"] == {
        "count": 1,
        "total_bytes": image_bytes,
        "median_bytes": image_bytes,
        "largest_bytes": image_bytes,
    }
    assert shown["most_chips"] == 36


def test_zoo_show_of_a_graph_for_another_target(cli: Cli) -> None:
    smallest = min((entry for entry in zoo_entries() if entry.target == "gpu-8"), key=lambda entry: entry.ops)
    assert cli("zoo", "show", smallest.name, "--json").json["most_chips"] == 8


def test_zoo_show_for_people(cli: Cli) -> None:
    shown, entry = cli("zoo", "show", "resnet50").out, zoo_entry("resnet50")
    for words in (entry.source, entry.fingerprint, zoo_families()["resnet"].reason, "in train", "290 ops"):
        assert words in shown
    assert re.search(r"^ Conv +\d+ +[0-9.]+ +9\d\.\d% *$", shown, re.MULTILINE)


@pytest.mark.parametrize(
    "command", ["", "optimize", "evaluate", "verify", "serve", "targets show", "zoo list", "zoo show"]
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


def test_targets_schema(cli: Cli) -> None:
    assert cli("targets", "schema").json == target_schema()
