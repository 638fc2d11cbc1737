"""Inputs of a model to which the caller gives numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

from go_opt.errors import ModelError
from go_opt.frontends.onnx.inference.dims import DimTable
from go_opt.frontends.onnx.inference.file import MAX_VALUE_ELEMENTS


def with_values(
    model: onnx.ModelProto, values: Mapping[str, tuple[float, ...]], dims: DimTable
) -> onnx.ModelProto:
    """The model with initializers in place of the inputs that have values; itself if none has.

    Raises:
      ModelError: the model has no such input, or the numbers do not fit its shape or type.
    """
    if not values:
        return model
    bound = onnx.ModelProto()
    bound.CopyFrom(model)
    infos = {info.name: info for info in bound.graph.input}
    for name, numbers in values.items():
        if name not in infos:
            names = ", ".join(map(repr, infos)) or "none"
            raise ModelError(f"the model has no input {name!r} to bind; it has {names}.", field="values")
        tensor = _tensor(infos[name], numbers, dims)
        kept = [one for one in bound.graph.initializer if one.name != name]
        del bound.graph.initializer[:]
        bound.graph.initializer.extend([*kept, tensor])
        bound.graph.input.remove(infos[name])
    return bound


def _tensor(info: onnx.ValueInfoProto, numbers: tuple[float, ...], dims: DimTable) -> onnx.TensorProto:
    shape = dims.shape_of_value(info, len(numbers))
    elements = math.prod(shape)
    if elements > MAX_VALUE_ELEMENTS or len(numbers) not in (1, elements):
        raise ModelError(
            f"input {info.name!r} of shape {list(shape)} takes one number or all of its"
            f" at most {MAX_VALUE_ELEMENTS}, not {len(numbers)}.",
            field="values",
        )
    given = np.asarray(numbers, np.float64)
    try:
        dtype = helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
        with np.errstate(all="ignore"):
            array = given.astype(dtype)
    except (KeyError, TypeError, ValueError):
        raise ModelError(f"input {info.name!r} is of a type that holds no numbers.", field="values") from None
    if np.issubdtype(dtype, np.integer) or dtype == np.bool_:
        changed = np.flatnonzero(array.astype(np.float64) != given)
        if len(changed):
            raise ModelError(
                f"input {info.name!r} is of type {dtype}, which does not hold {numbers[changed[0]]}.",
                field="values",
            )
    return numpy_helper.from_array(
        np.ascontiguousarray(np.broadcast_to(array, elements)).reshape(shape), info.name
    )
