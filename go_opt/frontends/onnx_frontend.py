"""Imports an ONNX model as a graph (docs/importers.md says what is folded and what is rejected).

Also: what a file says of itself before its dimensions are bound, and its bytes as services take them.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from go_opt.errors import ModelError
from go_opt.frontends.recording.binding import refused_as
from go_opt.model.bindings import Bindings, Numbers
from go_opt.model.graph import Graph, NodeWithoutOp, Precision, check_precision

if TYPE_CHECKING:
    import onnx

    from go_opt.frontends.onnx.inference.dims import DimTable
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
    source: str | os.PathLike[str] | onnx.ModelProto | bytes,
    bindings: Bindings,
    precision: Precision,
    checkpoint: Callable[[], None] = lambda: None,
) -> tuple[Graph, LoweredModel]:
    """The graph of :func:`from_onnx` with the model it is from.

    Args:
      checkpoint: called before each node and op; what it raises, if a GoOptError, ends the import.
    """
    from go_opt.frontends.onnx.lowered import lower_model
    from go_opt.frontends.onnx.structure import called_functions

    with _readable(source):
        lowered = lower_model(source, bindings, checkpoint)
        names = [output.name for output in lowered.model.graph.output]
        outputs = dict(zip(names, lowered.outputs, strict=True))
        found = lowered.states(bindings)
        graph = lowered.program.build(lowered.file.name, outputs, found, precision, bindings)
        calls = [NodeWithoutOp(name, "inlined", None) for name in called_functions(lowered.file.model)]
        absent = (*calls, *lowered.program.nodes_without_op(graph))
        return replace(graph, nodes_without_op=absent), lowered


def _readable(source: object) -> AbstractContextManager[None]:
    name = repr(str(source)) if isinstance(source, str | os.PathLike) else "in memory"
    return refused_as(f"the ONNX model {name} is malformed")


@dataclass(frozen=True, eq=False)
class OnnxModel:
    """An ONNX file; other files that it refers to are never read.

    Args:
      file: its bytes.
      dims, values, trips, states, precision: as :func:`go_opt.load`.
    """

    file: bytes
    dims: Mapping[str, int] = field(default_factory=dict)
    precision: Precision = "native"
    values: Mapping[str, Numbers] = field(default_factory=dict)
    trips: Mapping[str, int] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_precision(self.precision)

    @property
    def bindings(self) -> Bindings:
        """What is bound at import."""
        return Bindings.of(self.dims, self.values, self.trips, self.states)

    def graph(self, checkpoint: Callable[[], None] = lambda: None) -> Graph:
        """The graph of the model; arguments and errors as for :func:`import_onnx`."""
        return import_onnx(self.file, self.bindings, self.precision, checkpoint)[0]


Size = int | str  # a number, or the name of a dimension that is not bound


@dataclass(frozen=True)
class TensorHeader:
    """An input or output of a model."""

    name: str
    dtype: str
    shape: tuple[Size, ...] | None  # None: not stated


@dataclass(frozen=True)
class OnnxHeader:
    """A model file, without its ops."""

    name: str
    inputs: tuple[TensorHeader, ...]
    outputs: tuple[TensorHeader, ...]
    unbound: tuple[str, ...]  # dimensions of inputs without a number
    node_types: Counter[str]  # including those of branches and loops
    weight_bytes: int  # of initializers


def read_header(path: str | Path, bindings: Bindings) -> OnnxHeader:
    """Reads the header of an ONNX file, with the dimensions and inputs of ``bindings`` bound.

    Raises:
      ModelError: the file is missing or malformed, or no input has a bound dimension.
    """
    from go_opt.frontends.onnx.inference.dims import DimTable, with_values
    from go_opt.frontends.onnx.inference.file import read_model
    from go_opt.frontends.onnx.lowered import model_inputs
    from go_opt.frontends.onnx.structure import inlined

    with _readable(path):
        file = read_model(path)
        model = inlined(file.model)
        given = model_inputs(model.graph)
        table = DimTable(file.name, bindings.dims, given)
        graph = with_values(model, bindings.values, table).graph
        inputs = model_inputs(graph)
        unbound = table.to_bind(inputs)
        if unbound and (unknown := table.of_no_input(given)):
            raise ModelError(f"no input of model {file.name!r} has a dimension {unknown[0]!r}.", field="dims")
        return OnnxHeader(
            file.name,
            tuple(_header(info, table) for info in inputs),
            tuple(_header(info, table) for info in graph.output),
            unbound,
            Counter(node.op_type for node in _nodes(graph)),
            sum(_stored_bytes(tensor) for tensor in graph.initializer),
        )


def _header(info: onnx.ValueInfoProto, table: DimTable) -> TensorHeader:
    shape = table.resolve(info)
    names = iter(table.unbound(info))
    sizes = None if shape is None else tuple(next(names) if size is None else size for size in shape)
    return TensorHeader(info.name, _dtype(info.name, info.type.tensor_type.elem_type), sizes)


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    from go_opt.frontends.onnx.structure import subgraphs

    for node in graph.node:
        yield node
        for inner in subgraphs(node):
            yield from _nodes(inner)


def _stored_bytes(tensor: onnx.TensorProto) -> int:
    from go_opt.model.dtypes import DTYPE_BITS, dtype_code

    bits = int(DTYPE_BITS[dtype_code(_dtype(tensor.name, tensor.data_type))])
    elements: int = math.prod(tensor.dims)
    return (elements * bits + 7) // 8


def _dtype(name: str, elem_type: int) -> str:
    from go_opt.frontends.onnx.inference.values import make_value

    return make_value(name, elem_type, ()).dtype
