"""Tensors of a model while it is walked: type, shape and, where known, values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from numpy.typing import NDArray
from onnx import TensorProto

from go_opt.errors import ModelError
from go_opt.model.dtypes import DTYPES
from go_opt.model.graph import MAX_ELEMENTS
from go_opt.model.rules.views import Steps

Shape = tuple[int, ...]
MAX_AXES: Final = 64  # as in NumPy

# Types whose name here is not onnx's in lower case; those without a name stand in the next wider one.
_NAMES: Final = {
    "FLOAT": "float32", "DOUBLE": "float64", "FLOAT4E2M1": "int4", "FLOAT8E8M0": "float8_e5m2",
    "FLOAT8E4M3FN": "float8_e4m3", "FLOAT8E4M3FNUZ": "float8_e4m3", "FLOAT8E5M2": "float8_e5m2",
    "FLOAT8E5M2FNUZ": "float8_e5m2", "INT2": "int4", "UINT2": "uint4",
}  # fmt: skip
_DTYPE_OF: Final[dict[int, str]] = {
    number: dtype
    for name, number in TensorProto.DataType.items()
    if (dtype := _NAMES.get(name, name.lower())) in DTYPES
}


@dataclass(frozen=True)
class Value:
    """A tensor as its readers see it."""

    tensor: str  # name in the graph under construction
    elem_type: int  # onnx.TensorProto.DataType
    shape: Shape
    is_constant: bool  # known before any inference: a weight, or derived from weights alone
    read: Callable[[], NDArray | None]  # its values, where constant, small and in the file
    steps: Steps = ()  # how far neighbours along each axis are apart in the tensor

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def kind(self) -> str:
        return "weight" if self.is_constant else "activation"

    @property
    def dtype(self) -> str:
        return _DTYPE_OF[self.elem_type]


def make_value(
    tensor: str,
    elem_type: int,
    shape: Shape,
    *,
    read: Callable[[], NDArray | None] | None = None,
) -> Value:
    """A checked value; a constant if ``read`` is given."""
    if elem_type not in _DTYPE_OF:
        raise ModelError(f"tensor {tensor!r} has the unknown element type {elem_type}.")
    if len(shape) > MAX_AXES:
        raise ModelError(f"tensor {tensor!r} has {len(shape)} dimensions, more than {MAX_AXES}.")
    if any(size < 0 for size in shape):
        raise ModelError(f"tensor {tensor!r} has a negative dimension in its shape {list(shape)}.")
    if math.prod(shape) > MAX_ELEMENTS:
        raise ModelError(f"tensor {tensor!r} has more than {MAX_ELEMENTS} elements: shape {list(shape)}.")
    return Value(tensor, elem_type, shape, read is not None, read or _unknown)


def _unknown() -> None:
    return None
