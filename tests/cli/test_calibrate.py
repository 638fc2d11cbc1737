"""``go-opt calibrate``: from a target to one that other commands take."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest

from go_opt.env import Target, evaluate_plan
from go_opt.env.target.definition import target_text
from go_opt.hardware import HardwareEnvironment, Measured
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.service.environment.environment_service import EnvironmentService
from tests.cli.conftest import Cli, graph_file
from tests.cli.test_process import PATIENCE_S, start
from tests.exports import info, model, node, saved, weight
from tests.serving import serve_in_thread

COMMAND = ("calibrate", "chain.json", "--target", "mcm-2x2", "-o", "found.toml")
SIMULATED = (*COMMAND, "--simulator", "machine.toml", "--plan", "best.json")


@pytest.fixture
def files(tmp_path: Path) -> None:
    graph_file(tmp_path / "chain.json", num_ops=8)
    text = target_text("mcm-2x2").replace("vector_lanes = 256", "vector_lanes = 512")
    (tmp_path / "machine.toml").write_text(text, "utf-8")


def test_a_target_that_other_commands_take(cli: Cli, files: None) -> None:
    first = cli(*SIMULATED, "--samples", 2, "--export", "data.npz")
    assert first.code == 0
    assert [line.split(": ")[0] for line in first.err] == ["sample 1 of 2", "sample 2 of 2"]
    again = cli(*SIMULATED, "--samples", 3)
    assert [line.split(": ")[0] for line in again.err] == ["sample 2 of 3", "sample 3 of 3"]
    lines = again.out.splitlines()
    assert [line.split()[0] for line in lines] == ["fitted", "as", "assumed", "error", "measured"]
    assert "vector_lanes 256 to" in lines[0]
    search = ("--max-evaluations", 5, "--policy", "none")
    planned = cli("optimize", "chain.json", "--target", "found.toml", *search)
    assert planned.code == 0
    assert "chain on mcm-2x2-calibrated" in planned.out
    assert "fitted to 3 measured plans of chain; chips of plans held out are" in " ".join(planned.out.split())
    assert cli("verify", "chain.json", "best.json").code == 0
    with np.load("data.npz", allow_pickle=False) as data:
        assert data["config_runtime"].shape == (2,)
        assert np.isfinite(data["config_chip_s"]).all()
        assert data["node_config_feat"].shape[:2] == (2, 8)


def test_a_service_measures(cli: Cli, files: None) -> None:
    class Board:
        def evaluate(self, graph: Graph, target: Target, plan: Plan) -> Measured:
            metrics = evaluate_plan(graph, target, plan)
            return Measured(2 * metrics.interval_s, (2 * metrics.compute_s).tolist())

    service = EnvironmentService({("hardware", "throughput"): HardwareEnvironment(Board())})
    with serve_in_thread([service]) as address:
        run = cli(*COMMAND, "--environment", address, "--samples", 3)
    assert run.code == 0
    assert float(run.out.partition("error")[2].split()[0].rstrip("%")) < 10  # all takes twice as long


def test_this_machine_measures(cli: Cli, tmp_path: Path) -> None:
    nodes = [node("MatMul", "x w", "a"), node("MatMul", "a w", "y")]
    path = saved(model(nodes, [info("x", [64, 64])], [info("y", [64, 64])], [weight("w", 64, 64)]), tmp_path)
    run = cli("calibrate", path, "--target", "mcm-2x2", "-o", "found.toml", "--run", "--samples", 2)
    assert run.code == 0
    assert (tmp_path / "found.toml").exists()


def test_what_is_refused(cli: Cli, files: None, tmp_path: Path) -> None:
    there = sorted(tmp_path.iterdir())
    cli(*COMMAND).is_refused("--simulator, --environment and --run")
    cli(*COMMAND, "--run", "--simulator", "machine.toml").is_refused("give one of")
    cli(*COMMAND, "--run", "--plan", "no/c.json").is_refused("--plan", "'no'")
    cli(*COMMAND, "--run", "--export", "no/d.npz").is_refused("--export", "'no'")
    cli(*COMMAND, "--run", "--samples", 0).is_refused("--samples")
    cli(*COMMAND, "--simulator", "mcm-6x6").is_refused("has 36 chips")
    cli(*COMMAND, "--simulator", "none.toml").is_refused("'none.toml'")
    cli(*COMMAND, "--environment", "127.0.0.1:1").is_refused("no environment answers", code=4)
    assert sorted(tmp_path.iterdir()) == there


def test_ctrl_c_keeps_what_was_reached(user_env: dict[str, str], files: None, tmp_path: Path) -> None:
    with start(user_env, tmp_path, *SIMULATED, "--samples", "1000") as process:
        assert process.stderr is not None
        next(line for line in process.stderr if line.startswith("sample 2 of"))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert err.endswith("go-opt: interrupted.\n")
    assert (tmp_path / "found.toml").read_text().splitlines()[1] == 'name = "mcm-2x2-calibrated"'
    assert len(json.loads((tmp_path / "found.toml.samples.json").read_text())["samples"]) >= 2
