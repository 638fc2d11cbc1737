"""Ctrl-C, a pipe that closes, and what a run imports: in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from go_opt.agents.networks import PolicyConfig
from go_opt.agents.policy.network import save_policy, untrained
from tests.cli.conftest import graph_file, mlp_file

# A shell that starts tests in the background may have them ignore SIGINT, and their children too.
RUN = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv[0] = "go-opt"
from go_opt.cli import main
main()
"""
LONG_SEARCH = ("optimize", "zoo:nasnet_mobile")
# Counted in evaluations it would wait for kernels and policy; a quick machine soon sees no gain ahead.
FOR_AN_HOUR = ("--budget", "60m", "--no-early-end")
# Whoever reads what a process says waits for it: one that keeps quiet is killed, and its output ends.
PATIENCE_S = 400.0  # a process takes seconds, and minutes on a busy machine


@contextmanager
def start(env: dict[str, str], cwd: Path, *args: str, code: str = RUN) -> Iterator[subprocess.Popen[str]]:
    """A ``go-opt`` of its own, which ends with the block: killed where the block fails or takes too long."""
    command = [sys.executable, "-c", code, *args]
    with subprocess.Popen(
        command, env=env, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        late = threading.Timer(PATIENCE_S, process.kill)
        late.start()
        try:
            yield process
            process.wait()
        finally:
            late.cancel()
            process.kill()


@pytest.mark.parametrize("as_json", [True, False], ids=["json", "table"])
def test_ctrl_c_prints_the_plan_reached(user_env: dict[str, str], tmp_path: Path, as_json: bool) -> None:
    json_option = ["--json"] if as_json else []
    command = (*LONG_SEARCH, *FOR_AN_HOUR, "--out", "plan.json", *json_option)
    with start(user_env, tmp_path, *command) as process:
        assert process.stderr is not None
        # There is a plan, though kernels may still be compiled.
        assert any("best interval" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    plan = json.loads((tmp_path / "plan.json").read_text("utf-8"))
    if as_json:
        answer = json.loads(out)
        assert answer["placement"] == plan["placement"]
        assert answer["status"] == "FEASIBLE"
    else:
        assert "bottleneck" in out


def test_ctrl_c_while_kernels_compile(user_env: dict[str, str], tmp_path: Path) -> None:
    """The first plan after an install comes before them; the process that compiles beside is not started."""
    env = {**user_env, "NUMBA_CACHE_DIR": str(tmp_path / "kernels"), "GO_OPT_COMPILES_KERNELS": "1"}
    env.pop("NUMBA_DISABLE_JIT", None)
    with start(env, tmp_path, *LONG_SEARCH, *FOR_AN_HOUR, "--out", "plan.json") as process:
        assert process.stderr is not None
        assert "compiling kernels" in (line := next(process.stderr))
        assert "best interval" in line
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert "none is proven before kernels are compiled" in out
    assert (tmp_path / "plan.json").exists()


def test_ctrl_c_before_there_is_a_plan(user_env: dict[str, str], tmp_path: Path) -> None:
    fifo = tmp_path / "model.json"
    os.mkfifo(fifo)
    command = ("optimize", fifo.name, "--out", "plan.json", "--json")
    # The fifo opens once the command reads the model.
    with start(user_env, tmp_path, *command) as process, fifo.open("w"):
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (130, "")
    assert err.strip().startswith("go-opt: interrupted")
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "plan.json").exists()


@pytest.mark.parametrize(
    "args",
    [("zoo", "list"), ("zoo", "list", "--json"), ("optimize", "zoo:resnet50", "--max-evaluations", "3")],
    ids=" ".join,
)
def test_a_pipe_that_closes(user_env: dict[str, str], tmp_path: Path, args: tuple[str, ...]) -> None:
    with start(user_env, tmp_path, *args) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
    assert "Traceback" not in err
    assert "BrokenPipe" not in err
    assert process.returncode in (0, 1)


def test_output_that_cannot_be_written(user_env: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-c", RUN, "zoo", "list", "--json"]
    with open("/dev/full", "w") as full:
        run = subprocess.run(
            command, env=user_env, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert run.returncode == 2
    assert run.stderr == "go-opt: the output cannot be written: No space left on device.\n"


def test_a_terminal_that_lacks_the_letters(user_env: dict[str, str], tmp_path: Path) -> None:
    graph_file(tmp_path / "m.json", name="modèle")
    args = ("optimize", "m.json", "--max-evaluations", "1")
    with start({**user_env, "PYTHONIOENCODING": "ascii"}, tmp_path, *args) as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert "mod\\xe8le" in out


HEAVY = ("jax", "grpc", "numba", "scipy", "numpy", "onnx", "networkx", "typer")


def imported_after(code: str, env: dict[str, str]) -> set[str]:
    code += f"\nimport sys; print(*(name for name in {HEAVY!r} if name in sys.modules), file=sys.stderr)"
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    return set(run.stderr.splitlines()[-1].split())


def test_import_is_light(user_env: dict[str, str]) -> None:
    assert imported_after("import go_opt; dir(go_opt)", user_env) == set()


def test_what_runs_stages_loads_no_kernels(user_env: dict[str, str]) -> None:
    """A plan starts a process for each chip, a step one for each rank."""
    code = "import go_opt.run.pipeline.workers, go_opt.parallel.execution.worker"
    assert imported_after(code, user_env) == {"jax", "numpy"}


def imported_by(env: dict[str, str], *args: str) -> set[str]:
    """What a command that succeeds imports."""
    code = f"""
import sys
sys.argv = ["go-opt", *{args!r}]
from go_opt.cli import main
try:
    main()
except SystemExit as end:
    assert end.code == 0
"""
    return imported_after(code, env)


def test_a_run_imports_neither_jax_nor_grpc(user_env: dict[str, str]) -> None:
    run = ("optimize", "zoo:mobilenet_v2", "--max-evaluations", "20")
    assert not imported_by(user_env, *run) & {"jax", "grpc", "onnx", "networkx"}


def test_help_imports_next_to_nothing(user_env: dict[str, str]) -> None:
    assert imported_by(user_env, "--help") == {"typer"}


@pytest.mark.parametrize("model", ["zoo:resnet50", "m.onnx", "m.json"])
def test_inspect_compiles_nothing(user_env: dict[str, str], model: str, tmp_path: Path) -> None:
    graph_file(tmp_path / "m.json")
    mlp_file(tmp_path / "m.onnx")
    path = model if model.startswith("zoo:") else str(tmp_path / model)
    assert not imported_by(user_env, "inspect", path) & {"jax", "grpc", "numba", "scipy", "networkx"}


# Says when the policy is asked, which is once there is a plan.
RUN_ASKING = """
import sys
from go_opt.search import portfolio
ask = portfolio.ask_policy
def noted(*question):
    print("asked", file=sys.stderr)
    return ask(*question)
portfolio.ask_policy = noted
"""


def test_ctrl_c_while_the_policy_loads(user_env: dict[str, str], tmp_path: Path) -> None:
    config = PolicyConfig(width=8, graphsage_layers=1, attention_layers=1, num_heads=2, rounds=1)
    save_policy(tmp_path / "policy", untrained(config, 0), {})
    # Nothing is kept from an earlier run, so it compiles as well.
    env = {**user_env, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    args = (*LONG_SEARCH, "--max-evaluations", "1000000000", "--policy", "policy", "--json")
    with start(env, tmp_path, *args, code=RUN_ASKING + RUN) as process:
        assert process.stderr is not None
        assert "asked\n" in process.stderr
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert err == ""
    answer = json.loads(out)
    assert answer["status"] == "FEASIBLE"
    assert answer["evaluations"] < 20
