"""What an ONNX file says of itself before its dimensions are bound: inputs, outputs, nodes, weights."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from go_opt.errors import GoOptError, ModelError
from go_opt.frontends.onnx_frontend import malformed
from go_opt.model.bindings import Bindings

if TYPE_CHECKING:
    import onnx

    from go_opt.frontends.onnx.inference.dims import DimTable

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
    try:
        return _read(path, bindings)
    except GoOptError:
        raise
    except Exception as error:
        raise malformed(path, error) from error


def _read(path: str | Path, bindings: Bindings) -> OnnxHeader:
    from go_opt.frontends.onnx.inference.bound import with_values
    from go_opt.frontends.onnx.inference.dims import DimTable
    from go_opt.frontends.onnx.inference.file import read_model
    from go_opt.frontends.onnx.lowered import model_inputs
    from go_opt.frontends.onnx.structure import inlined

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
