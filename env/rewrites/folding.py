"""Folding: scales and shifts of columns become part of the weight and bias of the product before.

``(x W + b) s + t`` is ``x (W s) + (b s + t)``, where s and t have an element for each column, or one for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from go_opt.env.rewrites.columns import ACTIVATION, BIAS, PRODUCTS, WEIGHT, Columns, columns_of
from go_opt.env.rewrites.draft import Draft, DraftOp, Tensor, ops_of, refused
from go_opt.env.rewrites.names import FOLD, folded_bias, folded_weight
from go_opt.model.graph import Rewrite

_SCALES: Final = ("BatchNormalization", "Div", "Mul")
_SHIFTS: Final = ("Add", "BatchNormalization", "Sub")
_AFFINE: Final = {*_SCALES, *_SHIFTS}


def fold(draft: Draft, rewrite: Rewrite) -> None:
    """Apply a rewrite, whose ops are a product and then scales and shifts, each of the result before.

    Raises:
      PlanError: these are not such ops.
    """
    product, *affine = ops_of(draft, rewrite)
    columns = columns_of(draft, product)
    if columns is None or not affine:
        raise refused(rewrite, "does not begin with a product of a weight, or has no more ops")
    last = product
    for op in affine:
        if not _may_fold(draft, product, columns, last, op):
            raise refused(rewrite, f"has {op.name[:120]!r}, which is no scale or shift of columns")
        last = op
    is_scaled = any(op.op_type in _SCALES or _is_negative(draft, op) for op in affine)
    had_bias = len(product.operands) > BIAS
    has_bias = had_bias or any(op.op_type in _SHIFTS for op in affine)
    weight, rule = product.operands[WEIGHT], product.rule
    assert rule is not None
    tensors: dict[str, Tensor] = {}
    operands = list(product.operands)
    if is_scaled:
        operands[WEIGHT] = folded_weight(product.name)
        tensors[operands[WEIGHT]] = draft.tensors[weight]
    flops = product.flops
    if has_bias:
        operands[BIAS:] = [folded_bias(product.name)]
        size = rule.shape(rule.results[0])[columns.axis]
        tensors[operands[BIAS]] = Tensor(size, draft.tensors[weight].dtype, "weight")
        if not had_bias:
            rule = rule._replace(operands=(*rule.operands, (columns.factors,)))
            flops += draft.tensors[product.writes[0]].elements
    touched = dict(product.reads) | {name: tensor.elements for name, tensor in tensors.items()}
    made = replace(
        product,
        flops=flops,
        reads=tuple((name, touched[name]) for name in operands),
        writes=last.writes,
        rule=rule,
        operands=tuple(operands),
        results=last.writes,
    )
    draft.replace(rewrite.ops, [made], tensors)


def folds(draft: Draft) -> Iterator[Rewrite]:
    """All that can be folded, with as many scales and shifts as possible each."""
    for product in list(draft.ops.values()):
        columns = columns_of(draft, product) if product.op_type in PRODUCTS else None
        if columns is None:
            continue
        chain, last = [product.name], product
        while (name := draft.only_reader(last.writes[0])) is not None:
            op = draft.ops[name]
            if not _may_fold(draft, product, columns, last, op):
                break
            chain.append(name)
            last = op
        if len(chain) > 1:
            yield Rewrite(FOLD, tuple(chain))


def _is_negative(draft: Draft, op: DraftOp) -> bool:
    """Whether an op is a constant less the result before."""
    return op.op_type == "Sub" and draft.is_constant(op.operands[0])


def _may_fold(draft: Draft, product: DraftOp, columns: Columns, last: DraftOp, op: DraftOp) -> bool:
    has_bias = product.op_type != "MatMul" or op.op_type not in _SHIFTS
    return has_bias and continues(draft, product, columns, last, op)


def continues(draft: Draft, product: DraftOp, columns: Columns, last: DraftOp, op: DraftOp) -> bool:
    """Whether ``op`` scales or shifts the columns of what ``last`` writes, which nothing else reads."""
    tensor, rule = last.writes[0], op.rule
    if op.op_type not in _AFFINE or rule is None or product.rule is None or not draft.is_open(op):
        return False
    if draft.only_reader(tensor) != op.name or op.operands.count(tensor) != 1 or len(op.operands) < 2:
        return False
    place, result = op.operands.index(tensor), rule.results[0]
    if place != ACTIVATION and op.op_type in ("BatchNormalization", "Div"):
        return False
    is_same = rule.operands[place] == result and rule.shape(result) == product.rule.shape(
        product.rule.results[0]
    )
    types = {draft.tensors[one].dtype for one in (*op.writes, *product.writes)}
    return (
        is_same
        and len(types) == 1
        and all(
            draft.is_constant(name)
            and tuple(piece for one in access for piece in one) in ((), result[columns.axis])
            for i, (name, access) in enumerate(zip(op.operands, rule.operands, strict=True))
            if i != place
        )
    )
