"""Rechecks rewrites of ops that move elements, by where each loop of a product lies in memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from go_opt.model.dtypes import IS_FLOATING
from go_opt.model.rule import Access, Rule, factors_in, places
from go_opt.solver.verify.rewrite_state import Op, RewriteState, WrongRewriteError, known_rule

_CONTRACTIONS: Final = {"Einsum", "MatMul"}


class MovesState(RewriteState):
    """A graph in which Transposes may be folded into products."""

    def transpose(self, names: Sequence[str], ops: Sequence[Op]) -> None:
        """A product, then Transposes that write what it alone reads, or alone read what it writes."""
        product = ops[0]
        types = {self.tensors[one].dtype for one in (*product.operands, *product.writes)}
        is_product = product.op_type in _CONTRACTIONS and len(product.operands) == 2 and len(types) == 1
        if not is_product or not IS_FLOATING[types.pop()] or len(ops) < 2:
            raise WrongRewriteError("its first op is no product of two tensors, or the only one")
        for name, turn in zip(names[1:], ops[1:], strict=True):
            if turn.op_type != "Transpose" or turn.on_chips != product.on_chips:
                raise WrongRewriteError(f"op {name!r} is no Transpose for the same chips")
            rule, by, operands = known_rule(product), known_rule(turn), list(product.operands)
            result = product.writes[0]
            if turn.operands[0] == result:
                self.follows(product, turn, name)
                written = _through(by, by.operands[0], by.results[0], rule, rule.results[0])
                rule, result = rule._replace(results=(written,)), turn.writes[0]
            else:
                place = self.follows(turn, product, names[0])
                if dict(product.reads)[operands[place]] != self.tensors[operands[place]].elements:
                    raise WrongRewriteError(f"not all is read of what op {name!r} writes")
                read = _through(by, by.results[0], by.operands[0], rule, rule.operands[place])
                operands[place] = turn.operands[0]
                rule = rule._replace(
                    operands=tuple(read if i == place else one for i, one in enumerate(rule.operands))
                )
            product = self.with_operands(product, operands, rule, product.flops, result)
        _check_strides(known_rule(product))
        self.replace(names, {names[0]: product})


def _through(by: Rule, near: Access, far: Access, rule: Rule, access: Access) -> Access:
    """An access to a tensor, seen from the other side of a Transpose, of which ``near`` is the tensor."""
    sizes, seen_by = ([size for size in shape if size > 1] for shape in (by.shape(near), rule.shape(access)))
    if sizes != seen_by:
        raise WrongRewriteError("a Transpose sees its tensor in another shape than the product")
    of = {one[1:]: one.piece for one in places(rule, access)}
    turned = {one.piece: of.get(one[1:]) for one in places(by, near)}
    seen = tuple(tuple(turned.get(piece) for piece in one) for one in far)
    if None in [piece for one in seen for piece in one] or len(of) != len(turned):
        raise WrongRewriteError("a Transpose divides an axis of the product")
    return tuple(tuple(piece for piece in one if piece is not None) for one in seen)


def _check_strides(rule: Rule) -> None:
    """A product is a batch of products of matrices with strides, of which one is 1."""
    accesses = (*rule.operands, *rule.results)
    a, b, c = map(factors_in, accesses)
    for access in accesses:
        if any(one.behind == 1 and one.piece in a & b & c for one in places(rule, access)):
            raise WrongRewriteError("its batch lies innermost")
    for i, j, shared in ((0, 1, a & b - c), (0, 2, a & c - b), (1, 2, b & c - a)):
        lies = [[one for one in places(rule, accesses[k]) if one.piece in shared] for k in (i, j)]
        is_one = all(x.behind == y.size * y.behind for of in lies for x, y in pairwise(of))
        if not is_one or len({tuple(one.piece for one in of) for of in lies}) > 1:
            raise WrongRewriteError("its rows, columns or inner elements do not lie side by side")
