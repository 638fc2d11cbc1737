"""How far elements of a view are apart in its tensor, and along which axes an equation keeps them apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import mul
from typing import Any

from go_opt.frontends.jax.primitives import onnx_type
from go_opt.frontends.recording.recorder import Value
from go_opt.model.axes import Operand, Shape
from go_opt.model.op_costs import is_elementwise


def steps_of(value: Value) -> tuple[int, ...] | None:
    """How far neighbours along each axis of a value are apart in its tensor; 0: they are one."""
    return _steps(value.shape) if value.steps == () else value.steps


def seen_steps(params: Mapping[str, Any], value: Value, shape: Shape) -> tuple[int, ...] | None:
    """The steps of a value behind a broadcast, or seen in another shape."""
    steps = steps_of(value)
    if steps is None or shape == value.shape:
        return steps
    if "broadcast_dimensions" in params:
        spread = dict(zip(params["broadcast_dimensions"], zip(value.shape, steps, strict=True), strict=True))
        sizes = [spread.get(axis, (1, 0)) for axis in range(len(shape))]
        return tuple(step if size > 1 else 0 for size, step in sizes)
    long = [(size, step) for size, step in zip(value.shape, steps, strict=True) if size > 1]
    if [size for size, _ in long] == [size for size in shape if size > 1]:
        left = iter(long)
        return tuple(next(left)[1] if size > 1 else 0 for size in shape)
    is_whole = math.prod(shape) == value.elements and all(
        a == b for (_, a), b in zip(long, _steps(tuple(size for size, _ in long)), strict=True)
    )
    return _steps(shape) if is_whole else None


def kept_axes(
    primitive: str, params: Mapping[str, Any], inputs: Sequence[Value], outputs: Sequence[Shape]
) -> tuple[list[Operand], tuple[int, ...]] | None:
    """The operands and mixed axes of :func:`go_opt.model.axes.kept_apart`; None if they are not known."""
    rank, mixed = len(outputs[0]), tuple[int, ...]()
    if primitive == "transpose":
        places = [tuple(params["permutation"])]
    elif primitive == "dot_general":
        _, places = params["dimension_numbers"]
        mixed = tuple(range(len(places[0]), rank))
        places = [(*batch, *[0] * len(mixed)) for batch in places]
    elif primitive.startswith("reduce_") and "axes" in params and len(inputs) == 1:
        places = [tuple(i for i in range(len(inputs[0].shape)) if i not in params["axes"])]
    elif is_elementwise(onnx_type(primitive)):
        places = [tuple(range(rank))] * len(inputs)
    else:
        return None
    operands: list[Operand] = []
    for value, at in zip(inputs, places, strict=True):
        steps = steps_of(value)
        if value.tensor is None:
            continue
        if value.touched is not None or steps is None or len(at) != rank:
            return None
        of_axes = [0 if len(steps) == 0 or value.shape[i] == 1 else steps[i] for i in at]
        operands.append((value.tensor, of_axes))
    return operands, mixed


def _steps(shape: Shape) -> tuple[int, ...]:
    return tuple(accumulate(reversed(shape[1:]), mul, initial=1))[::-1] if shape else ()
