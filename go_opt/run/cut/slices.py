"""Slices of weights and activations in a model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from go_opt.env.copies.row_parts import TAKE
from go_opt.errors import ModelError

_SLICE_READS_LIMITS: Final = 10  # operator set


class Slices:
    """Initializers that are slices of weights, each made once."""

    def __init__(self, nodes: ir.Graph) -> None:
        self._nodes = nodes
        self._arrays: dict[ir.Value, NDArray] = {}
        self._made: dict[str, tuple[ir.Value, ir.Value, int]] = {}  # name -> slice, of which weight and axis

    def of(self, weight: ir.Value, axis: int, start: int, stop: int, name: str) -> ir.Value:
        if name in self._made:
            made, same, along = self._made[name]
            if (same, along) != (weight, axis):
                raise ModelError(f"weight {weight.name!r} is split along two axes, which no export supports.")
            return made
        array = self._array(weight)
        index = [slice(None)] * array.ndim
        index[axis] = slice(start, stop)
        tensor = ir.tensor(np.ascontiguousarray(array[tuple(index)]), dtype=weight.dtype, name=name)
        shape = ir.Shape(tensor.shape.numpy())
        made = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor)
        self._nodes.register_initializer(made)
        self._made[name] = made, weight, axis
        return made

    def size(self, weight: ir.Value, axis: int) -> int:
        """The size of ``weight`` along an axis; 0 if it has no such axis."""
        shape = self._array(weight).shape
        return shape[axis] if -len(shape) <= axis < len(shape) else 0

    def _array(self, weight: ir.Value) -> NDArray:
        """The values of a constant: an initializer, or nodes that read only constants."""
        if weight not in self._arrays:
            self._arrays[weight] = _numbers(weight)
        return self._arrays[weight]


def tensor_name(value: ir.Value, weights: Collection[str]) -> str:
    """The graph's name for a constant: its own, or that of the weight it is a view of."""
    producer = value.producer()
    if value.name in weights or producer is None:
        return str(value.name)
    names = [tensor_name(one, weights) for one in producer.inputs if one is not None]
    return next((name for name in names if name in weights), str(value.name))


def take_node(nodes: ir.Graph, value: ir.Value, axis: int, limits: tuple[int, int], name: str) -> ir.Node:
    """A node that takes a slice of ``value`` along an axis."""
    given = {"starts": limits[0], "ends": limits[1], "axes": axis}
    if nodes.opset_imports[""] < _SLICE_READS_LIMITS:
        return ir.node(TAKE, [value], {what: [number] for what, number in given.items()}, name=name)
    read = [whole_numbers(nodes, f"{name}/{what}", [number]) for what, number in given.items()]
    return ir.node(TAKE, [value, *read], name=name)


def view_node(nodes: ir.Graph, value: ir.Value, sizes: Sequence[int], name: str) -> ir.Node:
    """A node that sees ``value`` with other sizes."""
    view = ir.node("Reshape", [value, whole_numbers(nodes, f"{name}/shape", sizes)], name=name)
    view.outputs[0].name, view.outputs[0].type, view.outputs[0].shape = name, value.type, ir.Shape(sizes)
    return view


def whole_numbers(nodes: ir.Graph, name: str, numbers: Sequence[int]) -> ir.Value:
    """A new initializer."""
    tensor = ir.tensor(np.array(numbers, np.int64), name=name)
    shape = ir.Shape([len(numbers)])
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor)
    nodes.register_initializer(value)
    return value


def sizes_of(value: ir.Value) -> list[int]:
    """The sizes of a value.

    Raises:
      ModelError: one of them is not known.
    """
    if value.shape is None or not value.shape.is_static():
        raise ModelError(f"tensor {value.name!r} has no known size, so that it cannot be split.")
    return list(value.shape.numpy())


def _numbers(value: ir.Value) -> NDArray:
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
