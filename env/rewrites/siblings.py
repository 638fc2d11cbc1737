"""Merging: products that read the same tensor become one, whose result is split again.

``x W1, x W2`` are the columns of ``x [W1 W2]``. Element-wise ops behind each product, the same ones in the
same order, are merged with them: ``f(x W1), f(x W2)`` are the columns of ``f(x [W1 W2])``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Final

from go_opt.env.rewrites.columns import ACTIVATION, PRODUCTS, Columns, chains_of, columns_of
from go_opt.env.rewrites.draft import Draft, DraftOp, Tensor, ops_of, refused
from go_opt.env.rewrites.names import MERGE, joined_operand, merged_name, split_name
from go_opt.model.graph import Rewrite
from go_opt.model.op_costs import OpSignature
from go_opt.model.rule import Access, Rule
from go_opt.model.rules.table import rule_of

SPLIT: Final = "Split"
# Element-wise ops behind products that may be merged: without attributes, or with a weight for each column.
FUNCTIONS: Final = frozenset({"Abs", "Erf", "Exp", "Neg", "Relu", "Sigmoid", "Softplus", "Softsign", "Tanh"})
WITH_WEIGHT: Final = frozenset({"Add", "Mul"})


def merge(draft: Draft, rewrite: Rewrite) -> None:
    """Apply a rewrite, whose ops are products, each followed by the element-wise ops behind it.

    Raises:
      PlanError: these are not such ops.
    """
    chains = chains_of(ops_of(draft, rewrite))
    columns = [columns_of(draft, chain[0]) for chain in chains]
    known = [one for one in columns if one is not None]
    if len(chains) < 2 or len(known) < len(chains):
        raise refused(rewrite, "has fewer than two products of a weight")
    if any(
        _behind(draft, chain, one)[: len(chain)] != chain for chain, one in zip(chains, known, strict=True)
    ):
        raise refused(rewrite, "has ops that do not follow each other alone")
    others = zip(chains[1:], known[1:], strict=True)
    if not all(_are_alike(draft, chains[0], known[0], *other) for other in others):
        raise refused(rewrite, "has ops that differ in more than their columns, or read different tensors")
    made, tensors = _merged(draft, chains, known)
    draft.replace(rewrite.ops, made, tensors)


def merges(draft: Draft) -> Iterator[Rewrite]:
    """All products that can be merged, with as many ops behind each as possible."""
    for tensor, readers in list(draft.readers.items()):
        found: dict[str, Columns] = {}
        for name in draft.in_order(readers):
            op = draft.ops[name]
            if op.op_type in PRODUCTS and op.operands and op.operands[ACTIVATION] == tensor:
                columns = columns_of(draft, op)
                found |= {} if columns is None else {name: columns}
        while len(found) > 1:
            first, *others = found
            op = draft.ops[first]
            alike = [
                first,
                *(o for o in others if _are_alike(draft, [op], found[first], [draft.ops[o]], found[o])),
            ]
            if len(alike) > 1:
                yield Rewrite(MERGE, tuple(_longest_chains(draft, alike, found)))
            found = {name: one for name, one in found.items() if name not in alike}


def _longest_chains(draft: Draft, products: Sequence[str], columns: dict[str, Columns]) -> list[str]:
    chains = [_behind(draft, [draft.ops[name]], columns[name]) for name in products]
    length = 0
    for behind in zip_longest(*chains):
        if any(one is None for one in behind):
            break
        first = chains[0][: length + 1], columns[products[0]]
        if not all(
            _are_alike(draft, *first, chain[: length + 1], columns[name])
            for chain, name in zip(chains[1:], products[1:], strict=True)
        ):
            break
        length += 1
    return [op.name for chain in chains for op in chain[:length]]


def _behind(draft: Draft, chain: Sequence[DraftOp], columns: Columns) -> list[DraftOp]:
    """A product, and the element-wise ops behind it that can be merged."""
    product = chain[0]
    found = [product]
    assert product.rule is not None
    shape = product.rule.shape(product.rule.results[0])
    while (name := draft.only_reader(found[-1].writes[0])) is not None:
        op = draft.ops[name]
        rule, tensor = op.rule, found[-1].writes[0]
        if rule is None or not draft.is_open(op) or op.operands.count(tensor) != 1:
            break
        result, place = rule.results[0], op.operands.index(tensor)
        is_same = rule.operands[place] == result and rule.shape(result) == shape
        rest = [i for i in range(len(op.operands)) if i != place]
        is_function = op.op_type in FUNCTIONS and not rest
        is_weighted = (
            op.op_type in WITH_WEIGHT
            and len(rest) == 1
            and all(
                draft.is_constant(op.operands[i]) and _pieces(rule.operands[i]) == result[columns.axis] != ()
                for i in rest
            )
        )
        types = {draft.tensors[one].dtype for one in (*op.writes, *product.writes)}
        if not is_same or not (is_function or is_weighted) or len(types) > 1:
            break
        found.append(op)
    return found


def _pieces(access: Access) -> tuple:
    return tuple(piece for one in access for piece in one)


def _are_alike(
    draft: Draft, chain: Sequence[DraftOp], columns: Columns, other: Sequence[DraftOp], of_other: Columns
) -> bool:
    """Whether two chains differ in nothing but the number of their columns."""
    if len(chain) != len(other) or chain[0].operands[ACTIVATION] != other[0].operands[ACTIVATION]:
        return False
    if len(columns.factors) != 1 or columns != of_other:  # grouped convolutions have two
        return False
    for i, (a, b) in enumerate(zip(chain, other, strict=True)):
        assert a.rule is not None
        assert b.rule is not None
        kinds = [
            (
                op.op_type,
                op.op_class,
                op.dtype,
                op.excluded_kinds,
                *(draft.tensors[one].dtype for one in op.operands),
            )
            for op in (a, b)
        ]
        column = columns.factors[0] if i == 0 else a.rule.results[0][columns.axis][0]
        assert isinstance(column, int), "a result is not read through a window"
        if kinds[0] != kinds[1] or a.rule.with_size(column, 2) != b.rule.with_size(column, 2):
            return False
        if i and a.operands.index(chain[i - 1].writes[0]) != b.operands.index(other[i - 1].writes[0]):
            return False
    return True


def _merged(
    draft: Draft, chains: Sequence[Sequence[DraftOp]], columns: Sequence[Columns]
) -> tuple[list[DraftOp], dict[str, Tensor]]:
    number, axis = len(chains), columns[0].axis
    made: list[DraftOp] = []
    tensors: dict[str, Tensor] = {}

    def joined(name: str, of: Sequence[str]) -> str:
        elements = sum(draft.tensors[one].elements for one in of)
        tensors[name] = draft.tensors[of[0]]._replace(elements=elements)
        return name

    source = chains[0][0].operands[ACTIVATION]
    for i, alike in enumerate(zip(*chains, strict=True)):
        first, rule = alike[0], alike[0].known_rule
        place = first.operands.index(chains[0][i - 1].writes[0]) if i else ACTIVATION
        column = rule.results[0][axis][0] if i else columns[0].factors[0]
        assert isinstance(column, int)
        constants = zip(*(op.operands for op in alike), strict=True)
        operands = tuple(
            source if j == place else joined(joined_operand(first.name, number, j), of)
            for j, of in enumerate(constants)
        )
        source = joined(merged_name(first.writes[0], number), [op.writes[0] for op in alike])
        wide = rule.with_size(column, sum(op.known_rule.factors[column].size for op in alike))
        made.append(joined_op(alike, wide, operands, source, tensors))
    return [
        *made,
        split_of(draft, chains[0][0].name, [chain[-1] for chain in chains], axis, made[-1]),
    ], tensors


def joined_op(
    alike: Sequence[DraftOp], rule: Rule, operands: Sequence[str], result: str, made: Mapping[str, Tensor]
) -> DraftOp:
    """What does the work of the ops ``alike``; of its operands, those that are ``made`` are read whole."""
    first, touched = alike[0], dict(alike[0].reads)
    return replace(
        first,
        name=merged_name(first.name, len(alike)),
        flops=sum(op.flops for op in alike),
        reads=tuple((one, made[one].elements if one in made else touched[one]) for one in operands),
        writes=(result,),
        rule=rule,
        operands=tuple(operands),
        results=(result,),
    )


def split_of(draft: Draft, head: str, tails: Sequence[DraftOp], axis: int, last: DraftOp) -> DraftOp:
    """What splits the result of ``last`` into those of ``tails``; ``head`` is the first product."""
    shapes = tuple(op.known_rule.shape(op.known_rule.results[0]) for op in tails)
    whole = last.known_rule.shape(last.known_rule.results[0])
    name, writes = split_name(head, len(tails)), tuple(op.writes[0] for op in tails)
    elements = sum(draft.tensors[one].elements for one in writes)
    return DraftOp(
        name,
        SPLIT,
        "data_movement",
        0.0,
        last.dtype,
        ((last.writes[0], elements),),
        writes,
        rule_of(OpSignature(SPLIT, (whole,), shapes, {"axis": axis})),
        last.writes,
        writes,
        None,
        last.excluded_kinds,
    )
