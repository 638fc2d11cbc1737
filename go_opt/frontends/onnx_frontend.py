"""From an ONNX model to a graph (docs/importers.md says what folds and what is refused)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from go_opt.errors import GoOptError, ModelError
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph, NodeWithoutOp, Precision

if TYPE_CHECKING:
    import onnx

_NO_DIMS: Mapping[str, int] = MappingProxyType({})


def from_onnx(
    path_or_model: str | os.PathLike[str] | onnx.ModelProto,
    *,
    dims: Mapping[str, int] | None = None,
    precision: Precision = "native",
) -> Graph:
    """Import an ONNX model; weights may be stripped or lie in files that are not there.

    Args:
      dims: numbers for the model's symbolic dimensions, by name; a dimension without a
        name is called ``input_name[axis]``.

    Raises:
      ModelError, GraphError: one sentence that names the op, tensor or dimension at fault.
    """
    if precision not in ("native", "as-is"):
        raise ModelError(f"precision must be 'native' or 'as-is', not {precision!r}.", field="precision")
    try:
        return _import(path_or_model, _NO_DIMS if dims is None else dims, precision)
    except GoOptError:
        raise
    except Exception as error:
        # Damaged files fail in more ways than onnx and protobuf name: each is bad input here.
        reason = "".join(str(error).strip().splitlines()[:1]).rstrip(".")
        name = repr(str(path_or_model)) if isinstance(path_or_model, str | os.PathLike) else "in memory"
        raise ModelError(f"the ONNX model {name} is malformed ({type(error).__name__}: {reason}).") from error


def _import(
    source: str | os.PathLike[str] | onnx.ModelProto, bindings: Mapping[str, int], precision: Precision
) -> Graph:
    from go_opt.frontends.onnx.dims import DimTable
    from go_opt.frontends.onnx.file import read_model
    from go_opt.frontends.onnx.lowering import Context, Scope
    from go_opt.frontends.onnx.program import Program
    from go_opt.frontends.onnx.shapes import ShapeInference
    from go_opt.frontends.onnx.structure import called_functions, check_names, inlined

    file = read_model(source)
    check_names(file.model.graph)
    model = inlined(file.model)
    initialized = {tensor.name for tensor in model.graph.initializer}
    inputs = [info for info in model.graph.input if info.name not in initialized]
    table = DimTable(file.name, bindings)
    table.check(inputs, [*model.graph.value_info, *model.graph.output])

    scope = Scope(Context(file, table, ShapeInference(model)), Program())
    builder = GraphBuilder(file.name, precision=precision, dims=bindings)
    for info in inputs:
        value = scope.activation(info.name, info.type.tensor_type.elem_type, table.shape_of_input(info))
        builder.add_tensor(value.tensor, value.elements, value.dtype, "input")
    scope.lower(model.graph)
    outputs = [scope.lookup(output.name).tensor for output in model.graph.output]
    if not outputs:
        raise ModelError(f"model {file.name!r} has no outputs.")
    scope.program.emit(builder, outputs)
    graph = builder.build()
    calls = [NodeWithoutOp(name, "inlined", None) for name in called_functions(file.model)]
    return replace(graph, nodes_without_op=(*calls, *scope.program.nodes_without_op(graph)))
