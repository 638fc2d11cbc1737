"""The exact JSON form of a graph: readable rows of ops and tensors, validated when read.

The field ``rule`` of an op, here and in networkx, is its sharding rule. It has ``factors``, rows of name,
kind and size, and ``operands`` and ``results``, rows of ``tensor`` and ``dimensions``: for each a list of
factors, major to minor. A factor is its name; a dimension that is read through a window is an object of
``factor``, ``window``, ``stride``, ``dilation``, ``before`` and ``size``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast, get_args

from go_opt.errors import GraphError
from go_opt.model.builder import GraphBuilder
from go_opt.model.codecs.fields import Fields, bindings_from, bindings_to_dict, is_list, shown
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
from go_opt.model.rule import FACTOR_KINDS, NO_FACTOR, Access, Affine, Factor, FactorKind, Rule
from go_opt.model.states import named_state

FORMAT: Final = "go_opt.v1.Graph"
LOOPS: Final = ("factor", "window")  # fields of an Affine that may be NO_FACTOR


def graph_to_dict(graph: Graph) -> dict[str, Any]:
    """The graph as JSON types; :func:`graph_from_dict` restores it with the same fingerprint."""
    of_states = {
        "states": [named_state(graph, state)._asdict() for state in graph.states],
        "unpaired_states": list(graph.unpaired_states),
    }
    return {
        "format": FORMAT,
        "name": graph.name,
        "precision": graph.precision,
        **bindings_to_dict(graph.bindings),
        "ops": [_op_row(graph, i) for i in range(graph.num_ops)],
        "tensors": [_tensor_row(graph, k) for k in range(graph.num_tensors)],
        **{name: rows for name, rows in of_states.items() if rows},
        "nodes_without_op": [node._asdict() for node in graph.nodes_without_op],
        "unknown_ops": [op._asdict() for op in graph.unknown_ops],
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
        precision=_precision(fields),
        bindings=bindings_from(fields.values, "the graph", GraphError),
    )
    tensors = [_named("tensor", i, row) for i, row in enumerate(fields.objects("tensors"))]
    writes = _add_tensors(builder, tensors)
    ops = [_named("op", i, row) for i, row in enumerate(fields.objects("ops"))]
    for op in ops:
        _add_op(builder, op, writes)
    for row in fields.objects("states", []):
        state = Fields(f"{fields.where}: 'states'", row)
        builder.add_state(state.text("read"), state.text("next"), cast("Scope", state.text("scope")))
    if writes:
        tensor, producer = next((rows[0][0], op) for op, rows in writes.items())
        raise GraphError(f"tensor {tensor!r}: its producer {producer!r} is not an op.", field="producer")
    graph = builder.build([tensor.text("name") for tensor in tensors])
    absent = (_named("node", i, row) for i, row in enumerate(fields.objects("nodes_without_op", [])))
    unknown = (_named("unknown op", i, row) for i, row in enumerate(fields.objects("unknown_ops", [])))
    return replace(
        graph,
        nodes_without_op=tuple(map(_node, absent)),
        unknown_ops=tuple(
            UnknownOp(row.text("name"), row.text("op_type"), row.number("flops")) for row in unknown
        ),
        unpaired_states=tuple(fields.texts("unpaired_states", [])),
    )


def _precision(fields: Fields) -> Precision:
    """The field ``precision``; ``"native"`` if it is missing."""
    precision = fields.text("precision", "native")
    for known in get_args(Precision):
        if precision == known:
            return known  # type: ignore[no-any-return]
    raise GraphError(
        f"{fields.where}: 'precision' must be 'native' or 'as-is', not {precision!r}.", field="precision"
    )


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
        "measured_s": graph.measured_of(op),
        "excluded_kinds": graph.excluded_of(op),
        **_rule_row(graph, op),
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
    _add_rule(builder, op)


def _rule_row(graph: Graph, op: int) -> dict[str, Any]:
    """The field ``rule`` of an op as JSON types; empty if its rule is not known."""
    found = graph.rule_of(op)
    if found is None:
        return {}
    rule = found.rule
    names = [factor.name for factor in rule.factors]

    def rows(tensors: Sequence[int], accesses: Sequence[Access]) -> list[dict[str, Any]]:
        return [
            {
                "tensor": graph.tensor_names[k],
                "dimensions": [[_piece_row(piece, names) for piece in dimension] for dimension in access],
            }
            for k, access in zip(tensors, accesses, strict=True)
        ]

    return {
        "rule": {
            "factors": [factor._asdict() for factor in rule.factors],
            "operands": rows(found.operands, rule.operands),
            "results": rows(found.results, rule.results),
        }
    }


def _piece_row(piece: int | Affine, names: Sequence[str]) -> Any:
    if not isinstance(piece, Affine):
        return names[piece]
    given = {name: of for name, of in piece._asdict().items() if name not in LOOPS}
    return {name: names[of] for name in LOOPS if (of := getattr(piece, name)) != NO_FACTOR} | given


def _add_rule(builder: GraphBuilder, op: Fields) -> None:
    """Give an op the rule that :func:`_rule_row` adds to its fields, if there is one.

    Raises:
      GraphError: the rule is not of these types.
    """
    if "rule" not in op.values:
        return
    row = Fields(f"{op.where}: rule", op.table("rule").values)
    factors = tuple(
        Factor(one.text("name"), _kind(one), one.integer("size"))
        for one in (Fields(f"{row.where}: factors", factor) for factor in row.objects("factors"))
    )
    places = {factor.name: i for i, factor in enumerate(factors)}
    operands = [_access(Fields(row.where, one), places) for one in row.objects("operands")]
    results = [_access(Fields(row.where, one), places) for one in row.objects("results")]
    rule = Rule(factors, tuple(access for _, access in operands), tuple(access for _, access in results))
    builder.set_rule(op.text("name"), rule, [name for name, _ in operands], [name for name, _ in results])


def _kind(row: Fields) -> FactorKind:
    kind = row.text("kind")
    for known in FACTOR_KINDS:
        if kind == known:
            return known
    raise GraphError(f"{row.where}: 'kind' must be one of {', '.join(FACTOR_KINDS)}, not {shown(kind)}.")


def _access(row: Fields, places: Mapping[str, int]) -> tuple[str, Access]:
    tensor, dimensions = row.text("tensor"), row.values.get("dimensions", ())
    if not is_list(dimensions) or not all(is_list(dimension) for dimension in dimensions):
        raise GraphError(f"{row.where}: 'dimensions' must be a list of lists, not {shown(dimensions)}.")
    access = tuple(tuple(_piece(row, piece, places) for piece in dimension) for dimension in dimensions)
    return tensor, access


def _piece(row: Fields, piece: Any, places: Mapping[str, int]) -> int | Affine:
    """The factor that a text names, or the window that an object describes."""
    if not isinstance(piece, Mapping):
        return _place(row, piece, places)
    fields = Fields(f"{row.where}: window", piece)
    before = fields.values.get("before", 0)
    if isinstance(before, bool) or not isinstance(before, int):
        raise GraphError(f"{fields.where}: 'before' must be a whole number, not {shown(before)}.")
    factor, window = (
        _place(row, piece[field], places) if field in piece else NO_FACTOR for field in ("factor", "window")
    )
    stride, dilation, size = (fields.integer(field) for field in ("stride", "dilation", "size"))
    return Affine(factor, window, stride, dilation, before, size)


def _place(row: Fields, name: Any, places: Mapping[str, int]) -> int:
    if not isinstance(name, str) or name not in places:
        raise GraphError(f"{row.where} has no factor {shown(name)}.", field="rule")
    return places[name]
