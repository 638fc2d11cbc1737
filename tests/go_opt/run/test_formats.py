"""The other forms of an export: a Triton repository, the annotated model, OpenVINO's map."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from numpy.typing import NDArray
from onnx import helper

from go_opt import from_onnx
from go_opt.env import load_target
from go_opt.errors import ModelError
from go_opt.model.plan import Plan, Relay, Split
from go_opt.run.export.exporting import export
from go_opt.run.manifest import Manifest
from tests.decoders import recurrent_stack, sliced_plan
from tests.exports import (
    INT64,
    info,
    integers,
    model,
    node,
    plan_of,
    random_inputs,
    saved,
    session,
    split_plan,
    weight,
)

# As in Triton's model_config.proto: name, type and whether it repeats, of the fields that an export writes.
TRITON = {
    "Tensor": [("name", "string", False), ("data_type", "DataType", False), ("dims", "int64", True)],
    "Group": [("count", "int32", False), ("kind", "Kind", False)],
    "Entry": [("key", "string", False), ("value", "string", False)],
    "Step": [
        ("model_name", "string", False),
        ("model_version", "int64", False),
        ("input_map", "Entry", True),
        ("output_map", "Entry", True),
    ],
    "Ensemble": [("step", "Step", True)],
    "Config": [
        ("name", "string", False),
        ("platform", "string", False),
        ("max_batch_size", "int32", False),
        ("input", "Tensor", True),
        ("output", "Tensor", True),
        ("instance_group", "Group", True),
        ("ensemble_scheduling", "Ensemble", False),
    ],
}
DATA_TYPES = ("TYPE_INVALID", "TYPE_FP32", "TYPE_INT64", "TYPE_BOOL")
ENUMS = {"DataType": DATA_TYPES, "Kind": ("KIND_AUTO", "KIND_GPU", "KIND_CPU")}


def triton_config(path: Path) -> Any:
    """The message in a ``config.pbtxt``."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="triton.proto", package="triton", syntax="proto3")
    for enum, names in ENUMS.items():
        values = file.enum_type.add(name=enum).value
        for i, name in enumerate(names):
            values.add(name=name, number=i)
    for message, rows in TRITON.items():
        fields = file.message_type.add(name=message).field
        for i, (name, kind, repeats) in enumerate(rows):
            plain = {"string": field.TYPE_STRING, "int64": field.TYPE_INT64, "int32": field.TYPE_INT32}
            label = field.LABEL_REPEATED if repeats else field.LABEL_OPTIONAL
            one = fields.add(name=name, number=i + 1, label=label)
            if kind in plain:
                one.type = plain[kind]
            else:
                one.type = field.TYPE_ENUM if kind in ENUMS else field.TYPE_MESSAGE
                one.type_name = f".triton.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    config = message_factory.GetMessageClass(pool.FindMessageTypeByName("triton.Config"))
    return text_format.Parse(path.read_text("utf-8"), config())


def declared(rows: Any) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(row.name, DATA_TYPES[row.data_type], tuple(row.dims)) for row in rows]


def run_ensemble(repository: Path, name: str, inputs: dict[str, NDArray]) -> dict[str, NDArray]:
    """What Triton would do with an ensemble, and what it refuses one for."""
    ensemble = triton_config(repository / name / "config.pbtxt")
    assert (ensemble.name, ensemble.platform) == (name, "ensemble")
    assert not ensemble.instance_group
    assert (repository / name / "1").is_dir()
    values = {row.name: inputs[row.name] for row in ensemble.input}
    read: set[str] = set()
    for step in ensemble.ensemble_scheduling.step:
        config = triton_config(repository / step.model_name / "config.pbtxt")
        assert (config.name, config.platform) == (step.model_name, "onnxruntime_onnx")
        one = session(repository / step.model_name / "1" / "model.onnx")
        assert [row.name for row in config.input] == [value.name for value in one.get_inputs()]
        assert [row.name for row in config.output] == [value.name for value in one.get_outputs()]
        assert [list(row.dims) for row in config.input] == [v.shape or [1] for v in one.get_inputs()]
        assert step.input_map
        assert step.output_map
        given = {entry.key: values[entry.value] for entry in step.input_map}
        results = one.run([entry.key for entry in step.output_map], given)
        read |= {entry.value for entry in step.input_map}
        for entry, result in zip(step.output_map, results, strict=True):
            assert entry.value not in values
            values[entry.value] = result
    outputs = {row.name for row in ensemble.output}
    assert values.keys() == read | outputs
    return {name: values[name] for name in outputs}


