"""Operands that are read through views: their loops in the order in which the tensor has its elements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from operator import mul

from go_opt.model.rule import Access, Affine, Dimension, Rule, Shape

# Of an axis, major to minor: sizes whose product is its own, and how far neighbours are apart in the tensor,
# 0 if they are one element. An axis of one element has none.
Pieces = tuple[tuple[int, int], ...]


def row_major(shape: Shape) -> tuple[int, ...]:
    """How far neighbours along each axis of a tensor are apart."""
    return tuple(accumulate(reversed(shape[1:]), mul, initial=1))[::-1] if shape else ()


def in_order_of_tensor(rule: Rule, place: int, steps: tuple[Pieces, ...]) -> Rule | None:
    """The rule with an operand as the tensor behind its view has it; None if loops cannot be divided so.

    A loop over copies of elements, such as heads that share keys, is divided into one over elements and one
    over copies, which then does not run over the operand.
    """
    if len(rule.operands[place]) != len(steps):
        return None
    for axis, pieces in enumerate(steps):
        if len(pieces) > 1:
            divided = _divided(rule, rule.operands[place][axis], [size for size, _ in pieces])
            if divided is None:
                return None
            rule = divided
    units = list(_units(rule, rule.operands[place], steps))
    ordered = sorted((unit for unit in units if unit[1]), key=lambda unit: -unit[1])
    sizes = tuple(rule.size(piece) for piece, _ in ordered)
    if [step for _, step in ordered] != list(row_major(sizes)):
        return None
    access = tuple((piece,) for piece, _ in ordered)
    return rule._replace(operands=(*rule.operands[:place], access, *rule.operands[place + 1 :]))


def _divided(rule: Rule, dimension: Dimension, sizes: Sequence[int]) -> Rule | None:
    """The rule with the loops over a dimension divided where pieces of these sizes end."""
    loops = [piece for piece in dimension if not isinstance(piece, Affine)]
    own = [rule.size(loop) for loop in loops]
    ends = sorted({*_from_end(own), *_from_end(sizes)})
    if len(loops) < len(dimension) or any(after % before for before, after in pairwise(ends)):
        return None
    for loop, size, inside in zip(loops, own, _from_end(own)[-2::-1], strict=True):
        within = [end for end in ends if inside <= end <= inside * size]
        parts = [after // before for before, after in pairwise(within)][::-1]
        divided = rule.divided(loop, parts) if len(parts) > 1 else rule
        if divided is None:
            return None
        rule = divided
    return rule


def _units(rule: Rule, access: Access, steps: tuple[Pieces, ...]) -> Iterator[tuple[int | Affine, int]]:
    """The loops over an operand, each with how far its neighbours are apart in the tensor."""
    for dimension, pieces in zip(access, steps, strict=True):
        left = list(dimension)[::-1] if any(step for _, step in pieces) else []
        for size, step in pieces if left else ():
            rest = size
            while rest > 1 and left:
                piece = left.pop()
                rest //= rule.size(piece)
                yield piece, step * rest


def _from_end(sizes: Sequence[int]) -> list[int]:
    """One, and the products of the last sizes: the whole last."""
    return [*accumulate(reversed(sizes), mul, initial=1)]
