"""``go-opt export``: from a model file and its plan to stages that run."""

from __future__ import annotations

import json
from pathlib import Path

from go_opt.run.manifest import load_manifest
from tests.cli.conftest import Cli
from tests.exports import info, model, node, random_inputs, run_stages, saved, session, weight


def test_from_a_model_to_stages_that_run(cli: Cli, tmp_path: Path) -> None:
    nodes = [
        node("MatMul", "x w", "a", "one"),
        node("Relu", "a", "b", "act"),
        node("MatMul", "b w", "c", "two"),
        node("MatMul", "c w", "y", "three"),
    ]
    size = ["batch", 256]
    path = saved(model(nodes, [info("x", size)], [info("y", size)], [weight("w", 256, 256)]), tmp_path)
    planned = cli("optimize", path, "--dim", "batch=64", "--max-evaluations", 5, "--policy", "none",
                  "--no-replication", "--out", "plan.json", "--json").json  # fmt: skip
    run = cli("export", path, "plan.json", "-o", "out")
    assert run.code == 0
    manifest = load_manifest(tmp_path / "out")
    assert run.out == f"out: {len(manifest.stages)} stages of toy on {planned['chips_used']} chips; stages\n"
    assert len(manifest.stages) > 1
    assert manifest.interval_s == planned["interval_s"]
    assert [list(stage.ops) for stage in manifest.stages] == [stage["ops"] for stage in planned["stages"]]
    inputs = random_inputs(manifest)
    assert inputs["x"].shape == (64, 256)
    assert (run_stages(Path("out"), manifest, inputs)[0] == session(path).run(["y"], inputs)[0]).all()

    cli("export", path, "plan.json", "-o", "out").is_refused("'out'", "not empty", "--force")
    again = cli(
        "export", path, "plan.json", "-o", "out", "--force", "--format", "openvino", "--format", "annotated"
    )
    assert (again.code, sorted(file.name for file in Path("out").iterdir())) == (
        0,
        ["annotated.onnx", "manifest.json", "openvino.json"],
    )
    assert set(json.loads(Path("out/openvino.json").read_text("utf-8"))) >= {"one", "act", "two", "three"}


def test_what_is_refused(cli: Cli, tmp_path: Path) -> None:
    cli("export", "m.onnx", "plan.json", "-o", "out").is_refused("plan.json", "No such file")
    cli("export", "m.onnx", "plan.json").is_refused("-o")
    assert list(tmp_path.iterdir()) == []
    Path("plan.json").write_text("{}")
    cli("export", "m.onnx", "plan.json", "-o", "out", "--format", "gif").is_refused("stages", "'gif'")
    cli("export", "zoo:resnet50", "plan.json", "-o", "out").is_refused("zoo:resnet50", "ONNX file")
