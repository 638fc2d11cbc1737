"""Dimensions and windows of StableHLO's ops, in the form of JAX's primitives."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np


def dot_dimensions(op: Any) -> tuple[Any, Any]:
    """Contracted and batch dimensions of both operands."""
    from jaxlib.mlir.dialects import stablehlo

    found = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    return (
        (tuple(found.lhs_contracting_dimensions), tuple(found.rhs_contracting_dimensions)),
        (tuple(found.lhs_batching_dimensions), tuple(found.rhs_batching_dimensions)),
    )


def convolution(op: Any) -> dict[str, Any]:
    """The positions of batch, channel and spatial dimensions, and the windows."""
    from jaxlib.mlir.dialects import stablehlo

    found = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    numbers = SimpleNamespace(
        lhs_spec=(
            found.input_batch_dimension,
            found.input_feature_dimension,
            *found.input_spatial_dimensions,
        ),
        rhs_spec=(
            found.kernel_output_feature_dimension,
            found.kernel_input_feature_dimension,
            *found.kernel_spatial_dimensions,
        ),
        out_spec=(
            found.output_batch_dimension,
            found.output_feature_dimension,
            *found.output_spatial_dimensions,
        ),
    )
    moved = windows(op, len(found.input_spatial_dimensions), "lhs_dilation")
    return {"dimension_numbers": numbers, "rhs_dilation": moved["window_dilation"], **moved}


def cumulative(name: str, params: Mapping[str, Any], shape: tuple[int, ...]) -> str:
    """The primitive of a reduction by windows: ``cumsum`` where each takes all elements up to its own."""
    whole = [
        axis for axis, size in enumerate(shape) if params["window_dimensions"][axis] == size > 1
        and sorted(params["padding"][axis]) == [0, size - 1]
    ]  # fmt: skip
    is_one = len(whole) == 1 and math.prod(params["window_dimensions"]) == shape[whole[0]]
    return name.replace("reduce_window_", "cum") if is_one else name


def windows(op: Any, axes: int, spread: str) -> dict[str, Any]:
    """The windows of a convolution or reduction along its axes; missing sizes are 1, missing padding 0.

    Args:
      spread: JAX's parameter for the dilation of the operand.
    """

    def sizes(*names: str) -> tuple[int, ...]:
        given = [name for name in names if name in op.attributes]
        return tuple(op.attributes[given[0]]) if given else (1,) * axes

    padding = np.zeros((axes, 2), np.int64)
    if "padding" in op.attributes:
        padding = np.array(op.attributes["padding"]).reshape(axes, 2)
    return {
        "window_dimensions": sizes("window_dimensions"),
        "window_strides": sizes("window_strides"),
        "window_dilation": sizes("window_dilations", "rhs_dilation"),
        spread: sizes("base_dilations", "lhs_dilation"),
        "padding": padding.tolist(),
    }
