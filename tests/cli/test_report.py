"""``report`` as a user runs it: one file, or one sentence and no file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, graph_file, mlp_file
from tests.go_opt.report.pages import data_of

SEARCH = ("--max-evaluations", "3", "--policy", "none", "--target", "mcm-2x2", "--out", "plan.json")


@pytest.fixture
def plan(cli: Cli, tmp_path: Path) -> Path:
    """A plan of a chain of twelve ops, in the folder the command line runs in."""
    graph_file(tmp_path / "chain.json", num_ops=12)
    assert cli("optimize", "chain.json", *SEARCH).code == 0
    return tmp_path / "plan.json"


def changed(plan: Path, **fields: object) -> None:
    plan.write_text(json.dumps(json.loads(plan.read_text()) | fields))


def test_the_page_says_what_optimize_printed(cli: Cli, tmp_path: Path) -> None:
    graph_file(tmp_path / "chain.json", num_ops=12)
    for objective in ("throughput", "latency"):
        printed = cli("optimize", "chain.json", *SEARCH, "--objective", objective).out
        printed = re.sub(r"\n {12}(?=\S)", " ", printed)  # long lines are folded
        run = cli("report", "chain.json", "plan.json", "-o", "plan.html", "--inferences", "3")
        assert (run.code, run.err) == (0, [])
        data = data_of((tmp_path / "plan.html").read_text("utf-8"))
        lines = dict(re.findall(r"^(\w+) {2,}(.+)$", printed, re.MULTILINE))
        facts = {fact["label"]: fact for fact in data["facts"]}
        assert {"interval", "bound", "status"} <= set(facts) & set(lines)
        for label, fact in facts.items():
            if label in lines and label != "status":
                assert lines[label].startswith(fact["value"]), label
        gap = lines["status"].split(", ")[1]
        assert lines["status"].startswith(facts["status"]["value"])
        assert facts["status"]["note"].endswith(gap)
        assert f"{data['title']}: {data['summary']}" == printed.splitlines()[0]
        assert data["timeline"]["inferences"] == 3


@pytest.mark.usefixtures("plan")
def test_node_data(cli: Cli, tmp_path: Path) -> None:
    run = cli("report", "chain.json", "plan.json", "-o", "plan.html", "--model-explorer", "nodes.json")
    assert (run.code, run.err) == (0, [])
    assert len(run.out.splitlines()) == 2
    nodes = json.loads((tmp_path / "nodes.json").read_text("utf-8"))
    assert set(nodes["results"]) == {f"op{i}" for i in range(1, 13)}


def test_nodes_that_became_part_of_an_op_are_where_it_is(cli: Cli, tmp_path: Path) -> None:
    mlp_file(tmp_path / "mlp.onnx")
    dims = ("--dim", "batch=2", "--dim", "seq=16")
    assert cli("optimize", "mlp.onnx", *dims, *SEARCH).code == 0
    assert cli("report", "mlp.onnx", "plan.json", "-o", "p.html", "--model-explorer", "n.json").code == 0
    nodes = json.loads((tmp_path / "n.json").read_text("utf-8"))["results"]
    assert set(nodes) == {"up", "act", "down"}


def test_what_is_refused_leaves_no_file(cli: Cli, plan: Path, tmp_path: Path) -> None:
    cli("report", "chain.json", "plan.json", "-o", "no/plan.html").is_refused("folder", "does not exist")
    cli("report", "chain.json", "none.json", "-o", "plan.html").is_refused("none.json")
    cli("report", "chain.json", "plan.json", "-o", "plan.html", "--inferences", "0").is_refused("inferences")
    graph_file(tmp_path / "other.json", num_ops=11)
    cli("report", "other.json", "plan.json", "-o", "plan.html").is_refused("another graph")
    placement = json.loads(plan.read_text())["placement"]
    turned = [3 - chip for chip in placement]
    ops = json.loads(plan.read_text())["op_names"]
    stages = [
        {"chips": [chip], "ops": [op for op, at in zip(ops, turned, strict=True) if at == chip]}
        for chip in sorted(set(turned))
    ]
    changed(plan, placement=turned, replication=[1] * 12, stages=stages)
    cli("report", "chain.json", "plan.json", "-o", "plan.html").is_refused("nothing to draw", code=3)
    assert {path.name for path in tmp_path.iterdir()} == {"chain.json", "other.json", "plan.json"}


def test_a_page_that_is_there_stays_whole(cli: Cli, plan: Path, tmp_path: Path) -> None:
    assert cli("report", "chain.json", "plan.json", "-o", "plan.html").code == 0
    before = (tmp_path / "plan.html").read_text("utf-8")
    assert cli("report", "chain.json", "plan.json", "-o", "plan.html", "--inferences", "0").code == 2
    assert (tmp_path / "plan.html").read_text("utf-8") == before
    changed(plan, status="SURE")  # a claim that no search makes
    cli("report", "chain.json", "plan.json", "-o", "plan.html").is_refused("status")
    assert (tmp_path / "plan.html").read_text("utf-8") == before
