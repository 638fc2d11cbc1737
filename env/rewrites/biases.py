"""Biases: a MatMul and the Add of a constant for each of its columns are a Gemm, whose kernel adds it.

Several axes of rows are one in a Gemm, so that a model has a view behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from go_opt.env.rewrites.columns import ACTIVATION, WEIGHT, columns_of
from go_opt.env.rewrites.draft import Draft, DraftOp, ops_of, refused
from go_opt.env.rewrites.folding import continues
from go_opt.env.rewrites.names import BIAS
from go_opt.model.graph import Rewrite


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
            yield Rewrite(BIAS, (product.name, name))


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
