"""``optimize STEP --prefill PROMPT --rate``: prompts beside steps or apart, from the command line."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.cli.conftest import Cli
from tests.decoders import decoder, prompt_of


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    step = decoder()
    onnx.save(prompt_of(step), tmp_path / "prompt.onnx")
    onnx.save(step, tmp_path / "step.onnx")
    return str(tmp_path / "prompt.onnx"), str(tmp_path / "step.onnx")


SEARCH = ("--target", "mcm-2x2", "--max-evaluations", "10", "--policy", "none", "--no-simulate")


def test_the_better_way_is_written(cli: Cli, files: tuple[str, str], tmp_path: Path) -> None:
    prompt, step = files
    asked = ("optimize", step, "--prefill", prompt, "--rate", "50000/s", "--tokens", "16", *SEARCH)
    plan = tmp_path / "plan.json"
    answer = cli(*asked, "--out", plan, "--json").json
    serving = answer["serving"]
    assert serving["best"] in ("beside", "apart")
    assert serving["prompt_tokens"] == 4
    assert 0 < serving["shared_weight_bytes"] < serving["weight_bytes"]
    assert serving[serving["best"]]["capacity_per_s"] >= 50_000
    assert cli("verify", answer["model"], plan).code == 0
    assert "best" in cli(*asked).out


def test_what_is_refused(cli: Cli, files: tuple[str, str]) -> None:
    prompt, step = files
    cli("optimize", step, "--prefill", prompt).is_refused("--prefill needs --rate")
    cli("optimize", prompt, "--prefill", prompt, "--rate", "9/s", *SEARCH).is_refused("is for a step")
    both = ("optimize", step, "--prefill", prompt, "--rate", "9/s", "--p99", "1s", "--fewest-chips")
    cli(*both, *SEARCH).is_refused("no --fewest-chips")
    slow = ("optimize", step, "--prefill", prompt, "--rate", "9e12/s", *SEARCH)
    assert cli(*slow).code == 3
