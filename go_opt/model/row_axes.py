"""Along which axis the rows of a tensor lie in each of its views, and which ops leave rows apart.

An axis is known by the numbers of blocks before it and of rows along it, which a reshaping of other axes does
not change: the tokens of ``[1, T, H * W]`` are those of ``[1, T, H, W]``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from operator import mul
from typing import Final

from go_opt.model.op_costs import is_elementwise

Shape = tuple[int, ...]

LEAST_BATCH: Final = 8  # images whose batch is what rows divide, not the images


def common_shape(shapes: Iterable[Shape]) -> Shape:
    """The axes that all views of a tensor have; () unless its rows are an axis of each of them."""
    shape, *others = found = list(dict.fromkeys(shapes))
    if not others:
        return shape
    if len({math.prod(one) for one in found}) > 1:  # a broadcast
        return ()
    stops = sorted(set.intersection(*({1, *accumulate(one, mul)} for one in found)))
    common = tuple(after // before for before, after in pairwise(stops) if before)
    return common if len(common) > 1 and all(row_axis(one, common) is not None for one in found) else ()


def row_axis(view: Shape, shape: Shape) -> int | None:
    """The axis of a view along which the rows lie, the second-to-last axis of ``shape``; None if none is."""
    if len(shape) < 2:
        return None
    if view == shape:
        return len(view) - 2
    outer, number = math.prod(shape[:-2]), shape[-2]
    before = accumulate(view, mul, initial=1)
    places = (i for i, blocks in enumerate(before) if blocks == outer and view[i : i + 1] == (number,))
    return next(places, None)


def keeps_rows(
    op_type: str, axes: Sequence[int], operands: Sequence[tuple[Shape, Shape]], output: tuple[Shape, Shape]
) -> bool:
    """Whether an output row of an op that is no product needs that row alone of each operand with as many.

    Args:
      axes: of Transpose the permutation; of other ops the axes along which they mix or place elements.
      operands: the view that the op reads of each tensor, and the shape of the tensor.
      output: the same of what it writes.
    """
    view, shape = output
    row = row_axis(view, shape)
    if row is None or shape[-2] < 2 or (op_type != "Transpose" and row in axes):
        return False
    for read, whole in operands:
        along = axes[row] if op_type == "Transpose" else row - len(view) + len(read)
        is_shared = op_type != "Transpose" and (along < 0 or read[along] == 1)
        has_as_many = len(whole) > 1 and whole[-2] == shape[-2]
        if is_shared == has_as_many or not (is_shared or along == row_axis(read, whole)):
            return False
    return True


def batch_of(inputs: Sequence[Shape]) -> int:
    """The number of images in every input of a model, if all inputs are such batches; else 0."""
    sizes = {shape[0] if len(shape) > 3 else 0 for shape in inputs}
    batch = sizes.pop() if len(sizes) == 1 else 0
    return batch if batch >= LEAST_BATCH else 0


def keeps_batch(op_type: str, operands: Sequence[Shape], output: Shape) -> bool:
    """Whether an image of an op's output needs that image alone of each operand with as many images.

    Images lie along the first axis. False where the shapes do not tell.
    """
    images = [shape for shape in operands if shape[:1] == output[:1]]
    if not images:
        return False
    if len(images[0]) > 2 and op_type in ("AveragePool", "BatchNormalization", "Conv", "LRN", "MaxPool"):
        return True
    if op_type.startswith("Reduce") or op_type == "GlobalAveragePool":
        # The axis that is left is that of the batch, if no other is as long.
        return all(shape.count(output[0]) == 1 for shape in images)
    is_along = is_elementwise(op_type) or (op_type == "Concat" and len(images) == len(operands) > 1)
    return is_along and all(len(shape) == len(output) for shape in images)
