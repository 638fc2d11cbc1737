"""A model lowered to ops, with the known facts about every value."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import onnx

from go_opt.errors import ModelError
from go_opt.frontends.onnx.inference.bound import with_values
from go_opt.frontends.onnx.inference.dims import DimTable
from go_opt.frontends.onnx.inference.file import ModelFile, read_model
from go_opt.frontends.onnx.inference.shapes import ShapeInference
from go_opt.frontends.onnx.inference.values import Value
from go_opt.frontends.onnx.lowering import Context, Scope
from go_opt.frontends.onnx.program import Program
from go_opt.frontends.onnx.state_ops import states_by_ops
from go_opt.frontends.onnx.structure import GraphReads, inlined
from go_opt.frontends.recording.binding import Trips
from go_opt.frontends.recording.states import Facts, FoundStates, find_states
from go_opt.model.bindings import Bindings


@dataclass(frozen=True)
class LoweredModel:
    """A model and the ops it consists of."""

    file: ModelFile
    model: onnx.ModelProto  # that of the file, with its local functions in place
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    program: Program
    open_dims: tuple[str, ...]  # bound dimensions that no input has

    def states(self, bindings: Bindings) -> FoundStates:
        """The states of the model, by its own names of inputs and outputs and by the ops between them."""
        given = {value.tensor: Facts(value.shape, value.dtype) for value in self.inputs}
        names = [output.name for output in self.model.graph.output]
        outputs = zip(names, self.outputs, strict=True)
        facts = {name: Facts(value.shape, value.dtype) for name, value in outputs}
        weights = {tensor.name: tuple(tensor.dims) for tensor in self.model.graph.initializer}
        by_ops = states_by_ops(self.model.graph, given, facts)
        return find_states(given, facts, bindings.states, weights.__contains__, exact=by_ops, weights=weights)


def lower_model(
    source: str | os.PathLike[str] | onnx.ModelProto, bindings: Bindings, checkpoint: Callable[[], None]
) -> LoweredModel:
    """Walk a model whose open dimensions, inputs and loops are bound.

    Args:
      checkpoint: called before each node; what it raises ends the import.

    Raises:
      ModelError, GraphError: one sentence that names the op, tensor or dimension at fault.
    """
    lowered = _lowered(source, bindings, checkpoint, frozenset())
    weights = {tensor.name for tensor in lowered.model.graph.initializer}
    held = lowered.states(bindings).reads & weights
    # Weights that are states are no constants, which would be computed with ahead of time.
    return _lowered(lowered.file, bindings, checkpoint, held) if held else lowered


def _lowered(
    source: str | os.PathLike[str] | onnx.ModelProto | ModelFile,
    bindings: Bindings,
    checkpoint: Callable[[], None],
    held: frozenset[str],
) -> LoweredModel:
    """The model; the initializers ``held`` are no constants."""
    file = source if isinstance(source, ModelFile) else read_model(source)
    model = inlined(file.model)
    if not model.graph.output:
        raise ModelError(f"model {file.name!r} has no outputs.")
    given = model_inputs(model.graph)
    table = DimTable(file.name, bindings.dims, given)
    model = with_values(model, bindings.values, table)
    inputs = model_inputs(model.graph)
    table.check(given, inputs, [*model.graph.value_info, *model.graph.output])

    trips = Trips(bindings.trips)
    scope = Scope(
        Context(file, table, ShapeInference(model), trips, GraphReads(checkpoint), checkpoint, held),
        Program(),
    )
    values = tuple(
        scope.activation(info.name, info.type.tensor_type.elem_type, table.shape_of_input(info))
        for info in inputs
    )
    scope.lower(model.graph)
    trips.check()
    outputs = tuple(scope.lookup(output.name) for output in model.graph.output)
    return LoweredModel(file, model, values, outputs, scope.program, table.of_no_input(given))


def model_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """The inputs that are no weights."""
    initialized = {tensor.name for tensor in graph.initializer}
    return [info for info in graph.input if info.name not in initialized]
