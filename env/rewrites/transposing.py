"""Transposes folded into products: matrices are read and written in the order in which memory has them.

``transpose(x) y`` is a contraction of ``x`` and ``y``, as an Einsum says it. Kernels read a batch of matrices
by strides, so rows, columns and inner elements must each lie side by side, and one of them innermost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, combinations, groupby
from typing import Final

from go_opt.env.rewrites.draft import Draft, DraftOp, ops_of, refused
from go_opt.env.rewrites.names import TRANSPOSE
from go_opt.model.graph import Rewrite
from go_opt.model.rule import Access, Rule

_CONTRACTIONS: Final = ("Einsum", "MatMul")


def transpose(draft: Draft, rewrite: Rewrite) -> None:
    """Apply a rewrite, whose ops are a product and then the Transposes next to it.

    Raises:
      PlanError: these are not such ops, or no kernel reads what would be left by strides.
    """
    product, *turns = ops_of(draft, rewrite)
    made = _with_turns(draft, product, turns) if turns else None
    if made is None:
        raise refused(rewrite, "is no product of two tensors with Transposes next to it")
    if not is_strided(made.known_rule):
        raise refused(rewrite, "would read matrices that do not lie side by side")
    draft.replace(rewrite.ops, [made], {})


def transposes(draft: Draft) -> Iterator[Rewrite]:
    """All products with Transposes next to them, each with as many as it can take over."""
    for name in list(draft.ops):
        while name in draft.ops and (turns := _next_to(draft, draft.ops[name])):
            yield Rewrite(TRANSPOSE, (name, *turns))


def _next_to(draft: Draft, product: DraftOp) -> tuple[str, ...]:
    """As many Transposes as a product can take over."""
    if not _is_contraction(draft, product):
        return ()
    near = [*map(draft.producer.get, product.operands), draft.only_reader(product.writes[0])]
    turns = [draft.ops[name] for name in dict.fromkeys(near) if name is not None]
    turns = [op for op in turns if _with_turns(draft, product, [op]) is not None]
    for way in chain.from_iterable(combinations(turns, n) for n in range(len(turns), 0, -1)):
        made = _with_turns(draft, product, way)
        if made is not None and is_strided(made.known_rule):
            return tuple(op.name for op in way)
    return ()


def is_strided(rule: Rule) -> bool:
    """Whether a product of two operands is a batch of products of matrices, each of which has strides."""
    accesses = [
        [piece for dimension in one for piece in dimension] for one in (*rule.operands, *rule.results)
    ]
    runs: dict[tuple[bool, ...], list[tuple]] = {}
    for one in accesses:
        for of, run in groupby(one, lambda piece: tuple(piece in other for other in accesses)):
            runs.setdefault(of, []).append(tuple(run))
        if one and all(one[-1] in other for other in accesses):
            return False  # the batch lies innermost
    return all(len(found) == sum(of) and len({*found}) == 1 for of, found in runs.items() if not all(of))


def _is_contraction(draft: Draft, op: DraftOp) -> bool:
    """Whether an op sums products of two tensors, and no dimension of them has more than one factor."""
    rule = op.rule
    if rule is None or op.op_type not in _CONTRACTIONS or not draft.is_open(op) or len(op.operands) != 2:
        return False
    accesses = (*rule.operands, *rule.results)
    factors = [piece for access in accesses for one in access for piece in one]
    is_plain = all(len(one) < 2 for access in accesses for one in access)
    is_shared = all(isinstance(piece, int) and factors.count(piece) > 1 for piece in factors)
    types = {draft.tensors[one].dtype for one in (*op.operands, *op.writes)}
    return is_plain and is_shared and len(types) == 1 and "float" in types.pop()


def _with_turns(draft: Draft, product: DraftOp, turns: Sequence[DraftOp]) -> DraftOp | None:
    """A product that takes over Transposes; None if one of them is not next to it, or others read it."""
    for turn in turns:
        if not _is_contraction(draft, product) or not _is_turn(draft, product, turn):
            return None
        rule, by = product.known_rule, turn.known_rule
        (source,), (result,) = turn.operands, turn.writes
        if source == product.writes[0]:
            written = _turned(rule.results[0], by.operands[0], by.results[0])
            product = replace(product, writes=(result,), results=(result,))
            product = replace(product, rule=rule._replace(results=(written,)))
            continue
        place = product.operands.index(result)
        read = _turned(rule.operands[place], by.results[0], by.operands[0])
        accesses = tuple(read if i == place else one for i, one in enumerate(rule.operands))
        operands = tuple(source if i == place else one for i, one in enumerate(product.operands))
        touched = dict(product.reads) | dict(turn.reads)
        product = replace(
            product,
            reads=tuple((one, touched[one]) for one in dict.fromkeys(operands)),
            rule=rule._replace(operands=accesses),
            operands=operands,
        )
    return product if _is_contraction(draft, product) else None


def _is_turn(draft: Draft, product: DraftOp, turn: DraftOp) -> bool:
    """Whether a Transpose is read by the product alone, or reads alone what it writes, in the same shape."""
    if turn.op_type != "Transpose" or not draft.is_open(turn) or len(turn.operands) != 1:
        return False
    rule, by, kinds = product.known_rule, turn.known_rule, (product.excluded_kinds, turn.excluded_kinds)
    if kinds[0] != kinds[1] or sorted(by.operands[0]) != sorted(by.results[0]):
        return False
    if turn.operands[0] == product.writes[0]:
        is_next = draft.only_reader(product.writes[0]) == turn.name
        return is_next and _longer(rule, rule.results[0]) == _longer(by, by.operands[0])
    result = turn.writes[0]
    if product.operands.count(result) != 1 or draft.only_reader(result) != product.name:
        return False
    seen = rule.operands[product.operands.index(result)]
    is_whole = dict(product.reads)[result] == draft.tensors[result].elements
    return is_whole and _longer(rule, seen) == _longer(by, by.results[0])


def _longer(rule: Rule, access: Access) -> list[int]:
    """The sizes of dimensions of more than one element; views add and drop others."""
    return [size for size in rule.shape(access) if size > 1]


def _turned(access: Access, before: Access, after: Access) -> Access:
    """An access whose dimensions are in the order of ``before``, in that of ``after``."""
    of = dict(zip(filter(None, before), filter(None, access), strict=True))
    return tuple(of[one] if one else () for one in after)
