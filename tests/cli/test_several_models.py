"""``optimize A B --rates``: several models on one package, from the command line."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from go_opt.serving.together.sharing import Sharing, Way
from tests.cli.conftest import Cli
from tests.serving import serve_in_thread

SEARCH = ("--target", "mcm-2x2", "--max-evaluations", "20", "--policy", "none", "--no-simulate")
MODELS = ("zoo:shufflenet", "zoo:mobilenet_v2")


@pytest.fixture
def all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan for all at once is the answer, also where turns are as quick."""
    monkeypatch.setattr(Sharing, "best", property(lambda sharing: Way(0, sharing.unit_s)))


@pytest.mark.usefixtures("all_at_once")
def test_both_are_planned_and_verified(cli: Cli, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    answer = cli("optimize", *MODELS, "--rates", "4:2", *SEARCH, "--out", plan, "--json").json
    assert [(one["model"], one["rate"]) for one in answer["models"]] == [(MODELS[0], 2), (MODELS[1], 1)]
    assert answer["models"][0]["interval_s"] == pytest.approx(answer["interval_s"] / 2)
    assert answer["turns"]["sent_bytes"] == 0
    parts = [one["plan"] for one in answer["models"]]
    assert [name for part in parts for name in part["op_names"]] == answer["op_names"]
    for name in ("placement", "fusion_group", "replication"):
        assert [chip for part in parts for chip in part[name]] == answer[name]
    assert all(sorted(part["order"]) == list(range(len(part["op_names"]))) for part in parts)
    assert answer["answered_s"] == pytest.approx(answer["interval_s"] + answer["latency_s"])
    assert cli("verify", "union:2*zoo:shufflenet+1*zoo:mobilenet_v2", plan).code == 0
    assert "turns" in cli("optimize", *MODELS, *SEARCH).out


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """Two models of a product each, of different widths."""
    for name, width in (("a", 8), ("b", 16)):
        weight = numpy_helper.from_array(np.eye(width, dtype=np.float32), "w")
        ends = [helper.make_tensor_value_info(end, TensorProto.FLOAT, [4, width]) for end in "xz"]
        nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Relu", ["y"], ["z"])]
        graph = helper.make_graph(nodes, name, ends[:1], ends[1:], [weight])
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(made, tmp_path / f"{name}.onnx")
    return "a.onnx", "b.onnx"


@pytest.mark.usefixtures("all_at_once")
def test_other_commands_take_the_models_and_the_plan(cli: Cli, files: tuple[str, str]) -> None:
    cli("optimize", *files, "--rates", "2:1", *SEARCH, "--out", "plan.json", "--json")
    name = "union:2*a.onnx+1*b.onnx"
    assert json.loads(Path("plan.json").read_text())["model"] == name
    for command in (["verify"], ["evaluate"], ["evaluate", "--fidelity", "simulated"], ["run"]):
        found = cli(*command[:1], *files, "plan.json", *command[1:], "--json").json
        assert "turns" not in found
        if command != ["run"]:
            assert found == cli(*command[:1], name, "plan.json", *command[1:], "--json").json
    assert "turns" not in cli("explain", "plan.json", "--json").json
    assert cli("export", *files, "plan.json", "-o", "out").code == 0
    assert json.loads(Path("out/manifest.json").read_text())["outputs"]
    assert cli("report", *files, "plan.json", "-o", "page.html").code == 0
    cli("verify", *files, "a.onnx", "plan.json").is_refused("is of 2 models, not of 3")
    cli("verify", "a.onnx", "plan.json").is_refused("is of 2 models, not of 1.")
    cli("verify", *files[::-1], "plan.json").is_refused("is of 'a.onnx', 'b.onnx' in this order")
    cli("verify", "a.onnx").is_refused("PLAN is missing")
    cli("run", *files).is_refused("PLAN is missing")
    cli("optimize", "a.onnx", *SEARCH, "--out", "one.json")
    cli("verify", *files, "one.json").is_refused("'one.json' is of one model, not of 2")


def test_turns_that_are_the_answer_are_written(
    cli: Cli, files: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def turns(sharing: Sharing) -> Way:
        return Way(3, sharing.unit_s / 2, replace(sharing.built[0]))

    monkeypatch.setattr(Sharing, "best", property(turns))
    answer = cli("optimize", *files, "--rates", "2:1", *SEARCH, "--out", "plan.json", "--json").json
    written = json.loads(Path("plan.json").read_text())
    assert (written["turns_of_units"], written["models"]) == (3, answer["models"])
    assert [(one["model"], one["rate"]) for one in written["models"]] == [("a.onnx", 2), ("b.onnx", 1)]
    assert written["models"][0]["interval_s"] == pytest.approx(written["unit_s"] / 2)
    for part, model in enumerate(files):
        own = f"plan.json#/models/{part}/plan"
        assert cli("verify", model, own).code == 0
        assert cli("report", model, own, "-o", "page.html", "--overwrite").code == 0
    for command in ("verify", "evaluate", "run"):
        found = cli(command, *files, "plan.json", "--json").json["turns"]
        assert len(found) == 2
        assert found == cli(command, "union:2*a.onnx+1*b.onnx", "plan.json", "--json").json["turns"] or (
            command == "run" and all(one["is_equal"] for one in found)
        )
    assert len(cli("explain", "plan.json", "--json").json["turns"]) == 2
    assert cli("export", *files, "plan.json", "-o", "out").code == 0
    assert [Path(f"out/{i}/manifest.json").exists() for i in (1, 2)] == [True, True]
    cli("verify", "a.onnx", "plan.json").is_refused(
        "is of 2 models, not of 1; that of one is 'plan.json#/models/0/plan'"
    )
    cli("report", *files, "plan.json", "-o", "page.html").is_refused(
        "give one model and 'plan.json#/models/0/plan'"
    )
    cli("run", *files, "plan.json", "--sequences", "2").is_refused("'plan.json#/models/0/plan'")
    cli("verify", "a.onnx", "plan.json#/models/7/plan").is_refused("has no 'models/7/plan'")


def test_without_a_comparison(cli: Cli, files: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    Path("pin.toml").write_text('[[pin]]\nops = ["1/.*"]\nchip = 0\n')
    pinned = cli("optimize", *files, *SEARCH, "--constraints", "pin.toml", "--out", "plan.json", "--json")
    assert pinned.err[-1] == "turns are not compared: constraints are of all models at once."
    assert "turns" not in pinned.json
    assert cli("verify", *files, "plan.json", "--constraints", "pin.toml").code == 0
    fewest = cli("optimize", *files, *SEARCH, "--fewest-chips", "--rate", "1000/s", "--json")
    assert (fewest.json["chips_used"], "turns" in fewest.json) == (1, False)
    served = cli("optimize", *files, *SEARCH, "--rate", "1000/s", "--json")
    assert served.json["serving"]["batch"] == 1

    def interrupted(*given: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("go_opt.serving.together.sharing.share_package", interrupted)
    stopped = cli("optimize", *files, *SEARCH, "--json")
    assert stopped.err[-1] == "turns are not compared: interrupted."
    assert "turns" not in stopped.json


def test_a_service_finds_the_same(cli: Cli) -> None:
    here = cli("optimize", *MODELS, *SEARCH, "--json").json
    with serve_in_thread() as address:
        there = cli("optimize", *MODELS, *SEARCH, "--json", "--server", address).json
    for answer in (here, there):
        del answer["wall_s"], answer["history"]
    assert there == here


def test_what_is_refused(cli: Cli) -> None:
    cli("optimize", *MODELS, "--rates", "1:2:3", *SEARCH).is_refused("--rates has 3 numbers for 2 models")
    cli("optimize", MODELS[0], "--rates", "1:2").is_refused("--rates is for several models")
