"""States in parts: each lies where its part of the ops runs, and steps give what the whole model gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import go_opt
from go_opt import from_onnx
from go_opt.env import load_target
from go_opt.env.copies.splits import split_graph, split_graph_and_parts
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan, Split
from go_opt.run.export.exporting import export
from go_opt.run.manifest import StatePart, load_manifest
from go_opt.run.pipeline import running
from go_opt.search.splits.block_ways import splits_of_blocks, state_blocks
from go_opt.solver.verify.splits import broken_splits
from tests.decoders import decoder, lstm_cell, recurrent_stack, sliced_plan
from tests.exports import info, model, node, saved

STEPS = 32


def planned(path: Path, parts: int, sequences: int) -> tuple[Graph, Plan]:
    """The graph with all its states in parts, and a plan: each part has its own chip, the rest another."""
    whole, target = from_onnx(path), load_target("gpu-8")
    way = tuple(splits_of_blocks(whole, state_blocks(whole), parts))
    split = split_graph_and_parts(whole, way)
    graph = split.graph
    assert len(graph.states) == parts * len(whole.states)
    assert list(broken_splits(whole, graph, way)) == []
    starts = {
        op: sorted({part.ranges for part in split.parts.values() if part.op == op})
        for op in {part.op for part in split.parts.values()}
    }
    chip = [
        starts[split.parts[name].op].index(split.parts[name].ranges) if name in split.parts else parts
        for name in graph.op_names
    ]
    each = np.arange(graph.num_ops)
    plan = Plan.create(
        graph, target.source, target.fingerprint, placement=np.array(chip), order=each, fusion_group=each,
        provenance="test",
    )  # fmt: skip
    return graph, replace(plan, splits=way, sequences=sequences)


@pytest.mark.parametrize(
    ("proto", "parts", "sequences"),
    [
        (decoder(), 2, 3),
        (decoder(heads=8), 4, 1),
        (decoder(group=2), 2, 2),
        (recurrent_stack(), 2, 3),
        (lstm_cell(), 3, 2),
    ],
    ids=["decoder", "four parts", "grouped queries", "recurrent", "LSTM"],
)
def test_steps_give_what_the_whole_model_gives(
    proto: onnx.ModelProto, parts: int, sequences: int, tmp_path: Path
) -> None:
    path = saved(proto, tmp_path)
    graph, plan = planned(path, parts, sequences)
    manifest = export(path, plan, tmp_path / "out", formats=("stages", "annotated"))
    assert load_manifest(tmp_path / "out") == manifest
    chips = {manifest.stages[stage].chips for state in manifest.states for stage in state.stages}
    assert len(chips) == parts
    pairs = {state.read: state.next for state in manifest.states}
    assert from_onnx(tmp_path / "out" / "annotated.onnx", states=pairs).fingerprint == graph.fingerprint
    count = max(STEPS * sequences - running.ALONE, 2)
    result = go_opt.run_plan(path, plan, inferences=count, tolerance=1e-5)
    assert (result.is_equal, result.sequences) == (True, sequences)


def test_parts_of_states_in_the_manifest(tmp_path: Path) -> None:
    path = saved(decoder(), tmp_path)
    _, plan = planned(path, 2, 2)
    manifest = export(path, plan, tmp_path / "out")
    first, second = manifest.states[:2]
    assert first.part == StatePart("past_key_values.0.key", "present.0.key", ((320, 0, 160),))
    assert second.part == StatePart("past_key_values.0.key", "present.0.key", ((320, 160, 320),))
    assert manifest.tensor(first.read).shape == (1, 2, 10, 8)
    assert manifest.tensor(first.next).shape == (1, 2, 11, 8)
    assert first.bytes == second.bytes == 4 * 2 * 11 * 8
    whole = [(state.read, state.next, state.part is None) for state in manifest.whole_states]
    assert whole[0] == ("past_key_values.0.key", "present.0.key", False)
    assert len(whole) == 4


def test_a_weight_that_changes_is_divided_with_its_value(tmp_path: Path) -> None:
    """Parts begin with slices of the value in the file; the first reads another view of it."""
    values = np.arange(32, dtype=np.float32).reshape(4, 8)
    nodes = [
        node("Mul", "past_w x", "scaled", "scaled"),
        node("Add", "past_w scaled", "present_w", "moved"),
        node("Neg", "scaled", "y", "y"),
    ]
    kept = [info("y", [4, 8]), info("present_w", [4, 8])]
    path = saved(
        model(nodes, [info("x", [4, 8])], kept, [numpy_helper.from_array(values, "past_w")]), tmp_path
    )
    whole = from_onnx(path, states={"past_w": "present_w"})
    way = tuple(Split(name, "d1", 2, False) for name in ("scaled", "moved", "y"))
    graph = split_graph(whole, way)
    plan = replace(sliced_plan(graph, load_target("gpu-8"), np.ones(graph.num_ops), 2), splits=way)
    manifest = export(path, plan, tmp_path / "out")
    assert [(state.scope, state.initial, state.bytes) for state in manifest.states] == [
        ("model", "file", 64)
    ] * 2
    stage = onnx.load(tmp_path / "out" / manifest.stages[manifest.states[1].readers[0]].file).graph
    held = {one.name: numpy_helper.to_array(one) for one in stage.initializer}
    np.testing.assert_array_equal(held[manifest.states[1].read], values[:, 4:])
    assert go_opt.run_plan(path, plan, inferences=STEPS, tolerance=1e-5).is_equal