def pipeline(folder: Path) -> tuple[Path, Plan]:
    """Four stages on a ring with a relay, a replicated stage, views and a local function."""
    body = [node("Relu", "p", "q", "act")]
    function = helper.make_function("own", "Act", ["p"], ["q"], body, [helper.make_opsetid("", 20)])
    nodes = [
        node("Sign", "m", "mask", "mask"),
        node("MatMul", "x w", "a", "a"),
        node("Act", "a", "b", "call", domain="own"),
        node("MatMul", "b w", "c", ""),
        node("Mul", "c mask", "d", "d"),
        node("Add", "d a", "e", "e"),
        node("Flatten", "e", "y", "flat"),
        node("Shape", "e", "s", "s"),
    ]
    inputs = [info("x", [2, 4]), info("m", [2, 4]), info("spare", [2])]
    proto = model(
        nodes, inputs, [info("y", [2, 4]), info("s", [2], INT64)], [weight("w", 4, 4)], functions=[function]
    )
    path = saved(proto, folder, "my pipe")
    chips = {"mask": 0, "a": 0, "MatMul_c": 1, "d": 1, "e": 3}
    plan = plan_of(
        path,
        chips,
        "mcm-2x2",
        replication=[1, 1, 1, 2, 2, 1],
        relays=[Relay("a", (1,))],
    )
    return path, plan


def exported(folder: Path, *formats: str) -> tuple[Path, Manifest]:
    path, plan = pipeline(folder)
    return path, export(path, plan, folder / "out", formats=formats)


def test_a_triton_repository_runs_as_the_model_does(tmp_path: Path) -> None:
    path, manifest = exported(tmp_path, "triton")
    repository = tmp_path / "out" / "triton"
    assert sorted(folder.name for folder in repository.iterdir()) == [
        "my_pipe",
        *(f"my_pipe_stage_{i}" for i in range(3)),
    ]
    assert [stage.replication for stage in manifest.stages] == [1, 2, 1]
    for i, stage in enumerate(manifest.stages):
        config = triton_config(repository / f"my_pipe_stage_{i}" / "config.pbtxt")
        assert [group.count for group in config.instance_group] == [stage.replication]
        assert (tmp_path / "out" / stage.file).is_file()
    ensemble = triton_config(repository / "my_pipe" / "config.pbtxt")
    assert declared(ensemble.input) == [("x", "TYPE_FP32", (2, 4)), ("m", "TYPE_FP32", (2, 4))]
    assert declared(ensemble.output) == [("y", "TYPE_FP32", (2, 4)), ("s", "TYPE_INT64", (2,))]
    inputs = random_inputs(manifest)
    results = run_ensemble(repository, "my_pipe", inputs)
    for name, expected in zip(("y", "s"), session(path).run(["y", "s"], inputs), strict=True):
        np.testing.assert_allclose(results[name], expected, rtol=1e-5, atol=1e-5)


def test_states_in_each_format(tmp_path: Path) -> None:
    """The client of an ensemble keeps the states."""
    path = saved(recurrent_stack(), tmp_path)
    graph = from_onnx(path)
    plan = sliced_plan(graph, load_target("gpu-8"), np.ones(graph.num_ops), 3)
    manifest = export(path, plan, tmp_path / "out", formats=["triton", "annotated", "openvino"])
    assert manifest.inputs == ("x0",)
    whole = session(path)
    inputs = {value.name: np.full(value.shape, 0.5, np.float32) for value in whole.get_inputs()}
    names = [value.name for value in whole.get_outputs()]
    results = run_ensemble(tmp_path / "out" / "triton", "toy", inputs)
    assert set(results) >= set(names)
    for name, expected in zip(names, whole.run(names, inputs), strict=True):
        np.testing.assert_allclose(results[name], expected, rtol=1e-5, atol=1e-5)
    annotated = onnx.load(tmp_path / "out" / "annotated.onnx").graph
    assert len(annotated.node) == graph.num_ops


def test_what_the_host_joins_in_each_format(tmp_path: Path) -> None:
    nodes = [node("MatMul", "x w", "a", "op"), node("Reshape", "a sizes", "y", "view")]
    used = weight("w", 4, 6), integers("sizes", 3, 4)
    path = saved(model(nodes, [info("x", [2, 4])], [info("y", [3, 4])], used), tmp_path)
    plan = split_plan(path, Split("op", "j", 2, joined=False), chips=2)
    manifest = export(path, plan, tmp_path / "out", formats=["triton", "annotated", "openvino"])
    inputs = random_inputs(manifest)
    results = run_ensemble(tmp_path / "out" / "triton", "toy", inputs)
    np.testing.assert_allclose(results["y"], *session(path).run(["y"], inputs), rtol=1e-5, atol=1e-5)
    config = triton_config(tmp_path / "out" / "triton" / "toy_host" / "config.pbtxt")
    assert [group.kind for group in config.instance_group] == [ENUMS["Kind"].index("KIND_CPU")]
    annotated = onnx.load(tmp_path / "out" / "annotated.onnx").graph.node
    devices = json.loads((tmp_path / "out" / "openvino.json").read_text("utf-8"))
    parts = {op for stage in manifest.stages for op in stage.ops}
    assert manifest.host is not None
    assert {one.name for one in annotated if one.device_configurations} == parts
    assert {one.name for one in annotated} == {*parts, *manifest.host.nodes}
    assert {devices[name] for name in manifest.host.nodes} == {"CPU"}


