"""``run`` and ``export`` of a plan of a training step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.cli.test_run import SIGNALS, check_a_signal_leaves_no_process

pytest.importorskip("jax")

MODEL = "gpt:hidden=16,layers=2,heads=4,sequence=8,vocabulary=32"
STEP = ("--objective", "step", "--target", "dgx-a100-2", "--batch", "4")


@pytest.fixture
def plan(cli: Cli, tmp_path: Path) -> Path:
    assert cli("optimize", MODEL, *STEP, "--budget", "60s", "--out", "plan.json").code == 0
    return tmp_path / "plan.json"


def test_a_run(cli: Cli, plan: Path) -> None:
    said = cli("run", MODEL, "--plan", plan).out
    head, _, rest = said.partition(" 3 steps\n")
    assert "planned for dgx-a100-2:" in head
    # A long line is folded, and how long it is depends on the figures.
    rows = [line.strip() for line in rest.splitlines()]
    assert rows[0].startswith("losses")
    assert rows[1].startswith("compared")
    assert "equal: with the step on one device" in rows[1]
    assert any("rank 0" in row for row in rows)


def test_what_a_run_refuses(cli: Cli, plan: Path) -> None:
    cli("run", MODEL, "--plan", plan, "--links").is_refused("--links is not for a training step")
    cli("run", MODEL, "--serve", "127.0.0.1:0").is_refused("--serve is not for a training step")
    cli("run", MODEL, "--plan", plan, "--target", "dgx-a100-4").is_refused("another target")
    cli("run", MODEL, "--plan", "none.json").is_refused("'none.json'")
    cli("run", MODEL.replace("layers=2", "layers=3"), "--plan", plan).is_refused("2 layers of 3")
    cli("run", "zoo:resnet50", "--plan", plan).is_refused("training step")


def test_an_export(cli: Cli, plan: Path, tmp_path: Path) -> None:
    out = cli("export", MODEL, plan, "-o", "out").out
    assert out.startswith("out: ")
    assert out.rstrip().endswith("; jax, torch, megatron")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert set(manifest["written"]) == {path.name for path in (tmp_path / "out").iterdir()}
    cli("export", MODEL, plan, "-o", "other", "--format", "triton").is_refused("jax, torch, megatron")
    cli("export", MODEL, plan, "-o", "other", "--costs", plan).is_refused("--costs")
    cli("export", "zoo:resnet50", plan, "-o", "other").is_refused("zoo:resnet50")
    assert not (tmp_path / "other").exists()


@SIGNALS
def test_signals_leave_no_process(plan: Path, user_env: dict[str, str], number: int) -> None:
    run = [MODEL, "--plan", str(plan)]
    check_a_signal_leaves_no_process(run, plan.parent, user_env, number, lambda worker: True)
