"""Batching: products of different tensors with one weight become one product of all rows.

``x1 W, x2 W`` are the rows of ``[x1; x2] W``. No path may lead from one product to another: in an unrolled
recurrent net, the products of the inputs of all steps become one, those of its states stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from go_opt.env.rewrites.columns import ACTIVATION, WEIGHT
from go_opt.env.rewrites.draft import Draft, DraftOp, Tensor, ops_of, refused
from go_opt.env.rewrites.siblings import joined_constant, merged_name, split_of
from go_opt.model.graph import Rewrite
from go_opt.model.op_costs import OpSignature
from go_opt.model.rule import Access, Factor, Rule, factors_in
from go_opt.model.rules.table import rule_of

BATCH: Final = "batch"
CONCAT: Final = "Concat"
_BATCHED: Final = ("Gemm", "MatMul")


class Rows(NamedTuple):
    """Along which axis the rows of a product are joined: of its activation and result alike."""

    axis: int
    factor: int | None  # None: there is one row
    size: int


def concat_name(name: str, number: int) -> str:
    """The name of the op that joins the activations, if the first of the products has this name."""
    return f"{merged_name(name, number)}/concat"


def rows_of(draft: Draft, op: DraftOp) -> Rows | None:
    """The rows of a product of an activation with a weight; None if it is none, or they are not seen.

    A rule does not say which dimension of one element is which, so that single rows are joined only where
    operand and result have no other.
    """
    rule = op.rule
    if op.op_type not in _BATCHED or rule is None or not draft.is_open(op) or len(op.operands) < 2:
        return None
    weights = op.operands[WEIGHT:]
    if draft.tensors[op.operands[ACTIVATION]].kind == "weight" or not all(map(draft.is_constant, weights)):
        return None
    read, written = rule.operands[ACTIVATION], rule.results[0]
    if len(read) != len(written) or read[:-1] != written[:-1] or not (read[-1] and written[-1]):
        return None
    of_weights = set[int]().union(*map(factors_in, rule.operands[WEIGHT:]))
    if not {*read[-1], *written[-1]} <= of_weights:  # the inner elements and the columns
        return None
    if draft.tensors[op.operands[ACTIVATION]].elements != dict(op.reads)[op.operands[ACTIVATION]]:
        return None
    for axis, dimension in enumerate(read[:-1]):
        if not dimension and len(read) == 2:
            return Rows(axis, None, 1)
        if len(dimension) == 1 and isinstance(dimension[0], int) and dimension[0] not in of_weights:
            return Rows(axis, dimension[0], rule.size(dimension[0]))
    return None


def batch(draft: Draft, rewrite: Rewrite) -> None:
    """Apply a rewrite, whose ops are products with one weight.

    Raises:
      PlanError: these are not such ops, or a path leads from one to another.
    """
    ops = ops_of(draft, rewrite)
    rows = [rows_of(draft, op) for op in ops]
    known = [one for one in rows if one is not None]
    if len(ops) < 2 or len(known) < len(ops):
        raise refused(rewrite, "has fewer than two products of a weight")
    if len({_kind(draft, *one) for one in zip(ops, known, strict=True)}) > 1:
        raise refused(rewrite, "has products that differ in more than their rows")
    if len({op.operands[ACTIVATION] for op in ops}) < len(ops):
        raise refused(rewrite, "has products of one tensor")
    if _are_connected(draft, rewrite.ops):
        raise refused(rewrite, "has products that depend on each other")
    made, tensors = _batched(draft, ops, known)
    draft.replace(rewrite.ops, made, tensors)


def batches(draft: Draft) -> Iterator[Rewrite]:
    """All products that can be batched, with as many as possible each."""
    alike: dict[tuple, list[str]] = {}
    for name in draft.in_order(draft.ops):
        if (rows := rows_of(draft, op := draft.ops[name])) is not None:
            alike.setdefault(_kind(draft, op, rows), []).append(name)
    for names in alike.values():
        if len(names) < 2:
            continue
        by_level: dict[int, dict[str, str]] = {}
        for name, level in zip(names, _levels(draft, names), strict=True):
            by_level.setdefault(level, {}).setdefault(draft.ops[name].operands[ACTIVATION], name)
        for found in by_level.values():
            if len(found) > 1:
                yield Rewrite(BATCH, tuple(found.values()))


def _kind(draft: Draft, op: DraftOp, rows: Rows) -> tuple:
    """What products have in common that can be batched."""
    rule, dtype = _with_rows(op.known_rule, rows, 2), draft.tensors[op.operands[ACTIVATION]].dtype
    result = draft.tensors[op.writes[0]].dtype
    return (op.op_type, op.op_class, op.dtype, op.excluded_kinds, op.operands[WEIGHT:], rule, dtype, result)


def _levels(draft: Draft, names: Sequence[str]) -> list[int]:
    """How many of some ops lie on a path to each of them; with the same number, no path connects them."""
    level: dict[str, int] = {}
    members = {*names}
    for name in draft.topological():
        before = (draft.producer.get(tensor) for tensor, _ in draft.ops[name].reads)
        most = max((level[one] for one in before if one is not None), default=0)
        level[name] = most + (name in members)
    return [level[name] for name in names]


def _are_connected(draft: Draft, names: Sequence[str]) -> bool:
    """Whether a path leads from one op to another."""
    left, seen = list(names), set[str]()
    while left:
        after = {one for tensor in draft.ops[left.pop()].writes for one in draft.readers.get(tensor, ())}
        if not after.isdisjoint(names):
            return True
        left += after - seen
        seen |= after
    return False


def _with_rows(rule: Rule, rows: Rows, size: int) -> Rule:
    """The rule of a product of so many rows."""
    if rows.factor is not None:
        factors = list(rule.factors)
        factors[rows.factor] = factors[rows.factor]._replace(size=size)
        return rule._replace(factors=tuple(factors))

    def changed(access: Access) -> Access:
        return (*access[: rows.axis], (len(rule.factors),), *access[rows.axis + 1 :])

    return Rule(
        (*rule.factors, Factor("i", "parallel", size)),
        (changed(rule.operands[ACTIVATION]), *rule.operands[WEIGHT:]),
        (changed(rule.results[0]),),
    )


def _batched(
    draft: Draft, ops: Sequence[DraftOp], rows: Sequence[Rows]
) -> tuple[list[DraftOp], dict[str, Tensor]]:
    first, number, axis = ops[0], len(ops), rows[0].axis
    whole, result = joined_constant(first.name, number, ACTIVATION), merged_name(first.writes[0], number)
    sources = [op.operands[ACTIVATION] for op in ops]
    tensors = {
        made: draft.tensors[of[0]]._replace(
            elements=sum(draft.tensors[one].elements for one in of), kind="activation"
        )
        for made, of in ((whole, sources), (result, [op.writes[0] for op in ops]))
    }
    rule = _with_rows(first.known_rule, rows[0], sum(one.size for one in rows))
    shapes = tuple(op.known_rule.shape(op.known_rule.operands[ACTIVATION]) for op in ops)
    joined = rule_of(OpSignature(CONCAT, shapes, (rule.shape(rule.operands[ACTIVATION]),), {"axis": axis}))
    concat = replace(
        first,
        name=concat_name(first.name, number),
        op_type=CONCAT,
        op_class="data_movement",
        flops=0.0,
        reads=tuple((name, draft.tensors[name].elements) for name in sources),
        writes=(whole,),
        rule=joined,
        operands=tuple(sources),
        results=(whole,),
    )
    touched = dict(first.reads)
    product = replace(
        first,
        name=merged_name(first.name, number),
        flops=sum(op.flops for op in ops),
        reads=((whole, tensors[whole].elements), *((one, touched[one]) for one in first.operands[WEIGHT:])),
        writes=(result,),
        rule=rule,
        operands=(whole, *first.operands[WEIGHT:]),
        results=(result,),
    )
    return [concat, product, split_of(draft, first.name, ops, axis, product)], tensors
