"""Wrong rules made of right ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from go_opt.model.rule import NO_FACTOR, Access, Affine, FactorKind, Rule, factors_in
from tests.core.rules.changes import run_part
from tests.core.rules.parts import Array, Node, fault_of_factor, shape_fault

Mutant = tuple[str, Rule, set[int]]  # what was changed, the wrong rule, and the factors that show it


def wrong_rules(rule: Rule) -> Iterator[Mutant]:
    written = set().union(*map(factors_in, rule.results))
    for i, factor in enumerate(rule.factors):
        if factor.kind == "whole":
            kind: FactorKind = "parallel" if i in written else "reduction"
            factors = (*rule.factors[:i], factor._replace(kind=kind), *rule.factors[i + 1 :])
            yield "divided", rule._replace(factors=factors), {i}
    summed = {i for i, factor in enumerate(rule.factors) if factor.kind == "reduction"}
    for place, access in enumerate(rule.operands):
        others = [factors_in(one) for one in (*rule.operands[:place], *rule.operands[place + 1 :])]
        for first in factors_in(access):
            for second in factors_in(access):
                # Factors of a sum of one operand may be exchanged.
                is_sum = {first, second} <= summed and not any({first, second} & other for other in others)
                if first < second and not is_sum:
                    yield "swapped", _with(rule, place, _swapped(access, first, second)), {first, second}
        for axis, dimension in enumerate(access):
            for piece in dimension:
                if isinstance(piece, Affine):
                    seen = {piece.factor, piece.window} - {NO_FACTOR}
                    steps = [("before", 1), ("before", -1)]
                    steps += [("stride", 1)] if piece.factor != NO_FACTOR else []
                    steps += [("dilation", 1)] if piece.window != NO_FACTOR else []
                    for name, step in steps:
                        changed = piece._replace(**{name: getattr(piece, name) + step})
                        wrong = (*access[:axis], (changed,), *access[axis + 1 :])
                        yield name, _with(rule, place, wrong), seen


def _with(rule: Rule, place: int, access: Access) -> Rule:
    return rule._replace(operands=(*rule.operands[:place], access, *rule.operands[place + 1 :]))


def _swapped(access: Access, first: int, second: int) -> Access:
    other = {first: second, second: first}

    def of(piece: int | Affine) -> int | Affine:
        if isinstance(piece, Affine):
            factor, window = (other.get(one, one) for one in (piece.factor, piece.window))
            return piece._replace(factor=factor, window=window)
        return other.get(piece, piece)

    return tuple(tuple(of(piece) for piece in dimension) for dimension in access)


def is_found(node: Node, rule: Rule, whole: list[Array], factors: set[int]) -> bool:
    """Whether the oracle refuses a wrong rule, from parts along the factors that show it."""
    if shape_fault(node, rule, whole):
        return True
    for factor in sorted(factors):
        cuts = np.arange(rule.factors[factor].size + 1).tolist()
        if rule.factors[factor].kind != "whole" and fault_of_factor(
            node, rule, whole, factor, run_part, cuts
        ):
            return True
    return False


def may_be_divided(rule: Rule, factors: set[int]) -> bool:
    return any(rule.factors[factor].kind != "whole" for factor in factors)
