"""What stands on a terminal: whole at any width, the answer first; versions, completion, Ctrl-C."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from go_opt.env import target_names, zoo_entries
from go_opt.report.parts.screen import wrapped
from tests.cli.conftest import Cli, graph_file
from tests.cli.test_process import PATIENCE_S, RUN

WIDTHS = ("60", "80", "120")
NUMBER = re.compile(r"[0-9.]+(?: (?:[num]?s|[kMG]?B))?\b")


@pytest.fixture(params=WIDTHS)
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("COLUMNS", request.param)
    return int(request.param)


def is_whole(narrow: str, width: int, wide: str) -> None:
    """No line is too long but for a name alone, nothing is cut, and every number with its unit is there."""
    assert "…" not in narrow
    for line in narrow.splitlines():
        assert len(line) <= width or len(line.split()) <= 2, line
    assert set(NUMBER.findall(narrow)) <= set(NUMBER.findall(wide))


@pytest.mark.parametrize("objective", ["throughput", "latency"])
def test_plans_at_any_width(
    cli: Cli, width: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, objective: str
) -> None:
    args = ("optimize", "zoo:mobilenet_v2", "--objective", objective, "--max-evaluations", "3")
    narrow = cli(*args, "--policy", "none", "--out", "plan.json").out
    names = ("interval", "bound", "status", "bottleneck", "makespan" if objective == "latency" else "latency")
    answer, table = narrow.split("\n\n", 1)
    for name in names:
        assert re.search(rf"^{name}  ", answer, re.MULTILINE), name
    assert "FEASIBLE, gap" in re.sub(r"\s+", " ", answer)
    assert table.lstrip().startswith("chip")
    assert "slice: default order" not in table  # the log comes with -v
    commands = (
        ("evaluate", "zoo:mobilenet_v2", "plan.json", "--objective", objective),
        ("evaluate", "zoo:mobilenet_v2", "plan.json", "--fidelity", "simulated"),
        ("verify", "zoo:mobilenet_v2", "plan.json"),
        ("explain", "plan.json", "--objective", objective),
        ("explain", "plan.json", "mobilenetv2_1.00_224/Conv1/conv_general_dilated", "--objective", objective),
    )
    for command in commands:
        narrow = cli(*command).out
        monkeypatch.delenv("COLUMNS")
        wide = cli(*command).out
        monkeypatch.setenv("COLUMNS", str(width))
        is_whole(narrow, width, wide)


@pytest.mark.parametrize("command", ["targets list", "zoo list", "zoo show resnet50"])
def test_lists_at_any_width(cli: Cli, width: int, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    narrow = cli(*command.split()).out
    monkeypatch.delenv("COLUMNS")
    is_whole(narrow, width, cli(*command.split()).out)
    names = {"targets list": target_names(), "zoo list": [entry.name for entry in zoo_entries()]}
    assert all(re.search(rf"^ {name} ", narrow, re.MULTILINE) for name in names.get(command, ()))


def test_the_log_comes_with_verbose(cli: Cli) -> None:
    out = cli("optimize", "zoo:mobilenet_v2", "--max-evaluations", "3", "--policy", "none", "-v").out
    assert re.search(r"^ greedy +1 ", out.split("\n\n")[-1], re.MULTILINE)


def test_lines_are_broken_between_words_and_numbers_keep_their_units() -> None:
    assert wrapped("bound       21.48 us: 773.2 us of work", 24) == [
        "bound       21.48 us:",
        "            773.2 us of",
        "            work",
    ]
    assert wrapped("a/name/longer/than/the/screen", 10) == ["a/name/longer/than/the/screen"]


def test_the_version(cli: Cli) -> None:
    run = cli("--version")
    assert (run.code, run.err) == (0, [])
    assert run.out.startswith("go-opt")


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["optimize", "zoo:resnet5"], "zoo:resnet50"),
        (["optimize", "--target", "mcm-6"], "mcm-6x6"),
        (["targets", "show", "gpu-"], "gpu-8"),
        (["zoo", "show", "resnet5"], "resnet50"),
    ],
    ids=" ".join,
)
def test_names_are_completed(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, typed: list[str], offered: str
) -> None:
    monkeypatch.setenv("_GO_OPT_COMPLETE", "complete_zsh")  # as a shell asks
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", f"go-opt {' '.join(typed)}")
    assert offered in cli().out.replace("\\", "")


def test_an_object_where_none_was_found_in_time(cli: Cli, tmp_path: Path) -> None:
    model = graph_file(tmp_path / "m.json", num_ops=3)
    least_s = cli("optimize", model, "--objective", "latency", "--max-evaluations", "2", "--json").json
    limit = f"{least_s['latency_s'] * 0.999 * 1e6}us"
    run = cli("optimize", model, "--max-latency", limit, "--max-evaluations", "1", "--json")
    assert run.code == 5
    answer = json.loads(run.out)
    assert (answer["status"], answer["conflict"]) == ("NONE_FOUND", [])
    assert run.err == [f"go-opt: {answer['reason']}"]


def test_a_conflict_is_named(cli: Cli, tmp_path: Path) -> None:
    model = graph_file(tmp_path / "m.json", num_ops=3)
    (tmp_path / "asked.toml").write_text('[[pin]]\nops = "op1"\nchip = 2\n[[pin]]\nops = "op2"\nchip = 1\n')
    run = cli("optimize", model, "--constraints", "asked.toml", "--max-evaluations", "9", "--json")
    assert run.code == 3
    answer = json.loads(run.out)
    assert answer["status"] == "INFEASIBLE"
    assert sorted(answer["conflict"]) == ["pin 'op1' to chip 2", "pin 'op2' to chip 1"]


@pytest.mark.parametrize("seed", range(6))
def test_ctrl_c_at_any_moment_is_one_line(user_env: dict[str, str], tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    read, write = os.pipe()
    ready = f"import os; os.write({write}, b'.')\nmain()"  # before that Python is loading the command
    args = ("optimize", "zoo:mobilenet_v2", "--budget", "60s", "--policy", "none")
    with subprocess.Popen(
        [sys.executable, "-c", RUN.replace("main()", ready), *args],
        env=user_env, cwd=tmp_path, pass_fds=[write],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert os.read(read, 1) == b"."
        time.sleep(0.02 + rng.uniform(0.0, 0.8) * (seed + 1) / 3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    os.close(read)
    os.close(write)
    assert "Traceback" not in err
    said = [line for line in err.splitlines() if "compiling" not in line and " s  best " not in line]
    if process.returncode == 130:
        assert (said, out) == (["go-opt: interrupted."], "")
    else:  # there was a plan, which is kept
        assert (process.returncode, said) == (0, []), err
        assert out.startswith("mobilenet_v2 on mcm-6x6")
