"""From a model to a plan, and back through ``verify`` and ``evaluate`` without flags."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from onnx import helper

from go_opt import api
from go_opt.env import target_text
from go_opt.report.parts.wording import StageNames
from tests.cli.conftest import Cli, graph_file, mlp_file, node_link_file, onnx_file
from tests.serving import serve_in_thread

# Design section 9.
FIELDS = {
    *(
        "status",
        "method",
        "interval_s",
        "throughput_per_s",
        "latency_s",
        "lower_bound_s",
        "gap",
        "bottleneck",
    ),
    *("placement", "order", "fusion_group", "replication", "relays"),
    *("chips_used", "evaluations", "wall_s"),
}
PER_OP = ("placement", "order", "fusion_group", "replication", "op_names")
NAMES = ("op_names", "stages", "kernels", "nodes_without_op")
DIMS = ("--dim", "batch=2", "--dim", "seq=16")


@pytest.fixture
def models(tmp_path: Path) -> None:
    """A model of every kind in the folder the command line runs in."""
    mlp_file(tmp_path / "mlp.onnx")
    graph_file(tmp_path / "chain.json", num_ops=12)
    node_link_file(tmp_path / "nodes.json")
    mine = target_text("mcm-2x2").replace('name = "mcm-2x2"', 'name = "mine"').replace("= 16e9", "= 17e9")
    (tmp_path / "mine.toml").write_text(mine, "utf-8")


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize(
    "args",
    [
        ["zoo:mobilenet_v2"],
        ["zoo:resnet50", "--decide", "placement"],
        ["zoo:mobilenet_v2", "--no-relays", "--no-replication", "--policy", "none"],
        ["zoo:nasnet_mobile", "--target", "gpu-4", "--objective", "latency"],
        ["zoo:resnet50", "--precision", "as-is"],
        ["mlp.onnx", *DIMS],
        ["mlp.onnx", *DIMS, "--precision", "as-is", "--target", "mine.toml"],
        ["mlp.onnx", *DIMS, "--target", "gpu-2", "--objective", "latency", "--decide", "placement"],
        ["chain.json"],
        ["chain.json", "--precision", "as-is", "--target", "mine.toml"],
        ["nodes.json"],
        ["nodes.json", "--precision", "as-is"],
    ],
    ids=" ".join,
)
def test_optimize_verify_evaluate(cli: Cli, args: list[str]) -> None:
    asked = ("--max-evaluations", "12", "--seed", "3", "--out", "plan.json", "--json")
    answer = cli("optimize", *args, *asked).json
    check_answer(answer, args)
    check_names(answer)

    plan = json.loads(Path("plan.json").read_text("utf-8"))
    of_search = ("objective", "status", "lower_bound_s", "gap", "seed", "version")
    for name in (*PER_OP, *NAMES, *of_search, "relays", "target"):
        assert plan[name] == answer[name], name
    assert plan["seed"] == 3
    assert plan["version"] == version("go-opt")
    assert plan["dims"] == ({"batch": 2, "seq": 16} if "--dim" in args else {})
    assert plan["precision"] == ("as-is" if "as-is" in args else "native")

    assert cli("verify", args[0], "plan.json", "--json").json == {"valid": True, "violations": []}
    assert cli("verify", args[0], "plan.json").out.startswith("valid: ")
    metrics = cli("evaluate", args[0], "plan.json", "--json").json
    assert metrics == {name: answer[name] for name in metrics}
    sizes = dict(zip(answer["placement"], answer["replication"], strict=True))
    assert StageNames(sizes).term(metrics["bottleneck"]) in " ".join(
        cli("evaluate", args[0], "plan.json").out.split()
    )


def check_answer(answer: dict[str, Any], args: list[str]) -> None:
    assert set(answer) >= FIELDS
    assert {len(answer[name]) for name in PER_OP} == {answer["ops"]}
    assert sorted(answer["order"]) == list(range(answer["ops"]))
    sizes = dict(zip(answer["placement"], answer["replication"], strict=True))
    assert answer["chips_used"] == sum(sizes.values())
    assert answer["throughput_per_s"] == pytest.approx(1 / answer["interval_s"])
    reached_s = answer["makespan_s"] if "latency" in args else answer["interval_s"]
    assert answer["gap"] == pytest.approx(reached_s / answer["lower_bound_s"] - 1, abs=1e-12)
    assert answer["gap"] >= -1e-9
    assert answer["status"] == ("OPTIMAL" if answer["gap"] <= 1e-6 else "FEASIBLE")
    assert 1 <= answer["evaluations"] <= 12
    assert reached_s <= answer["reference_s"]
    assert answer["method"] in [step["method"] for step in answer["history"]]
    if "placement" in args:
        assert sorted(answer["fusion_group"]) == list(range(answer["ops"]))
    if "--no-relays" in args:
        assert answer["relays"] == []
    if "--no-replication" in args:
        assert set(answer["replication"]) == {1}


def check_names(answer: dict[str, Any]) -> None:
    """Stages and kernels say in names what the lists say by index."""
    names, kernels = answer["op_names"], answer["kernels"]
    # Kernels are contiguous in the order.
    assert [op for kernel in kernels for op in kernel] == [names[op] for op in answer["order"]]
    kernel_of = {op: i for i, kernel in enumerate(kernels) for op in kernel}
    assert [kernel_of[name] for name in names] == answer["fusion_group"]
    chips_of = {op: stage["chips"] for stage in answer["stages"] for op in stage["ops"]}
    assert [chips_of[name][0] for name in names] == answer["placement"]
    assert [len(chips_of[name]) for name in names] == answer["replication"]
    assert sum(len(stage["chips"]) for stage in answer["stages"]) == answer["chips_used"]


def test_nodes_without_an_op_are_named(cli: Cli, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Constant", [], ["two"], name="two", value_float=2.0),
        helper.make_node("Mul", ["x", "two"], ["h"], name="double"),
        helper.make_node("Identity", ["h"], ["y"], name="same"),
    ]
    onnx_file(tmp_path / "double.onnx", nodes, [4, 4], [])
    answer = cli("optimize", "double.onnx", "--max-evaluations", "2", "--json", "--out", "plan.json").json
    assert answer["op_names"] == ["double"]
    assert answer["nodes_without_op"] == [
        {"name": "two", "became": "folded", "op": "double"},
        {"name": "same", "became": "view", "op": "double"},
    ]
    assert json.loads(Path("plan.json").read_text("utf-8"))["nodes_without_op"] == answer["nodes_without_op"]


@pytest.mark.usefixtures("models")
def test_placement_is_in_op_order(cli: Cli) -> None:
    answer = cli("optimize", "chain.json", "--decide", "placement", "--max-evaluations", "5", "--json").json
    names = api.load("chain.json").op_names
    chip = dict(zip(names, answer["placement"], strict=True))
    chips = [chip[f"op{i}"] for i in range(1, 13)]
    assert chips == sorted(chips), "a chain goes one way around the ring"
    assert len(set(chips)) > 1


def without_clock(answer: dict[str, Any]) -> dict[str, Any]:
    history = [{**step, "elapsed_s": 0} for step in answer["history"]]
    return {**answer, "wall_s": 0, "history": history}


def test_same_seed_and_evaluations_same_answer(cli: Cli) -> None:
    args = ("optimize", "zoo:mobilenet_v2", "--max-evaluations", "30", "--json", "--seed")
    first = cli(*args, "7").json
    assert first["evaluations"] <= 30
    assert without_clock(cli(*args, "7").json) == without_clock(first)


def test_precision_as_is_costs_the_types_of_the_model(cli: Cli) -> None:
    args = ("optimize", "zoo:resnet50", "--max-evaluations", "2", "--json")
    native, as_is = cli(*args).json, cli(*args, "--precision", "as-is").json
    assert _weights(as_is) == pytest.approx(2 * _weights(native), rel=0.05)
    assert as_is["lower_bound_s"] > native["lower_bound_s"]


def _weights(answer: dict[str, Any]) -> float:
    """Bytes, resident or streamed."""
    return sum(answer["weight_bytes"]) + sum(answer["stream_bytes"])


@pytest.mark.flaky(reruns=2, reason="on a busy machine one step of a search may take seconds")
def test_a_budget_ends_the_search(cli: Cli) -> None:
    assert cli("optimize", "zoo:nasnet_mobile", "--budget", "300ms", "--json").json["wall_s"] < 3


@pytest.mark.usefixtures("models")
def test_a_table_for_people(cli: Cli) -> None:
    run = cli("optimize", "zoo:resnet50", "--max-evaluations", "5")
    assert run.code == 0
    for word in ("bottleneck", "greedy", "bound", "FEASIBLE", "host in", "inferences/s"):
        assert word in run.out


@pytest.mark.usefixtures("models")
def test_a_service_gives_the_same_answer(cli: Cli) -> None:
    args = ["optimize", "mlp.onnx", *DIMS, "--target", "mine.toml", "--max-evaluations", "8", "--json"]
    here = cli(*args).json
    with serve_in_thread() as address:
        there = cli(*args, "--server", address, "--out", "plan.json").json
    assert without_clock(there) == without_clock(here)
    assert cli("verify", "mlp.onnx", "plan.json").code == 0


@pytest.mark.usefixtures("models")
def test_a_plan_goes_to_a_device_and_through_a_link(cli: Cli) -> None:
    args = ("optimize", "chain.json", "--max-evaluations", "2", "--json", "--out")
    assert cli(*args, os.devnull).code == 0
    assert not Path(os.devnull).is_file()
    Path("link.json").symlink_to("real.json")
    assert cli(*args, "link.json").code == 0
    assert cli("verify", "chain.json", "link.json").code == 0


def test_in_processes_of_their_own(user_env: dict[str, str], tmp_path: Path) -> None:
    mlp_file(tmp_path / "modèle.onnx")

    def go_opt(*args: str) -> dict[str, Any]:
        run = subprocess.run(
            [sys.executable, "-m", "go_opt.cli", *args, "--json"],
            env=user_env, cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert run.returncode == 0, run.stderr
        return json.loads(run.stdout)

    answer = go_opt("optimize", "modèle.onnx", *DIMS, "--max-evaluations", "4", "--out", "plan.json")
    assert go_opt("verify", "modèle.onnx", "plan.json")["valid"]
    assert go_opt("evaluate", "modèle.onnx", "plan.json")["interval_s"] == answer["interval_s"]
