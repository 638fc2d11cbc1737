"""Constants of a model: their values, and new ones."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator


def constant(graph: ir.Graph, name: str, array: NDArray, dtype: ir.DataType | None = None) -> ir.Value:
    """A new initializer of ``graph``."""
    tensor = ir.tensor(np.ascontiguousarray(array), dtype=dtype, name=name)
    shape = ir.Shape(tensor.shape.numpy())
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor)
    graph.register_initializer(value)
    return value


def values_of(value: ir.Value) -> NDArray:
    """The values of a constant: an initializer, or what nodes compute from initializers alone."""
    if value.const_value is not None:
        return value.const_value.numpy()
    nodes: dict[ir.Node, None] = {}
    initializers: dict[ir.Value, None] = {}

    def collect(values: Iterable[ir.Value | None]) -> None:
        for one in values:
            producer = None if one is None else one.producer()
            if producer is not None:
                collect(producer.inputs)
                nodes[producer] = None
            elif one is not None:
                initializers[one] = None

    collect([value])
    graph = value.graph
    assert graph is not None
    view = ir.GraphView(
        [], [value], nodes=list(nodes), initializers=list(initializers), opset_imports=graph.opset_imports
    )
    (array,) = ReferenceEvaluator(ir.to_proto(ir.Model(view.clone(), ir_version=10))).run(None, {})
    return np.asarray(array)
