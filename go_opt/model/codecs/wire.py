"""Lossless conversion of graphs and plans to and from protobuf messages of package ``go_opt.v1``.

A graph message that breaks no rule is decoded column by column, all ops or tensors at once: the fast path.
For others the builder says which rule they break. Untrusted messages are checked by the same rules as other
inputs: those of :class:`go_opt.model.builder.GraphBuilder` and
:func:`go_opt.model.codecs.plan_json.plan_from_fields`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast, get_args

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import CodeArray, IntArray, LongArray, frozen
from go_opt.errors import GraphError, InvalidInputError, PlanError
from go_opt.model.bindings import Bindings
from go_opt.model.builder import MAX_FLOPS, GraphBuilder
from go_opt.model.codecs.fields import bindings_from
from go_opt.model.codecs.graph_json import LOOPS
from go_opt.model.codecs.plan_json import plan_from_fields, plan_to_dict, refuse_clones
from go_opt.model.dtypes import DTYPES, dtype_code
from go_opt.model.graph import (
    ACTIVATION,
    MAX_ELEMENTS,
    NO_PRODUCER,
    OP_CLASSES,
    STATE,
    TENSOR_KINDS,
    Graph,
    OpRule,
    Precision,
    Scope,
    UnknownOp,
    by_kind,
    check_number,
    with_op_rules,
)
from go_opt.model.plan import Plan
from go_opt.model.rule import FACTOR_KINDS, NO_FACTOR, Affine, Factor, Rule

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
_Columns = dict[str, Any]  # of arrays, by field of Graph
_NO_FIELD: Final = 2**31  # no int32 of a message has this value
_NO_KINDS: Final[Mapping[str, bool]] = MappingProxyType({})
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
    _rules_to_proto(graph, message)
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
            _rules_from_proto(message, graph),
            unpaired_states=tuple(message.unpaired_states),
            unknown_ops=tuple(UnknownOp(op.name, op.op_type, op.flops) for op in message.unknown_ops),
        )
    except GraphError:
        raise
    except InvalidInputError as error:
        raise GraphError(str(error), field=error.field) from None


def graph_from_columns(message: graph_pb2.Graph, precision: Precision, bindings: Bindings) -> Graph | None:
    """The graph of a message; None if a rule is broken, if ops or reads are unsorted, or if it has states."""
    try:
        _require(not message.states)
        op_names, op_types, ops = _ops(message)
        tensor_names, tensors = _tensors(message, len(op_names))
        columns: _Columns = {field: frozen(column) for field, column in (ops | tensors).items()}
        return Graph(
            name=message.name,
            op_names=op_names,
            op_types=op_types,
            tensor_names=tensor_names,
            bindings=bindings,
            precision=precision,
            **_by_chip_kind(message),
            **columns,
        )
    except (_Unfit, InvalidInputError, OverflowError):
        return None


class _Unfit(Exception):
    """The message needs the builder."""


def _require(holds: object) -> None:
    if not holds:
        raise _Unfit


def _ops(message: graph_pb2.Graph) -> tuple[tuple[str, ...], tuple[str, ...], _Columns]:
    _require(message.ops)
    rows = [(op.name, op.op_type, op.op_class, op.flops, op.dtype) for op in message.ops]
    names, types, classes, flops, dtypes = zip(*rows, strict=True)
    _require(all(names))
    _require(len(set(names)) == len(names))
    columns = {
        "op_class": _between(classes, 1, len(OP_CLASSES), np.int8) - np.int8(1),
        "op_flops": _between(flops, 0, MAX_FLOPS, np.float64),
        "op_dtype": _codes(dtypes),
    }
    return names, types, columns


def _tensors(message: graph_pb2.Graph, num_ops: int) -> tuple[tuple[str, ...], _Columns]:
    rows = [
        (
            tensor.name,
            tensor.elements,
            tensor.dtype,
            tensor.kind,
            # HasField is slow, and needed only for a zero.
            tensor.producer or (0 if tensor.HasField("producer") else _NO_FIELD),
            tensor.is_output,
        )
        for tensor in message.tensors
    ]
    names, elements, dtypes, kinds, producers, is_output = zip(*rows, strict=True) if rows else [()] * 6
    _require(len(set(names)) == len(names))
    has_producer = np.array(producers, np.int64) != _NO_FIELD
    producer = np.full(len(rows), NO_PRODUCER, np.int32)
    producer[has_producer] = _between([p for p in producers if p != _NO_FIELD], 0, num_ops - 1, np.int32)
    kind = _between(kinds, 1, STATE, np.int8) - np.int8(1)
    _require(np.array_equal(has_producer, kind == ACTIVATION))
    columns = {
        "tensor_elements": _between(elements, 0, MAX_ELEMENTS, np.int64),
        "tensor_dtype": _codes(dtypes),
        "tensor_kind": kind,
        "tensor_producer": producer,
        "tensor_is_output": np.array(is_output, np.bool_) & has_producer,
    }
    counts, reads = _reads(message, elements, producer, num_ops)
    is_kept = has_producer | (counts > 0)
    if not is_kept.all():
        names = tuple(name for name, kept in zip(names, is_kept.tolist(), strict=True) if kept)
        columns = {field: column[is_kept] for field, column in columns.items()}
    pointers = np.concatenate([[0], np.cumsum(counts[is_kept])]).astype(np.int64)
    return tuple(names), columns | reads | {"reader_ptr": pointers}


def _reads(
    message: graph_pb2.Graph, elements: Sequence[int], producer: IntArray, num_ops: int
) -> tuple[LongArray, _Columns]:
    """The number of readers of each tensor, and the columns of all reads."""
    readers = [tensor.readers for tensor in message.tensors]
    rows = [
        (reader.op, reader.elements or (0 if reader.HasField("elements") else size))
        for size, row in zip(elements, readers, strict=True)
        for reader in row
    ]
    op_rows, touched_rows = zip(*rows, strict=True) if rows else ((), ())
    op = _between(op_rows, 0, num_ops - 1, np.int32)
    touched = _between(touched_rows, 0, MAX_ELEMENTS, np.int64)
    counts = np.array([len(row) for row in readers], np.int64)
    tensor = np.repeat(np.arange(len(counts)), counts)
    _require((op > producer[tensor]).all())  # the ops are in topological order
    _require(((np.diff(op) > 0) | (np.diff(tensor) > 0)).all())  # ascending and unique in a row
    size = np.array(elements, np.int64)[tensor]
    return counts, {"reader_op": op, "reader_elements": np.minimum(touched, size)}


def _by_chip_kind(message: graph_pb2.Graph) -> dict[str, Any]:
    measured_s = [op.measured_s for op in message.ops]
    seconds = [value for row in measured_s if row for value in row.values()]
    _between(seconds, 0, MAX_FLOPS, np.float64)
    excluded = [
        dict.fromkeys(op.excluded_kinds, True) if op.excluded_kinds else _NO_KINDS for op in message.ops
    ]
    return {
        "measured_s": by_kind(measured_s, np.nan, np.float64),
        "excluded": by_kind(excluded, False, np.bool_),
    }


def _between(values: Sequence[float], low: float, high: float, dtype: type) -> NDArray[Any]:
    array = np.array(values, np.float64 if dtype is np.float64 else np.int64)
    _require(((low <= array) & (array <= high)).all())  # NaN fails every comparison
    return array.astype(dtype, copy=False)


def _codes(dtypes: Sequence[str]) -> CodeArray:
    code = {dtype: dtype_code(dtype) for dtype in set(dtypes)}
    return np.array([code[dtype] for dtype in dtypes], np.int8)


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


def _rules_to_proto(graph: Graph, message: graph_pb2.Graph) -> None:
    """Add the rules of a graph to its message, each distinct one once."""
    if not graph.op_rules:
        return
    places: dict[Rule, int] = {}
    for op, found in zip(message.ops, graph.op_rules, strict=True):
        if found is None:
            continue
        if found.rule not in places:
            places[found.rule] = len(places) + 1
            _add_rule(found.rule, message.rules.add())
        op.rule = places[found.rule]
        op.operands.extend(found.operands)
        op.results.extend(found.results)


def _add_rule(rule: Rule, message: graph_pb2.Rule) -> None:
    for factor in rule.factors:
        kind: Any = 1 + FACTOR_KINDS.index(factor.kind)
        message.factors.add(name=factor.name, kind=kind, size=factor.size)
    for accesses, rows in ((rule.operands, message.operands), (rule.results, message.results)):
        for access in accesses:
            row = rows.add()
            for dimension in access:
                pieces = row.dimensions.add().pieces
                for piece in dimension:
                    if isinstance(piece, Affine):
                        given = {
                            name: of for name, of in piece._asdict().items() if name not in LOOPS or of >= 0
                        }
                        pieces.add(window=given)
                    else:
                        pieces.add(factor=piece)


def _rules_from_proto(message: graph_pb2.Graph, graph: Graph) -> Graph:
    """The graph of a message with the rules in it.

    Raises:
      GraphError: a rule does not fit its op.
    """
    if not message.rules:
        return graph
    known = [_rule(row) for row in message.rules]
    names = [tensor.name for tensor in message.tensors]
    valid, place = set(range(len(names))), []
    if tuple(names) != graph.tensor_names:  # those that nothing reads are dropped
        place = [graph.tensor_index.get(name, NO_FACTOR) for name in names]
    found: dict[str, OpRule] = {}
    for op in message.ops:
        if not op.rule:
            continue
        operands, results = tuple(op.operands), tuple(op.results)
        if not 0 < op.rule <= len(known) or not valid.issuperset(operands + results):
            raise GraphError(f"op {op.name!r}: rule names a rule or tensor that is not there.", field="rule")
        if place:
            operands, results = (tuple(place[k] for k in row) for row in (operands, results))
        found[op.name] = OpRule(known[op.rule - 1], operands, results)
    rules = [found.get(name) for name in graph.op_names]
    return with_op_rules(graph, rules)


def _rule(message: graph_pb2.Rule) -> Rule:
    kinds = dict(enumerate(FACTOR_KINDS, start=1))
    factors = []
    for factor in message.factors:
        if factor.kind not in kinds:
            raise GraphError(f"rule: {factor.kind} is no number of the enum FactorKind.", field="rule")
        factors.append(Factor(factor.name, kinds[factor.kind], factor.size))
    operands, results = (
        tuple(tuple(tuple(map(_piece_of, dim.pieces)) for dim in row.dimensions) for row in rows)
        for rows in (message.operands, message.results)
    )
    return Rule(tuple(factors), operands, results)


def _piece_of(message: graph_pb2.Piece) -> int | Affine:
    if not message.HasField("window"):
        return message.factor
    row = message.window
    missing = {name: NO_FACTOR for name in LOOPS if not row.HasField(name)}
    return Affine(**{name: getattr(row, name) for name in Affine._fields} | missing)


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
