"""``explain`` as a user runs it: a plan file is enough, and what is wrong is one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, graph_file, mlp_file

SEARCH = ("--max-evaluations", "3", "--policy", "none")
DIMS = ("--dim", "batch=2", "--dim", "seq=16")


@pytest.fixture
def plan(cli: Cli, tmp_path: Path) -> Path:
    """A plan of a chain of twelve ops, in the folder the command line runs in."""
    graph_file(tmp_path / "chain.json", num_ops=12)
    assert cli("optimize", "chain.json", *SEARCH, "--target", "mcm-2x2", "--out", "plan.json").code == 0
    return tmp_path / "plan.json"


def changed(plan: Path, **fields: object) -> None:
    plan.write_text(json.dumps(json.loads(plan.read_text()) | fields))


@pytest.mark.usefixtures("plan")
def test_a_plan_file_is_enough(cli: Cli) -> None:
    run = cli("explain", "plan.json")
    assert (run.code, run.err) == (0, [])
    for words in ("What binds", "What would help", "Bound: no plan", "chip", "link", "Placed by"):
        assert words in run.out
    run = cli("explain", "plan.json", "op7")
    assert (run.code, run.err) == (0, [])
    for words in ("`op7` (Relu", "runs on chip", "reads", "writes", "Elsewhere"):
        assert words in run.out


@pytest.mark.usefixtures("plan")
def test_json(cli: Cli) -> None:
    whole = cli("explain", "plan.json", "--json").json
    assert whole["binding"][0]["name"] == whole["metrics"]["bottleneck"]
    assert whole["bound"]["seconds"] > 0
    of_op = cli("explain", "plan.json", "op7", "--json").json
    assert of_op["op"] == "op7"
    assert {move["chip"] for move in of_op["moves"]} | {of_op["chip"]} == {0, 1, 2, 3}


def test_a_model_with_dimensions(cli: Cli, tmp_path: Path) -> None:
    mlp_file(tmp_path / "mlp.onnx")
    assert cli("optimize", "mlp.onnx", *DIMS, *SEARCH, "--precision", "as-is", "--out", "p.json").code == 0
    assert cli("explain", "p.json", "act").code == 0


@pytest.mark.usefixtures("plan")
def test_a_model_of_the_zoo(cli: Cli) -> None:
    assert cli("optimize", "zoo:squeezenet", *SEARCH, "--out", "zoo.json").code == 0
    assert "squeezenet on mcm-6x6" in cli("explain", "zoo.json").out


def test_a_plan_that_does_not_say_its_model(cli: Cli, plan: Path) -> None:
    data = json.loads(plan.read_text())
    del data["model"]
    plan.write_text(json.dumps(data))
    cli("explain", "plan.json").is_refused("plan.json", "does not say which model it is of; give --model")
    assert cli("explain", "plan.json", "--model", "chain.json").code == 0


def test_a_model_that_has_moved(cli: Cli, plan: Path, tmp_path: Path) -> None:
    (tmp_path / "chain.json").rename(tmp_path / "moved.json")
    cli("explain", "plan.json").is_refused("chain.json", "give --model if what plan file", "has moved")
    assert cli("explain", "plan.json", "--model", "moved.json", "op1").code == 0
    cli("explain", "plan.json", "--model", "no.json").is_refused("no.json")


def test_a_model_that_changed(cli: Cli, plan: Path, tmp_path: Path) -> None:
    graph_file(tmp_path / "chain.json", num_ops=13)
    cli("explain", "plan.json").is_refused("the plan is of another graph")


@pytest.mark.usefixtures("plan")
def test_an_op_there_is_not(cli: Cli) -> None:
    cli("explain", "plan.json", "op77").is_refused("the graph has no op 'op77'; did you mean 'op7'")


def test_a_plan_that_breaks_a_rule_is_explained_with_code_3(cli: Cli, plan: Path) -> None:
    ops = json.loads(plan.read_text())["op_names"]
    halves = [{"chips": [0], "ops": ops[:6]}, {"chips": [2], "ops": ops[6:]}]
    changed(plan, placement=[0] * 6 + [2] * 6, stages=halves)
    run = cli("explain", "plan.json")
    assert run.code == 3
    assert run.out.startswith("INVALID, ")
    assert "INVALID, no_skip: chip 1 runs no op, but chip 2 does." in run.out.splitlines()
    changed(plan, placement=[0] * 6 + [7] * 6, stages=[halves[0], {"chips": [7], "ops": ops[6:]}])
    cli("explain", "plan.json").is_refused("op7", "is on chip 7; chips are 0 to 3")


@pytest.mark.usefixtures("plan")
def test_constraints_of_the_user(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "keep.toml").write_text('[[pin]]\nops = "op1"\nchip = 3\n')
    run = cli("explain", "plan.json", "--constraints", "keep.toml")
    assert run.code == 3
    assert run.out.startswith("INVALID, pin: ")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["no.json"], ["no.json", "cannot be read"]),
        (["chain.json"], ["chain.json", "fusion_group is missing"]),
        ([], ["PLAN"]),
        (["plan.json", "--target", "mcm-6x6"], ["the plan is for another target"]),
        (["plan.json", "--constraints", "no.toml"], ["no.toml"]),
    ],
)
@pytest.mark.usefixtures("plan")
def test_bad_input_is_one_sentence(cli: Cli, args: list[str], words: list[str]) -> None:
    cli("explain", *args).is_refused(*words)
