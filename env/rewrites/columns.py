"""The columns of a product or convolution: what its weight adds to the result, along one axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from go_opt.env.rewrites.draft import Draft, DraftOp
from go_opt.model.rule import Dimension, Rule, factors_in

PRODUCTS: Final = ("Conv", "Gemm", "MatMul")
ACTIVATION, WEIGHT, BIAS = range(3)  # places of operands


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
    is_in_weight = shared <= {piece for one in rule.operands[WEIGHT] for piece in one}
    has_bias = len(op.operands) > BIAS
    if not is_plain or not is_in_weight or (has_bias and _flat(rule, BIAS) != found.factors):
        return None
    return found


def has_views(op: DraftOp) -> bool:
    """Whether an op is a Gemm of more axes than two, which a model has with views around it."""
    return op.op_type == "Gemm" and len(op.known_rule.results[0]) > 2


def chains_of(ops: Sequence[DraftOp]) -> list[list[DraftOp]]:
    """Each product with the ops behind it."""
    chains: list[list[DraftOp]] = []
    for op in ops:
        if op.op_type in PRODUCTS or not chains:
            chains.append([])
        chains[-1].append(op)
    return chains


def _flat(rule: Rule, place: int) -> Dimension:
    return tuple(piece for one in rule.operands[place] for piece in one)
