"""Walks a model's nodes in order: folds constants, aliases views, and costs the rest."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from go_opt.errors import ModelError
from go_opt.frontends.onnx.inference.contrib import computed_in
from go_opt.frontends.onnx.inference.dims import DimTable
from go_opt.frontends.onnx.inference.file import ModelFile
from go_opt.frontends.onnx.inference.folding import (
    constant_attribute,
    lazy_outputs,
    pick,
    plain_attributes,
    type_of,
)
from go_opt.frontends.onnx.inference.shapes import PartialType, ShapeInference, complete, is_argument, merged
from go_opt.frontends.onnx.inference.values import Shape, Value, make_value
from go_opt.frontends.onnx.nodes import is_alias, is_foldable, is_standard, sharding_rule
from go_opt.frontends.onnx.program import AbsentNode, Program
from go_opt.frontends.onnx.structure import GraphReads, ordered_nodes
from go_opt.frontends.recording.binding import Trips, flags
from go_opt.frontends.recording.recorder import RecordedOp, unknown_op
from go_opt.frontends.recording.views import viewed_steps
from go_opt.model.graph import UnknownOp
from go_opt.model.op_costs import OpSignature, is_view, op_cost

# A relaid or still quantised weight is stored once: its readers take it as it is.
_SAME_WEIGHT_OPS: Final = frozenset({"Transpose", "DequantizeLinear"})


@dataclass(frozen=True)
class Context:
    """What all graphs of one model share."""

    file: ModelFile
    dims: DimTable
    inference: ShapeInference
    trips: Trips
    reads: GraphReads
    checkpoint: Callable[[], None]  # called before each node; raises to end the import
    held: frozenset[str] = frozenset()  # initializers that are states

    @property
    def opset(self) -> int:
        return int(self.inference.versions.get("", 1))


class Scope:
    """One graph of a model (the main one, or the body of a control-flow op)."""

    def __init__(
        self, context: Context, program: Program, *, prefix: str = "", parent: Scope | None = None
    ) -> None:
        self.context = context
        self.program = program
        self.prefix = prefix  # set before names of subgraphs, which need not be unique in a model
        self._parent = parent
        self._values: dict[str, Value] = {}
        self._stated: dict[str, Any] = {}
        self._unread: set[str] = set()
        self.graphs: list[onnx.GraphProto] = []  # the main one to this one

    def lower(self, graph: onnx.GraphProto) -> None:
        """Lower every node; the values of the graph's inputs must be bound."""
        self.graphs = [*(self._parent.graphs if self._parent else ()), graph]
        self._stated = {info.name: info for info in (*graph.output, *graph.value_info)}
        self._add_initializers(graph)
        reads_of = self.context.reads.of_node
        nodes = ordered_nodes(graph, self._visible(), reads_of)
        read = {name for _, node in nodes for name in reads_of(node)}
        read |= {output.name for output in graph.output}
        self._unread = {name for _, node in nodes for name in node.output} - read
        for name, node in nodes:
            self._lower_node(self.prefix + name, node)

    def lookup(self, name: str) -> Value:
        """The value of a name in this graph or one around it."""
        if name in self._values:
            return self._values[name]
        if self._parent is None:
            raise ModelError(f"tensor {name!r} is read, but nothing defines it.")
        return self._parent.lookup(name)

    def bind(self, name: str, value: Value) -> None:
        """Bind a name of this graph to a value."""
        self._values[name] = self.program.values[self.prefix, name] = value

    def alias(self, name: str, source: Value, shape: Shape) -> None:
        """A view of an activation under its own name; a constant is simply shared."""
        places = _trailing(source, shape)
        seen = replace(source, shape=shape, steps=viewed_steps(source.shape, source.steps, shape, places))
        if source.is_constant:
            self.bind(name, seen)
            return
        tensor = self.prefix + name
        self.program.views[tensor] = source.tensor
        self.bind(name, replace(seen, tensor=tensor))

    def constant(self, name: str, elem_type: int, shape: Shape, read: Callable[[], NDArray | None]) -> Value:
        """A weight, or something computed from weights alone."""
        value = make_value(self.prefix + name, elem_type, shape, read=read)
        self.program.constants[value.tensor] = (value.elements, value.dtype)
        self.bind(name, value)
        return value

    def activation(self, name: str, elem_type: int, shape: Shape) -> Value:
        """A tensor that an op produces, or an input."""
        value = make_value(self.prefix + name, elem_type, shape)
        self.bind(name, value)
        return value

    def _visible(self) -> set[str]:
        return set(self._values) | (self._parent._visible() if self._parent else set())

    def _add_initializers(self, graph: onnx.GraphProto) -> None:
        for tensor in graph.initializer:
            value = self._add_tensor(tensor.name, tensor)
            if tensor.name in self.context.held and self._parent is None:
                self.bind(tensor.name, replace(value, is_constant=False))
        for sparse in graph.sparse_initializer:
            self.constant(sparse.values.name, sparse.values.data_type, tuple(sparse.dims), lambda: None)

    def _add_tensor(self, name: str, tensor: onnx.TensorProto) -> Value:
        read = functools.cache(functools.partial(self.context.file.values_of, tensor))
        return self.constant(name, tensor.data_type, tuple(tensor.dims), read)

    def _lower_node(self, name: str, node: onnx.NodeProto) -> None:
        self.context.checkpoint()
        inputs = [self.lookup(read) if read else None for read in node.input]
        op_type = node.op_type if is_standard(node) else ""
        if op_type in ("If", "Loop", "Scan"):
            # The two modules need each other: bodies of control flow are graphs again.
            from go_opt.frontends.onnx.control_flow import lower_control_flow

            lower_control_flow(self, name, node, inputs)
        elif op_type == "Constant":
            self._lower_constant(name, node)
            self._absent(name, "folded", node)
        elif op_type in ("Shape", "Size") and inputs and inputs[0] is not None:
            self._fold_shape(node, inputs[0])
            self._absent(name, "folded", node)
        elif is_foldable(node, inputs):
            self._fold(name, node, inputs)
            self._absent(name, "folded", node)
        else:
            self._lower_op(name, node, inputs)

    def _absent(self, name: str, became: str, node: onnx.NodeProto) -> None:
        values = [self._values[output] for output in node.output if output in self._values]
        self.program.absent.append(AbsentNode(name, became, tuple(value.tensor for value in values)))

    def _lower_constant(self, name: str, node: onnx.NodeProto) -> None:
        attributes = {attribute.name: attribute for attribute in node.attribute}
        if "value" in attributes:
            self._add_tensor(node.output[0], attributes["value"].t)
            return
        if "sparse_value" in attributes:
            sparse = attributes["sparse_value"].sparse_tensor
            self.constant(node.output[0], sparse.values.data_type, tuple(sparse.dims), lambda: None)
            return
        array = constant_attribute(plain_attributes(node))
        if array is None:
            raise ModelError(f"op {name!r} (Constant) has no value.")
        self._constant_array(node.output[0], array)

    def _constant_array(self, name: str, array: NDArray) -> None:
        self.constant(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape, lambda: array)

    def _fold_shape(self, node: onnx.NodeProto, source: Value) -> None:
        attributes = plain_attributes(node)
        sizes = source.shape[attributes.get("start", 0) : attributes.get("end")]
        result = sizes if node.op_type == "Shape" else source.elements
        self._constant_array(node.output[0], np.asarray(result, dtype=np.int64))

    def _fold(self, name: str, node: onnx.NodeProto, inputs: Sequence[Value | None]) -> None:
        """Constants in, constants out: the op vanishes, its outputs are weights."""
        inferred = self.context.inference.outputs(name, node, inputs)
        compute = lazy_outputs(node, inputs, inferred, self.context.opset)
        kinds = self._output_types(name, node, inputs, inferred, known=compute)
        source = next((value for value in inputs if value is not None), None)
        for position, (output, kind) in enumerate(zip(node.output, kinds, strict=True)):
            if kind is None:
                continue
            read = functools.partial(pick, compute, position)
            stays = node.op_type in _SAME_WEIGHT_OPS or (is_view(node.op_type) and position == 0)
            if stays and source is not None:
                checked = make_value(self.prefix + output, *kind, read=read)
                steps = viewed_steps(
                    source.shape, source.steps, checked.shape, _places(node, source, checked.shape)
                )
                self.bind(output, replace(checked, tensor=source.tensor, steps=steps))
            else:
                self.constant(output, *kind, read)

    def _lower_op(self, name: str, node: onnx.NodeProto, inputs: Sequence[Value | None]) -> None:
        kinds = self._output_types(name, node, inputs, self.context.inference.outputs(name, node, inputs))
        if kinds[0] is not None and is_alias(node, inputs, kinds[0][0]):
            self._lower_alias(node, inputs, kinds)
            self._absent(name, "view", node)
            return
        outputs = [
            self.activation(output, *kind)
            for output, kind in zip(node.output, kinds, strict=True)
            if kind is not None
        ]
        if not outputs:
            self._absent(name, "unused", node)
            return
        shapes_in = tuple(None if value is None else value.shape for value in inputs)
        shapes_out = tuple(value.shape for value in outputs)
        rule = sharding_rule(
            node, inputs, [None if kind is None else kind[1] for kind in kinds], self.context.opset
        )
        cost = op_cost(OpSignature(node.op_type, shapes_in, shapes_out, plain_attributes(node)))
        read = [
            (value, touched)
            for value, touched in zip(inputs, cost.touched, strict=True)
            # Arguments such as axes or pads are baked into the kernel.
            if value is not None and not (touched == 0 and value.is_constant)
        ]
        reads = tuple((value.tensor, touched) for value, touched in read)
        unknown = unknown_op(name, node.op_type, cost)
        self.emit(name, node.op_type, cost.op_class, cost.flops, reads, inputs, outputs, unknown)
        op = self.program.ops.pop()
        dtype = computed_in(node.op_type, inputs) or op.dtype
        if rule is not None:
            present = [value for value in inputs if value is not None]
            places = [i for i, value in enumerate(present) if any(value is one for one, _ in read)]
            op = replace(op, rule=(rule.of_operands(places), tuple(present[i].tensor for i in places)))
        self.program.ops.append(replace(op, dtype=dtype))

    def _lower_alias(
        self, node: onnx.NodeProto, inputs: Sequence[Value | None], kinds: Sequence[tuple[int, Shape] | None]
    ) -> None:
        if inputs[0] is not None and kinds[0] is not None:
            self.alias(node.output[0], inputs[0], kinds[0][1])
        # The mask of a Dropout at inference: all True.
        for output, kind in list(zip(node.output, kinds, strict=True))[1:]:
            if kind is not None:
                self.constant(output, *kind, lambda: None)

    def emit(
        self,
        name: str,
        op_type: str,
        op_class: str,
        flops: float,
        reads: tuple[tuple[str, int | None], ...],
        inputs: Sequence[Value | None],
        outputs: Sequence[Value],
        unknown: tuple[UnknownOp, ...] = (),
    ) -> None:
        """Add an op that computes in its first floating type, of the outputs first."""
        dtypes = [value.dtype for value in (*outputs, *inputs) if value is not None]
        dtype = next((name for name in dtypes if "float" in name), dtypes[0])
        writes = tuple((value.tensor, value.elements, value.dtype) for value in outputs)
        self.program.ops.append(
            RecordedOp(name, op_type, op_class, flops, dtype, reads, writes, unknown=unknown)
        )
        baked = [value.tensor for value in inputs if value is not None and value.is_constant]
        for tensor in (*baked, *(tensor for tensor, _ in reads)):
            self.program.readers.setdefault(tensor, set()).add(name)

    def _output_types(
        self,
        name: str,
        node: onnx.NodeProto,
        inputs: Sequence[Value | None],
        inferred: Mapping[str, PartialType],
        known: Callable[[], Sequence[NDArray | None] | None] | None = None,
    ) -> list[tuple[int, Shape] | None]:
        """Type and shape of each output; None for unknown ones that nothing reads."""
        kinds: list[tuple[int, Shape] | None] = []
        for position, output in enumerate(node.output):
            kind = complete(merged(inferred.get(output, (0, None)), self._stated_type(output)))
            if kind is None and known is not None:
                kind = type_of((known() or [None] * len(node.output))[position])
            if kind is None and output and output not in self._unread:
                raise ModelError(self._unknown_shape(name, node, inputs))
            kinds.append(kind if output else None)
        return kinds

    def _stated_type(self, output: str) -> PartialType:
        info = self._stated.get(output)
        if info is None:
            return 0, None
        return info.type.tensor_type.elem_type, self.context.dims.resolve(info)

    def _unknown_shape(self, name: str, node: onnx.NodeProto, inputs: Sequence[Value | None]) -> str:
        domain = "" if is_standard(node) else node.domain
        label = f"op {name!r} ({domain}{'.' if domain else ''}{node.op_type})"
        if self.context.inference.schema(domain, node.op_type) is None:
            return f"{label} has no known output shape: no rule has it and value_info does not say."
        for value in inputs:
            if value is not None and is_argument(value) and value.read() is None:
                return f"{label} needs the values of {value.tensor!r}, which the model file does not hold."
        open_dims = [name for output in node.output for name in self._open_dims(output)]
        if open_dims:
            return f"{label} has an output of unknown size: use `{flags(open_dims)}`."
        return f"{label} has no known output shape: it depends on values known only at run time."

    def _open_dims(self, output: str) -> list[str]:
        info = self._stated.get(output)
        return [] if info is None else self.context.dims.unbound(info)


def _trailing(source: Value, shape: Shape) -> Sequence[int] | None:
    """Where the axes of a value are in its broadcast; None for other views."""
    is_broadcast = math.prod(shape) != source.elements
    return range(len(shape) - len(source.shape), len(shape)) if is_broadcast else None


def _places(node: onnx.NodeProto, source: Value, shape: Shape) -> Sequence[int] | None:
    """Where the axes of a constant are behind a node that leaves its elements as they are."""
    if node.op_type != "Transpose":
        return _trailing(source, shape)
    order = list(plain_attributes(node).get("perm", range(len(shape))[::-1]))
    return [order.index(axis) for axis in range(len(order))]
