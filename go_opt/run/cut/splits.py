"""Column splits as nodes of the model: slices of weights, the parts, and joins."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from go_opt.env.copies.part_names import part_name
from go_opt.env.copies.splits import columns_of, split_sizes
from go_opt.errors import ModelError
from go_opt.model.graph import Graph
from go_opt.model.plan import Split
from go_opt.run.cut.reads import Reads
from go_opt.run.manifest import OutputPart


class _Axes(NamedTuple):
    """The axes of columns: in each sliced operand, by position, and in the output."""

    operands: Mapping[int, int]
    output: int


def split_nodes(model: ir.Model, graph: Graph, splits: Sequence[Split]) -> dict[str, OutputPart]:
    """Replace split ops in ``model`` by their parts, under the names of the split graph.

    Args:
      graph: the graph of the unsplit model.

    Returns:
      outputs of the model that stay in parts, by name.

    Raises:
      ModelError: an op cannot be split; the message names it.
    """
    reads = Reads(model.graph, graph.op_index)
    slices = Slices(model.graph)
    outputs: dict[str, OutputPart] = {}
    for split in splits:
        outputs |= _split_node(model.graph, graph, split, reads, slices)
    return outputs


def _split_node(
    nodes: ir.Graph, graph: Graph, split: Split, reads: Reads, slices: Slices
) -> dict[str, OutputPart]:
    node = reads.op_node[split.op]
    columns = columns_of(graph, graph.op_index[split.op])
    assert columns is not None, "the plan's graph was made."
    axes = _axes_of(node, reads)
    whole = node.outputs[0]
    number = _size(whole, axes.output)
    sizes = split_sizes(number, split.parts) if number else []
    if [size * columns.number for size in sizes] != [
        size * number for size in split_sizes(columns.number, split.parts)
    ]:
        raise ModelError(f"op {split.op!r} cannot be split into {split.parts}: it has {number} columns.")
    stops = np.cumsum(sizes).tolist()
    weights = [graph.tensor_names[k] for k in columns.weights]
    names = {
        place: tensor_name(value, weights)
        for place in axes.operands
        if (value := node.inputs[place]) is not None and slices.size(value, axes.operands[place]) == number
    }
    # Slices are made in the order of the graph.
    places = sorted(names, key=lambda place: graph.tensor_index.get(names[place], -1))
    parts = []
    for i, (start, stop) in enumerate(zip([0, *stops[:-1]], stops, strict=True)):
        inputs = list(node.inputs)
        for place in places:
            value, name = inputs[place], part_name(names[place], i, split.parts)
            assert value is not None
            inputs[place] = slices.of(value, axes.operands[place], start, stop, name)
        part = ir.node(
            node.op_type,
            inputs,
            overload=node.overload,
            domain=node.domain,
            name=part_name(split.op, i, split.parts),
        )
        for attr in node.attributes.values():
            part.attributes.add(attr)
        _describe(
            part.outputs[0], whole, axes.output, stop - start, part_name(str(whole.name), i, split.parts)
        )
        parts.append(part)
    nodes.insert_before(node, parts)
    results = [part.outputs[0] for part in parts]
    if split.joined:
        join = ir.node("Concat", results, {"axis": axes.output}, name=split.op)
        joined = join.outputs[0]
        joined.name, joined.type, joined.shape = whole.name, whole.type, whole.shape
        whole.replace_all_uses_with(joined, replace_graph_outputs=True)
        nodes.insert_before(node, join)
    else:
        at = list(nodes.outputs).index(whole)
        nodes.outputs[at : at + 1] = results
    nodes.remove(node, safe=True)
    if split.joined:
        return {}
    bounds = zip(results, [0, *stops[:-1]], stops, strict=True)
    return {str(part.name): OutputPart(str(whole.name), axes.output, *bound) for part, *bound in bounds}


def _axes_of(node: ir.Node, reads: Reads) -> _Axes:
    """The axes of columns: columns lie along the output axis that comes from the weight."""
    rank = len(_shape(node.outputs[0]))
    constant = [value is not None and not reads.bases_of([value]) for value in node.inputs]
    if node.op_type == "Conv" and constant[1]:
        if _integer(node, "group", 1) != 1:
            raise ModelError(f"op {node.name!r} cannot be split: its channels are in groups.")
        return _Axes({1: 0, 2: 0} if len(constant) > 2 else {1: 0}, 1)
    if node.op_type == "Gemm" and constant[0] != constant[1]:
        output = 1 if constant[1] else 0
        operand = (
            {1: 0 if _integer(node, "transB", 0) else 1} if constant[1] else {0: _integer(node, "transA", 0)}
        )
        return _Axes(operand | ({2: output - 2} if len(constant) > 2 else {}), output)
    if node.op_type == "MatMul" and constant[0] != constant[1]:
        return _Axes({1: -1}, rank - 1) if constant[1] else _Axes({0: -2}, rank - 2)
    raise ModelError(f"op {node.name!r} ({node.op_type}) cannot be split: it has not one weight.")


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


def _describe(value: ir.Value, like: ir.Value, axis: int, size: int, name: str) -> None:
    shape = list(_shape(like))
    shape[axis] = size
    value.name, value.type, value.shape = name, like.type, ir.Shape(shape)


def _shape(value: ir.Value) -> tuple[int | ir.SymbolicDim, ...]:
    if value.shape is None:
        raise ModelError(f"tensor {value.name!r} has no known size, so that it cannot be split.")
    return tuple(value.shape)


def _size(value: ir.Value, axis: int) -> int:
    """The size along an axis; 0 if unknown."""
    size = _shape(value)[axis]
    return size if isinstance(size, int) else 0


def _integer(node: ir.Node, name: str, otherwise: int) -> int:
    return node.attributes[name].as_int() if name in node.attributes else otherwise
