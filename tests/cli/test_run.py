"""``go-opt run``: from a model and its plan to figures, and its end by signals."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import go_opt
from go_opt.agents.training.problems.environment import open_session
from go_opt.model.codecs.plan_json import save_plan
from tests.cli.conftest import PROGRESS, Cli
from tests.exports import clashing_names, info, model, node, plan_of, saved, session, weight


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    nodes = [
        node("MatMul", "x w", "a", "one"),
        node("Relu", "a", "b", "act"),
        node("MatMul", "b w", "y", "two"),
    ]
    toy = model(nodes, [info("x", [8, 8])], [info("y", [8, 8])], [weight("w", 8, 8)])
    path = saved(toy, tmp_path)
    save_plan(plan_of(path, [0, 0, 1]), tmp_path / "plan.json", {})
    return path


def test_predicted_and_measured(cli: Cli, plan: Path) -> None:
    run = cli("run", plan, "--plan", "plan.json", "--inferences", 5)
    assert (run.code, run.err) == (0, [])
    lines = run.out.splitlines()
    assert lines[0].startswith("toy, planned for gpu-8: 2 stages in 2 processes on ")
    begins = ["interval", "by clock", "latency", "memory", "outputs"]
    assert [line.split("  ")[0] for line in lines[1:6]] == begins
    assert lines[7].split() == ["stage", "chips", "ops", "predicted", "processor", "time", "by", "clock"]
    assert [line.split()[:3] for line in lines[8:]] == [["0", "0", "2"], ["1", "1", "1"]]
    asked = cli("run", plan, "--plan", "plan.json", "--inferences", 5, "--links", "--json").json
    assert asked["processor_interval_s"] == max(stage["processor_s"] for stage in asked["stages"])
    assert asked["throughput_per_s"] == 1 / asked["wall_interval_s"]


def test_names_in_branches_like_those_around_them(cli: Cli, tmp_path: Path) -> None:
    path = saved(clashing_names(True), tmp_path)
    few = ("--target", "gpu-2", "--objective", "latency", "--max-evaluations", 5, "--policy", "none")
    assert cli("optimize", path, *few, "--out", "plan.json").code == 0
    assert '"choice_2/deep/op"' in Path("plan.json").read_text("utf-8")
    assert cli("run", path, "--plan", "plan.json", "--inferences", 2).code == 0


def test_what_is_refused(cli: Cli, plan: Path) -> None:
    cli("run", "zoo:resnet50", "--plan", "plan.json").is_refused("zoo:resnet50", "ONNX file")
    cli("run", plan).is_refused("--plan or --serve")
    cli("run", plan, "--serve", "127.0.0.1:0", "--json").is_refused("--json")
    cli("run", plan, "--plan", "plan.json", "--inferences", 0).is_refused("inferences")
    cli("run", plan, "--serve", "127.0.0.1:0", "--inputs", "x.npz").is_refused("--inputs")
    cli("run", plan, "--plan", "plan.json", "--outputs", "no/y.npz").is_refused("--outputs: the folder 'no'")


def test_inputs_of_ones_own(cli: Cli, plan: Path, tmp_path: Path) -> None:
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    np.savez(tmp_path / "x.npz", x=x)
    files = ("--inputs", "x.npz", "--outputs", "y.out")
    run = cli("run", plan, "--plan", "plan.json", "--inferences", 3, *files)
    assert run.code == 0
    (whole,) = session(plan).run(["y"], {"x": x})
    with np.load(tmp_path / "y.out") as found:
        assert found.files == ["y"]
        np.testing.assert_allclose(found["y"], whole, rtol=1e-5)
    np.savez(tmp_path / "x.npz", x=x[:4])
    run = cli("run", plan, "--plan", "plan.json", *files)
    run.is_refused("inputs 'x.npz': input 'x' must be float32 of shape (8, 8), not float32 of shape (4, 8)")


SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])


@SIGNALS
def test_signals_leave_no_process(plan: Path, user_env: dict[str, str], number: int) -> None:
    run = [str(plan), "--plan", "plan.json", "--inferences", "1000000"]
    check_a_signal_leaves_no_process(run, plan.parent, user_env, number, is_at_work)


def check_a_signal_leaves_no_process(
    arguments: list[str], folder: Path, env: dict[str, str], number: int, is_ready: Callable[[int], bool]
) -> None:
    """Once all workers of ``run`` are ready, the signal ends them too."""
    command = [sys.executable, "-m", "go_opt.cli", "run", *arguments]
    env = {**env, "TMPDIR": str(folder)}
    with subprocess.Popen(command, cwd=folder, env=env, stderr=subprocess.PIPE, text=True) as run:
        while len(workers := list(workers_of(run.pid))) < 2 or not all(map(is_ready, workers)):
            assert run.poll() is None
            time.sleep(0.02)
        run.send_signal(number)
        said = run.communicate()[1]
    is_interrupt = number == signal.SIGINT
    assert run.returncode == (130 if is_interrupt else -number)
    lines = [line for line in said.splitlines() if not PROGRESS.match(line)]
    assert lines == (["go-opt: interrupted."] if is_interrupt else [])
    while any(map(is_alive, workers)):  # they end by themselves where the command cannot end them
        time.sleep(0.02)


def test_clients_have_plans_measured(plan: Path, user_env: dict[str, str]) -> None:
    command = [sys.executable, "-m", "go_opt.cli", "run", str(plan), "--serve", "127.0.0.1:0"]
    with subprocess.Popen(command, env=user_env, stderr=subprocess.PIPE, text=True) as served:
        assert served.stderr is not None
        try:
            address = served.stderr.readline().removeprefix("listening on ").strip()
            graph, target = go_opt.load(plan), go_opt.target("gpu-8")
            rows = np.array([[0, 0, 1], [1, 1, 1]], np.int32)
            each = np.broadcast_to(np.arange(3, dtype=np.int32), (2, 3))
            with open_session(go_opt.RemoteEnvironment(address), graph, target) as session:
                found = session.evaluate(rows, each, each)
            assert found.valid.all()
            assert (found.objective_s > 0).all()
            served.send_signal(signal.SIGTERM)
            assert served.wait(30) == 0
        finally:
            served.kill()


def workers_of(parent: int) -> Iterator[int]:
    """Processes whose parent is ``parent``."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and stat_of(int(entry.name))[1:2] == [str(parent)]:
            yield int(entry.name)


def is_alive(process: int) -> bool:
    return stat_of(process)[:1] not in ([], ["Z"])


def is_at_work(process: int) -> bool:
    """Whether a worker has loaded its model: ONNX Runtime is mapped into it."""
    try:
        return "onnxruntime" in Path(f"/proc/{process}/maps").read_text()
    except OSError:
        return False


def stat_of(process: int) -> list[str]:
    """State and parent of a process; empty where there is none."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()[:2]
    except OSError:
        return []
