"""A model lowered to ops, with the known facts about every value."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import onnx

from go_opt.errors import ModelError
from go_opt.frontends.onnx.dims import DimTable
from go_opt.frontends.onnx.file import ModelFile, read_model
from go_opt.frontends.onnx.lowering import Context, Scope
from go_opt.frontends.onnx.program import Program
from go_opt.frontends.onnx.shapes import ShapeInference
from go_opt.frontends.onnx.structure import check_names, inlined
from go_opt.frontends.onnx.values import Value


@dataclass(frozen=True)
class LoweredModel:
    """A model and the ops it consists of."""

    file: ModelFile
    model: onnx.ModelProto  # that of the file, with its local functions in place
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    program: Program
    open_dims: tuple[str, ...]  # bound dimensions that no input has


def lower_model(source: str | os.PathLike[str] | onnx.ModelProto, dims: Mapping[str, int]) -> LoweredModel:
    """Walk a model whose symbolic dimensions are bound by ``dims``.

    Raises:
      ModelError, GraphError: one sentence that names the op, tensor or dimension at fault.
    """
    file = read_model(source)
    check_names(file.model.graph)
    model = inlined(file.model)
    initialized = {tensor.name for tensor in model.graph.initializer}
    inputs = [info for info in model.graph.input if info.name not in initialized]
    table = DimTable(file.name, dims)
    table.check(inputs, [*model.graph.value_info, *model.graph.output])

    scope = Scope(Context(file, table, ShapeInference(model)), Program())
    values = tuple(
        scope.activation(info.name, info.type.tensor_type.elem_type, table.shape_of_input(info))
        for info in inputs
    )
    scope.lower(model.graph)
    if not model.graph.output:
        raise ModelError(f"model {file.name!r} has no outputs.")
    outputs = tuple(scope.lookup(output.name) for output in model.graph.output)
    return LoweredModel(file, model, values, outputs, scope.program, table.of_no_input(inputs))
