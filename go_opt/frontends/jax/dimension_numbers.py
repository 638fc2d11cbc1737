"""Dimensions and windows of StableHLO's ops, in the form of JAX's primitives."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Final

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
    batches = op.attributes["batch_group_count"].value
    return {
        "dimension_numbers": numbers,
        "rhs_dilation": moved["window_dilation"],
        "batch_group_count": batches,
        **moved,
    }


def combiner(op: Any) -> str:
    """The op that a region is; empty if it is none or several."""
    *body, _ = list(op.regions[0].blocks[0].operations)
    kinds = [inner.operation.name.partition(".")[2] for inner in body]
    return kinds[0] if len(op.results) == len(kinds) == 1 else ""


def places(kind: str, op: Any) -> dict[str, Any]:
    """Along which axes an op moves, selects or joins elements."""
    if kind in _AXES:
        parameter, attribute = _AXES[kind]
        return {parameter: op.attributes[attribute].value if attribute in op.attributes else -1}
    if kind == "slice":
        return {
            "start_indices": tuple(op.attributes["start_indices"]),
            "strides": tuple(op.attributes["strides"]),
        }
    if kind == "pad":
        sizes = (
            op.attributes[name] for name in ("edge_padding_low", "edge_padding_high", "interior_padding")
        )
        return {"padding_config": tuple(zip(*sizes, strict=True))}
    if kind == "scatter":
        return {"dimension_numbers": _scatter(op), "reduction": combiner(op)}
    make = {"gather": _gather, "torch_index_select": _selection}.get(kind)
    return {} if make is None else {"dimension_numbers": make(op)}


def _gather(op: Any) -> Any:
    from jaxlib.mlir.dialects import stablehlo

    return stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])


def _scatter(op: Any) -> Any:
    from jaxlib.mlir.dialects import stablehlo

    found = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    return SimpleNamespace(
        update_window_dims=found.update_window_dims,
        inserted_window_dims=found.inserted_window_dims,
        operand_batching_dims=found.input_batching_dims,
        scatter_indices_batching_dims=found.scatter_indices_batching_dims,
        index_vector_dim=found.index_vector_dim,
    )


def _selection(op: Any) -> Any:
    """Of torch_index_select: slices of one element along an axis."""
    axis, batch = op.attributes["dim"].value, op.attributes["batch_dims"].value
    ranks = [len(value.type.shape) for value in (*op.operands, *op.results)]
    behind = axis + ranks[1] - batch
    return SimpleNamespace(
        offset_dims=(*range(batch, axis), *range(behind, ranks[2])),
        collapsed_slice_dims=(axis,),
        operand_batching_dims=tuple(range(batch)),
        start_indices_batching_dims=tuple(range(batch)),
        index_vector_dim=ranks[1],
    )


_AXES: Final = {
    "batch_norm_inference": ("feature_index", "feature_index"),
    "concatenate": ("dimension", "dimension"),
    "sort": ("dimension", "dimension"),
    "top_k": ("axis", ""),
}


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
