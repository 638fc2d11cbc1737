"""Plans of models with states: stages keep them for each sequence, and give what the whole model gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import go_opt
from go_opt import from_onnx
from go_opt.env import load_target
from go_opt.errors import EnvironmentFailedError, InvalidInputError, ModelError
from go_opt.model.plan import Plan
from go_opt.run.export.exporting import export
from go_opt.run.manifest import StageState, load_manifest
from go_opt.run.pipeline import running, sessions
from go_opt.run.pipeline.check import Arrays
from go_opt.run.pipeline.results import RunResult
from tests.decoders import decoder, recurrent_stack, sliced_plan
from tests.exports import info, model, node, plan_of, saved, session, weight
from tests.frontends.state_models import FOUND, GIVEN, StateModel

MODELS = {str(case): case for case in (*FOUND, *GIVEN)}
STEPS = 32


def planned(case: StateModel, folder: Path, stages: int, sequences: int) -> tuple[Path, Plan]:
    path = saved(case.proto, folder)
    given = dict(pattern.split("=") for pattern in case.patterns)
    graph = from_onnx(path, dims=case.dims, states=given)
    return path, sliced_plan(graph, load_target("gpu-8"), np.ones(graph.num_ops), stages, sequences)


def ran(case: StateModel, folder: Path, stages: int, sequences: int) -> RunResult:
    path, plan = planned(case, folder, stages, sequences)
    result = go_opt.run_plan(path, plan, inferences=max(STEPS * sequences - running.ALONE, 2), tolerance=1e-5)
    assert result.sequences == sequences
    return result


DECODER = StateModel("decoder", decoder(), {})
STACK = StateModel("stack", recurrent_stack(), {})


@pytest.mark.parametrize(("case", "stages", "sequences"), [(DECODER, 2, 1), (DECODER, 3, 3), (STACK, 3, 3)])
def test_steps_equal_those_of_the_whole_model(
    case: StateModel, stages: int, sequences: int, tmp_path: Path
) -> None:
    result = ran(case, tmp_path, stages, sequences)
    assert (len(result.stages), result.is_equal) == (stages, True)
    assert result.difference < 1e-5


@pytest.mark.parametrize("sequences", [2, 4, 5])
@pytest.mark.parametrize("case", [DECODER, STACK], ids=str)
def test_replicas_keep_their_sequences(case: StateModel, sequences: int, tmp_path: Path) -> None:
    """Also where one of two replicas has more sequences than the other: five take turns 0, 1, 0, 1, 0."""
    path, plan = planned(case, tmp_path, 2, sequences)
    first = plan.placement == plan.placement.min()
    replication = np.where(first, 2, 1).astype(np.int32)
    plan = replace(plan, placement=np.where(first, 0, 2).astype(np.int32), replication=replication)
    result = go_opt.run_plan(path, plan, inferences=STEPS * sequences, tolerance=1e-5)
    assert [stage.chips for stage in result.stages] == [(0, 1), (2,)]
    assert (result.is_equal, result.sequences) == (True, sequences)


@pytest.mark.parametrize(
    ("name", "sequences"),
    [
        ("reordered", 2),
        ("several tokens", 3),
        ("past + 1", 2),
        ("merged decoder", 2),
        ("a trained weight", 1),
    ],
)
def test_states_of_other_kinds(name: str, sequences: int, tmp_path: Path) -> None:
    assert ran(MODELS[name], tmp_path, 2, sequences).is_equal


@pytest.mark.parametrize(
    ("case", "stages", "sequences", "left"),
    [
        (DECODER, 3, 3, slice(None)),
        (STACK, 3, 2, slice(0, 1)),
        (MODELS["past + 1"], 2, 2, slice(None)),
        (MODELS["a trained weight"], 2, 1, slice(None)),
    ],
    ids=str,
)
def test_states_that_the_host_keeps(
    case: StateModel, stages: int, sequences: int, left: slice, tmp_path: Path
) -> None:
    """The parent sends and receives them; the others stay in the processes."""
    path, plan = planned(case, tmp_path, stages, sequences)
    given = dict(pattern.split("=") for pattern in case.patterns)
    graph = from_onnx(path, dims=case.dims, states=given)
    names = tuple(graph.tensor_names[state.read] for state in graph.states)
    plan = replace(plan, host_states=names[left])
    manifest = export(path, plan, tmp_path / "out")
    assert {state.read for state in manifest.host_states} == set(names[left])
    assert {state.read for state in manifest.states} == set(names) - set(names[left])
    result = go_opt.run_plan(path, plan, inferences=STEPS * sequences, tolerance=1e-5)
    assert (result.is_equal, result.sequences) == (True, sequences)


def test_the_whole_models_steps_by_hand(tmp_path: Path) -> None:
    """Three sequences of a growing cache in ONNX Runtime alone: each a window over its last tokens."""
    path, plan = planned(DECODER, tmp_path, 2, 3)
    manifest = export(path, plan, tmp_path / "out")
    tokens = [{"ids": np.array([[token]])} for token in (7, 11, 13, 17)]
    expected = running.expected_outputs(path, manifest, tokens, 30)
    whole = session(path, is_optimized=False)
    names = [output.name for output in whole.get_outputs()]
    for sequence in range(3):
        caches = {
            value.name: np.zeros(value.shape, np.float32)
            for value in whole.get_inputs()
            if value.name != "ids"
        }
        for step in range(10):
            inference = 3 * step + sequence
            values = dict(zip(names, whole.run(names, {**tokens[inference % 4], **caches}), strict=True))
            np.testing.assert_array_equal(expected.written[inference]["logits"], values["logits"])
            caches = {
                name: values[name.replace("past_key_values", "present")][:, :, 1:].copy() for name in caches
            }


def test_a_state_in_two_stages_of_a_chip(tmp_path: Path) -> None:
    """What reads the state is a stage before what writes it, with another chip between them."""
    nodes = [
        node("MatMul", "past_h w", "a", "a"),
        node("Add", "a x", "b", "b"),
        node("Tanh", "b", "present_h", "c"),
        node("Relu", "present_h", "y", "y"),
    ]
    kept, used = [info(name, [1, 8]) for name in ("x", "past_h")], [weight("w", 8, 8)]
    path = saved(model(nodes, kept, [info("y", [1, 8]), info("present_h", [1, 8])], used), tmp_path)
    plan = replace(plan_of(path, [0, 1, 0, 1]), sequences=2)
    manifest = export(path, plan, tmp_path / "out")
    (state,) = manifest.states
    assert (state.readers, state.writer) == ((0,), 2)
    held = sessions.HeldState(manifest, state, np.zeros((1, 8), np.float32))
    held.before(0)
    room = held.room()
    room.array[...] = 1
    held.after(0, room.array, room)
    # The inference that has written it may still read it; the sequence's next one is number 2.
    assert [held.before(inference).numpy().sum() for inference in (0, 1, 2)] == [0, 0, 8]
    assert go_opt.run_plan(path, plan, inferences=20, tolerance=1e-5).is_equal


def test_states_of_another_step_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With inputs that are all alike, steps differ by their states alone."""
    path, plan = planned(STACK, tmp_path, 2, 3)
    whole = running.whole_outputs

    def one_step_on(*given: Any, **options: Any) -> list[Arrays]:
        rows = whole(*given, **options)
        return [*rows[3:], *rows[-3:]]

    monkeypatch.setattr(running, "whole_outputs", one_step_on)
    np.savez(tmp_path / "in.npz", x0=np.ones((1, 16), np.float32))
    with pytest.raises(EnvironmentFailedError, match="differs from that of the whole model"):
        go_opt.run_plan(path, plan, inferences=10, inputs=tmp_path / "in.npz")


