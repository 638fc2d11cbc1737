"""Along which axis the rows of a tensor lie in each of its views, and which ops leave rows or heads apart.

An axis is known by the numbers of blocks before it and of rows along it, which a reshaping of other axes does
not change: the tokens of ``[1, T, H * W]`` are those of ``[1, T, H, W]``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from operator import mul
from typing import Final, NamedTuple

from go_opt.model.graph import SAME_ROW, Heads, Window
from go_opt.model.op_costs import is_elementwise

Shape = tuple[int, ...]
Operand = tuple[str, Sequence[int]]  # tensor; how far neighbours along each axis of a view are apart in it

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


class SeenOp(NamedTuple):
    """An op with one output, and how it sees its tensors."""

    op_type: str
    axes: Sequence[int]  # as for :func:`keeps_rows`; of a product the last two
    reads: Sequence[tuple[str, Shape, int]]  # tensors with their views, and elements
    written: str
    view: Shape  # of what it writes


def windows_by_op(
    ops: Mapping[str, SeenOp], shapes: Mapping[str, Shape], windows: Mapping[str, Window]
) -> dict[str, Window]:
    """``windows`` that lie along the rows of ``shapes``, and those of other ops that keep rows apart."""
    found = dict(windows)
    for name, op in ops.items():
        operands = [(view, shapes[tensor]) for tensor, view, _ in op.reads]
        output = op.view, shapes[op.written]
        if name in windows:
            if any(row_axis(*one) not in (None, len(one[0]) - 2) for one in (output, *operands[:1])):
                del found[name]
        elif op.op_type != "MatMul" and keeps_rows(op.op_type, op.axes, operands, output):
            found[name] = SAME_ROW
    return found


def heads_by_op(kept: Mapping[str, Sequence[Heads]], products: Iterable[str]) -> dict[str, Heads]:
    """The heads that ops keep apart: those of both operands of products, as far as other ops pass them on.

    Args:
      kept: op -> :func:`kept_apart`.
    """
    near: dict[str, list[str]] = {}
    for name, axes in kept.items():
        for tensor in dict.fromkeys(tensor for one in axes for tensor in one.behind):
            near.setdefault(tensor, []).append(name)
    lies: dict[str, tuple[int, int]] = {}  # tensor -> heads, elements behind
    found: dict[str, Heads] = {}
    waiting: list[str] = []

    def take(name: str, heads: Heads) -> None:
        found[name] = heads
        for tensor, behind in heads.behind.items():
            if tensor not in lies:
                lies[tensor] = heads.number, behind
                waiting.append(tensor)

    for name in products:
        of_two = [one for one in kept.get(name, ()) if len(one.behind) > 2]
        if name not in found and of_two:
            take(name, of_two[-1])
        while waiting:
            tensor = waiting.pop()
            for other in (one for one in near[tensor] if one not in found):
                alike = [one for one in kept[other] if (one.number, one.behind.get(tensor)) == lies[tensor]]
                if alike:
                    take(other, alike[0])
    return found


def kept_apart(
    written: str, view: Shape, operands: Sequence[Operand], mixed: Collection[int]
) -> Iterator[Heads]:
    """For each axis of what an op writes along which it keeps elements apart: that axis as heads.

    Args:
      operands: with the axes of ``view``; 0 where all neighbours are one element.
      mixed: axes along which the op mixes elements.
    """
    for axis, number in enumerate(view):
        behind = {written: math.prod(view[axis + 1 :])}
        is_kept = number > 1 and axis not in mixed
        for tensor, steps in operands if is_kept else ():
            is_kept &= behind.setdefault(tensor, steps[axis]) == steps[axis]
        behind = {tensor: each for tensor, each in behind.items() if each}
        if is_kept and len(behind) > 1:
            yield Heads(number, behind)


def kept_by_op(op: SeenOp) -> list[Heads]:
    """The axes of :func:`kept_apart`, of an op with axes as for :func:`keeps_rows`."""
    is_turned, rank = op.op_type == "Transpose", len(op.view)
    is_aligned = is_turned or is_elementwise(op.op_type) or op.op_type == "MatMul" or len(op.reads) == 1
    if not is_aligned or any(math.prod(read) != elements for _, read, elements in op.reads):
        return []
    operands, mixed = [], () if is_turned else op.axes
    for tensor, read, _ in op.reads:
        along = op.axes if is_turned else range(len(read) - rank, len(read))
        sizes = [read[at] if at >= 0 else 1 for at in along]
        pairs = [pair for axis, pair in enumerate(zip(sizes, op.view, strict=True)) if axis not in mixed]
        if any(size not in (1, number) for size, number in pairs if number > 1):
            return []
        steps = [math.prod(read[at + 1 :]) * (size > 1) for at, size in zip(along, sizes, strict=True)]
        operands.append((tensor, steps))
    return list(kept_apart(op.written, op.view, operands, mixed))


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
