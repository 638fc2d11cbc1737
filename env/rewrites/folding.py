"""Folding: scales and shifts of columns become part of the weight and bias of the product before.

``(x W + b) s + t`` is ``x (W s) + (b s + t)``, where s and t have an element for each column, or one for all.
The *columns* of a product or convolution are what its weight adds to the result, along one axis. A MatMul and
the Add of a constant for each of its columns are a Gemm, whose kernel adds it; several axes of rows are one
in a Gemm, so that a model has a view behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from go_opt.env.rewrites import names
from go_opt.env.rewrites.draft import Draft, DraftOp, Tensor, ops_of, refused
from go_opt.model.graph import Rewrite
from go_opt.model.rule import Access, Dimension, factors_in

PRODUCTS: Final = ("Conv", "Gemm", "MatMul")
ACTIVATION, WEIGHT, BIAS = range(3)  # places of operands
_SCALES: Final = ("BatchNormalization", "Div", "Mul")
_SHIFTS: Final = ("Add", "BatchNormalization", "Sub")
_AFFINE: Final = {*_SCALES, *_SHIFTS}


class Columns(NamedTuple):
    """The axis of the result that runs over the columns, and their factors."""

    axis: int
    factors: Dimension  # major to minor


def columns_of(draft: Draft, op: DraftOp) -> Columns | None:
    """The columns of a product of an activation with a weight that no other op reads; None if it is none.

    A bias must have an element for each column; others may read it, since it is small.
    """
    rule = op.rule
    if op.op_type not in PRODUCTS or rule is None or not draft.is_open(op) or has_views(op):
        return None
    weights = op.operands[WEIGHT:]
    if not 1 <= len(weights) <= BIAS or len({*op.operands}) < len(op.operands):
        return None
    if draft.only_reader(op.operands[WEIGHT]) is None:
        return None
    is_product = draft.tensors[op.operands[ACTIVATION]].kind != "weight"
    if not is_product or not all(map(draft.is_constant, weights)):
        return None
    shared = factors_in(rule.operands[WEIGHT]) & factors_in(rule.results[0])
    axes = [axis for axis, one in enumerate(rule.results[0]) if shared & {*one}]
    if len(axes) != 1 or shared != {*rule.results[0][axes[0]]}:
        return None
    found = Columns(axes[0], rule.results[0][axes[0]])
    is_plain = all(not isinstance(piece, int) or piece in shared for piece in found.factors)
    is_in_weight = shared <= {*flat(rule.operands[WEIGHT])}
    has_bias = len(op.operands) > BIAS
    if not is_plain or not is_in_weight or (has_bias and flat(rule.operands[BIAS]) != found.factors):
        return None
    return found


def has_views(op: DraftOp) -> bool:
    """Whether an op is a Gemm of more axes than two, which a model has with views around it."""
    return op.op_type == "Gemm" and len(op.known_rule.results[0]) > 2


def flat(access: Access) -> Dimension:
    """The factors of an access, major to minor."""
    return tuple(piece for one in access for piece in one)


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
    weight, rule = product.operands[WEIGHT], product.known_rule
    tensors: dict[str, Tensor] = {}
    operands = list(product.operands)
    if is_scaled:
        operands[WEIGHT] = names.folded_weight(product.name)
        tensors[operands[WEIGHT]] = draft.tensors[weight]
    flops = product.flops
    if has_bias:
        operands[BIAS:] = [names.folded_bias(product.name)]
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
            yield Rewrite(names.FOLD, tuple(chain))


def _is_negative(draft: Draft, op: DraftOp) -> bool:
    """Whether an op is a constant less the result before."""
    return op.op_type == "Sub" and draft.is_constant(op.operands[0])


def _may_fold(draft: Draft, product: DraftOp, columns: Columns, last: DraftOp, op: DraftOp) -> bool:
    has_bias = product.op_type != "MatMul" or op.op_type not in _SHIFTS
    return has_bias and continues(draft, product, columns, last, op)


def continues(draft: Draft, product: DraftOp, columns: Columns, last: DraftOp, op: DraftOp) -> bool:
    """Whether ``op`` scales or shifts the columns of what ``last`` writes, which nothing else reads."""
    found = op_behind(draft, product, last)
    if found is None or found[0] != op or op.op_type not in _AFFINE or len(op.operands) < 2:
        return False
    place, rule = found[1], op.known_rule
    if place != ACTIVATION and op.op_type in ("BatchNormalization", "Div"):
        return False
    others = ((op.operands[i], rule.operands[i]) for i in range(len(op.operands)) if i != place)
    along = rule.results[0][columns.axis]
    return all(draft.is_constant(name) and flat(access) in ((), along) for name, access in others)


def op_behind(draft: Draft, product: DraftOp, last: DraftOp) -> tuple[DraftOp, int] | None:
    """The op that alone reads what ``last`` writes, as which of its operands; None if there is none.

    Its result has the shape and type of that of ``product``.
    """
    tensor, whole = last.writes[0], product.known_rule
    name = draft.only_reader(tensor)
    op = draft.ops[name] if name is not None else last
    if name is None or op.rule is None or not draft.is_open(op) or op.operands.count(tensor) != 1:
        return None
    place, result = op.operands.index(tensor), op.rule.results[0]
    is_same = op.rule.operands[place] == result and op.rule.shape(result) == whole.shape(whole.results[0])
    types = {draft.tensors[one].dtype for one in (*op.writes, *product.writes)}
    return (op, place) if is_same and len(types) == 1 else None


def bias(draft: Draft, rewrite: Rewrite) -> None:
    """Apply a rewrite, whose ops are a MatMul and an Add.

    Raises:
      PlanError: these are not such ops.
    """
    ops = ops_of(draft, rewrite)
    made = _with_bias(draft, *ops) if len(ops) == 2 else None
    if made is None:
        raise refused(rewrite, "is no MatMul of a weight with a constant for each column behind it")
    draft.replace(rewrite.ops, [made], {})


def biases(draft: Draft) -> Iterator[Rewrite]:
    """All that can be added by products."""
    products = [op for op in draft.ops.values() if op.op_type == "MatMul" and draft.is_open(op)]
    for product in products:
        name = draft.only_reader(product.writes[0])
        if name is not None and _with_bias(draft, product, draft.ops[name]) is not None:
            yield Rewrite(names.BIAS, (product.name, name))


def _with_bias(draft: Draft, product: DraftOp, op: DraftOp) -> DraftOp | None:
    columns = columns_of(draft, product)
    if columns is None or product.op_type != "MatMul" or op.op_type != "Add":
        return None
    if len(product.operands) != 2 or not continues(draft, product, columns, product, op):
        return None
    rule, (constant,) = product.known_rule, (one for one in op.operands if one != product.writes[0])
    (*rows, inner), (*of_result, last) = rule.operands[ACTIVATION], rule.results[0]
    size = draft.tensors[constant].elements
    is_plain = rows == of_result and rule.operands[WEIGHT] == (inner, last) and size == rule.shape((last,))[0]
    if not is_plain or not rows or (len(rows) > 1 and op.writes[0] in draft.outputs):
        return None
    return replace(
        product,
        op_type="Gemm",
        flops=product.flops + draft.tensors[op.writes[0]].elements,
        reads=(*product.reads, (constant, size)),
        writes=op.writes,
        rule=rule._replace(operands=(*rule.operands, (columns.factors,))),
        operands=(*product.operands, constant),
        results=op.writes,
    )
