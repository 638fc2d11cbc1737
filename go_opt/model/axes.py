"""Along which axis the rows of a tensor lie in each of its views, and which ops leave rows or heads apart.

An axis is known by the numbers of blocks before it and of rows along it, which a reshaping of other axes does
not change: the tokens of ``[1, T, H * W]`` are those of ``[1, T, H, W]``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from operator import mul
from typing import Final, NamedTuple

from go_opt.model.graph import SAME_ROW, Heads, Window
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


def heads_by_op(ops: Mapping[str, SeenOp]) -> dict[str, Heads]:
    """The heads that ops keep apart: those of products of activations, as far as other ops pass them on."""
    near: dict[str, set[str]] = {}
    kept = {name: list(kept_apart(op)) for name, op in ops.items()}
    for name in kept:
        for tensor in (*(tensor for tensor, _, _ in ops[name].reads), ops[name].written):
            near.setdefault(tensor, set()).add(name)
    lies: dict[str, tuple[int, int]] = {}  # tensor -> heads, elements behind
    found: dict[str, Heads] = {}
    waiting: list[str] = []

    def take(name: str, heads: Heads) -> None:
        found[name] = heads
        for tensor, behind in heads.behind.items():
            if tensor not in lies:
                lies[tensor] = heads.number, behind
                waiting.append(tensor)

    for name in (name for name in kept if ops[name].op_type == "MatMul" and kept[name]):
        if name not in found:
            take(name, kept[name][-1])
        while waiting:
            tensor = waiting.pop()
            for other in sorted(near[tensor] - found.keys()):
                alike = [one for one in kept[other] if (one.number, one.behind.get(tensor)) == lies[tensor]]
                if alike:
                    take(other, alike[0])
    return found


def kept_apart(op: SeenOp) -> Iterator[Heads]:
    """For each axis of what an op writes along which it keeps elements apart: that axis as heads."""
    is_aligned = is_elementwise(op.op_type) or op.op_type in ("MatMul", "Transpose") or len(op.reads) == 1
    if not is_aligned or any(math.prod(read) != elements for _, read, elements in op.reads):
        return
    for axis, number in enumerate(op.view):
        if number < 2 or (op.op_type != "Transpose" and axis in op.axes):
            continue
        behind, shared, is_kept = {op.written: math.prod(op.view[axis + 1 :])}, set[str](), True
        for name, read, _ in op.reads:
            along = op.axes[axis] if op.op_type == "Transpose" else axis - len(op.view) + len(read)
            if along < 0 or read[along] == 1:
                shared.add(name)
            else:
                after = math.prod(read[along + 1 :])
                is_kept &= read[along] == number and behind.setdefault(name, after) == after
        most_shared = 0 if op.op_type == "MatMul" else len(op.reads) - 1
        if is_kept and len(shared) <= most_shared and shared.isdisjoint(behind):
            yield Heads(number, behind)


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