def test_scalars_of_an_ensemble_have_one_dimension(tmp_path: Path) -> None:
    nodes = [node("ReduceSum", "x", "s", "sum", keepdims=0), node("Exp", "s", "y", "y")]
    path = saved(model(nodes, [info("x", [3])], [info("y", [])]), tmp_path)
    export(path, plan_of(path, [0, 1]), tmp_path / "out", formats=["triton"])
    config = triton_config(tmp_path / "out" / "triton" / "toy_stage_1" / "config.pbtxt")
    assert declared(config.input) == [("s", "TYPE_FP32", (1,))]


@pytest.mark.parametrize(
    ("nodes", "outputs", "word"),
    [
        ([node("Relu", "x", "y", "y")], ["y", "x"], "'x'"),
        ([node("RandomNormal", "", "r", "r", shape=[3]), node("Add", "x r", "y", "y")], ["y"], "stage 0"),
    ],
    ids=["an output that is an input", "a stage without inputs"],
)
def test_what_no_ensemble_can_be(
    tmp_path: Path, nodes: list[onnx.NodeProto], outputs: list[str], word: str
) -> None:
    path = saved(model(nodes, [info("x", [3])], [info(name, [3]) for name in outputs]), tmp_path)
    plan = plan_of(path, list(range(len(nodes))))
    with pytest.raises(ModelError, match=word) as caught:
        export(path, plan, tmp_path / "out", formats=["triton"])
    assert "Triton" in str(caught.value)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_the_annotated_model_says_where_each_node_runs(tmp_path: Path) -> None:
    _, manifest = exported(tmp_path, "annotated")
    written = tmp_path / "out" / "annotated.onnx"
    onnx.checker.check_model(written, full_check=True)
    proto = onnx.load(written)
    assert proto.ir_version == 11
    (configuration,) = proto.configuration
    assert (configuration.num_devices, list(configuration.device)) == (3, ["chip 0", "chip 1-2", "chip 3"])
    stages, notes = {}, {}
    for one in proto.graph.node:
        (of_node,) = one.device_configurations
        assert of_node.configuration_id == configuration.name
        stages[one.name] = of_node.pipeline_stage
        notes[one.name] = {prop.key: prop.value for prop in one.metadata_props}
        assert notes[one.name]["layer_ann"] == f"stage-{of_node.pipeline_stage}"
    # Views go with the op whose tensor they show.
    assert {name: stage for name, stage in stages.items() if name in ("flat", "s")} == {"flat": 2, "s": 2}
    own = {op: stage.stage for stage in manifest.stages for op in stage.ops}
    assert {name: stage for name, stage in stages.items() if name in own} == own
    assert notes["d"] == {
        "layer_ann": "stage-1",
        "go_opt.stage": "1",
        "go_opt.chips": "1-2",
        "go_opt.kernel": "1",
    }


def test_the_annotated_model_is_still_the_model(tmp_path: Path) -> None:
    """It runs as before, comes back from onnx-ir whole, and ONNX Runtime takes its assignment."""
    import onnxruntime as ort

    path, manifest = exported(tmp_path, "annotated")
    written = tmp_path / "out" / "annotated.onnx"
    again = onnx_ir.to_proto(onnx_ir.load(written))
    assert again.SerializeToString(deterministic=True) == onnx.load(written).SerializeToString(
        deterministic=True
    )
    options = ort.SessionOptions()
    options.add_session_config_entry("session.layer_assignment_settings", "cpu(=stage-0, =stage-1, =stage-2)")
    assigned = ort.InferenceSession(written, options)
    inputs = random_inputs(manifest)
    for one, other in zip(assigned.run(None, inputs), session(path).run(None, inputs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_weights_of_an_annotated_model_stay_constants(tmp_path: Path) -> None:
    """Before IR version 4 each was an input as well, of which a caller could not give another value."""
    nodes = [node("MatMul", "x w", "a", "a"), node("Relu", "a", "y", "y")]
    inputs = [info("x", [2, 4]), info("w", [4, 4])]
    proto = model(nodes, inputs, [info("y", [2, 4])], [weight("w", 4, 4)], opset=9)
    proto.ir_version = 3
    path = saved(proto, tmp_path)
    export(path, plan_of(path, [0, 1]), tmp_path / "out", formats=["annotated"])
    annotated = onnx.load(tmp_path / "out" / "annotated.onnx")
    assert [value.name for value in annotated.graph.input] == ["x"]


def test_openvino_gets_a_device_for_each_op(tmp_path: Path) -> None:
    _, manifest = exported(tmp_path, "openvino")
    devices = json.loads((tmp_path / "out" / "openvino.json").read_text("utf-8"))
    for stage in manifest.stages:
        for op in stage.ops:
            assert devices[op] == f"GPU.{stage.chips[0]}"
    # A node without a name goes by its output there.
    assert devices["c"] == devices["MatMul_c"] == "GPU.1"
    assert devices["flat"] == "GPU.3"


def test_all_forms_at_once(tmp_path: Path) -> None:
    _, manifest = exported(tmp_path, "stages", "triton", "annotated", "openvino")
    names = {file.name for file in (tmp_path / "out").iterdir()}
    stages = {f"stage-{i}.onnx" for i in range(3)}
    assert names == {"manifest.json", "triton", "annotated.onnx", "openvino.json"} | stages
    assert [stage.file for stage in manifest.stages] == sorted(stages)
