"""``go-opt`` on plans with rewrites, from the search to every command that reads the plan."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Cli
from tests.exports import saved
from tests.rewritten import branches, heads, unrolled

COMMON = ("toy.onnx", "--target", "h100-sxm-1", "--objective", "latency", "--max-evaluations", "40")
MERGED = "3 convolutions read `r` and are one: `conv1`, `conv2`, `conv3`"
FOLDED = "1 product takes over the scales and shifts behind it: `conv2`"


def test_from_the_search_to_the_page(cli: Cli, tmp_path: Path) -> None:
    saved(branches(), tmp_path)
    found = cli("optimize", *COMMON, "--out", "plan.json")
    assert f"rewritten   {FOLDED}" in found.out
    assert f"rewritten   {MERGED}" in found.out
    rows = json.loads((tmp_path / "plan.json").read_text())["rewrites"]
    assert [row["rule"] for row in rows] == ["fold", "merge"]
    assert MERGED in cli("evaluate", "toy.onnx", "plan.json").out
    assert cli("verify", "toy.onnx", "plan.json").code == 0
    assert MERGED in cli("explain", "plan.json").out
    assert cli("explain", "plan.json", "conv1 and 2 more").code == 0
    assert cli("trace", "toy.onnx", "plan.json", "--out", "trace.json").code == 0
    assert cli("report", "toy.onnx", "plan.json", "--out", "page.html").code == 0
    assert "convolutions read" in (tmp_path / "page.html").read_text()
    assert cli("export", "toy.onnx", "plan.json", "-o", "stages").code == 0
    again = cli("optimize", *COMMON, "--start", "plan.json", "--json")
    assert again.json["rewrites"] == rows
    assert again.err == ["start: 5 of 5 ops"]
    cli("optimize", *COMMON, "--no-rewrite", "--out", "sent.json")
    assert (
        "rewrites    0 of the first plan alone, 2 of the second alone"
        in cli("diff", "sent.json", "plan.json", "--model", "toy.onnx").out
    )


def test_steps_that_became_one_product_are_named(cli: Cli, tmp_path: Path) -> None:
    saved(unrolled(8), tmp_path)
    line = "8 products read `w0` and are one: `input0_0`, `input0_1`, `input0_2`"
    found = cli("optimize", *COMMON, "--out", "plan.json").out
    assert f"rewritten   {line}" in found
    assert cli("verify", "toy.onnx", "plan.json").code == 0
    assert line in cli("explain", "plan.json").out
    assert cli("export", "toy.onnx", "plan.json", "-o", "stages").code == 0


def test_transposes_that_went_are_named(cli: Cli, tmp_path: Path) -> None:
    saved(heads(), tmp_path)
    line = "2 products take over the Transposes next to them: `scores`, `mixed`"
    assert line in cli("optimize", *COMMON, "--out", "plan.json").out
    assert line in cli("explain", "plan.json").out
    assert cli("run", "toy.onnx", "--plan", "plan.json", "--inferences", "4").code == 0


def test_a_plan_that_rewrites_what_is_not_there_is_refused(cli: Cli, tmp_path: Path) -> None:
    saved(branches(), tmp_path)
    cli("optimize", *COMMON, "--out", "plan.json")
    plan = json.loads((tmp_path / "plan.json").read_text())
    first, second = plan["rewrites"]
    for rewrites, sentence in (
        ([{"rule": "fold", "ops": ["conv9", "norm2"]}], "names op 'conv9', which is not there"),
        ([{"rule": "join", "ops": ["conv1"]}], "is of no rule: fold, batch, merge, transpose"),
        ([second, first], "do not follow each other alone"),
        ([first], "placement has"),
        ("fold", "rewrites must be a list"),
    ):
        plan["rewrites"] = rewrites
        (tmp_path / "wrong.json").write_text(json.dumps(plan))
        cli("evaluate", "toy.onnx", "wrong.json").is_refused(sentence)


def test_a_model_runs_rewritten(cli: Cli, tmp_path: Path) -> None:
    saved(branches(), tmp_path)
    cli("optimize", "toy.onnx", "--max-evaluations", "20", "--out", "plan.json")
    assert cli("run", "toy.onnx", "--plan", "plan.json", "--inferences", "4").code == 0


def test_a_model_alone_is_simplified(cli: Cli, tmp_path: Path) -> None:
    saved(unrolled(), tmp_path)
    assert "2 batch" in cli("export", "toy.onnx", "--simplify", "-o", "out").out
    cli("export", "toy.onnx", "-o", "other").is_refused("give PLAN, or --simplify")
    cli("export", "toy.onnx", "plan.json", "-o", "x", "--simplify").is_refused("--simplify takes no PLAN")
    cli("export", "toy.onnx", "plan.json", "-o", "x", "--dim", "n=1").is_refused("--dim is that of PLAN")


def test_a_remembered_plan_as_sent_is_rewritten(cli: Cli, tmp_path: Path) -> None:
    """One from before there were rewrites would keep them from all later searches."""
    saved(branches(), tmp_path)
    assert cli("optimize", *COMMON, "--remember", "kept", "--no-rewrite", "--json").json["rewrites"] == []
    for _ in range(2):
        found = cli("optimize", *COMMON, "--remember", "kept", "--json").json
        assert [row["rule"] for row in found["rewrites"]] == ["fold", "merge"]
