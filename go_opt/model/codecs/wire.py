"""Lossless conversion of graphs and plans to and from protobuf messages of package ``go_opt.v1``.

Untrusted messages are checked by the same rules as other inputs: those of
:class:`go_opt.model.builder.GraphBuilder` and :func:`go_opt.model.codecs.plan_json.plan_from_fields`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast, get_args

import numpy as np

from go_opt.errors import GraphError, InvalidInputError, PlanError
from go_opt.model.bindings import Bindings
from go_opt.model.builder import MAX_FLOPS, GraphBuilder
from go_opt.model.codecs.fields import bindings_from
from go_opt.model.codecs.graph_columns import graph_from_columns
from go_opt.model.codecs.plan_json import plan_from_fields, plan_to_dict, refuse_clones
from go_opt.model.codecs.rules import rules_from_proto, rules_to_proto
from go_opt.model.dtypes import DTYPES
from go_opt.model.graph import (
    ACTIVATION,
    NO_PRODUCER,
    OP_CLASSES,
    TENSOR_KINDS,
    Graph,
    Precision,
    Scope,
    UnknownOp,
    check_number,
)
from go_opt.model.plan import Plan

if TYPE_CHECKING:
    from go_opt.proto import graph_pb2, plan_pb2

# An enum's number is 1 + the index of its name; 0 is "unspecified".
_ACTIVATION: Final = 1 + ACTIVATION
_PRECISIONS: Final[tuple[Precision, ...]] = get_args(Precision)
_SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
_PRECISION_NUMBER: Final[dict[str, Any]] = {name: 1 + i for i, name in enumerate(_PRECISIONS)}
# Those that plans and messages of plans have alike.
_PLAN_FIELDS: Final = (
    *("placement", "order", "fusion_group", "replication", "provenance", "op_provenance", "forwards"),
    *("host_states", "graph_fingerprint", "target_fingerprint", "target", "model"),
)
_SPLIT_FIELDS: Final = ("op", "factor", "parts", "collective", "bucket", "level")


def bindings_to_proto(bindings: Bindings) -> dict[str, Any]:
    """The fields of a message that carries bindings."""
    from go_opt.proto import graph_pb2

    values = {name: graph_pb2.Numbers(numbers=numbers) for name, numbers in bindings.values.items()}
    return {
        "dims": dict(bindings.dims),
        "values": values,
        "trips": dict(bindings.trips),
        "bound_states": dict(bindings.states),
    }


def bindings_from_proto(message: Any, where: str, error: type[InvalidInputError]) -> Bindings:
    """The validated bindings of a graph or model; raises ``error`` with the name of the field."""
    return bindings_from(_binding_rows(message), where, error)


def _binding_rows(message: Any) -> dict[str, Any]:
    """The bindings of a message as JSON types, not validated."""
    values = {name: list(row.numbers) for name, row in message.values.items()}
    return {
        "dims": dict(message.dims),
        "values": values,
        "trips": dict(message.trips),
        "bound_states": dict(message.bound_states),
    }


def graph_to_proto(graph: Graph) -> graph_pb2.Graph:
    """The message of a graph; :func:`graph_from_proto` gives the same graph back."""
    from go_opt.proto import graph_pb2

    message = graph_pb2.Graph(
        name=graph.name,
        precision=_PRECISION_NUMBER[graph.precision],
        unpaired_states=graph.unpaired_states,
        unknown_ops=[graph_pb2.UnknownOp(**op._asdict()) for op in graph.unknown_ops],
        **bindings_to_proto(graph.bindings),
    )
    op_rows = zip(
        graph.op_names,
        graph.op_types,
        (graph.op_class + 1).tolist(),
        graph.op_flops.tolist(),
        graph.op_dtype.tolist(),
        strict=True,
    )
    for name, op_type, op_class, flops, dtype in op_rows:
        message.ops.add(name=name, op_type=op_type, op_class=op_class, flops=flops, dtype=DTYPES[dtype])
    for kind, seconds in graph.measured_s.items():
        for i in np.flatnonzero(~np.isnan(seconds)).tolist():
            message.ops[i].measured_s[kind] = float(seconds[i])
    for kind, excluded in graph.excluded.items():
        for i in np.flatnonzero(excluded).tolist():
            message.ops[i].excluded_kinds.append(kind)
    _tensors_to_proto(graph, message)
    for state in graph.states:
        message.states.add(read=state.read, next=state.next, scope=1 + _SCOPES.index(state.scope))
    rules_to_proto(graph, message)
    return message


def _tensors_to_proto(graph: Graph, message: graph_pb2.Graph) -> None:
    pointers = graph.reader_ptr.tolist()
    reader_ops, reader_elements = graph.reader_op.tolist(), graph.reader_elements.tolist()
    tensor_rows = zip(
        graph.tensor_names,
        graph.tensor_elements.tolist(),
        graph.tensor_dtype.tolist(),
        (graph.tensor_kind + 1).tolist(),
        graph.tensor_producer.tolist(),
        graph.tensor_is_output.tolist(),
        strict=True,
    )
    for k, (name, elements, dtype, kind, producer, is_output) in enumerate(tensor_rows):
        row = message.tensors.add(
            name=name, elements=elements, dtype=DTYPES[dtype], kind=kind, is_output=is_output
        )
        if producer != NO_PRODUCER:
            row.producer = producer
        for r in range(pointers[k], pointers[k + 1]):
            row.readers.add(op=reader_ops[r], elements=reader_elements[r])


def graph_from_proto(message: graph_pb2.Graph) -> Graph:
    """The validated graph of a message.

    Raises:
      GraphError: one sentence that names the faulty op, tensor or field.
    """
    try:
        precision = precision_from_proto(message.precision, GraphError)
        bindings = bindings_from_proto(message, "graph", GraphError)
        for op in message.unknown_ops:
            check_number(f"unknown op {op.name!r}: flops", op.flops, MAX_FLOPS)
        graph = graph_from_columns(message, precision, bindings) or _built_graph(message, precision, bindings)
        return replace(
            rules_from_proto(message, graph),
            unpaired_states=tuple(message.unpaired_states),
            unknown_ops=tuple(UnknownOp(op.name, op.op_type, op.flops) for op in message.unknown_ops),
        )
    except GraphError:
        raise
    except InvalidInputError as error:
        raise GraphError(str(error), field=error.field) from None


def _built_graph(message: graph_pb2.Graph, precision: Precision, bindings: Bindings) -> Graph:
    op_names = [op.name for op in message.ops]
    writes: list[list[tuple[str, int, str]]] = [[] for _ in op_names]
    reads: list[list[tuple[str, int | None]]] = [[] for _ in op_names]
    builder = GraphBuilder(message.name, precision=precision, bindings=bindings)
    for tensor in message.tensors:
        name, elements = tensor.name, tensor.elements
        if tensor.HasField("producer"):
            producer = _index(tensor.producer, len(op_names), f"tensor {name!r}: producer")
            if tensor.kind != _ACTIVATION:
                raise GraphError(f"tensor {name!r} has a producer, so its kind must be activation.")
            writes[producer].append((name, elements, tensor.dtype))
        else:
            if tensor.kind == _ACTIVATION:
                raise GraphError(f"tensor {name!r} is an activation without a producer.")
            builder.add_tensor(name, elements, tensor.dtype, _choice(tensor.kind, TENSOR_KINDS))
        for reader in tensor.readers:
            op = _index(reader.op, len(op_names), f"tensor {name!r}: reader")
            reads[op].append((name, reader.elements if reader.HasField("elements") else None))
        if tensor.is_output:
            builder.mark_output(name)
    tensor_names = tuple(tensor.name for tensor in message.tensors)
    for i, state in enumerate(message.states):
        read, following = (
            _index(k, len(tensor_names), f"states[{i}].{name}", "tensors", field="states")
            for name, k in (("read", state.read), ("next", state.next))
        )
        scope = cast("Scope", _choice(state.scope, _SCOPES))
        builder.add_state(tensor_names[read], tensor_names[following], scope)
    for op, op_reads, op_writes in zip(message.ops, reads, writes, strict=True):
        builder.add_op(
            op.name,
            op.op_type,
            _choice(op.op_class, OP_CLASSES),
            flops=op.flops,
            dtype=op.dtype,
            reads=op_reads,
            writes=op_writes,
            measured_s=op.measured_s,
            excluded_kinds=op.excluded_kinds,
        )
    return builder.build(tensor_names)


def plan_to_proto(plan: Plan) -> plan_pb2.Plan:
    """The message of a plan; :func:`plan_from_proto` gives the same plan back."""
    from go_opt.proto import plan_pb2

    fields = plan_to_dict(plan) | bindings_to_proto(plan.bindings)
    del fields["format"]
    for row in fields.get("splits", ()):
        row["in_parts"] = not row.pop("joined")
    fields |= {"precision": _PRECISION_NUMBER[plan.precision], "sequences": plan.sequences}
    return plan_pb2.Plan(**fields)


def plan_from_proto(message: plan_pb2.Plan) -> Plan:
    """The validated plan of a message.

    Raises:
      PlanError: one sentence that names the faulty field.
    """
    refuse_clones(message.clones)
    return plan_from_fields(
        _row(message, _PLAN_FIELDS)
        | _binding_rows(message)
        | {
            "relays": [_row(one, ("tensor", "chips")) for one in message.relays],
            "splits": [
                _row(one, _SPLIT_FIELDS)
                | {"joined": not one.in_parts}
                | ({"kind": one.kind} if one.kind else {})
                for one in message.splits
            ],
            "rewrites": [_row(one, ("rule", "ops")) for one in message.rewrites],
            "precision": precision_from_proto(message.precision, PlanError),
            "sequences": message.sequences or 1,
        }
    )


def _row(message: Any, names: Iterable[str]) -> dict[str, Any]:
    """Fields of a message, of which those that repeat are lists."""
    values = ((name, getattr(message, name)) for name in names)
    return {name: value if isinstance(value, str | int) else list(value) for name, value in values}


def _index(index: int, length: int, what: str, rows: str = "ops", field: str = "") -> int:
    if not 0 <= index < length:
        raise GraphError(f"{what} must be an index into the {length} {rows}, not {index}.", field=field)
    return index


def _choice(number: int, names: tuple[str, ...]) -> str:
    """The name of an enum number; an unknown number becomes a text for the error."""
    return names[number - 1] if 1 <= number <= len(names) else f"enum number {number}"


def precision_from_proto(number: int, error: type[InvalidInputError]) -> Precision:
    """The precision of an enum number; raises ``error`` if the number is unknown."""
    if not 0 <= number <= len(_PRECISIONS):
        raise error(f"precision: {number} is no number of the enum Precision.", field="precision")
    return _PRECISIONS[max(number, 1) - 1]
