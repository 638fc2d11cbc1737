"""Walks a model's nodes in order: folds constants, sees through views, and costs the rest.

If, Loop and Scan are one op that costs its body; an If with a constant condition is inlined.
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from go_opt.errors import ModelError
from go_opt.frontends.onnx.inference.contrib import computed_in
from go_opt.frontends.onnx.inference.dims import DimTable
from go_opt.frontends.onnx.inference.file import ModelFile
from go_opt.frontends.onnx.inference.shapes import (
    PartialType,
    ShapeInference,
    complete,
    constant_attribute,
    is_argument,
    lazy_outputs,
    merged,
    pick,
    plain_attributes,
    type_of,
)
from go_opt.frontends.onnx.inference.values import Shape, Value, make_value
from go_opt.frontends.onnx.program import (
    AbsentNode,
    Program,
    is_alias,
    is_foldable,
    is_standard,
    rule_attributes,
)
from go_opt.frontends.onnx.structure import GraphReads, body_prefix, inputs_behind, ordered_nodes
from go_opt.frontends.recording.binding import Trips, flags
from go_opt.frontends.recording.recorder import Body
from go_opt.model.graph import UnknownOp
from go_opt.model.op_costs import OpCost, OpSignature, is_view, op_cost
from go_opt.model.rules.views import trailing, viewed_steps

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
        """Another view of a tensor."""
        steps = viewed_steps(source.shape, source.steps, shape, trailing(source.shape, shape))
        self.bind(name, replace(source, shape=shape, steps=steps))

    def constant(self, name: str, elem_type: int, shape: Shape, read: Callable[[], NDArray | None]) -> Value:
        """A weight, or something computed from weights alone."""
        value = make_value(self.prefix + name, elem_type, shape, read=read)
        self.program.sources[value.tensor] = (value.elements, value.dtype, "weight")
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
        if op_type in _CONTROL_FLOW:
            _CONTROL_FLOW[op_type](self, name, node, inputs)
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
        cost = op_cost(OpSignature(node.op_type, shapes_in, shapes_out, plain_attributes(node)))
        reads = [
            (value.tensor, touched)
            for value, touched in zip(inputs, cost.touched, strict=True)
            # Arguments such as axes or pads are baked into the kernel.
            if value is not None and not (touched == 0 and value.is_constant)
        ]
        self.emit(name, node.op_type, cost, reads, inputs, outputs, dtype=computed_in(node.op_type, inputs))
        shapes = [None if kind is None else kind[1] for kind in kinds]
        attributes = rule_attributes(node, inputs, shapes, self.context.opset)
        if attributes is not None:
            self.program.set_rule(node.op_type, attributes, inputs, shapes_out)

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
        cost: OpCost,
        reads: Iterable[tuple[str, int | None]],
        inputs: Sequence[Value | None],
        outputs: Sequence[Value],
        unknown: tuple[UnknownOp, ...] = (),
        dtype: str | None = None,
    ) -> None:
        """Add an op; without a type it computes in its first floating one, of the outputs first."""
        dtypes = [value.dtype for value in (*outputs, *inputs) if value is not None]
        dtype = dtype or next((name for name in dtypes if "float" in name), dtypes[0])
        self.program.record(name, op_type, cost, dtype, reads, outputs, unknown)
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
            info = self._stated.get(output)
            stated: PartialType = (0, None)
            if info is not None:
                stated = info.type.tensor_type.elem_type, self.context.dims.resolve(info)
            kind = complete(merged(inferred.get(output, (0, None)), stated))
            if kind is None and known is not None:
                kind = type_of((known() or [None] * len(node.output))[position])
            if kind is None and output and output not in self._unread:
                raise ModelError(self._unknown_shape(name, node, inputs))
            kinds.append(kind if output else None)
        return kinds

    def _unknown_shape(self, name: str, node: onnx.NodeProto, inputs: Sequence[Value | None]) -> str:
        domain = "" if is_standard(node) else node.domain
        label = f"op {name!r} ({domain}{'.' if domain else ''}{node.op_type})"
        if self.context.inference.schema(domain, node.op_type) is None:
            return f"{label} has no known output shape: no rule has it and value_info does not say."
        for value in inputs:
            if value is not None and is_argument(value) and value.read() is None:
                return f"{label} needs the values of {value.tensor!r}, which the model file does not hold."
        infos = [self._stated[output] for output in node.output if output in self._stated]
        open_dims = [name for info in infos for name in self.context.dims.unbound(info)]
        if open_dims:
            return f"{label} has an output of unknown size: use `{flags(open_dims)}`."
        return f"{label} has no known output shape: it depends on values known only at run time."


def _places(node: onnx.NodeProto, source: Value, shape: Shape) -> Sequence[int] | None:
    """Where the axes of a constant are behind a node that leaves its elements as they are."""
    if node.op_type != "Transpose":
        return trailing(source.shape, shape)
    order = list(plain_attributes(node).get("perm", range(len(shape))[::-1]))
    return [order.index(axis) for axis in range(len(order))]


def _lower_if(scope: Scope, name: str, node: onnx.NodeProto, inputs: Sequence[Value | None]) -> None:
    condition = _required(name, node, inputs, 0)
    branches = (_graph(name, node, "else_branch"), _graph(name, node, "then_branch"))
    known = condition.read()
    if known is not None and known.size == 1:
        _inline(scope, name, node, branches[int(bool(known.reshape(())))])
        return
    try:
        bodies = [_lower_body(scope, name, f"{i}/", branch, {}) for i, branch in enumerate(branches)]
    except ModelError as error:
        deciding = inputs_behind(node.input[0], scope.graphs)
        options = " ".join(f"--value {shlex.quote(one)}=NUMBER" for one in deciding)
        hint = f": use `{options}`" if options else ""
        raise ModelError(
            f"{str(error).rstrip('.')}, in a branch of op {name!r} (If) whose condition is not known{hint}."
        ) from error
    dearer, results = max(bodies, key=lambda body: body[0].cost.flops)
    reads: dict[str, int | None] = {condition.tensor: None}
    for body, _ in bodies:
        for tensor, touched in body.reads:
            before = reads.get(tensor, 0)
            reads[tensor] = None if touched is None or before is None else max(touched, before)
    outputs = [
        scope.activation(output, value.elem_type, value.shape)
        for output, value in zip(node.output, results, strict=True)
    ]
    unknown = tuple(row for body, _ in bodies for row in body.unknown)
    scope.emit(name, "If", dearer.cost, reads.items(), inputs, outputs, unknown)


def _inline(scope: Scope, name: str, node: onnx.NodeProto, branch: onnx.GraphProto) -> None:
    inner = Scope(scope.context, scope.program, prefix=_prefix(scope, name), parent=scope)
    inner.lower(branch)
    scope.program.absent.append(AbsentNode(name, "inlined"))
    for output, result in zip(node.output, branch.output, strict=True):
        value = inner.lookup(result.name)
        scope.alias(output, value, value.shape)


def _lower_loop(scope: Scope, name: str, node: onnx.NodeProto, inputs: Sequence[Value | None]) -> None:
    """State goes in and out; the other outputs of the body are stacked over the trips."""
    trips = _trip_count(scope, name, inputs)
    state = [_required(name, node, inputs, i) for i in range(2, len(inputs))]
    counts = [(TensorProto.INT64, ()), (TensorProto.BOOL, ())]
    _repeat(scope, name, node, inputs, counts, state, [], trips)


def _lower_scan(scope: Scope, name: str, node: onnx.NodeProto, inputs: Sequence[Value | None]) -> None:
    """The last inputs are read slice by slice, and the last outputs are written slice by slice."""
    if scope.context.opset < 9:
        raise ModelError(f"op {name!r} (Scan) is of opset 8, whose batched form is not supported.")
    attributes = plain_attributes(node)
    scanned = int(attributes.get("num_scan_inputs", 1))
    values = [_required(name, node, inputs, i) for i in range(len(inputs))]
    states = len(values) - scanned
    if scanned < 1 or states < 0:
        raise ModelError(f"op {name!r} (Scan) scans {scanned} of {len(values)} inputs.")
    slices, trips = list[tuple[int, Shape]](), 0
    for value, axis in zip(values[states:], attributes.get("scan_input_axes", [0] * scanned), strict=True):
        shape = list(value.shape)
        if not -len(shape) <= axis < len(shape):
            raise ModelError(f"op {name!r} (Scan) scans axis {axis} of a tensor of rank {len(shape)}.")
        size = shape.pop(axis)
        trips = trips if slices else size
        slices.append((value.elem_type, tuple(shape)))
    axes = attributes.get("scan_output_axes")
    _repeat(scope, name, node, values, [], values[:states], slices, trips, axes)


def _repeat(
    scope: Scope,
    name: str,
    node: onnx.NodeProto,
    inputs: Sequence[Value | None],
    counts: Sequence[tuple[int, Shape]],
    state: Sequence[Value],
    slices: Sequence[tuple[int, Shape]],
    trips: int,
    axes: Sequence[int] | None = None,
) -> None:
    """Emit one op that costs the body times the trips.

    Args:
      counts, state, slices: what the body takes, with the types of counts, which a Loop has, and of slices.
      axes: of the outputs along which the results of trips lie; the first ones by default.
    """
    kinds = [*counts, *((value.elem_type, value.shape) for value in state), *slices]
    graph = _graph(name, node, "body")
    if len(graph.input) != len(kinds):
        raise ModelError(f"op {name!r}: its body takes {len(graph.input)} inputs, not {len(kinds)}.")
    formals = {info.name: kind for info, kind in zip(graph.input, kinds, strict=True)}
    body, results = _lower_body(scope, name, "", graph, formals)
    results = results[1:] if counts else results  # a Loop's condition comes first
    for old, new in zip(state, results[: len(state)], strict=True):
        if old.shape != new.shape:
            raise ModelError(
                f"op {name!r} ({node.op_type}) changes the shape of its state"
                f" from {list(old.shape)} to {list(new.shape)}."
            )
    shapes = [value.shape for value in results]
    stacked = range(len(state), len(results))
    for i, axis in zip(stacked, [0] * len(stacked) if axes is None else axes, strict=True):
        place = axis % (len(shapes[i]) + 1)
        shapes[i] = (*shapes[i][:place], trips, *shapes[i][place:])
    reads = {tensor: None if touched is None else touched * trips for tensor, touched in body.reads}
    read = (value for value in inputs if value is not None)
    # A known trip count or start condition is read by no kernel.
    reads |= {
        one.tensor: None for one in read if not (counts and one.is_constant and one.shape in ((), (1,)))
    }
    outputs = [
        scope.activation(output, value.elem_type, shape)
        for output, value, shape in zip(node.output, results, shapes, strict=True)
        if output
    ]
    cost = replace(body.cost, flops=body.cost.flops * trips)
    unknown = tuple(row._replace(flops=row.flops * trips) for row in body.unknown)
    scope.emit(name, node.op_type, cost, reads.items(), inputs, outputs, unknown)


def _lower_body(
    scope: Scope, name: str, branch: str, graph: onnx.GraphProto, formals: Mapping[str, tuple[int, Shape]]
) -> tuple[Body, tuple[Value, ...]]:
    """Lower a body of the op ``name`` into a separate program, whose ops are summed up, not kept.

    Reads are of tensors around the body, with the elements touched in one trip. Outputs are returned as well.

    Args:
      branch: tells the names of one of several bodies from those of the others.
    """
    inner = Scope(scope.context, Program(), prefix=_prefix(scope, name) + branch, parent=scope)
    own = {inner.activation(formal, *kind).tensor for formal, kind in formals.items()}
    inner.lower(graph)
    outputs = tuple(inner.lookup(output.name) for output in graph.output)
    scope.program.add_part(inner.program, name)
    body = Body.of(inner.program.ops, [(value.tensor, None) for value in outputs])
    reads: dict[str, int | None] = {}
    for tensor, touched in body.reads:
        if tensor not in own:
            before = reads.get(tensor, 0)
            reads[tensor] = None if touched is None or before is None else before + touched
    return body._replace(reads=list(reads.items())), outputs


def _prefix(scope: Scope, name: str) -> str:
    """What stands before the names in the bodies of the op ``name``."""
    names = scope.context.reads.names_in(scope.graphs[-1])
    return scope.prefix + body_prefix(name.removeprefix(scope.prefix), names)


def _trip_count(scope: Scope, name: str, inputs: Sequence[Value | None]) -> int:
    count = inputs[0] if inputs else None
    values = None if count is None else count.read()
    if values is not None and values.size == 1 and 0 <= int(values.reshape(())) < Trips.MOST:
        return int(values.reshape(()))
    return scope.context.trips.of(name, "Loop")


def _graph(name: str, node: onnx.NodeProto, attribute_name: str) -> onnx.GraphProto:
    for attribute in node.attribute:
        if attribute.name == attribute_name and attribute.HasField("g"):
            graph: onnx.GraphProto = attribute.g
            return graph
    raise ModelError(f"op {name!r} ({node.op_type}) has no {attribute_name!r}.")


def _required(name: str, node: onnx.NodeProto, inputs: Sequence[Value | None], position: int) -> Value:
    value = inputs[position] if position < len(inputs) else None
    if value is None:
        raise ModelError(f"op {name!r} ({node.op_type}) lacks its input {position}.")
    return value


_Lower = Callable[[Scope, str, onnx.NodeProto, Sequence[Value | None]], None]
_CONTROL_FLOW: Final[Mapping[str, _Lower]] = {"If": _lower_if, "Loop": _lower_loop, "Scan": _lower_scan}
