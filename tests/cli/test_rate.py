"""``optimize --rate --p99``: batches, copies and their p99, from the command line."""

from __future__ import annotations

import json
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from go_opt.api.chips import ChipCount
from go_opt.env import Target
from go_opt.model.graph import Graph
from go_opt.result import OptimizeResult, Request
from go_opt.search.final_simulation import on_package
from tests.cli.conftest import Cli
from tests.decoders import recurrent_stack
from tests.serving import serve_in_thread

SEARCH = ("--target", "mcm-2x2", "--max-evaluations", "30", "--policy", "none", "--no-simulate")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Four products of 512 x 512 for each row of a batch."""
    weights = [numpy_helper.from_array(np.zeros((512, 512), np.float32), f"w{i}") for i in range(4)]
    nodes = [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"]) for i in range(4)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 512]) for name in ("x0", "x4")]
    graph = helper.make_graph(nodes, "rows", ends[:1], ends[1:], weights)
    path = tmp_path / "rows.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


def test_fewest_chips_within_a_p99(cli: Cli, model: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    asked = ("--rate", "300000/s", "--p99", "1ms", "--fewest-chips", "--out", plan, "--json")
    run = cli("optimize", model, *SEARCH, *asked)
    assert run.err[0] == "batch: batches along dimension N"
    answer = run.json
    serving = answer["serving"]
    assert serving["capacity_per_s"] >= 300000
    assert max(serving["p99_s"].values()) <= 1e-3
    assert set(serving["p99_s"]) == {"poisson", "bursty"}
    assert serving["least_chips"] <= serving["chips"] <= 4
    assert serving["batch"] in (1, 2, 4, 8, 16, 32, 64)
    assert answer["interval_s"] == pytest.approx(serving["batch_interval_s"])
    assert cli("verify", model, plan).code == 0


def test_the_least_p99_on_all_chips(cli: Cli, model: Path) -> None:
    run = cli("optimize", model, *SEARCH, "--rate", "1000/s")
    assert run.code == 0, run.err
    assert "p99" in run.out
    assert "copies of" in run.out


def test_tokens_of_a_step_with_states(cli: Cli, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    onnx.save(recurrent_stack(), tmp_path / "step.onnx")
    asked = ("--rate", "500000/s", "--p99", "100us", "--tokens", "20", "--fewest-chips", "--out", plan)
    quick = ("--target", "mcm-2x2", "--max-evaluations", "6", "--policy", "none", "--no-simulate")
    run = cli("optimize", "step.onnx", *quick, *asked, "--json")
    assert run.err[0] == "batch: a token of each sequence in flight"
    serving = run.json["serving"]
    assert serving["sequences"] == run.json["sequences"]
    assert serving["tokens_per_sequence"] == 20
    assert serving["capacity_per_s"] >= 500_000
    assert serving["token_s"] <= max(serving["p99_s"].values()) <= 100e-6
    assert serving["least_chips"] <= serving["chips"] <= 4
    assert cli("verify", "step.onnx", plan).code == 0
    shown = cli("optimize", "step.onnx", *quick, *asked[:-2]).out
    assert "p99 first" in shown


def without_times(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name not in ("wall_s", "history")}


@pytest.mark.parametrize(
    "asked",
    [
        ("--rate", "300000/s", "--p99", "1ms", "--fewest-chips"),
        ("--rate", "1000/s"),
        ("--rate", "500000/s", "--p99", "100us", "--tokens", "20", "--fewest-chips"),
        ("--rate", "3000000000/s"),
    ],
)
def test_a_service_finds_the_same(cli: Cli, model: Path, tmp_path: Path, asked: tuple[str, ...]) -> None:
    given = model
    if "--tokens" in asked:
        given = tmp_path / "step.onnx"
        onnx.save(recurrent_stack(), given)
    quick = ("--target", "mcm-2x2", "--max-evaluations", "2", "--policy", "none", "--no-simulate", "--json")
    here = cli("optimize", given, *quick, *asked)
    with serve_in_thread() as address:
        there = cli("optimize", given, *quick, *asked, "--server", address)
    assert (there.code, there.err) == (here.code, here.err)
    assert without_times(json.loads(there.out)) == without_times(json.loads(here.out))


def test_batches_where_one_input_at_a_time_is_too_slow(cli: Cli, model: Path) -> None:
    one = cli("optimize", model, *SEARCH, "--dim", "N=1", "--json").json["interval_s"]
    serving = cli("optimize", model, *SEARCH, "--rate", f"{2 / one:.0f}/s", "--json").json["serving"]
    assert serving["batch"] > 1
    assert serving["capacity_per_s"] >= 2 / one
    none = cli("optimize", model, *SEARCH, "--rate", "3000000000/s")
    assert none.code == 3
    most = re.search(r"on 4 chips: they take at most ([0-9.e+]+) by the bound", none.err[-1])
    assert most is not None
    assert serving["capacity_per_s"] <= float(most[1]) < 3e9


def test_a_plan_within_the_limit_where_the_fastest_is_late(
    cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = list[float | None]()

    def late(graph: Graph, target: Target, request: Request, result: OptimizeResult) -> OptimizeResult:
        limits.append(request.max_latency_s)
        found = on_package(graph, target, request, result)
        slow_s = 2e-3 if request.max_latency_s is None else 1e-4
        return replace(found, metrics=replace(found.metrics, latency_s=slow_s))

    monkeypatch.setattr("go_opt.api.chips.on_package", late)
    run = cli("optimize", model, *SEARCH, "--rate", "1000/s", "--p99", "1ms", "--json")
    assert run.json["latency_s"] == 1e-4
    assert limits[:2] == [None, 1e-3]


def test_ctrl_c_keeps_what_serves_the_rate(cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[int]()

    def interrupted(found: ChipCount) -> str:
        told.append(found.chips)
        if len(told) > 1:
            signal.raise_signal(signal.SIGINT)
        return "told"

    monkeypatch.setattr("go_opt.report.parts.chip_tables.count_line", interrupted)
    run = cli("optimize", model, *SEARCH, "--rate", "1000/s", "--json")
    assert run.json["serving"]["batch"] == 1
    assert len(told) == 2


def test_what_is_refused(cli: Cli, model: Path) -> None:
    cli("optimize", model, "--p99", "1ms").is_refused("--p99 needs --rate")
    cli("optimize", model, "--tokens", "9").is_refused("--tokens needs --rate")
    tokens = cli("optimize", model, *SEARCH, "--rate", "1/s", "--tokens", "9")
    assert tokens.err[-1] == "go-opt: --tokens is for models with states."
    few = cli("optimize", model, *SEARCH, "--rate", "1/s", "--tokens", "0.5")
    assert "tokens must be 1 or more" in few.err[-1]
    none = cli("optimize", model, *SEARCH, "--rate", "1000/s", "--p99", "1us")
    assert none.code in (3, 5)
    assert "no plan serves 1000 inputs a second with a p99 of 1 us" in none.err[-1]
