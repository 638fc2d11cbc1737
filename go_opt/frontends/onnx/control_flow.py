"""If, Loop and Scan: one op that costs its body; an If with a constant condition is inlined."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import TensorProto

from go_opt.errors import ModelError
from go_opt.frontends.onnx.inference.folding import plain_attributes
from go_opt.frontends.onnx.inference.values import Shape, Value
from go_opt.frontends.onnx.lowering import Scope
from go_opt.frontends.onnx.program import AbsentNode, Program
from go_opt.frontends.onnx.structure import body_prefix, inputs_behind
from go_opt.frontends.recording.binding import MAX_TRIPS
from go_opt.model.graph import UnknownOp


@dataclass(frozen=True)
class _Body:
    program: Program
    outputs: tuple[Value, ...]
    op_class: str
    flops: float  # of one trip
    reads: Mapping[str, int | None]  # tensors around the body -> elements touched in one trip


def lower_control_flow(scope: Scope, name: str, node: onnx.NodeProto, inputs: Sequence[Value | None]) -> None:
    """Lower an If, Loop or Scan."""
    lower = {"If": _lower_if, "Loop": _lower_loop, "Scan": _lower_scan}[node.op_type]
    lower(scope, name, node, inputs)


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
    dearer = max(bodies, key=lambda body: body.flops)
    reads = {condition.tensor: None, **_union([body.reads for body in bodies])}
    outputs = [
        scope.activation(output, value.elem_type, value.shape)
        for output, value in zip(node.output, dearer.outputs, strict=True)
    ]
    unknown = tuple(row for body in bodies for row in _unknown(body, 1))
    scope.emit(name, "If", dearer.op_class, dearer.flops, tuple(reads.items()), inputs, outputs, unknown)


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
    body_graph = _graph(name, node, "body")
    state = [_required(name, node, inputs, i) for i in range(2, len(inputs))]
    kinds = [
        (TensorProto.INT64, ()),
        (TensorProto.BOOL, ()),
        *((value.elem_type, value.shape) for value in state),
    ]
    body = _lower_body(scope, name, "", body_graph, _formals(name, body_graph, kinds))
    results = body.outputs[1:]
    _check_state(name, node, state, results[: len(state)])
    shapes = [value.shape if i < len(state) else (trips, *value.shape) for i, value in enumerate(results)]
    _emit_repeated(scope, name, node, inputs, body, trips, results, shapes)


def _lower_scan(scope: Scope, name: str, node: onnx.NodeProto, inputs: Sequence[Value | None]) -> None:
    """The last inputs are read slice by slice, and the last outputs are written slice by slice."""
    if scope.context.opset < 9:
        raise ModelError(f"op {name!r} (Scan) is of opset 8, whose batched form is not supported.")
    attributes = plain_attributes(node)
    body_graph = _graph(name, node, "body")
    scanned = int(attributes.get("num_scan_inputs", 1))
    values = [_required(name, node, inputs, i) for i in range(len(inputs))]
    states = len(values) - scanned
    if scanned < 1 or states < 0:
        raise ModelError(f"op {name!r} (Scan) scans {scanned} of {len(values)} inputs.")
    in_axes = attributes.get("scan_input_axes", [0] * scanned)
    slices = [
        _without_axis(name, value.shape, axis) for value, axis in zip(values[states:], in_axes, strict=True)
    ]
    trips = values[states].shape[in_axes[0]]
    shapes_in = [*(value.shape for value in values[:states]), *slices]
    kinds = [(value.elem_type, shape) for value, shape in zip(values, shapes_in, strict=True)]
    body = _lower_body(scope, name, "", body_graph, _formals(name, body_graph, kinds))
    _check_state(name, node, values[:states], body.outputs[:states])
    out_axes = attributes.get("scan_output_axes", [0] * (len(body.outputs) - states))
    shapes = [
        *(value.shape for value in body.outputs[:states]),
        *(
            _with_axis(value.shape, axis, trips)
            for value, axis in zip(body.outputs[states:], out_axes, strict=True)
        ),
    ]
    _emit_repeated(scope, name, node, inputs, body, trips, body.outputs, shapes)


def _emit_repeated(
    scope: Scope,
    name: str,
    node: onnx.NodeProto,
    inputs: Sequence[Value | None],
    body: _Body,
    trips: int,
    results: Sequence[Value],
    shapes: Sequence[Shape],
) -> None:
    """Emit one op that costs the body times the trips."""
    reads: dict[str, int | None] = {
        tensor: None if touched is None else touched * trips for tensor, touched in body.reads.items()
    }
    reads |= {value.tensor: None for value in inputs if value is not None and not _is_parameter(value, node)}
    outputs = [
        scope.activation(output, value.elem_type, shape)
        for output, value, shape in zip(node.output, results, shapes, strict=True)
        if output
    ]
    flops, unknown = body.flops * trips, _unknown(body, trips)
    scope.emit(name, node.op_type, body.op_class, flops, tuple(reads.items()), inputs, outputs, unknown)


def _unknown(body: _Body, trips: int) -> tuple[UnknownOp, ...]:
    """The ops of a body whose types no rule has."""
    return tuple(row._replace(flops=row.flops * trips) for op in body.program.ops for row in op.unknown)


def _lower_body(
    scope: Scope, name: str, branch: str, graph: onnx.GraphProto, formals: Mapping[str, tuple[int, Shape]]
) -> _Body:
    """Lower a body of the op ``name`` into a separate program, whose ops are summed up, not kept.

    Args:
      branch: tells the names of one of several bodies from those of the others.
    """
    inner = Scope(scope.context, Program(), prefix=_prefix(scope, name) + branch, parent=scope)
    own = {inner.activation(formal, *kind).tensor for formal, kind in formals.items()}
    inner.lower(graph)
    outputs = tuple(inner.lookup(output.name) for output in graph.output)
    program = inner.program
    scope.program.add_part(program, name)
    reads = program.external_reads()
    # A body may return a tensor that none of its ops reads.
    reads |= {program.resolve(value.tensor): None for value in outputs}
    written = {tensor for op in program.ops for tensor, _, _ in op.writes}
    outside = {tensor: touched for tensor, touched in reads.items() if tensor not in own | written}
    return _Body(program, outputs, program.op_class, program.flops, outside)


def _prefix(scope: Scope, name: str) -> str:
    """What stands before the names in the bodies of the op ``name``."""
    names = scope.context.reads.names_in(scope.graphs[-1])
    return scope.prefix + body_prefix(name.removeprefix(scope.prefix), names)


def _trip_count(scope: Scope, name: str, inputs: Sequence[Value | None]) -> int:
    count = inputs[0] if inputs else None
    values = None if count is None else count.read()
    if values is not None and values.size == 1 and 0 <= int(values.reshape(())) < MAX_TRIPS:
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


def _formals(
    name: str, graph: onnx.GraphProto, kinds: Sequence[tuple[int, Shape]]
) -> dict[str, tuple[int, Shape]]:
    if len(graph.input) != len(kinds):
        raise ModelError(f"op {name!r}: its body takes {len(graph.input)} inputs, not {len(kinds)}.")
    return {info.name: kind for info, kind in zip(graph.input, kinds, strict=True)}


def _check_state(name: str, node: onnx.NodeProto, before: Sequence[Value], after: Sequence[Value]) -> None:
    for old, new in zip(before, after, strict=True):
        if old.shape != new.shape:
            raise ModelError(
                f"op {name!r} ({node.op_type}) changes the shape of its state"
                f" from {list(old.shape)} to {list(new.shape)}."
            )


def _is_parameter(value: Value, node: onnx.NodeProto) -> bool:
    """Whether a Loop's input is a known trip count or start condition, which no kernel reads."""
    return node.op_type == "Loop" and value.is_constant and value.shape in ((), (1,)) and value.elements == 1


def _union(reads: Sequence[Mapping[str, int | None]]) -> dict[str, int | None]:
    union: dict[str, int | None] = {}
    for one in reads:
        for tensor, touched in one.items():
            before: Any = union.get(tensor, 0)
            union[tensor] = None if touched is None or before is None else max(touched, before)
    return union


def _without_axis(name: str, shape: Shape, axis: int) -> Shape:
    if not -len(shape) <= axis < len(shape):
        raise ModelError(f"op {name!r} (Scan) scans axis {axis} of a tensor of rank {len(shape)}.")
    axis %= len(shape)
    return shape[:axis] + shape[axis + 1 :]


def _with_axis(shape: Shape, axis: int, size: int) -> Shape:
    axis %= len(shape) + 1
    return (*shape[:axis], size, *shape[axis:])
