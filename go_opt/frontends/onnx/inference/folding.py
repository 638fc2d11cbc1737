"""Values of constants that nodes compute, by onnx's own reference implementation."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper
from onnx.reference.ops import load_op

from go_opt.frontends.onnx.inference.file import MAX_VALUE_ELEMENTS
from go_opt.frontends.onnx.inference.shapes import PartialType, complete
from go_opt.frontends.onnx.inference.values import Shape, Value
from go_opt.model.op_costs import OpSignature, op_cost

Values = tuple[NDArray | None, ...]


# Their outputs depend on values, and are no larger than their inputs.
_SELECTIONS: Final = frozenset({"Compress", "NonZero", "Unique"})
# Arithmetic on shapes takes next to nothing; implementations may need memory in proportion to this.
_MAX_FLOPS: Final = 1e7


def lazy_outputs(
    node: onnx.NodeProto,
    inputs: Sequence[Value | None],
    inferred: Mapping[str, PartialType],
    opset: int,
) -> Callable[[], Values | None]:
    """The values of a node's outputs, computed lazily and once; None if they are many or dear.

    Args:
      inferred: types of the outputs.
    """

    @functools.cache
    def compute() -> Values | None:
        if not _is_cheap(node, inputs, inferred):
            return None
        arrays = [None if value is None else value.read() for value in inputs]
        if any(value is not None and array is None for value, array in zip(inputs, arrays, strict=True)):
            return None
        return evaluate(node, arrays, opset)

    return compute


def _is_cheap(
    node: onnx.NodeProto, inputs: Sequence[Value | None], inferred: Mapping[str, PartialType]
) -> bool:
    """Whether the outputs have few elements, and take little to compute."""
    if node.op_type in _SELECTIONS:
        return True
    kinds = [complete(inferred.get(output)) for output in node.output if output]
    shapes = [kind[1] for kind in kinds if kind is not None]
    if len(shapes) < len(kinds) or any(math.prod(shape) > MAX_VALUE_ELEMENTS for shape in shapes):
        return False
    read = tuple(None if value is None else value.shape for value in inputs)
    signature = OpSignature(node.op_type, read, tuple(shapes), plain_attributes(node))
    return op_cost(signature).flops <= _MAX_FLOPS


def evaluate(node: onnx.NodeProto, arrays: Sequence[NDArray | None], opset: int) -> Values | None:
    """Run one node; None if onnx has no implementation, or the node does not accept its inputs."""
    run_params: dict[str, Any] = {
        "log": lambda *_: None,
        "opsets": {"": opset},
        "verbose": 0,
        "new_ops": {},
        "existing_functions": {},
    }
    try:
        with np.errstate(all="ignore"):
            operator = load_op("", node.op_type, opset)(node, run_params)
            results = operator.run(*arrays)
    except Exception:
        # The reference implementations raise whatever NumPy does on unsuited arrays;
        # a value that cannot be had is reported where it is needed.
        return None
    return tuple(_small(result) for result in results)


def plain_attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Numbers, lists and strings; tensors and graphs are left out."""
    plain = {}
    for attribute in node.attribute:
        if attribute.type in (attribute.INT, attribute.FLOAT, attribute.STRING):
            plain[attribute.name] = helper.get_attribute_value(attribute)
        elif attribute.type in (attribute.INTS, attribute.FLOATS, attribute.STRINGS):
            plain[attribute.name] = list(helper.get_attribute_value(attribute))
    return {
        name: value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        for name, value in plain.items()
    }


def constant_attribute(attributes: Mapping[str, Any]) -> NDArray | None:
    """The value of a Constant node that holds no tensor (``value_int``, ``value_floats``, …)."""
    for name, value in attributes.items():
        if name in ("value_int", "value_ints"):
            return np.asarray(value, dtype=np.int64)
        if name in ("value_float", "value_floats"):
            return np.asarray(value, dtype=np.float32)
        if name in ("value_string", "value_strings"):
            return np.asarray(value, dtype=object)
    return None


def _small(result: Any) -> NDArray | None:
    array = np.asarray(result)
    return array if array.size <= MAX_VALUE_ELEMENTS else None


def pick(compute: Callable[[], Sequence[NDArray | None] | None], position: int) -> NDArray | None:
    """One of the values that :func:`lazy_outputs` computes."""
    results = compute()
    return None if results is None or position >= len(results) else results[position]


def type_of(array: NDArray | None) -> tuple[int, Shape] | None:
    """Element type and shape of a known value."""
    return None if array is None else (helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
