"""The ONNX model of one stage."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedOpsetsPass

from go_opt.common.version import VERSION
from go_opt.run.cut.cutting import CutStage
from go_opt.run.cut.reads import Reads

MAX_MODEL_BYTES: Final = 2**31 - 2**26  # protobuf's limit of 2 GiB, minus room for nodes
_MIN_IR_VERSION: Final = 4  # in older versions, every initializer must also be an input


def output_tensor(value: ir.Value) -> str:
    """The stage's output tensor for an output of the model; a forwarded input needs a new name."""
    return str(value.name) if value.producer() is not None else f"{value.name}/output"


def stage_model(
    model: ir.Model,
    reads: Reads,
    stage: CutStage,
    tensors: Iterable[str],
    results: Iterable[ir.Value],
    states: Collection[str] = (),
) -> ir.Model:
    """The nodes of ``stage`` and the weights that they read, as a separate model.

    Args:
      tensors: the tensors that other stages read from it.
      results: the outputs of ``model`` that leave from this stage.
      states: inputs that change; the weights among them become inputs, with their values to begin with.
    """
    results = list(results)
    nodes, initializers, taken = reads.closure(stage.ops, results)
    view = ir.GraphView(
        taken,
        [value for value in results if value.producer() is not None],
        nodes=nodes,
        initializers=initializers,
        opset_imports=dict(model.graph.opset_imports),
        name=model.graph.name,
    )
    graph = view.clone()
    values = dict(zip(taken, graph.inputs, strict=True))
    for original, value in values.items():
        value.name = stage.sources.get(str(original.name), str(original.name))
    values |= {value: graph.initializers[str(value.name)] for value in initializers}
    graph.inputs.extend(values[value] for value in initializers if value.name in states)
    made = {output.name: output for node in graph for output in node.outputs if output.name}
    for relay in stage.relays:
        like = reads.written[relay.original]
        made[relay.tensor] = _copy(
            graph, made.get(relay.source) or _input(graph, relay.source, like), relay.tensor
        )
    for value in results:
        if value.producer() is None:
            made[output_tensor(value)] = _copy(graph, values[value], output_tensor(value))
    graph.outputs.clear()
    graph.outputs.extend(made[tensor] for tensor in dict.fromkeys([*tensors, *map(output_tensor, results)]))
    version = max(model.ir_version, _MIN_IR_VERSION)
    cut = ir.Model(graph, ir_version=version, producer_name="go-opt", producer_version=VERSION)
    RemoveUnusedOpsetsPass()(cut)
    return cut


def weight_bytes(model: ir.Model) -> int:
    """Bytes of all initializers, including those of bodies."""
    tensors = (value.const_value for graph in model.graphs() for value in graph.initializers.values())
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def _input(graph: ir.Graph, name: str, like: ir.Value) -> ir.Value:
    """The input of a stage with this name, created if missing."""
    found = next((value for value in graph.inputs if value.name == name), None)
    if found is None:
        found = ir.Value(name=name, type=like.type, shape=like.shape)
        graph.inputs.append(found)
    return found


def _copy(graph: ir.Graph, value: ir.Value, name: str) -> ir.Value:
    node = ir.node("Identity", [value], name=name)
    copy = node.outputs[0]
    copy.name, copy.type, copy.shape = name, value.type, value.shape
    graph.append(node)
    return copy


def write_model(model: ir.Model, path: Path) -> None:
    """Write a model; weights that do not fit into its file go to ``NAME.data`` in the same folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if weight_bytes(model) > MAX_MODEL_BYTES:
        ir.save(model, path, external_data=f"{path.name}.data")
    else:
        ir.save(ir.external_data.load_to_model(model), path)
