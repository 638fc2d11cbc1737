"""Sharding rules of ops in files and messages.

In JSON and networkx, the field ``rule`` of an op has ``factors``, rows of name, kind and size, and
``operands`` and ``results``, rows of ``tensor`` and ``dimensions``: for each a list of factors, major to
minor. A factor is its name; a dimension that is read through a window is an object of ``factor``, ``window``,
``stride``, ``dilation``, ``before`` and ``size``. A message has each distinct rule once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from go_opt.errors import GraphError
from go_opt.model.builder import GraphBuilder
from go_opt.model.codecs.fields import Fields, is_list, shown
from go_opt.model.graph import Graph, OpRule, with_op_rules
from go_opt.model.rule import FACTOR_KINDS, NO_FACTOR, Access, Affine, Factor, FactorKind, Rule

if TYPE_CHECKING:
    from go_opt.proto import graph_pb2

_LOOPS: Final = ("factor", "window")  # fields of an Affine that may be NO_FACTOR


def rule_row(graph: Graph, op: int) -> dict[str, Any]:
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
    given = {name: of for name, of in piece._asdict().items() if name not in _LOOPS}
    return {name: names[of] for name in _LOOPS if (of := getattr(piece, name)) != NO_FACTOR} | given


def add_rule(builder: GraphBuilder, op: Fields) -> None:
    """Give an op the rule that :func:`rule_row` adds to its fields, if there is one.

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


def rules_to_proto(graph: Graph, message: graph_pb2.Graph) -> None:
    """Add the rules of a graph to its message."""
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
                            name: of for name, of in piece._asdict().items() if name not in _LOOPS or of >= 0
                        }
                        pieces.add(window=given)
                    else:
                        pieces.add(factor=piece)


def rules_from_proto(message: graph_pb2.Graph, graph: Graph) -> Graph:
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
    missing = {name: NO_FACTOR for name in _LOOPS if not row.HasField(name)}
    return Affine(**{name: getattr(row, name) for name in Affine._fields} | missing)
