"""Splits by columns, heads and the inner dimension as nodes of the model: slices, parts, joins and sums."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Final

import onnx_ir as ir

from go_opt.env.copies.column_parts import SUM
from go_opt.env.copies.columns import Columns, Inner, held_columns, inner_of, split_sizes
from go_opt.env.copies.part_names import inner_name, part_name, sum_name
from go_opt.errors import ModelError
from go_opt.model.graph import Graph
from go_opt.model.plan import Split
from go_opt.run.cut.axes import column_axes, inner_axes, shape_of, size_along
from go_opt.run.cut.reads import Reads
from go_opt.run.cut.slices import Slices, sizes_of, take_node, tensor_name, view_node
from go_opt.run.manifest import OutputPart

_GEMM_WITHOUT_BIAS: Final = 11  # operator set


def split_nodes(model: ir.Model, graph: Graph, splits: Sequence[Split]) -> dict[str, OutputPart]:
    """Replace ops by their parts, other than by rows, under the names of the split graph.

    Args:
      graph: the graph of the unsplit model.

    Returns:
      outputs of the model that stay in parts, by name.

    Raises:
      ModelError: an op cannot be split; the message names it.
    """
    maker = _Maker(model.graph, graph)
    by_op = {graph.op_index[split.op]: split for split in splits if split.kind != "rows"}
    columns = held_columns(graph, by_op)
    for op, split in sorted(by_op.items()):
        if op not in columns:
            inner = inner_of(graph, op)
            assert inner is not None, "the plan's graph was made."
            maker.split_sums(split, inner)
        elif columns[op].activations:
            maker.pass_columns(split, columns[op])
        else:
            maker.split_columns(split, columns[op])
    maker.remove_held()
    return maker.outputs


class _Maker:
    """Makes nodes of one model; ``outputs`` are those that stay in parts."""

    def __init__(self, nodes: ir.Graph, graph: Graph) -> None:
        self._nodes, self._graph = nodes, graph
        self._reads, self._slices = Reads(nodes, graph.op_index), Slices(nodes)
        self._held: dict[ir.Value, list[ir.Value]] = {}  # an output that is not joined -> its parts
        self._taken: dict[str, ir.Value] = {}  # slices of activations
        self.outputs: dict[str, OutputPart] = {}

    def split_columns(self, split: Split, columns: Columns) -> None:
        """Replace a product by parts that have some of its columns."""
        node = self._reads.op_node[split.op]
        axes = column_axes(node, self._reads)
        number = size_along(node.outputs[0], axes.output)
        sizes = split_sizes(number, split.parts) if number else []
        if [size * columns.number for size in sizes] != [
            size * number for size in split_sizes(columns.number, split.parts)
        ]:
            raise ModelError(f"op {split.op!r} cannot be split into {split.parts}: it has {number} columns.")
        weights = [self._graph.tensor_names[k] for k in columns.weights]
        names = {
            place: tensor_name(value, weights)
            for place, axis in axes.operands.items()
            if (value := node.inputs[place]) is not None and self._slices.size(value, axis) == number
        }
        parts = []
        for i, bounds in enumerate(_bounds(sizes)):
            inputs = list(node.inputs)
            for place in self._in_order(names):
                name = part_name(names[place], i, split.parts)
                inputs[place] = self._sliced(inputs[place], axes.operands[place], bounds, name)
            parts.append(_part(node, inputs, split, i, (axes.output, sizes[i])))
        self._replace(node, parts, split, axes.output)

    def pass_columns(self, split: Split, columns: Columns) -> None:
        """Replace an op, of which operands are in parts, by parts that have some columns or heads."""
        node, sizes = self._reads.op_node[split.op], split_sizes(columns.number, split.parts)
        behind = {self._graph.tensor_names[k]: each for k, each in columns.behind.items()}
        axis = self._column_axis(node, node.outputs[0], columns.run(columns.output), columns.number)
        weights = [self._graph.tensor_names[k] for k in columns.weights]
        places = {
            place: tensor_name(value, weights)
            for place, value in enumerate(node.inputs)
            if value is not None and not self._reads.bases_of([value])
        }
        sliced = {place: name for place, name in places.items() if name in weights}
        views: list[ir.Node] = []
        parts = []
        for i, bounds in enumerate(_bounds(sizes)):
            inputs = [
                value if value is None else self._part_of(node, value, i, columns.number, views, behind)[0]
                for value in node.inputs
            ]
            for place in self._in_order(sliced):
                name, weight = part_name(sliced[place], i, split.parts), node.inputs[place]
                assert weight is not None
                run = columns.number * behind.get(sliced[place], 1)
                along = self._column_axis(node, weight, run, columns.number) if behind else -1
                inputs[place] = self._sliced(weight, along, bounds, name)
            parts.append(_part(node, inputs, split, i, (axis, sizes[i])))
        self._nodes.insert_before(node, views)
        self._replace(node, parts, split, axis)

    def split_sums(self, split: Split, inner: Inner) -> None:
        """Replace a product by parts that multiply slices of both operands, and the sums of their results."""
        node, whole = self._reads.op_node[split.op], self._reads.op_node[split.op].outputs[0]
        at, axis, other = inner_axes(node, self._reads)
        weight, activation = node.inputs[at], node.inputs[1 - at]
        assert weight is not None
        assert activation is not None
        other %= len(sizes_of(activation))
        if (self._slices.size(weight, axis), sizes_of(activation)[other]) != (inner.number, inner.number):
            raise ModelError(f"op {split.op!r} cannot be split: its sums have not {inner.number} terms.")
        if node.op_type == "Gemm" and self._nodes.opset_imports[""] < _GEMM_WITHOUT_BIAS:
            problem = f"before operator set {_GEMM_WITHOUT_BIAS} a Gemm has a bias"
            raise ModelError(f"op {split.op!r} cannot be split by the inner dimension: {problem}.")
        result: ir.Value | None = None
        for i, bounds in enumerate(_bounds(split_sizes(inner.number, split.parts))):
            new: list[ir.Node] = []
            taken, along = self._part_of(node, activation, i, inner.number, new)
            if taken is activation:
                name = inner_name(self._graph.tensor_names[inner.activation], i, split.parts)
                taken, along = self._take(node, activation, other, bounds, name, new), other
            if along != other:
                raise ModelError(f"op {split.op!r} cannot be split: its sums do not run along the columns.")
            name = inner_name(self._graph.tensor_names[inner.weight], i, split.parts)
            inputs = [*node.inputs[: 2 if i else None]]
            inputs[at], inputs[1 - at] = self._sliced(weight, axis, bounds, name), taken
            part = _part(node, inputs, split, i)
            self._nodes.insert_before(node, [*new, part])
            if result is None:
                result = part.outputs[0]
                continue
            is_last = i == split.parts - 1
            sums = ir.node(SUM, [result, part.outputs[0]], name=sum_name(split.op, i, split.parts))
            result = sums.outputs[0]
            _describe(result, whole, sum_name(str(whole.name), i, split.parts))
            if is_last:
                sums.name, result.name = split.op, whole.name
                whole.replace_all_uses_with(result, replace_graph_outputs=True)
            self._nodes.insert_before(node, sums)
        self._nodes.remove(node, safe=True)

    def remove_held(self) -> None:
        """Remove the ops that are not joined, and the views of what they wrote."""
        gone = {value.producer() for value in self._held}
        for node in self._nodes:
            if node.name not in self._graph.op_index and gone & {
                value.producer() for value in node.inputs if value
            }:
                gone.add(node)
        self._nodes.remove([node for node in gone if node is not None])

    def _replace(self, node: ir.Node, parts: Sequence[ir.Node], split: Split, axis: int) -> None:
        """Insert parts, and what joins them, in place of a node."""
        whole, results = node.outputs[0], [part.outputs[0] for part in parts]
        self._nodes.insert_before(node, parts)
        if split.joined:
            join = ir.node("Concat", results, {"axis": axis}, name=split.op)
            _describe(join.outputs[0], whole, str(whole.name))
            whole.replace_all_uses_with(join.outputs[0], replace_graph_outputs=True)
            self._nodes.insert_before(node, join)
            self._nodes.remove(node, safe=True)
            return
        self._held[whole] = results
        if whole in (shown := list(self._nodes.outputs)):
            at = shown.index(whole)
            self._nodes.outputs[at : at + 1] = results
            bounds = _bounds([size_along(result, axis) for result in results])
            for result, bound in zip(results, bounds, strict=True):
                self.outputs[str(result.name)] = OutputPart(str(whole.name), axis, *bound)

    def _part_of(
        self,
        node: ir.Node,
        value: ir.Value,
        part: int,
        number: int,
        views: list[ir.Node],
        behind: Mapping[str, int] = MappingProxyType({}),
    ) -> tuple[ir.Value, int]:
        """A part of an operand that is in parts, seen as the operand is, and the axis along which it is."""
        bases = self._reads.bases_of([value])
        if len(bases) != 1 or bases[0] not in self._held:
            return value, 0
        found, sizes = self._held[bases[0]][part], sizes_of(value)
        axis = self._column_axis(node, value, number * behind.get(str(bases[0].name), 1), number)
        sizes[axis] = math.prod(sizes_of(found)) * number // math.prod(sizes)
        if sizes_of(found) == sizes:
            return found, axis
        views.append(view_node(self._nodes, found, sizes, f"{node.name}/view {part} of {value.name}"))
        return views[-1].outputs[0], axis

    def _column_axis(self, node: ir.Node, value: ir.Value, run: int, number: int) -> int:
        """The axis of a view along which ``number`` columns or heads lie, in all a run of elements."""
        sizes = sizes_of(value)
        rows = math.prod(sizes) // run
        before = accumulate(sizes, lambda a, b: a * b, initial=1)
        places = [i for i, count in enumerate(before) if count == rows and sizes[i : i + 1] == [number]]
        if not places:
            raise ModelError(f"op {node.name!r} cannot be split: it sees its columns as several axes.")
        return places[-1]

    def _take(
        self,
        node: ir.Node,
        value: ir.Value,
        axis: int,
        bounds: tuple[int, int],
        name: str,
        new: list[ir.Node],
    ) -> ir.Value:
        """A slice of an activation, once for all ops that read it."""
        if name not in self._taken:
            sizes = sizes_of(value)
            take = take_node(self._nodes, value, axis, bounds, name)
            sizes[axis] = bounds[1] - bounds[0]
            take.outputs[0].type, take.outputs[0].shape = value.type, ir.Shape(sizes)
            take.outputs[0].name = name
            self._taken[name] = take.outputs[0]
            new.append(take)
        taken = self._taken[name].producer()
        if taken is None or taken.inputs[0] is not value:
            raise ModelError(f"op {node.name!r} cannot be split: another op takes slices of another view.")
        return self._taken[name]

    def _sliced(self, value: ir.Value | None, axis: int, bounds: tuple[int, int], name: str) -> ir.Value:
        assert value is not None
        return self._slices.of(value, axis, *bounds, name)

    def _in_order(self, names: Mapping[int, str]) -> list[int]:
        """Places of operands; slices are made in the order of the graph."""
        return sorted(names, key=lambda place: self._graph.tensor_index.get(names[place], -1))


def _bounds(sizes: Sequence[int]) -> list[tuple[int, int]]:
    return list(pairwise([0, *accumulate(sizes)]))


def _part(
    node: ir.Node,
    inputs: Sequence[ir.Value | None],
    split: Split,
    i: int,
    along: tuple[int, int] | None = None,
) -> ir.Node:
    """A copy of a node for a part, with another size along an axis."""
    name = part_name(split.op, i, split.parts)
    part = ir.node(node.op_type, inputs, overload=node.overload, domain=node.domain, name=name)
    for attr in node.attributes.values():
        part.attributes.add(attr)
    whole = node.outputs[0]
    _describe(part.outputs[0], whole, part_name(str(whole.name), i, split.parts), along)
    return part


def _describe(value: ir.Value, like: ir.Value, name: str, along: tuple[int, int] | None = None) -> None:
    """Name a value, with the type and shape of another, except for the size along an axis."""
    shape = list(shape_of(like))
    if along is not None:
        shape[along[0]] = along[1]
    value.name, value.type, value.shape = name, like.type, ir.Shape(shape)
