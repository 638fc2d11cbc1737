"""Stages as models of OpenVINO: their states stay in the infer request."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from go_opt.errors import ModelError
from go_opt.model.plan import Plan
from go_opt.run.export.exporting import export
from go_opt.run.manifest import Manifest
from go_opt.run.pipeline.check import difference, random_inputs
from go_opt.run.pipeline.running import expected_outputs
from tests.decoders import decoder
from tests.exports import info, model, node, plan_of, saved, session, weight
from tests.go_opt.run import test_split_states
from tests.go_opt.run.test_states import DECODER, MODELS, STACK, STEPS, planned

openvino = pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install 'go-opt[openvino]'")


def requests(folder: Path, manifest: Manifest) -> list[Any]:
    """An infer request of each stage, which is one sequence; in single precision on any processor."""
    precise = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    files = [folder / stage.file for stage in manifest.stages]
    return [openvino.Core().compile_model(file, "CPU", precise).create_infer_request() for file in files]


def step(stages: list[Any], manifest: Manifest, values: dict[str, NDArray]) -> dict[str, NDArray]:
    """What the stages make of an inference's inputs, one after the other; ``values`` has all tensors then."""
    for request in stages:
        taken = {value.get_any_name() for value in request.model_inputs}
        results = request.infer({name: values[name] for name in taken})
        for value in request.model_outputs:
            values |= dict.fromkeys(value.get_names(), results[value].copy())
    return {output.name: values[output.tensor] for output in manifest.outputs}


def check_steps(path: Path, plan: Plan, folder: Path, sequences: int = 2) -> Manifest:
    """Compares steps of sequences with those of the whole model in ONNX Runtime."""
    manifest = export(path, replace(plan, sequences=sequences), folder, formats=["openvino-ir"])
    assert {file.suffix for file in (folder / "openvino-ir").iterdir()} == {".xml", ".bin"}
    rng = np.random.default_rng(3)
    inputs = [random_inputs(path, manifest, rng) for _ in range(5)]
    expected = expected_outputs(path, manifest, inputs, STEPS * sequences).written
    running = [requests(folder, manifest) for _ in range(sequences)]
    for inference, wanted in enumerate(expected):
        got = step(running[inference % sequences], manifest, dict(inputs[inference % len(inputs)]))
        assert got.keys() == wanted.keys()
        for name, value in wanted.items():
            assert difference(got[name], value) < 1e-4, (inference, name)
    return manifest


@pytest.mark.parametrize(("case", "stages"), [(DECODER, 1), (DECODER, 3), (STACK, 2)])
def test_steps_equal_those_of_the_whole_model(case: Any, stages: int, tmp_path: Path) -> None:
    path, plan = planned(case, tmp_path, stages, 1)
    manifest = check_steps(path, plan, tmp_path / "out")
    kept = {
        state.name
        for stage in manifest.stages
        for state in requests(tmp_path / "out", manifest)[stage.stage].query_state()
    }
    assert kept == {f"{state.read}{state.next}" for state in manifest.states}


@pytest.mark.parametrize(
    ("name", "sequences"),
    [
        ("reordered", 2),
        ("several tokens", 1),
        ("past + 1", 1),
        ("a cache of the encoder that stays", 2),
    ],
)
def test_states_of_other_kinds(name: str, sequences: int, tmp_path: Path) -> None:
    path, plan = planned(MODELS[name], tmp_path, 2, 1)
    check_steps(path, plan, tmp_path / "out", sequences)


def test_parts_of_states(tmp_path: Path) -> None:
    path = saved(decoder(), tmp_path)
    _, plan = test_split_states.planned(path, 2, 1)
    manifest = check_steps(path, plan, tmp_path / "out")
    assert len(manifest.states) == 8


