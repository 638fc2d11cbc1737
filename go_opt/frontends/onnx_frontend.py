"""Imports an ONNX model as a graph (docs/importers.md says what is folded and what is rejected)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from go_opt.errors import GoOptError, ModelError
from go_opt.model.bindings import Bindings, Numbers
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph, NodeWithoutOp, Precision, check_precision

if TYPE_CHECKING:
    import onnx

    from go_opt.frontends.onnx.lowered import LoweredModel


def from_onnx(
    path_or_model: str | os.PathLike[str] | onnx.ModelProto,
    *,
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, Numbers] | None = None,
    trips: Mapping[str, int] | None = None,
    states: Mapping[str, str] | None = None,
    precision: Precision = "native",
) -> Graph:
    """Import an ONNX model; weights may be stripped or lie in files that are not there.

    Args:
      dims: numbers for the model's symbolic dimensions, by name or as ``input_name[axis]``.
      values: numbers for inputs, which become constants: one for all elements, or all in row-major order.
      trips: numbers of trips of loops whose count the model does not say, by the name of their op.
      states: input -> the output that is its value in the next step, beside those that names show: see
        :func:`go_opt.frontends.recording.states.find_states`.

    Raises:
      ModelError, GraphError: one sentence that names the faulty op, tensor or dimension.
    """
    check_precision(precision)
    return import_onnx(path_or_model, Bindings.of(dims, values, trips, states), precision)[0]


def import_onnx(
    source: str | os.PathLike[str] | onnx.ModelProto,
    bindings: Bindings,
    precision: Precision,
    checkpoint: Callable[[], None] = lambda: None,
) -> tuple[Graph, LoweredModel]:
    """The graph of :func:`from_onnx` with the model it is from.

    Args:
      checkpoint: called before each node and op; what it raises, if a GoOptError, ends the import.
    """
    try:
        return _import(source, bindings, precision, checkpoint)
    except GoOptError:
        raise
    except Exception as error:
        raise malformed(source, error) from error


def malformed(source: str | os.PathLike[str] | onnx.ModelProto, error: Exception) -> ModelError:
    """Damaged files fail in more ways than onnx and protobuf name: each is bad input here."""
    reason = "".join(str(error).strip().splitlines()[:1]).rstrip(".")
    name = repr(str(source)) if isinstance(source, str | os.PathLike) else "in memory"
    return ModelError(f"the ONNX model {name} is malformed ({type(error).__name__}: {reason}).")


def _import(
    source: str | os.PathLike[str] | onnx.ModelProto,
    bindings: Bindings,
    precision: Precision,
    checkpoint: Callable[[], None],
) -> tuple[Graph, LoweredModel]:
    from go_opt.frontends.onnx.lowered import lower_model
    from go_opt.frontends.onnx.structure import called_functions

    lowered = lower_model(source, bindings, checkpoint)
    builder = GraphBuilder(lowered.file.name, precision=precision, bindings=bindings)
    for value in lowered.inputs:
        builder.add_tensor(value.tensor, value.elements, value.dtype, "input")
    found = lowered.states(bindings)
    unknown = lowered.program.emit(builder, [value.tensor for value in lowered.outputs], found.states)
    graph = builder.build()
    calls = [NodeWithoutOp(name, "inlined", None) for name in called_functions(lowered.file.model)]
    absent = (*calls, *lowered.program.nodes_without_op(graph))
    return replace(
        graph, nodes_without_op=absent, unknown_ops=unknown, unpaired_states=found.unpaired
    ), lowered
