"""ONNX models to export, plans for them, and a chain of stages that runs in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from go_opt import from_onnx
from go_opt.env import load_target
from go_opt.env.copies.splits import split_graph
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan, Relay, Split
from go_opt.run.export.exporting import export
from go_opt.run.manifest import Manifest

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
Arrays = Mapping[str, NDArray]


def info(name: str, shape: Sequence[int | str], elem_type: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem_type, shape)


def weight(name: str, *shape: int, seed: int = 0) -> onnx.TensorProto:
    values = np.random.default_rng([seed, *name.encode()]).normal(size=shape)
    return numpy_helper.from_array(values.astype(np.float32), name)


def integers(name: str, *values: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def node(op_type: str, inputs: str, outputs: str, name: str = "", **attributes: object) -> onnx.NodeProto:
    """A node whose inputs and outputs are separated by blanks; ``-`` is one that is left out."""
    names = [["" if tensor == "-" else tensor for tensor in text.split()] for text in (inputs, outputs)]
    return helper.make_node(op_type, *names, name=name, **attributes)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Sequence[onnx.TensorProto] = (),
    *,
    opset: int = 20,
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "toy", inputs, outputs, initializer=list(initializers))
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(f.domain, 1) for f in functions)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=functions)


def saved(proto: onnx.ModelProto, folder: Path, name: str = "toy") -> Path:
    path = folder / f"{name}.onnx"
    onnx.save(proto, path)
    return path


def plan_of(
    path: Path,
    chips: Sequence[int] | Mapping[str, int],
    target: str = "gpu-8",
    *,
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, int] | None = None,
    replication: int | Sequence[int] = 1,
    relays: Sequence[Relay] = (),
) -> Plan:
    """Each op is a kernel of its own, on the chip given for it; those not named are on chip 0."""
    graph, on = from_onnx(path, dims=dims, values=values), load_target(target)
    if isinstance(chips, Mapping):
        assert set(chips) <= set(graph.op_names)
        chips = [chips.get(name, 0) for name in graph.op_names]
    each = np.arange(graph.num_ops)
    plan = Plan.create(
        graph,
        target,
        on.fingerprint,
        placement=np.array(chips),
        order=each,
        fusion_group=each,
        replication=np.broadcast_to(replication, graph.num_ops),
        provenance="test",
    )
    return replace(plan, relays=tuple(relays))


def split_plan(path: Path, *splits: Split, chips: int = 4, seed: int = 0) -> Plan:
    """Each op and part is a kernel of its own, on a chip of the first few."""
    return replace(scattered_plan(split_graph(from_onnx(path), splits), chips, seed), splits=splits)


def scattered_plan(graph: Graph, chips: int, seed: int) -> Plan:
    """Each op is a kernel of its own, on a chip of the first few of eight."""
    target, each = load_target("gpu-8"), np.arange(graph.num_ops)
    return Plan.create(
        graph,
        "gpu-8",
        target.fingerprint,
        placement=np.random.default_rng(seed).integers(0, chips, graph.num_ops),
        order=each,
        fusion_group=each,
        provenance="test",
    )


def session(path: Path, *, is_optimized: bool = True) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    if not is_optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(path, options)


def random_inputs(manifest: Manifest) -> dict[str, NDArray]:
    rng = np.random.default_rng(7)
    facts = [manifest.tensor(name) for name in manifest.inputs]
    return {fact.name: np.asarray(4 * rng.normal(size=fact.shape), fact.dtype) for fact in facts}


def run_stages(folder: Path, manifest: Manifest, inputs: Arrays) -> list[NDArray]:
    """The outputs of the model, from its stages one after the other as the manifest connects them."""
    values: dict[str, NDArray] = dict(inputs)
    made_by: dict[str, int | None] = dict.fromkeys(inputs)
    for stage in manifest.stages:
        assert all(made_by[row.tensor] == row.source for row in stage.inputs)
        onnx.checker.check_model(folder / stage.file, full_check=True)
        one = session(folder / stage.file)
        assert {value.name for value in one.get_inputs()} == {row.tensor for row in stage.inputs}
        results = one.run(
            [row.tensor for row in stage.outputs], {row.tensor: values[row.tensor] for row in stage.inputs}
        )
        for row, result in zip(stage.outputs, results, strict=True):
            fact = manifest.tensor(row.tensor)
            assert (result.shape, result.dtype.name) == (fact.shape, fact.dtype)
            assert row.readers or row.tensor in manifest.collected
            values[row.tensor], made_by[row.tensor] = result, stage.stage
    if manifest.host is not None:
        onnx.checker.check_model(folder / manifest.host.file, full_check=True)
        assert all(made_by[row.tensor] == row.source for row in manifest.host.inputs)
        given = {row.tensor: values[row.tensor] for row in manifest.host.inputs}
        joined = session(folder / manifest.host.file).run(manifest.host.outputs, given)
        values |= zip(manifest.host.outputs, joined, strict=True)
        made_by |= dict.fromkeys(manifest.host.outputs)
    assert all(made_by[output.tensor] == output.stage for output in manifest.outputs)
    return [values[output.tensor] for output in manifest.outputs]


def check_stages(path: Path, plan: Plan, folder: Path, inputs: Arrays | None = None) -> Manifest:
    """Export a plan and compare what its stages, and the annotated model, give with what the model gives."""
    manifest = export(path, plan, folder, formats=["stages", "annotated"], force=True)
    given = random_inputs(manifest) if inputs is None else inputs
    # ONNX Runtime 1.32 loses a Reshape that an If with a constant condition reads when it optimizes.
    whole = session(path, is_optimized=False)
    wanted = [row.name for row in manifest.outputs]
    assert [output.name for output in whole.get_outputs()] == wanted
    expected = whole.run(wanted, dict(given))
    annotated = session(folder / "annotated.onnx").run(wanted, dict(given))
    for results in (run_stages(folder, manifest, given), annotated):
        for one, other in zip(results, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    return manifest


def branch(
    name: str, nodes: list[onnx.NodeProto], output: str, *weights: onnx.TensorProto
) -> onnx.GraphProto:
    return helper.make_graph(nodes, name, [], [info(output, [2, 4])], list(weights))


def clashing_names(condition: bool) -> onnx.ModelProto:
    """Nodes and tensors around two Ifs and a Loop begin as those in their bodies do in the graph."""
    inner = node("If", "known", "o", "deep", then_branch=branch("t", [node("Neg", "h", "v", "op")], "v"),
                 else_branch=branch("e", [node("Exp", "h", "v", "op")], "v"))  # fmt: skip
    then = branch("then", [node("Relu", "a", "h", "output 0"), inner], "o")
    other = branch("else", [node("Tanh", "a", "h", "op"), node("Neg", "h", "v", "deep/op")], "v")
    again = branch("again", [node("Abs", "b", "h", "op")], "h")
    body = helper.make_graph(
        [
            node("Identity", "going", "go", "go"),
            node("Add", "state loop/m", "m", "op"),
            node("Exp", "m", "s", "s"),
        ],
        "body",
        [info("i", [], INT64), info("going", [], BOOL), info("state", [2, 4])],
        [info("go", [], BOOL), info("s", [2, 4])],
    )
    nodes = [
        node("Sigmoid", "x", "a", "choice/op"),
        node("If", "known", "b", "choice", then_branch=then, else_branch=other),
        node("If", "known", "c", "choice/deep", then_branch=again, else_branch=again),
        node("If", "known", "choice/h", "choice_1", then_branch=again, else_branch=again),
        node("Neg", "choice/h", "loop/m", "choice/deep/op"),
        node("Loop", "trips - c", "d", "loop", body=body),
        node("Add", "d choice/h", "y", "y"),
    ]
    known = numpy_helper.from_array(np.array(condition), "known")
    trips = numpy_helper.from_array(np.int64(2), "trips")
    return model(nodes, [info("x", [2, 4])], [info("y", [2, 4])], [known, trips])
