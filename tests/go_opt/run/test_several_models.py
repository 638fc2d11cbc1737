"""Plans of several models: one model of all of them is cut, and each is compared with its own file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import go_opt
from go_opt.env import load_target
from go_opt.errors import ModelError
from go_opt.frontends.onnx_frontend import import_onnx
from go_opt.frontends.union import merging
from go_opt.frontends.union.merging import merged_model
from go_opt.model.bindings import NO_BINDINGS, Bindings
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.run.export.exporting import export
from go_opt.run.pipeline.results import OutputsDifferError
from tests.decoders import decoder, sliced_plan
from tests.exports import clashing_names, info, model, node, saved, session, weight

Union = Callable[..., str]


def perceptron(width: int = 8, opset: int = 17) -> onnx.ModelProto:
    """Nodes without names; ReduceSum takes its axes otherwise before opset 13."""
    axes = {"axes": [1]} if opset < 13 else {}
    more = [] if axes else [numpy_helper.from_array(np.array([1]), "axes")]
    nodes = [
        node("MatMul", "x w", "a"),
        node("Relu", "a", "b"),
        node("ReduceSum", "b" if axes else "b axes", "y", **axes),
    ]
    made = model(nodes, [info("x", [4, width])], [info("y", [4, 1])], [weight("w", width, width), *more])
    made.opset_import[0].version = opset
    return made


@pytest.fixture
def union(tmp_path: Path) -> Union:
    """Saves models and names their union."""

    def made(*models: tuple[int, onnx.ModelProto]) -> str:
        paths = [saved(one, tmp_path, f"m{i}") for i, (_, one) in enumerate(models)]
        shares = zip((copies for copies, _ in models), paths, strict=True)
        return "union:" + "+".join(f"{copies}*{path}" for copies, path in shares)

    return made


def planned(name: str, stages: int, sequences: int = 1) -> tuple[Graph, Plan]:
    graph = go_opt.load(name)
    return graph, sliced_plan(graph, load_target("gpu-8"), np.ones(graph.num_ops), stages, sequences)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (perceptron(), clashing_names(True)),
        (clashing_names(False), perceptron(16)),
        (perceptron(8, 12), perceptron(16, 17)),
    ],
)
def test_the_ops_of_one_model_are_those_of_the_union(
    union: Union, first: onnx.ModelProto, second: onnx.ModelProto
) -> None:
    name = union((2, first), (1, second))
    graph, (one, _) = go_opt.load(name), import_onnx(merged_model(name), NO_BINDINGS, "native")
    assert one.op_names == graph.op_names
    assert one.op_types == graph.op_types
    assert np.array_equal(one.op_flops, graph.op_flops)
    onnx.checker.check_model(merged_model(name))


@pytest.mark.parametrize(
    ("first", "second"), [(perceptron(), clashing_names(True)), (perceptron(8, 12), perceptron(16, 17))]
)
def test_each_gives_what_it_gives_alone(
    union: Union, first: onnx.ModelProto, second: onnx.ModelProto, tmp_path: Path
) -> None:
    name = union((2, first), (1, second))
    _, plan = planned(name, 3)
    rng, given = np.random.default_rng(0), {}
    for prefix, proto in (("1/", first), ("1.2/", first), ("2/", second)):
        shape = [axis.dim_value for axis in proto.graph.input[0].type.tensor_type.shape.dim]
        given[f"{prefix}x"] = rng.normal(size=shape).astype(np.float32)
    np.savez(tmp_path / "inputs.npz", **given)
    result = go_opt.run_plan(name, plan, inferences=4, inputs=tmp_path / "inputs.npz")
    assert (result.is_equal, len(result.stages)) == (True, 3)
    assert sorted(result.outputs) == ["1.2/y", "1/y", "2/y"]
    for output, found in result.outputs.items():
        alone = session(tmp_path / f"m{int(output[0]) - 1}.onnx")
        (own,) = alone.run(["y"], {"x": given[output.replace("/y", "/x")]})
        np.testing.assert_allclose(found, own, rtol=1e-5)


def test_states_of_sequences(union: Union) -> None:
    name = union((1, decoder()), (2, perceptron()))
    _, plan = planned(name, 3, sequences=2)
    result = go_opt.run_plan(name, plan, inferences=12)
    assert (result.is_equal, result.sequences) == (True, 2)


def test_a_wrong_merge_is_found(union: Union, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference is each model's own file, not the one that stages are cut from."""
    name = union((1, perceptron()), (1, perceptron(16)))
    _, plan = planned(name, 2)

    def swapped(name: str) -> onnx.ModelProto:
        made = merged_model(name)
        wrong = next(one for one in made.graph.initializer if one.name == "2/w")
        wrong.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(wrong), "2/w"))
        return made

    monkeypatch.setattr(merging, "merged_model", swapped)
    with pytest.raises(OutputsDifferError, match="output '2/y' differs"):
        go_opt.run_plan(name, plan, inferences=2)


def test_copies_share_their_weights(union: Union, tmp_path: Path) -> None:
    name = union((3, perceptron()))
    _, plan = planned(name, 1)
    (stage,) = export(name, plan, tmp_path / "stages").stages
    assert stage.weight_bytes == 4 * 8 * 8 + 8  # and the axes


def test_weights_in_other_files(union: Union, tmp_path: Path) -> None:
    name = union((1, perceptron()), (2, perceptron(16)))
    path = tmp_path / "m1.onnx"
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="w.bin", size_threshold=100)
    _, plan = planned(name, 2)
    assert go_opt.run_plan(name, plan, inferences=2).is_equal
    (tmp_path / "w.bin").unlink()
    with pytest.raises(ModelError, match="weights of tensor 'w' are missing"):
        export(name, plan, tmp_path / "stages")
    assert not (tmp_path / "stages").exists()


def test_what_is_refused(union: Union, tmp_path: Path) -> None:
    name = union((1, perceptron()), (1, perceptron(16)))
    _, plan = planned(name, 2)
    with pytest.raises(ModelError, match="'zoo:shufflenet' is a graph without weights"):
        export(f"{name}+1*zoo:shufflenet", plan, tmp_path / "stages")
    with pytest.raises(ModelError, match="bound trips can be planned, not run"):
        export(name, replace(plan, bindings=Bindings(trips={"loop": 2})), tmp_path / "stages")
    first, second = perceptron(), perceptron(16)
    for proto, version in ((first, 1), (second, 2)):
        proto.opset_import.append(onnx.helper.make_opsetid("com.example", version))
    with pytest.raises(ModelError, match=r"version 2 of the ops 'com\.example', another model 1"):
        merged_model(union((1, first), (1, second)))
