"""How a view reads its tensor: how far neighbours are apart in it, and which loops of an op run over it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from operator import mul
from typing import Any

from go_opt.model.op_costs import OpSignature
from go_opt.model.rule import Access, Affine, Dimension, Rule, Shape
from go_opt.model.rules.table import rule_of

# Of an axis, major to minor: sizes whose product is its own, and how far neighbours are apart in the tensor,
# 0 if they are one element. An axis of one element has none.
Pieces = tuple[tuple[int, int], ...]
# How far neighbours along all axes are apart; None: not known, (): as the shape says.
Steps = tuple[Pieces, ...] | None


def viewed_steps(shape: Shape, steps: Steps, seen: Shape, places: Sequence[int] | None = None) -> Steps:
    """The steps of a value of ``shape`` that is seen in another shape.

    Args:
      places: of a broadcast or transposition, the axes of ``seen`` that those of ``shape`` become.
    """
    if steps == ():
        axes = zip(shape, row_major(shape), strict=True)
        steps = tuple(((size, step),) if size > 1 else () for size, step in axes)
    if steps is None or (seen == shape and places is None):
        return steps
    if places is not None:
        pieces = {axis: of_axis for axis, of_axis in zip(places, steps, strict=True) if of_axis}
        return tuple(pieces.get(axis, ((size, 0),) if size > 1 else ()) for axis, size in enumerate(seen))
    left = _merged(piece for of_axis in steps for piece in of_axis)[::-1]
    regrouped = [_taken(left, size) for size in seen]
    found = [pieces for pieces in regrouped if pieces is not None]
    return None if left or len(found) < len(seen) else tuple(found)


def trailing(shape: Shape, seen: Shape) -> Sequence[int] | None:
    """Where the axes of a value of ``shape`` are in its broadcast; None for other views."""
    return range(len(seen) - len(shape), len(seen)) if math.prod(seen) != math.prod(shape) else None


def _merged(pieces: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Pieces whose neighbours are equally far apart are one."""
    merged = list[tuple[int, int]]()
    for size, step in pieces:
        if merged and merged[-1][1] == size * step:
            size *= merged.pop()[0]
        merged.append((size, step))
    return merged


def _taken(left: list[tuple[int, int]], size: int) -> Pieces | None:
    """The pieces of an axis, taken from the end of ``left``; None if they are not so many elements."""
    taken = list[tuple[int, int]]()
    while size > 1:
        number, step = left.pop() if left else (0, 0)
        part = min(number, size)
        if not part or number % part or size % part:
            return None
        if number > part:
            left.append((number // part, step))
        taken.append((part, step * (number // part)))
        size //= part
    return tuple(taken)


def rule_of_views(
    op_type: str,
    views: Sequence[tuple[Shape, Steps] | None],
    written: Sequence[Shape],
    attributes: Mapping[str, Any],
) -> Rule | None:
    """The sharding rule of an op, with an operand for each input that is present; None if it is not known.

    Args:
      views: shape and steps of each input; an operand has its dimensions in the order of the tensor.
    """
    if any(one is not None and one[1] is None for one in views):
        return None
    seen = tuple(None if one is None else _without_copies(*one) for one in views)
    rule = rule_of(OpSignature(op_type, seen, tuple(written), attributes))
    present = [steps for _, steps in (one for one in views if one is not None)]
    for place, steps in enumerate(present):
        if rule is not None and steps and _are_apart(steps):
            # With copies that no loop runs over alone it has more elements than its tensor, as readers see.
            has_copies = any(_has_steps(pieces) and any(step == 0 for _, step in pieces) for pieces in steps)
            rule = in_order_of_tensor(rule, place, steps) or (rule if has_copies else None)
    return rule


def _without_copies(shape: Shape, steps: Steps) -> Shape:
    """The shape of a view, with one element along each axis where all are the same one."""
    if not steps:
        return shape
    return tuple(size if _has_steps(pieces) else 1 for size, pieces in zip(shape, steps, strict=True))


def _has_steps(pieces: Pieces) -> bool:
    return any(step for _, step in pieces)


def _are_apart(steps: tuple[Pieces, ...]) -> bool:
    """Whether a view has other elements than its tensor in its order, axes of copies left out."""
    pieces = _merged(piece for of_axis in steps if _has_steps(of_axis) for piece in of_axis)
    return [step for _, step in pieces] not in ([], [1])


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
