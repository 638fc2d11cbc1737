"""Row splits as nodes of the model: slices, parts with their own padding, and joins."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import onnx_ir as ir

from go_opt.env.copies.part_names import part_name
from go_opt.env.copies.row_parts import Span
from go_opt.errors import ModelError
from go_opt.model.axes import WINDOWED, Window, row_axis, row_shapes, row_windows
from go_opt.model.graph import Graph
from go_opt.model.plan import Split
from go_opt.run.cut.reads import Reads
from go_opt.run.cut.slices import Slices, sizes_of, take_node, tensor_name, view_node
from go_opt.run.manifest import OutputPart


def split_rows(
    nodes: ir.Graph, graph: Graph, planned: Graph, splits: Sequence[Split], spans: Mapping[str, Span]
) -> dict[str, OutputPart]:
    """Replace split ops in ``nodes`` by their parts, under the names of ``planned``.

    Args:
      graph: the graph of the unsplit model.
      planned: the graph with the parts.
      splits: the row splits.
      spans: the rows of a tensor of ``graph`` that a tensor of ``planned`` contains.

    Returns:
      outputs of the model that stay in parts, by name.

    Raises:
      ModelError: an op cannot be split by rows; the message names it.
    """
    maker = _Maker(nodes, graph, spans)
    part_of = {part_name(one.op, i, one.parts): one.op for one in splits for i in range(one.parts)}
    joins = {one.op for one in splits} & planned.op_index.keys()
    new: list[ir.Node] = []
    for name, written, reads in _ops(planned):
        if name in part_of:
            new += maker.part(part_of[name], name, written, reads)
        elif name in joins or name in spans:
            new.append(maker.move(name, written, reads))
        if name in part_of or name in joins:  # what an op takes of others stands before it
            nodes.insert_before(maker.reads.op_node[part_of.get(name, name)], new)
            new = []
    outputs: dict[str, OutputPart] = {}
    for one in splits:
        outputs |= maker.replace(one, one.op in joins)
    maker.remove(splits, joins)
    return outputs


def _ops(graph: Graph) -> Iterator[tuple[str, str, list[str]]]:
    """Name, first tensor written and tensors read of each op."""
    (read_ptr, by_op), (write_ptr, written) = graph.op_reads, graph.op_outputs
    for op, name in enumerate(graph.op_names):
        tensors = graph.reader_tensor[by_op[read_ptr[op] : read_ptr[op + 1]]].tolist()
        yield name, graph.tensor_names[written[write_ptr[op]]], [graph.tensor_names[k] for k in tensors]


class _Maker:
    """Makes nodes of one model; ``values`` are the tensors that the split graph names."""

    def __init__(self, nodes: ir.Graph, graph: Graph, spans: Mapping[str, Span]) -> None:
        self._nodes, self._graph, self._spans = nodes, graph, spans
        self.reads = Reads(nodes, graph.op_index)
        self._slices = Slices(nodes)
        self._without_op = [node for node in nodes if node.name not in graph.op_index]
        self._values = {str(value.name): value for value in (*nodes.inputs, *self.reads.written.values())}

    def part(self, op: str, name: str, written: str, reads: Sequence[str]) -> list[ir.Node]:
        """A part of an op behind its views: the same node on some rows, with padding at the outer edges."""
        node = self.reads.op_node[op]
        rows = {self._spans[read].tensor: read for read in reads if read in self._spans}
        views: list[ir.Node] = []
        inputs = [
            self._rows_of(value, rows, f"{name}/view {i}", views) for i, value in enumerate(node.inputs)
        ]
        part = ir.node(node.op_type, inputs, overload=node.overload, domain=node.domain, name=name)
        for attr in node.attributes.values():
            part.attributes.add(attr)
        if node.op_type in WINDOWED and self._axis(self._spans[written].tensor) > 0:  # not images of a batch
            windows = row_windows(self._graph)[self._graph.op_index[op]]
            self._pad(node, part, next(iter(windows.values())), self._spans[written])
        return [*views, self._named(part, written, node.outputs[0])]

    def move(self, name: str, written: str, reads: Sequence[str]) -> ir.Node:
        """A slice of one tensor's rows, or the concatenated rows of several."""
        sources = sorted(reads, key=lambda read: self._spans[read].start if read in self._spans else 0)
        values = [self._values[read] for read in sources]
        axis = self._axis(self._spans[written].tensor if written in self._spans else written)
        if len(sources) > 1:
            like = self.reads.op_node[name].outputs[0] if name in self.reads.op_node else values[0]
            return self._named(ir.node("Concat", values, {"axis": axis}, name=name), written, like)
        _, start, stop = self._spans[written]
        before = self._spans[sources[0]].start if sources[0] in self._spans else 0
        take = take_node(self._nodes, values[0], axis, (start - before, stop - before), name)
        return self._named(take, written, values[0])

    def replace(self, split: Split, is_joined: bool) -> dict[str, OutputPart]:
        """Redirect the readers of an op to the joined tensor, or the host to the parts."""
        node = self.reads.op_node[split.op]
        whole, outputs = node.outputs[0], {}
        if is_joined:
            whole.replace_all_uses_with(self._values[str(whole.name)], replace_graph_outputs=True)
        elif whole in (shown := list(self._nodes.outputs)):
            names = [part_name(str(whole.name), i, split.parts) for i in range(split.parts)]
            at, axis = shown.index(whole), self._axis(str(whole.name))
            self._nodes.outputs[at : at + 1] = [self._values[name] for name in names]
            outputs = {name: OutputPart(str(whole.name), axis, *self._spans[name][1:]) for name in names}
        return outputs

    def remove(self, splits: Sequence[Split], joins: Collection[str]) -> None:
        """Remove ops that are no longer read, their views, and nodes that became dead."""
        gone = {self.reads.op_node[split.op] for split in splits if split.op not in joins}
        for node in self._without_op:
            if gone & {value.producer() for value in self.reads.of_node(node)}:
                gone.add(node)
        gone |= {self.reads.op_node[split.op] for split in splits}
        self._nodes.remove(gone)

    def _rows_of(
        self, value: ir.Value | None, rows: Mapping[str, str], name: str, views: list[ir.Node]
    ) -> ir.Value | None:
        """The rows of an input that a part reads, seen as the input is; a new view goes to ``views``."""
        if value is None:
            return None
        bases = self.reads.bases_of([value])
        tensor = str(bases[0].name) if len(bases) == 1 else "" if bases else tensor_name(value, rows)
        if tensor not in rows:
            return value
        span, sizes = self._spans[rows[tensor]], sizes_of(value)
        axis = row_axis(tuple(sizes), row_shapes(self._graph)[self._graph.tensor_index[tensor]])
        assert axis is not None, "rows are an axis of every view."
        if not bases:
            return self._slices.of(value, axis, span.start, span.stop, rows[tensor])
        part = self._values[rows[tensor]]
        sizes[axis] = span.stop - span.start
        if sizes_of(part) == sizes:
            return part
        view = view_node(self._nodes, part, sizes, name)
        views.append(view)
        return view.outputs[0]

    def _axis(self, tensor: str) -> int:
        """The axis of a tensor of the graph along which its rows lie."""
        axis = row_axis(
            tuple(sizes_of(self._values[tensor])), row_shapes(self._graph)[self._graph.tensor_index[tensor]]
        )
        assert axis is not None, "rows are an axis of every view."
        return axis

    def _named(self, node: ir.Node, tensor: str, like: ir.Value) -> ir.Node:
        """The node with a name, type and shape for its output: of the whole tensor except for the rows."""
        (output,), sizes = node.outputs, sizes_of(like)
        if tensor in self._spans:
            whole, start, stop = self._spans[tensor]
            sizes = sizes_of(self._values[whole])
            sizes[self._axis(whole)] = stop - start
        output.name, output.type, output.shape = tensor, like.type, ir.Shape(sizes)
        self._values[tensor] = output
        return node

    def _pad(self, node: ir.Node, part: ir.Node, window: Window, span: Span) -> None:
        """Set padding: along rows only at the edges of the whole input, along other axes unchanged."""
        image = node.inputs[0]
        assert image is not None
        sizes, results = sizes_of(image)[2:], sizes_of(node.outputs[0])[2:]
        count = _integers(node, "count_include_pad", [0])[0]
        if node.op_type == "AveragePool" and count and _integers(node, "ceil_mode", [0])[0]:
            raise ModelError(f"op {node.name!r} cannot be split by rows: it counts padding and rounds up.")
        before, after = _padding(node, sizes, results)
        first = span.start * window.stride - window.before
        last = first + (span.stop - 1 - span.start) * window.stride + window.size
        before[-2], after[-2] = max(0, -first), max(0, last - sizes[-2])
        part.attributes.pop("auto_pad", None)
        part.attributes["pads"] = ir.AttrInt64s("pads", [*before, *after])


