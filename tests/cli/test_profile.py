"""``go-opt profile``: the four commands from a model to stages that run."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Cli
from tests.exports import info, model, node, saved, weight


def test_from_a_model_to_stages_that_run(cli: Cli, tmp_path: Path) -> None:
    nodes = [node("MatMul", f"{a} w", b, f"op {b}") for a, b in ("xa", "ab", "bc", "cy")]
    toy = model(nodes, [info("x", ["n", 64])], [info("y", ["n", 64])], [weight("w", 64, 64)])
    path = saved(toy, tmp_path)
    costs = ["--costs", "costs.csv"]
    run = cli("profile", path, "-o", "machine.toml", *costs, "--chips", 2, "--seconds", 0.3, "--dim", "n=64")
    assert (run.code, run.err) == (0, [])
    lines = run.out.splitlines()
    assert lines[0].startswith("toy: 4 ops, ")
    assert [line.split("  ")[0] for line in lines[1:3]] == ["held out", "all ops"]
    assert len(lines[3:]) == 6
    search = ["--max-evaluations", 5, "--policy", "none", "--no-replication"]
    planned = cli("optimize", path, "--target", "machine.toml", *costs, "--dim", "n=64", *search,
                  "--out", "plan.json")  # fmt: skip
    assert planned.code == 0
    ran = cli("run", path, "--plan", "plan.json", *costs, "--inferences", 5, "--json").json
    assert ran["target"] == "machine.toml"
    assert ran["difference"] < 1e-6


def test_what_is_refused(cli: Cli, tmp_path: Path) -> None:
    cli("profile", "m.onnx").is_refused("-o")
    cli("profile", "m.onnx", "-o", "no/where.toml").is_refused("--out", "'no'")
    cli("profile", "zoo:resnet50", "-o", "machine.toml").is_refused("zoo:resnet50")
    assert list(tmp_path.iterdir()) == []
