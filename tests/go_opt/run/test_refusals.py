"""What cannot be exported is refused in one sentence that names it, and nothing is written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import go_opt
from go_opt.errors import InvalidInputError, ModelError, PlanError
from go_opt.model.codecs.plan_json import save_plan
from go_opt.model.plan import Plan
from go_opt.run.export.exporting import export
from go_opt.run.manifest import load_manifest
from tests.exports import BOOL, check_stages, info, integers, model, node, plan_of, saved, weight


def is_sentence(error: Exception) -> bool:
    text = str(error)
    return text.endswith(".") and "\n" not in text


def product(folder: Path) -> Path:
    nodes = [node("MatMul", "x w", "a", "m"), node("Relu", "a", "y", "r")]
    return saved(model(nodes, [info("x", [2, 4])], [info("y", [2, 4])], [weight("w", 4, 4)]), folder)


def refused(path: Path, plan: Plan, *words: str, error: type[InvalidInputError] = ModelError) -> None:
    before = sorted(path.parent.iterdir())
    with pytest.raises(error) as caught:
        export(path, plan, path.parent / "out")
    assert is_sentence(caught.value)
    for word in words:
        assert word in str(caught.value)
    assert sorted(path.parent.iterdir()) == before


@pytest.mark.parametrize("name", ["zoo:resnet50", "graph.json"])
def test_graphs_without_weights(name: str, tmp_path: Path) -> None:
    plan = plan_of(product(tmp_path), [0, 1])
    with pytest.raises(ModelError, match="only an ONNX file and its plan") as caught:
        export(name, plan, tmp_path / "out")
    assert name in str(caught.value)


def test_a_graph_that_is_no_file(tmp_path: Path) -> None:
    plan = plan_of(product(tmp_path), [0, 1])
    with pytest.raises(ModelError, match="path of an ONNX file, not Graph"):
        export(go_opt.load(tmp_path / "toy.onnx"), plan, tmp_path / "out")  # type: ignore[arg-type]


def test_a_plan_of_another_model_or_target(tmp_path: Path) -> None:
    path = product(tmp_path)
    plan = plan_of(path, [0, 1])
    refused(path, replace(plan, graph_fingerprint="0" * 64), "another graph", error=PlanError)
    refused(path, replace(plan, target="gpu-4"), "another target", error=PlanError)


def test_a_plan_that_was_made_with_measured_costs(tmp_path: Path) -> None:
    path, file = product(tmp_path), tmp_path / "plan.json"
    save_plan(plan_of(path, [0, 1]), file, {"costs": {"file": "own.csv", "fingerprint": "0" * 64}})
    with pytest.raises(PlanError, match=r"made with the measured costs 'own.csv'.*give them with --costs"):
        export(path, file, tmp_path / "out")


def test_a_plan_that_breaks_a_rule(tmp_path: Path) -> None:
    path = product(tmp_path)
    refused(path, plan_of(path, [1, 0], "mcm-2x2"), "cannot run", error=PlanError)


def test_stripped_weights(tmp_path: Path) -> None:
    path = product(tmp_path)
    plan = plan_of(path, [0, 1])
    proto = onnx.load(path)
    proto.graph.initializer[0].ClearField("raw_data")
    refused(saved(proto, tmp_path), plan, "'w'", "model file")


def test_missing_and_short_files_of_weights(tmp_path: Path) -> None:
    path = product(tmp_path)
    plan = plan_of(path, [0, 1])
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    (tmp_path / "w.bin").write_bytes(b"\0" * 63)
    refused(path, plan, "'w'", "w.bin", "too short")
    (tmp_path / "w.bin").unlink()
    refused(path, plan, "'w'", "w.bin", "No such file")


def test_sparse_weights(tmp_path: Path) -> None:
    nodes = [node("MatMul", "x w", "a", "m"), node("Relu", "a", "y", "r")]
    proto = model(nodes, [info("x", [2, 4])], [info("y", [2, 4])])
    values = helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])
    proto.graph.sparse_initializer.append(
        helper.make_sparse_tensor(values, helper.make_tensor("at", TensorProto.INT64, [1], [5]), [4, 4])
    )
    path = saved(proto, tmp_path)
    refused(path, plan_of(path, [0, 1]), "'w'", "sparse")


def test_branches_of_different_sizes(tmp_path: Path) -> None:
    bodies = {
        f"{which}_branch": helper.make_graph(
            [node("Expand", f"x {to}", "v", "op")], which, [], [info("v", shape)]
        )
        for which, to, shape in (("then", "wide", [6, 4]), ("else", "same", [1, 4]))
    }
    nodes = [node("If", "cond", "b", "choice", **bodies), node("ReduceSum", "b", "y", "y")]
    sizes = [integers("wide", 6, 4), integers("same", 1, 4)]
    proto = model(nodes, [info("x", [1, 4]), info("cond", [], BOOL)], [info("y", [1, 1])], sizes)
    path = saved(proto, tmp_path)
    refused(path, plan_of(path, [0, 1]), "'choice'", "[6, 4]", "[1, 4]")


def test_sizes_known_at_run_time_only(tmp_path: Path) -> None:
    nodes = [node("NonZero", "x", "z", "z"), node("Neg", "z", "y", "y")]
    proto = model(nodes, [info("x", [2, 4])], [info("y", [2, "found"], TensorProto.INT64)])
    proto.graph.value_info.append(info("z", [2, "found"], TensorProto.INT64))
    path = saved(proto, tmp_path)
    refused(path, plan_of(path, [0, 1], dims={"found": 3}), "'found'")


def test_a_mask_that_the_plan_takes_for_a_constant(tmp_path: Path) -> None:
    """The mask of a Dropout is no constant when it runs: its reader must come after what the mask is of."""
    nodes = [
        node("Relu", "x", "a", "a"),
        node("Dropout", "a", "b mask", "drop"),
        node("Where", "mask x k", "c", "c"),
        node("Add", "b c", "y", "y"),
    ]
    path = saved(model(nodes, [info("x", [4])], [info("y", [4])], [weight("k", 4)]), tmp_path)
    plan = plan_of(path, {"c": 1, "y": 2})
    late = replace(plan, order=np.array([1, 0, 2], np.int32), fusion_group=np.array([1, 0, 2], np.int32))
    refused(path, late, "'c'", "'a'", error=PlanError)
    manifest = check_stages(path, plan, tmp_path / "out")
    assert [row.tensor for row in manifest.stages[1].inputs] == ["x", "a"]


def test_formats(tmp_path: Path) -> None:
    path = product(tmp_path)
    plan = plan_of(path, [0, 1])
    for formats, word in ((["stages", "odd"], "'odd'"), ([], "none"), ("stages", "'stages'")):
        with pytest.raises(InvalidInputError, match=f"annotated, openvino, openvino-ir, not {word}"):
            export(path, plan, tmp_path / "out", formats=formats)


def test_folders(tmp_path: Path) -> None:
    path = product(tmp_path)
    plan = plan_of(path, [0, 1])
    for folder, word in (
        (tmp_path, "no earlier export"),
        (path, "it is a file"),
        (tmp_path / "no" / "out", "no folder"),
        (tmp_path / "o\0ut", "cannot be written"),
        (tmp_path / ("o" * 300), "too long"),
    ):
        with pytest.raises(InvalidInputError, match=word) as caught:
            export(path, plan, folder, force=True)
        assert is_sentence(caught.value)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_an_earlier_export_is_replaced_only_when_asked_to(tmp_path: Path) -> None:
    path = product(tmp_path)
    (tmp_path / "out").mkdir()
    export(path, plan_of(path, [0, 1]), tmp_path / "out")
    with pytest.raises(InvalidInputError, match="--force"):
        export(path, plan_of(path, [0, 0]), tmp_path / "out")
    assert len(load_manifest(tmp_path / "out").stages) == 2
    export(path, plan_of(path, [0, 0]), tmp_path / "out", force=True)
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["manifest.json", "stage-0.onnx"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    path = product(tmp_path)
    export(path, plan_of(path, [0, 1]), tmp_path / "out")
    before = sorted(tmp_path.rglob("*"))

    def fail(*args: object) -> None:
        raise error

    monkeypatch.setattr("go_opt.run.export.folder.manifest_text", fail)
    with pytest.raises((InvalidInputError, KeyboardInterrupt)) as caught:
        export(path, plan_of(path, [0, 0]), tmp_path / "out", force=True)
    if isinstance(error, OSError):
        assert "No space left on device" in str(caught.value)
        assert is_sentence(caught.value)
    assert sorted(tmp_path.rglob("*")) == before
    assert len(load_manifest(tmp_path / "out").stages) == 2


def test_a_manifest_reads_back(tmp_path: Path) -> None:
    path = product(tmp_path)
    manifest = export(path, plan_of(path, [0, 1]), tmp_path / "out")
    assert load_manifest(tmp_path / "out") == manifest


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "other"}, ("format",)),
        ({"stages": 3}, ("manifest.stages", "a list")),
        ({"interval_s": "1"}, ("manifest.interval_s", "a number")),
        ({"dims": {"n": 1.5}}, ("manifest.dims.n", "a whole number")),
        ({"inputs": [None]}, ("manifest.inputs[0]", "text")),
        ({"outputs": [{"name": "y", "tensor": "y"}]}, ("manifest.outputs[0].stage", "missing")),
        ({"outputs": [{"name": "y", "part": {}, "tensor": "y"}]}, ("manifest.outputs[0].part", "unknown")),
        ({"outputs": ["y"]}, ("manifest.outputs[0]", "an object")),
        ({"more": 1}, ("manifest.more", "unknown")),
    ],
)
def test_malformed_manifests(tmp_path: Path, change: dict[str, object], words: tuple[str, ...]) -> None:
    path = product(tmp_path)
    export(path, plan_of(path, [0, 1]), tmp_path / "out")
    file = tmp_path / "out" / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | change), "utf-8")
    with pytest.raises(InvalidInputError) as caught:
        load_manifest(tmp_path / "out")
    assert is_sentence(caught.value)
    for word in ("manifest.json", *words):
        assert word in str(caught.value)


def test_a_missing_manifest(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="No such file"):
        load_manifest(tmp_path)