def test_a_state_on_the_host_remains_an_input_and_an_output(tmp_path: Path) -> None:
    path, plan = planned(STACK, tmp_path, 2, 1)
    plan = replace(plan, host_states=("past_ssm.0",))
    manifest = export(path, plan, tmp_path / "out", formats=["openvino-ir"])
    stages = requests(tmp_path / "out", manifest)
    assert {"past_ssm.0"} < {value.get_any_name() for one in stages for value in one.model_inputs}
    assert {"present_ssm.0"} < {value.get_any_name() for one in stages for value in one.model_outputs}
    assert sum(len(one.query_state()) for one in stages) == 2


def recurrent(folder: Path) -> Path:
    """A hidden state: one op reads it, two further on its next value is made, which two read."""
    nodes = [
        node("MatMul", "past_h w", "a", "a"),
        node("Add", "a x", "b", "b"),
        node("Tanh", "b", "present_h", "c"),
        node("Relu", "present_h", "y", "y"),
    ]
    ends = [[info(name, [1, 8]) for name in names] for names in (("x", "past_h"), ("y", "present_h"))]
    return saved(model(nodes, *ends, [weight("w", 8, 8)]), folder)


def test_a_next_value_that_another_stage_reads(tmp_path: Path) -> None:
    path = recurrent(tmp_path)
    check_steps(path, plan_of(path, [0, 0, 0, 1]), tmp_path / "out")


def test_a_state_of_two_models_remains_an_input_and_an_output(tmp_path: Path) -> None:
    path = recurrent(tmp_path)
    manifest = export(path, plan_of(path, [0, 1, 0, 1]), tmp_path / "out", formats=["openvino-ir"])
    models = [openvino.Core().read_model(tmp_path / "out" / stage.file) for stage in manifest.stages]
    ends = [({v.get_any_name() for v in m.inputs}, {v.get_any_name() for v in m.outputs}) for m in models]
    assert ends == [({"past_h"}, {"a"}), ({"a", "x"}, {"b"}), ({"b"}, {"present_h"}), ({"present_h"}, {"y"})]


@pytest.mark.parametrize("host_states", [(), ("w",)])
def test_a_weight_that_changes_remains_an_input_and_an_output(
    host_states: tuple[str, ...], tmp_path: Path
) -> None:
    path, plan = planned(MODELS["a trained weight"], tmp_path, 1, 1)
    plan = replace(plan, host_states=host_states)
    manifest = export(path, plan, tmp_path / "out", formats=["openvino-ir"])
    (request,) = requests(tmp_path / "out", manifest)
    given = random_inputs(path, manifest, np.random.default_rng(3))
    wanted = session(path).run(["y", "w_updated"], given)
    given["w"] = numpy_helper.to_array(onnx.load(path).graph.initializer[0])
    step([request], manifest, given)
    assert difference(given["y"], wanted[0]) < 1e-5
    assert difference(given["w_updated"], wanted[1]) < 1e-5
    assert request.query_state() == []


def test_a_model_without_states(tmp_path: Path) -> None:
    path = saved(model([node("Relu", "x", "y")], [info("x", [2])], [info("y", [2])]), tmp_path)
    manifest = export(path, plan_of(path, [0]), tmp_path / "out", formats=["openvino-ir", "stages"])
    assert manifest.stages[0].file == "stage-0.onnx"
    made = openvino.Core().compile_model(tmp_path / "out" / "openvino-ir" / "stage-0.xml", "CPU")
    np.testing.assert_array_equal(made({"x": np.array([-1, 2], np.float32)})["y"], [0, 2])


def test_what_is_refused(tmp_path: Path) -> None:
    own = node("Wobble", "x", "y", "own", domain="mine")
    path = saved(model([own], [info("x", [2])], [info("y", [2])]), tmp_path, "odd")
    with pytest.raises(ModelError, match=r"OpenVINO cannot read the model of stage-0: .*Wobble"):
        export(path, plan_of(path, [0]), tmp_path / "out", formats=["openvino-ir"])
    assert not (tmp_path / "out").exists()
