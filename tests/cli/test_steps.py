"""``--objective step``: keys, defaults and errors of the commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.serving import serve_in_thread

MODEL = "gpt:hidden=12288,layers=96,heads=96,sequence=2048,vocabulary=51200"
STEP = ("--objective", "step", "--target", "dgx-a100-512", "--batch", "1536")
PARALLEL = "tensor=8,pipeline=8,data=8,micro_batch=1"


def test_the_answer_as_json(cli: Cli) -> None:
    answer = cli("evaluate", MODEL, *STEP, "--parallel", PARALLEL, "--json").json
    assert answer["parallel"] == {
        "tensor": 8,
        "pipeline": 8,
        "data": 8,
        "expert": 1,
        "micro_batch": 1,
        "schedule": "1f1b",
        "stages_per_device": 1,
        "zero": 0,
        "recompute": "full",
        "sequence_parallel": False,
        "overlap": False,
        "host_s_per_layer": None,
    }
    assert 50 < answer["step_s"] < 60
    assert answer["step_s"] == pytest.approx(sum(answer["terms_s"].values()))
    assert answer["fits"] is True
    assert len(answer["memory_bytes"]) == 8
    assert answer["layers"] == [[0, 0, 12]] * 8
    short = MODEL.replace(",vocabulary=51200", "")
    assert cli("evaluate", short, *STEP, "--parallel", PARALLEL, "--json").json["step_s"] == answer["step_s"]


def test_a_step_that_does_not_fit(cli: Cli) -> None:
    given = ("evaluate", MODEL, *STEP, "--parallel", f"{PARALLEL},recompute=none")
    answer = cli(*given, "--json").json
    assert answer["fits"] is False
    assert answer["step_s"] > 0
    assert "rank 0 needs" in answer["lacks"][0]
    run = cli(*given)
    assert run.code == 0
    assert "rank 0 needs" in run.out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((MODEL, *STEP, "--parallel", "tensor=8"), ("tensor", "8 devices of 512")),
        ((MODEL, *STEP), ("--parallel",)),
        ((MODEL, *STEP[:4], "--parallel", PARALLEL), ("--batch",)),
        ((MODEL, *STEP[:2], "--batch", "8", "--parallel", PARALLEL), ("--target",)),
        ((MODEL, "--objective", "latency"), ("--objective step",)),
        (("zoo:resnet50", *STEP, "--parallel", PARALLEL), ("--batch", "--objective step")),
        (("zoo:resnet50", "--batch", "8"), ("--batch", "--objective step")),
        ((MODEL, *STEP[:3], "mcm-6x6", *STEP[4:], "--parallel", PARALLEL), ("'mcm-6x6'", "levels")),
    ],
)
def test_what_is_refused(cli: Cli, args: tuple[str, ...], words: tuple[str, ...]) -> None:
    cli("evaluate", *args).is_refused(*words)


SMALL = "gpt:hidden=4096,layers=32,heads=32,sequence=2048"
SMALL_STEP = ("--objective", "step", "--target", "dgx-a100-64", "--batch", "128")


def test_the_best_configuration(cli: Cli) -> None:
    answer = cli("optimize", SMALL, *SMALL_STEP, "--budget", "60s", "--json").json
    assert answer["fits"] is True
    assert answer["is_complete"] is True
    assert 0 <= answer["gap"] < 0.05
    assert answer["lower_bound_s"] <= answer["simulated_s"] <= 1.01 * answer["step_s"]
    assert len(answer["choices"]) == 3
    assert answer["choices"][0]["parallel"] == answer["parallel"]
    given = ",".join(
        f"{key}={answer['parallel'][key]}" for key in ("tensor", "pipeline", "data", "micro_batch")
    )
    even = cli("evaluate", SMALL, *SMALL_STEP, "--parallel", given, "--json").json
    assert answer["step_s"] <= even["step_s"]


def test_the_best_configuration_on_screen(cli: Cli) -> None:
    lines = cli("optimize", SMALL, *SMALL_STEP, "--budget", "60s").out.splitlines()
    heads = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert heads == ["plan", "layers", "step", "memory", "simulated", "bound", "status", "next", "next"]
    text = lines[0].split()[1]
    assert cli("evaluate", SMALL, *SMALL_STEP, "--parallel", text).code == 0


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((SMALL, *SMALL_STEP, "--max-evaluations", "5"), ("--max-evaluations", "not for --objective step")),
        ((SMALL, "--target", "dgx-a100-64"), ("--objective step",)),
        (("zoo:resnet50", "--objective", "step"), ("'resnet50'", "training step")),
        (("zoo:resnet50", "--batch", "8"), ("--batch",)),
        ((SMALL, *SMALL_STEP, "--budget", "soon"), ("--budget", "'soon'")),
    ],
)
def test_searches_that_are_refused(cli: Cli, args: tuple[str, ...], words: tuple[str, ...]) -> None:
    cli("optimize", *args).is_refused(*words)


def test_a_model_that_does_not_fit_anywhere(cli: Cli) -> None:
    args = ("optimize", MODEL, "--objective", "step", "--target", "dgx-a100-8", "--batch", "8")
    cli(*args).is_refused("fits into 80 GB", code=3)


def test_a_plan_file_of_a_given_configuration(cli: Cli, tmp_path: Path) -> None:
    plan = str(tmp_path / "plan.json")
    answer = cli("evaluate", MODEL, *STEP, "--parallel", PARALLEL, "--out", plan, "--json").json
    assert cli("evaluate", MODEL, plan, "--json").json == answer
    assert cli("verify", MODEL, plan).code == 0
    cli("evaluate", "zoo:resnet50", plan, "--out", f"{plan}.2").is_refused("--out is for a training step")


def test_a_plan_file(cli: Cli, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    answer = cli("optimize", SMALL, *SMALL_STEP, "--budget", "60s", "--json", "--out", plan).json
    assert cli("evaluate", SMALL, plan, "--json").json["step_s"] == answer["step_s"]
    assert "valid" in cli("verify", SMALL, plan).out
    other = SMALL.replace("layers=32", "layers=48")
    assert cli("verify", other, plan).code == 3
    cli("evaluate", other, plan).is_refused("32 layers of 48")
    cli("report", other, plan, "-o", "page.html").is_refused("32 layers of 48")
    assert cli("explain", plan, "--json").json["gains"]
    assert "gain" in cli("explain", plan).out
    assert "passes" in cli("trace", SMALL, plan, "-o", tmp_path / "trace.json").out
    assert "open it in a browser" in cli("report", SMALL, plan, "-o", tmp_path / "page.html").out
    assert "rank 0" in (tmp_path / "page.html").read_text()
    cli("report", SMALL, plan, "-o", "page.html", "--inferences", 3).is_refused("--inferences")
    cli("explain", plan, "MatMul_0").is_refused("training step")
    cli("report", "zoo:resnet50", plan, "-o", "page.html").is_refused("training step")
    again = cli("optimize", SMALL, *SMALL_STEP, "--budget", "60s", "--out", plan)
    assert again.code == 0  # its own file is replaced


def test_a_service_gives_the_same_plan(cli: Cli, tmp_path: Path) -> None:
    with serve_in_thread() as address:
        there = cli(
            "optimize",
            SMALL,
            *SMALL_STEP,
            "--budget",
            "60s",
            "--server",
            address,
            "--json",
            "--out",
            tmp_path / "p.json",
        ).json
        none = ("optimize", MODEL, "--objective", "step", "--target", "dgx-a100-8", "--batch", "8")
        cli(*none, "--server", address).is_refused("fits into 80 GB", code=3)
    here = cli("optimize", SMALL, *SMALL_STEP, "--budget", "60s", "--json").json
    assert {name: value for name, value in there.items() if name != "wall_s"} == {
        name: value for name, value in here.items() if name != "wall_s"
    }
    assert "valid" in cli("verify", SMALL, tmp_path / "p.json").out
    assert cli(*none, "--json").code == 3
    assert '"INFEASIBLE"' in cli(*none, "--json").out
    evaluated = ("evaluate", SMALL, *SMALL_STEP, "--parallel", "data=64")
    cli(*evaluated, "--server", "localhost:1").is_refused("--server", "training step")
    cli(*evaluated, "--seed", "3").is_refused("--seed", "training step")