def test_the_manifest_of_an_export(tmp_path: Path) -> None:
    path, plan = planned(DECODER, tmp_path, 2, 3)
    manifest = export(path, plan, tmp_path / "out")
    assert load_manifest(tmp_path / "out") == manifest
    assert (manifest.inputs, [output.name for output in manifest.outputs]) == (("ids",), ["logits"])
    assert (manifest.sequences, len(manifest.states)) == (3, 4)
    grown = 4 * 4 * 11 * 8
    first = manifest.states[0]
    assert first == StageState(
        "past_key_values.0.key", "present.0.key", "sequence", first.readers, first.readers[0], grown, "zeros"
    )
    for state in manifest.states:
        (reader,) = state.readers
        assert reader == state.writer
        stage = session(tmp_path / "out" / manifest.stages[reader].file)
        assert state.read in {value.name for value in stage.get_inputs()}
        assert state.next in {value.name for value in stage.get_outputs()}
    crossing = {row.tensor for stage in manifest.stages for row in (*stage.inputs, *stage.outputs)}
    assert not crossing & {name for state in manifest.states for name in (state.read, state.next)}


def test_pairs_that_were_given_come_with_the_manifest(tmp_path: Path) -> None:
    path, plan = planned(MODELS["r1i, r1o"], tmp_path, 2, 1)
    manifest = export(path, plan, tmp_path / "out")
    assert manifest.bound_states == {"r*i": "r*o"}
    assert [(state.read, state.next) for state in manifest.states] == [("r1i", "r1o"), ("r2i", "r2o")]
    assert load_manifest(tmp_path / "out") == manifest


