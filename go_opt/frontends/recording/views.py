"""How far neighbours along each axis of a view are apart in its tensor; 0: they are one element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from operator import mul
from typing import Any

from go_opt.model.op_costs import OpSignature
from go_opt.model.rule import Rule
from go_opt.model.rules.table import rule_of

Shape = tuple[int, ...]
Steps = tuple[int, ...] | None  # None: not known; (): as the shape says


def row_major(shape: Shape) -> tuple[int, ...]:
    """The steps of a tensor in its own shape."""
    return tuple(accumulate(reversed(shape[1:]), mul, initial=1))[::-1] if shape else ()


def viewed_steps(shape: Shape, steps: Steps, seen: Shape, places: Sequence[int] | None = None) -> Steps:
    """The steps of a value of ``shape`` that is seen in another shape.

    Args:
      places: of a broadcast or transposition, the axes of ``seen`` that those of ``shape`` become.
    """
    steps = row_major(shape) if steps == () else steps
    if steps is None or (seen == shape and places is None):
        return steps
    if places is not None:
        spread = dict(zip(places, zip(shape, steps, strict=True), strict=True))
        sizes = [spread.get(axis, (1, 0)) for axis in range(len(seen))]
        return tuple(step if size > 1 else 0 for size, step in sizes)
    found = _regrouped(
        [(size, step) for size, step in zip(shape, steps, strict=True) if size > 1],
        [size for size in seen if size > 1],
    )
    left = iter(found or ())
    return None if found is None else tuple(next(left) if size > 1 else 0 for size in seen)


def _regrouped(axes: Sequence[tuple[int, int]], seen: Sequence[int]) -> list[int] | None:
    """The steps of axes of (size, step) that are seen in other sizes; None if there is none for some axis."""
    steps, start, stop = list[int](), 0, 0
    for i, size in enumerate(seen):
        if len(steps) > i:
            continue
        # The fewest axes that have as many elements as the next of those seen.
        start, stop, end, before, after = stop, stop + 1, i + 1, 0, size
        if start == len(axes):
            return None
        before = axes[start][0]
        while before != after:
            if before < after and stop < len(axes):
                before, stop = before * axes[stop][0], stop + 1
            elif before > after and end < len(seen):
                after, end = after * seen[end], end + 1
            else:
                return None
        if any(step != below * size for (_, step), (size, below) in pairwise(axes[start:stop])):
            return None
        steps += [step * axes[stop - 1][1] for step in row_major(tuple(seen[i:end]))]
    return steps if stop == len(axes) else None


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
    orders = [None if one is None else _stored_order(*one) for one in views]
    if any(one is not None and order is None for one, order in zip(views, orders, strict=True)):
        return None
    seen = tuple(None if one is None else _without_copies(*one) for one in views)
    rule = rule_of(OpSignature(op_type, seen, tuple(written), attributes))
    present = [order for order in orders if order is not None]
    if rule is None or not any(present):
        return rule
    operands = [
        tuple(access[axis] for axis in order) if order else access
        for access, order in zip(rule.operands, present, strict=True)
    ]
    return rule._replace(operands=tuple(operands))


def _without_copies(shape: Shape, steps: Steps) -> Shape:
    """The shape of a view, with one element along each axis where all are the same one."""
    return tuple(size if step else 1 for size, step in zip(shape, steps, strict=True)) if steps else shape


def _stored_order(shape: Shape, steps: Steps) -> tuple[int, ...] | None:
    """The axes of a view in the order of its tensor, () if they are; None if they are not its axes."""
    if steps is None:
        return None
    axes = [(size, step, axis) for axis, (size, step) in enumerate(zip(shape, steps, strict=False))]
    axes = [one for one in axes if one[0] > 1 and one[1]]
    ordered = sorted(axes, key=lambda one: -one[1])
    if [step for _, step, _ in ordered] != list(row_major(tuple(size for size, _, _ in ordered))):
        return None
    return () if ordered == axes else tuple(axis for _, _, axis in ordered)