def _padding(node: ir.Node, sizes: Sequence[int], results: Sequence[int]) -> tuple[list[int], list[int]]:
    """Padding before and after, along each axis of an image."""
    axes = len(sizes)
    automatic = node.attributes["auto_pad"].as_string() if "auto_pad" in node.attributes else "NOTSET"
    if automatic in ("NOTSET", "VALID"):
        pads = _integers(node, "pads", [0] * 2 * axes) if automatic == "NOTSET" else [0] * 2 * axes
        return pads[:axes], pads[axes:]
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    kernel = _integers(node, "kernel_shape", [] if weight is None else sizes_of(weight)[2:])
    strides, dilations = (_integers(node, name, [1] * axes) for name in ("strides", "dilations"))
    rows = zip(sizes, results, kernel, strides, dilations, strict=True)
    missing = [max(0, (out - 1) * s + (k - 1) * d + 1 - size) for size, out, k, s, d in rows]
    less, more = [pad // 2 for pad in missing], [(pad + 1) // 2 for pad in missing]
    return (less, more) if automatic == "SAME_UPPER" else (more, less)


def _integers(node: ir.Node, name: str, otherwise: Sequence[int]) -> list[int]:
    if name not in node.attributes:
        return list(otherwise)
    attr = node.attributes[name]
    return [attr.as_int()] if attr.type == ir.AttributeType.INT else list(attr.as_ints())
