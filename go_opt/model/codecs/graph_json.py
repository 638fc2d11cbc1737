"""The exact JSON form of a graph: readable rows of ops and tensors, validated when read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, cast, get_args

import numpy as np

from go_opt.errors import GraphError
from go_opt.model.builder import GraphBuilder
from go_opt.model.codecs.bindings import bindings_from, bindings_to_dict
from go_opt.model.codecs.fields import Fields, shown
from go_opt.model.codecs.graph_columns import with_tensor_order
from go_opt.model.codecs.rules import rule_row, with_rules
from go_opt.model.dtypes import DTYPES
from go_opt.model.graph import (
    ACTIVATION,
    NO_PRODUCER,
    OP_CLASSES,
    TENSOR_KINDS,
    Graph,
    NodeWithoutOp,
    Precision,
    Scope,
    UnknownOp,
)

FORMAT: Final = "go_opt.v1.Graph"


def graph_to_dict(graph: Graph) -> dict[str, Any]:
    """The graph as JSON types; :func:`graph_from_dict` restores it with the same fingerprint."""
    return {
        "format": FORMAT,
        "name": graph.name,
        "precision": graph.precision,
        **bindings_to_dict(graph.bindings),
        "ops": [_op_row(graph, i) for i in range(graph.num_ops)],
        "tensors": [_tensor_row(graph, k) for k in range(graph.num_tensors)],
        **state_fields(graph),
        "nodes_without_op": [node._asdict() for node in graph.nodes_without_op],
        "unknown_ops": unknown_rows(graph),
    }


def graph_from_dict(data: Any) -> Graph:
    """A validated graph from its JSON form.

    Raises:
      GraphError: one sentence that names the faulty op, tensor or field.
    """
    if not isinstance(data, Mapping):
        raise GraphError(f"a graph must be a JSON object, not {shown(data)}.")
    fields = Fields("the graph", data)
    if fields.text("format") != FORMAT:
        raise GraphError(
            f"the graph: 'format' must be {FORMAT!r}, not {shown(data['format'])}.", field="format"
        )
    builder = GraphBuilder(
        fields.text("name"),
        precision=read_precision(fields),
        bindings=bindings_from(fields.values, "the graph", GraphError),
    )
    tensors = [_named("tensor", i, row) for i, row in enumerate(fields.objects("tensors"))]
    writes = _add_tensors(builder, tensors)
    ops = [_named("op", i, row) for i, row in enumerate(fields.objects("ops"))]
    for op in ops:
        _add_op(builder, op, writes)
    add_states(builder, fields)
    if writes:
        tensor, producer = next((rows[0][0], op) for op, rows in writes.items())
        raise GraphError(f"tensor {tensor!r}: its producer {producer!r} is not an op.", field="producer")
    graph = with_tensor_order(builder.build(), [tensor.text("name") for tensor in tensors])
    rows = enumerate(fields.objects("nodes_without_op", []))
    graph = with_rules(graph, {op.text("name"): op for op in ops})
    absent = tuple(_node(_named("node", i, row)) for i, row in rows)
    return replace(
        graph,
        nodes_without_op=absent,
        unknown_ops=unknown_of(fields),
        unpaired_states=tuple(fields.texts("unpaired_states", [])),
    )


def add_states(builder: GraphBuilder, fields: Fields) -> None:
    """Add the states of the field ``states``, if there is one."""
    for row in fields.objects("states", []):
        state = Fields(f"{fields.where}: 'states'", row)
        builder.add_state(state.text("read"), state.text("next"), cast("Scope", state.text("scope")))


def state_fields(graph: Graph) -> dict[str, Any]:
    """The fields ``states`` and ``unpaired_states``, each only if there are any."""
    fields = {"states": _state_rows(graph), "unpaired_states": list(graph.unpaired_states)}
    return {name: rows for name, rows in fields.items() if rows}


def _state_rows(graph: Graph) -> list[dict[str, str]]:
    """The states of a graph, as JSON types."""
    names = graph.tensor_names
    return [
        {"read": names[state.read], "next": names[state.next], "scope": state.scope} for state in graph.states
    ]


def unknown_rows(graph: Graph) -> list[dict[str, Any]]:
    """The ops whose types no rule has, as JSON types."""
    return [op._asdict() for op in graph.unknown_ops]


def unknown_of(fields: Fields) -> tuple[UnknownOp, ...]:
    """The field ``unknown_ops``; empty if it is missing."""
    named = (_named("unknown op", i, row) for i, row in enumerate(fields.objects("unknown_ops", [])))
    return tuple(UnknownOp(row.text("name"), row.text("op_type"), row.number("flops")) for row in named)


def read_precision(fields: Fields) -> Precision:
    """The field ``precision``; ``"native"`` if it is missing."""
    precision = fields.text("precision", "native")
    for known in get_args(Precision):
        if precision == known:
            return known  # type: ignore[no-any-return]
    raise GraphError(
        f"{fields.where}: 'precision' must be 'native' or 'as-is', not {precision!r}.", field="precision"
    )


def measured_of(graph: Graph, op: int) -> dict[str, float]:
    """Measured seconds of an op, by each chip kind with a measurement."""
    return {kind: float(row[op]) for kind, row in graph.measured_s.items() if not np.isnan(row[op])}


def excluded_of(graph: Graph, op: int) -> list[str]:
    """The chip kinds that cannot run an op."""
    return [kind for kind, row in graph.excluded.items() if row[op]]


def _op_row(graph: Graph, op: int) -> dict[str, Any]:
    ptr, reads = graph.op_reads
    return {
        "name": graph.op_names[op],
        "op_type": graph.op_types[op],
        "op_class": OP_CLASSES[graph.op_class[op]],
        "flops": float(graph.op_flops[op]),
        "dtype": DTYPES[graph.op_dtype[op]],
        "reads": [
            {
                "tensor": graph.tensor_names[graph.reader_tensor[r]],
                "elements": int(graph.reader_elements[r]),
            }
            for r in reads[ptr[op] : ptr[op + 1]]
        ],
        "measured_s": measured_of(graph, op),
        "excluded_kinds": excluded_of(graph, op),
        **rule_row(graph, op),
    }


def _tensor_row(graph: Graph, tensor: int) -> dict[str, Any]:
    producer = graph.tensor_producer[tensor]
    return {
        "name": graph.tensor_names[tensor],
        "elements": int(graph.tensor_elements[tensor]),
        "dtype": DTYPES[graph.tensor_dtype[tensor]],
        "kind": TENSOR_KINDS[graph.tensor_kind[tensor]],
        "producer": None if producer == NO_PRODUCER else graph.op_names[producer],
        "is_output": bool(graph.tensor_is_output[tensor]),
    }


def _node(row: Fields) -> NodeWithoutOp:
    is_in_op = row.values.get("op") is not None
    return NodeWithoutOp(row.text("name"), row.text("became"), row.text("op") if is_in_op else None)


def _named(what: str, position: int, row: Mapping[Any, Any]) -> Fields:
    """The row, which messages call by its name."""
    return Fields(f"{what} {Fields(f'{what} number {position}', row).text('name')!r}", row)


def _add_tensors(builder: GraphBuilder, tensors: list[Fields]) -> dict[str, list[tuple[str, int, str]]]:
    """Adds weights and inputs; returns what each op writes."""
    writes: dict[str, list[tuple[str, int, str]]] = {}
    for tensor in tensors:
        name, elements, dtype = tensor.text("name"), tensor.integer("elements"), tensor.dtype("dtype")
        kind, is_output = tensor.text("kind"), tensor.flag("is_output", False)
        if kind == TENSOR_KINDS[ACTIVATION]:
            writes.setdefault(tensor.text("producer"), []).append((name, elements, dtype))
            if is_output:
                builder.mark_output(name)
            continue
        if is_output or tensor.values.get("producer") is not None:
            raise GraphError(f"{tensor.where}: a {kind} has no producer and is no output.", field="kind")
        builder.add_tensor(name, elements, dtype, kind)
    return writes


def _add_op(builder: GraphBuilder, op: Fields, writes: dict[str, list[tuple[str, int, str]]]) -> None:
    reads = [Fields(f"{op.where}: 'reads'", read) for read in op.objects("reads")]
    builder.add_op(
        op.text("name"),
        op.text("op_type"),
        op.text("op_class"),
        flops=op.number("flops"),
        dtype=op.dtype("dtype"),
        reads=[
            (read.text("tensor"), read.integer("elements") if "elements" in read.values else None)
            for read in reads
        ],
        writes=writes.pop(op.text("name"), []),
        measured_s=op.numbers("measured_s", {}),
        excluded_kinds=op.texts("excluded_kinds", []),
    )
