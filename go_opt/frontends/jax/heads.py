"""Along which axes an equation keeps elements apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from go_opt.frontends.jax.primitives import onnx_type
from go_opt.frontends.recording.recorder import Value
from go_opt.model.axes import Operand, Shape
from go_opt.model.op_costs import is_elementwise


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
        steps = value.axis_steps
        if value.tensor is None:
            continue
        if value.touched is not None or steps is None or len(at) != rank:
            return None
        of_axes = [0 if len(steps) == 0 or value.shape[i] == 1 else steps[i] for i in at]
        operands.append((value.tensor, of_axes))
    return operands, mixed
