"""JAX primitives as ops of the cost table: a table of ONNX names, and rules where names do not suffice.

Nothing here imports JAX: a primitive is its name, its parameters, and its input and output shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from go_opt.model.matrix_flops import FACTORISATION_FLOPS, conv_flops, fft_flops, matmul_flops
from go_opt.model.op_costs import OpCost, OpSignature, onnx_name, op_cost

Shape = tuple[int, ...]

# Aliases of their operand: no kernel and no bytes. A broadcast reads with stride 0.
VIEWS: Final = frozenset({
    "broadcast_in_dim", "copy", "copy_p", "device_put", "expand_dims", "layout_constraint", "mesh_cast",
    "name", "optimization_barrier", "pvary", "random_unwrap", "random_wrap", "reshape", "reshard",
    "sharding_constraint", "squeeze", "stop_gradient",
})  # fmt: skip
# Calls whose body is inlined, by the parameter that holds it.
CALLS: Final[Mapping[str, str]] = {
    "checkpoint": "jaxpr",
    "closed_call": "call_jaxpr",
    "composite": "jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
}
# Primitives whose inner program only says how elements combine.
COMBINERS: Final = frozenset({
    "reduce", "reduce_window", "scatter", "scatter_add", "scatter_apply", "scatter_max", "scatter_min",
    "scatter_mul", "scatter_sub", "select_and_scatter",
})  # fmt: skip
# The nearest ONNX op, so that a policy sees the same op types from every frontend.
_ONNX_TYPE: Final[Mapping[str, str]] = {
    "add_any": "Add", "approx_top_k": "TopK", "atan2": "Atan", "bitcast_convert_type": "Cast",
    "batch_norm_inference": "BatchNormalization", "batch_norm_training": "InstanceNormalization",
    "cbrt": "Pow", "clamp": "Clip", "concatenate": "Concat", "conv_general_dilated": "Conv",
    "convert_element_type": "Cast", "cumlogsumexp": "CumSum", "cummax": "CumSum", "cummin": "CumSum",
    "dot_general": "MatMul", "dynamic_slice": "Slice", "dynamic_update_slice": "ScatterND", "eq": "Equal",
    "erfc": "Erf", "exp2": "Exp", "expm1": "Exp", "fft": "DFT", "ge": "GreaterOrEqual", "gt": "Greater",
    "integer_pow": "Pow", "iota": "Range", "is_finite": "IsInf", "le": "LessOrEqual", "log1p": "Log",
    "logistic": "Sigmoid", "lt": "Less", "ne": "Equal", "ragged_dot": "MatMul",
    "ragged_dot_general": "MatMul", "reduce_and": "ReduceMin", "reduce_or": "ReduceMax",
    "reduce_precision": "Cast", "reduce_window": "AveragePool", "reduce_window_max": "MaxPool",
    "reduce_xor": "ReduceMin", "reduce_window_min": "MaxPool", "reduce_window_sum": "AveragePool",
    "rem": "Mod", "scatter": "ScatterND", "scatter_add": "ScatterND", "scatter_max": "ScatterND",
    "scatter_min": "ScatterND", "scatter_mul": "ScatterND", "scatter_sub": "ScatterND", "select_n": "Where",
    "shift_left": "BitShift", "shift_right_arithmetic": "BitShift", "shift_right_logical": "BitShift",
    "square": "Mul", "stack": "Concat", "uniform_dequantize": "DequantizeLinear",
    "uniform_quantize": "QuantizeLinear", "unary_einsum": "Einsum", "unstack": "Split",
}  # fmt: skip
# Move data, but have no ONNX name.
_MOVES: Final = frozenset({"lu_pivots_to_permutation", "rev", "select_and_gather_add"})
# Operands in ONNX's order, where JAX has another.
_OPERAND_ORDER: Final[Mapping[str, tuple[int, ...]]] = {"clamp": (1, 0, 2)}


def normal_name(primitive: str) -> str:
    """Older releases of JAX write ``scatter-add`` where newer ones write ``scatter_add``."""
    return primitive.replace("-", "_")


def onnx_type(primitive: str) -> str:
    """The ONNX name of a primitive, or its own."""
    return _ONNX_TYPE.get(primitive) or onnx_name(primitive) or primitive


def primitive_cost(
    primitive: str, params: Mapping[str, Any], inputs: Sequence[Shape], outputs: Sequence[Shape]
) -> OpCost:
    """The cost of one execution; ``touched`` is in the order of ``inputs``."""
    if primitive in _MATRIX_FLOPS:
        flops = _MATRIX_FLOPS[primitive](params, inputs, outputs)
        return OpCost("matrix", flops, (None,) * len(inputs))
    if primitive in FACTORISATION_FLOPS:
        return OpCost("vector", FACTORISATION_FLOPS[primitive](inputs), (None,) * len(inputs))
    if primitive in _VECTOR_FLOPS:
        return OpCost("vector", _VECTOR_FLOPS[primitive](params, inputs, outputs), (None,) * len(inputs))
    if primitive in _MOVES:
        return OpCost("data_movement", 0.0, (None,) * len(inputs))
    return _table_cost(primitive, params, inputs, outputs)


def _table_cost(
    primitive: str, params: Mapping[str, Any], inputs: Sequence[Shape], outputs: Sequence[Shape]
) -> OpCost:
    order = _OPERAND_ORDER.get(primitive, tuple(range(len(inputs))))
    attributes = {"kernel_shape": params["window_dimensions"]} if "window_dimensions" in params else {}
    attributes |= {"equation": params["equation"]} if "equation" in params else {}
    signature = OpSignature(onnx_type(primitive), tuple(inputs[i] for i in order), tuple(outputs), attributes)
    cost = op_cost(signature)
    touched: list[int | None] = [None] * len(inputs)
    for position, i in enumerate(order):
        touched[i] = cost.touched[position]
    return OpCost(cost.op_class, cost.flops, tuple(touched), cost.is_known)


def _dot_general(params: Mapping[str, Any], inputs: Sequence[Shape], outputs: Sequence[Shape]) -> float:
    (lhs_contracted, rhs_contracted), (lhs_batch, rhs_batch) = params["dimension_numbers"]
    lhs, rhs = inputs
    return matmul_flops(
        math.prod(lhs[i] for i in lhs_batch),
        math.prod(size for i, size in enumerate(lhs) if i not in (*lhs_contracted, *lhs_batch)),
        math.prod(size for i, size in enumerate(rhs) if i not in (*rhs_contracted, *rhs_batch)),
        math.prod(lhs[i] for i in lhs_contracted),
    )


def _ragged_dot(params: Mapping[str, Any], inputs: Sequence[Shape], outputs: Sequence[Shape]) -> float:
    # Every row of [m, k] meets one of the groups' [k, n].
    return matmul_flops(1, math.prod(outputs[0]), 1, inputs[0][-1])


def _ragged_dot_general(
    params: Mapping[str, Any], inputs: Sequence[Shape], outputs: Sequence[Shape]
) -> float:
    # Every element of the first operand meets the free dimensions of one group's second operand.
    numbers = params["ragged_dot_dimension_numbers"]
    (_, contracted), (_, batch) = numbers.dot_dimension_numbers
    bound = {*contracted, *batch, *numbers.rhs_group_dimensions}
    free = math.prod(size for i, size in enumerate(inputs[1]) if i not in bound)
    return matmul_flops(1, math.prod(inputs[0]), 1, free)


def _fft(params: Mapping[str, Any], inputs: Sequence[Shape], outputs: Sequence[Shape]) -> float:
    axes = range(-len(params["fft_lengths"]), 0)
    return fft_flops(inputs[0], outputs[0], axes, is_real=int(params["fft_type"]) > 1)


def _reduce(params: Mapping[str, Any], inputs: Sequence[Shape], outputs: Sequence[Shape]) -> float:
    program = getattr(params["jaxpr"], "jaxpr", params["jaxpr"])
    return float(math.prod(inputs[0]) * max(1, len(program.eqns)))


def _select_and_scatter(
    params: Mapping[str, Any], inputs: Sequence[Shape], outputs: Sequence[Shape]
) -> float:
    return float(min(map(math.prod, inputs[:2])) * math.prod(params["window_dimensions"]))


def _conv(params: Mapping[str, Any], inputs: Sequence[Shape], outputs: Sequence[Shape]) -> float:
    # The kernel has the input channels of one group only. A dilated input (a transposed
    # convolution) is mostly zeros: one in prod(dilation) elements meets the window.
    kernel_layout = params["dimension_numbers"].rhs_spec
    kernel_elements = math.prod(inputs[1]) // max(1, inputs[1][kernel_layout[0]])
    dense_flops = conv_flops(math.prod(outputs[0]), kernel_elements)
    return dense_flops / float(math.prod(params["lhs_dilation"]))


_MATRIX_FLOPS: Final[Mapping[str, Callable[..., float]]] = {
    "conv_general_dilated": _conv,
    "dot_general": _dot_general,
    "ragged_dot": _ragged_dot,
    "ragged_dot_general": _ragged_dot_general,
    "scaled_matmul": _ragged_dot,  # [b, m, k] by [b, n, k]
    "scaled_matmul_wrapper": _ragged_dot,
}
_VECTOR_FLOPS: Final[Mapping[str, Callable[..., float]]] = {
    "fft": _fft,
    "reduce": _reduce,
    "select_and_scatter": _select_and_scatter,
    "select_and_scatter_add": _select_and_scatter,
    "symmetric_product": lambda params, inputs, outputs: math.prod(inputs[0]) * inputs[0][-2],
}
