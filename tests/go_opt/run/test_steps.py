"""Training steps of ONNX models by replicas, in ONNX Runtime: steps equal those of the whole model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import go_opt
from go_opt import from_onnx
from go_opt.env import load_target, loop_roles
from go_opt.env.copies.splits import split_graph
from go_opt.model.plan import Plan
from go_opt.run.export.exporting import export
from go_opt.run.manifest import Manifest, StageState, elements_in
from go_opt.run.pipeline.sessions import first_values
from go_opt.search.methods.given import plan_as_it_stands
from go_opt.search.replicas.layers import LayerWays
from go_opt.search.replicas.ways import (
    batch_factors,
    replicas_of_layers,
    replicated_way,
    start_of_replicas,
    updates_of,
)
from tests import onnx_steps
from tests.exports import saved, session

MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "mlp": partial(onnx_steps.mlp, 8, 6, 12, 6),
    "conv_net": partial(onnx_steps.conv_net, 8, 6, 4, 4, 6),
    "transformer": partial(onnx_steps.transformer, 8, 6, 8, 2, 12),
}
STEPS = 3


def planned(name: str, parts: int, folder: Path, *, shares_updates: bool) -> tuple[Path, Plan]:
    path, target = saved(MODELS[name](), folder), load_target(f"h100-sxm-{parts}")
    graph = from_onnx(path)
    way = replicated_way(graph, parts, shares_updates=shares_updates)
    split = split_graph(graph, way)
    start = start_of_replicas(graph, way, loop_roles(graph, target.kernel_patterns))
    plan = replace(plan_as_it_stands(split, target, start), splits=way)
    assert go_opt.verify(graph, target, plan) == []
    return path, plan


def shared_layers(name: str, folder: Path) -> tuple[Path, Plan]:
    """Two replicas, each of two chips that share the layers."""
    path, target = saved(MODELS[name](), folder), load_target("h100-sxm-4")
    graph = from_onnx(path)
    along = batch_factors(graph, 1)
    found = LayerWays(graph, target, along, updates_of(graph, along)).best(2, 2)
    assert found is not None
    way = replicas_of_layers(graph, found.way, 2)
    start = start_of_replicas(graph, way, loop_roles(graph, target.kernel_patterns))
    return path, replace(plan_as_it_stands(split_graph(graph, way), target, start), splits=way)


def batch(model: onnx.ModelProto, seed: int) -> dict[str, NDArray]:
    """Inputs: words, shares of classes, numbers."""
    rng, found = np.random.default_rng(seed), dict[str, NDArray]()
    for value in model.graph.input:
        shape = [one.dim_value for one in value.type.tensor_type.shape.dim]
        if value.type.tensor_type.elem_type == onnx.TensorProto.INT64:
            found[value.name] = rng.integers(0, 12, shape)
        elif value.name == "labels":
            found[value.name] = np.eye(shape[-1], dtype=np.float32)[rng.integers(0, shape[-1], shape[:-1])]
        else:
            found[value.name] = rng.normal(size=shape).astype(np.float32)
    return found


def after_steps(folder: Path, manifest: Manifest) -> dict[str, NDArray]:
    """The states of all stages after some steps, each stage once a step in the order of the manifest."""
    stages = [session(folder / row.file) for row in manifest.stages]
    states: dict[str, NDArray] = {}
    for row in manifest.stages:
        mine = [state for state in manifest.states if row.stage in state.readers]
        states |= first_values(manifest, mine, folder / row.file)
    for step in range(STEPS):
        values = dict(states)
        values |= batch(onnx.load(folder / "toy.onnx"), step)
        for stage in stages:
            names = [output.name for output in stage.get_outputs()]
            read = (*stage.get_inputs(), *stage.get_overridable_initializers())
            given = {value.name: values[value.name] for value in read}
            values |= zip(names, stage.run(names, given), strict=True)
        states = {state.read: np.array(values[state.next]) for state in manifest.states}
    return states


@pytest.mark.parametrize("shares_updates", [False, True], ids=["copies", "shared updates"])
@pytest.mark.parametrize("name", MODELS)
def test_three_steps_leave_the_weights_of_the_whole_model(
    name: str, shares_updates: bool, tmp_path: Path
) -> None:
    """On each chip: copies of the weights, copies or slices of the moments."""
    path, plan = planned(name, 2, tmp_path, shares_updates=shares_updates)
    states = compared(path, plan, tmp_path)
    copies = [state for state in states if state.part and not state.part.cuts]
    slices = [state for state in states if state.part and state.part.cuts]
    assert (bool(slices), bool(copies)) == (shares_updates, True)


@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_three_steps_of_shared_layers(name: str, tmp_path: Path) -> None:
    """Two chips have slices of weights and moments, and two others the same slices."""
    states = compared(*shared_layers(name, tmp_path), tmp_path)
    slices = [state.part.cuts for state in states if state.part and state.part.cuts]
    assert slices
    assert all(slices.count(cuts) % 2 == 0 for cuts in slices)


def compared(path: Path, plan: Plan, tmp_path: Path) -> tuple[StageState, ...]:
    """The states of the stages, which after three steps are those of the whole model."""
    manifest = export(path, plan, tmp_path / "out")
    onnx.save(onnx.load(path), tmp_path / "out" / "toy.onnx")
    found = after_steps(tmp_path / "out", manifest)
    proto = onnx.load(path)
    whole = {one.name: onnx.numpy_helper.to_array(one) for one in proto.graph.initializer}
    for step in range(STEPS):
        for one in proto.graph.initializer:
            one.CopyFrom(onnx.numpy_helper.from_array(whole[one.name], one.name))
        (tmp_path / "whole.onnx").write_bytes(proto.SerializeToString())
        written = session(tmp_path / "whole.onnx")
        names = [output.name for output in written.get_outputs()]
        values = dict(zip(names, written.run(names, batch(proto, step)), strict=True))
        whole |= {key: values[f"{key}_next"] for key in whole if f"{key}_next" in values}
    changed = {key for key in whole if f"{key}_next" in names}
    assert {state.part.read if state.part else state.read for state in manifest.states} == changed
    for state in manifest.states:
        expected = whole[state.part.read if state.part else state.read]
        if state.part is not None:
            expected = elements_in(state.part.cuts, expected)
        apart = np.abs(found[state.read].ravel() - expected.ravel()).max()
        assert apart <= 1e-5 * np.abs(expected).max(), state.read
    return manifest.states


@pytest.mark.parametrize(("name", "parts"), [("transformer", 2), ("conv_net", 2), ("mlp", 4)])
def test_processes_that_share_a_batch(name: str, parts: int, tmp_path: Path) -> None:
    path, plan = planned(name, parts, tmp_path, shares_updates=True)
    result = go_opt.run_plan(path, plan, inferences=STEPS, tolerance=1e-5)
    assert result.is_equal
    assert {chip for stage in result.stages for chip in stage.chips} == set(range(parts))