def test_a_weight_that_changes_has_its_value_in_the_stage(tmp_path: Path) -> None:
    path, plan = planned(MODELS["a trained weight"], tmp_path, 1, 1)
    (state,) = export(path, plan, tmp_path / "out").states
    assert (state.scope, state.initial, state.bytes) == ("model", "file", 256)
    stage = onnx.load(tmp_path / "out" / "stage-0.onnx").graph
    assert {"w"} == {value.name for value in stage.input} & {one.name for one in stage.initializer}
    with pytest.raises(InvalidInputError, match="one sequence, since a state is of the model"):
        go_opt.run_plan(path, plan, sequences=2)


def test_what_is_measured(tmp_path: Path) -> None:
    path, plan = planned(DECODER, tmp_path, 3, 1)
    one, four = (go_opt.run_plan(path, plan, inferences=20, sequences=count) for count in (1, 4))
    together_s = sum(stage.processor_s for stage in one.stages)
    assert one.processor_interval_s == pytest.approx(together_s)
    assert four.processor_interval_s < sum(stage.processor_s for stage in four.stages)
    assert (one.sequences, four.sequences) == (1, 4)
    assert one.predicted_interval_s == pytest.approx(one.predicted_latency_s)
    assert four.predicted_interval_s < one.predicted_interval_s
    grows = sum(b.predicted_bytes - a.predicted_bytes for a, b in zip(one.memory, four.memory, strict=True))
    assert grows == 3 * 4 * 1024  # 4 * 11 * 8 elements of two bytes, in whole pages
    assert all(chip.measured_bytes > 0 for chip in four.memory)


def test_what_is_refused(tmp_path: Path) -> None:
    path = saved(model([node("Relu", "x", "y")], [info("x", [2])], [info("y", [2])]), tmp_path)
    with pytest.raises(InvalidInputError, match="sequences must be between 1 and the 100 inferences, not 0"):
        go_opt.run_plan(path, plan_of(path, [0]), sequences=0)
    with pytest.raises(InvalidInputError, match="the model has no states"):
        go_opt.run_plan(path, plan_of(path, [0]), sequences=2)
    nodes = [node("ReduceSum", "past_h", "present_h", "sum"), node("Exp", "x", "y", "y")]
    ends = [info("x", [2]), info("past_h", [2])], [info("y", [2]), info("present_h", [1])]
    path = saved(model(nodes, *ends), tmp_path, "shorter")
    states = {"past_h": "present_h"}
    said = r"--state past_h=present_h: float32 of shape \[2\] cannot become float32 of shape \[1\]: "
    with pytest.raises(ModelError, match=said):
        from_onnx(path, states=states)
    nodes, ends = [node("Tanh", "past_h", "present_h", "next")], ([ends[0][1]], [info("present_h", [2])])
    path = saved(model(nodes, *ends), tmp_path, "silent")
    plan = sliced_plan(from_onnx(path, states=states), load_target("gpu-8"), np.ones(1), 1)
    with pytest.raises(ModelError, match="no outputs beside its states"):
        go_opt.run_plan(path, plan)


@pytest.mark.parametrize("shape", [(2, 3), (2, 5), (4, 3)])
def test_the_window_over_a_next_value(shape: tuple[int, int]) -> None:
    following: NDArray = np.arange(shape[0] * shape[1]).reshape(shape)
    kept = sessions.last_of(following, (2, 3))
    np.testing.assert_array_equal(kept, following[shape[0] - 2 :, shape[1] - 3 :])
