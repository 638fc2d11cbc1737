"""How far neighbours along each axis of a view are apart in its tensor; 0: they are one element."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from operator import mul

Shape = tuple[int, ...]
Steps = tuple[int, ...] | None  # None: not known; (): as the shape says


def row_major(shape: Shape) -> tuple[int, ...]:
    """The steps of a tensor in its own shape."""
    return tuple(accumulate(reversed(shape[1:]), mul, initial=1))[::-1] if shape else ()


def viewed_steps(shape: Shape, steps: Steps, seen: Shape, places: Sequence[int] | None = None) -> Steps:
    """The steps of a value of ``shape`` that is seen in another shape.

    Args:
      places: of a broadcast, the axes of ``seen`` that those of ``shape`` become.
    """
    steps = row_major(shape) if steps == () else steps
    if steps is None or (seen == shape and places is None):
        return steps
    if places is not None:
        spread = dict(zip(places, zip(shape, steps, strict=True), strict=True))
        sizes = [spread.get(axis, (1, 0)) for axis in range(len(seen))]
        return tuple(step if size > 1 else 0 for size, step in sizes)
    long = [(size, step) for size, step in zip(shape, steps, strict=True) if size > 1]
    if [size for size, _ in long] == [size for size in seen if size > 1]:
        left = iter(long)
        return tuple(next(left)[1] if size > 1 else 0 for size in seen)
    is_whole = math.prod(seen) == math.prod(shape) and _are_row_major(long)
    return row_major(seen) if is_whole else None


def shape_without_copies(shape: Shape, steps: Steps) -> Shape | None:
    """The shape of a view with one element along each axis where all are the same one; None if not known."""
    if steps is None:
        return None
    if steps == ():
        return shape
    plain = tuple(size if step else 1 for size, step in zip(shape, steps, strict=True))
    long = [(size, step) for size, step in zip(plain, steps, strict=True) if size > 1]
    return plain if _are_row_major(long) else None


def _are_row_major(axes: Sequence[tuple[int, int]]) -> bool:
    """Whether axes of (size, step) are those of a tensor in its own order."""
    return [step for _, step in axes] == list(row_major(tuple(size for size, _ in axes)))
