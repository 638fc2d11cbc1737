"""JAX primitives as ops of the cost table and of the table of sharding rules.

Nothing here imports JAX: a primitive is its name, its parameters, and its input and output shapes.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from go_opt.frontends.recording.recorder import Value
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
    **dict.fromkeys(("checkpoint", "composite", "jit", "pjit", "remat", "remat2"), "jaxpr"),
    **dict.fromkeys(("closed_call", "core_call", "custom_jvp_call", "custom_vjp_call"), "call_jaxpr"),
    "custom_vjp_call_jaxpr": "fun_jaxpr",
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
    all_of_each = (None,) * len(inputs)
    if primitive in _MATRIX_FLOPS:
        flops = _MATRIX_FLOPS[primitive](params, inputs, outputs)
        return OpCost("matrix", flops, all_of_each)
    if primitive in FACTORISATION_FLOPS:
        return OpCost("vector", FACTORISATION_FLOPS[primitive](inputs), all_of_each)
    if primitive in _VECTOR_FLOPS:
        return OpCost("vector", _VECTOR_FLOPS[primitive](params, inputs, outputs), all_of_each)
    if primitive in _MOVES:
        return OpCost("data_movement", 0.0, all_of_each)
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


_Parameters = Mapping[str, Any]
_Attributes = dict[str, Any]
_Maker = Callable[[_Parameters, Sequence[Value]], _Attributes | None]

# Where the table has another type than the graph; empty where it has none.
_TYPE: Final[Mapping[str, str]] = {
    "batch_norm_training": "",
    "gather": "gather",
    "ragged_dot": "",
    "ragged_dot_general": "",
    "reduce": "ReduceProd",  # partial results cannot be joined
    "reduce_xor": "ReduceProd",
    **dict.fromkeys(
        ("scatter", "scatter_add", "scatter_max", "scatter_min", "scatter_mul", "scatter_sub"), "scatter"
    ),
}


def rule_attributes(
    primitive: str, params: _Parameters, inputs: Sequence[Value]
) -> tuple[str, _Attributes] | None:
    """The op type in the table of rules, and the attributes; None if the table has no such op."""
    op_type = _TYPE.get(primitive, onnx_type(primitive))
    make = _windows if primitive.startswith("reduce_window") else _ATTRIBUTES.get(primitive)
    attributes = {} if make is None else make(params, inputs)
    if attributes is None or not op_type:
        return None
    is_spread = any(one != 1 for one in attributes.get("lhs_dilation", ()))
    return "ConvTranspose" if is_spread else op_type, attributes


def _equation(params: _Parameters, inputs: Sequence[Value]) -> _Attributes:
    contracted, batch = params["dimension_numbers"]
    left = list(string.ascii_letters[: len(inputs[0].shape)])
    right = list(string.ascii_letters[len(left) :][: len(inputs[1].shape)])
    for ours, theirs in zip((*contracted[0], *batch[0]), (*contracted[1], *batch[1]), strict=True):
        right[theirs] = left[ours]
    shared = [left[axis] for axis in batch[0]]
    free = [label for label in (*left, *right) if (label in left) != (label in right)]
    return {"equation": f"{''.join(left)},{''.join(right)}->{''.join([*shared, *free])}"}


def _convolution(params: _Parameters, inputs: Sequence[Value]) -> _Attributes | None:
    numbers, spread = params["dimension_numbers"], _integers(params["lhs_dilation"])
    is_spread = any(one != 1 for one in spread)
    groups = inputs[0].shape[numbers.lhs_spec[1]] // inputs[1].shape[numbers.rhs_spec[1]]
    strides = _integers(params["window_strides"])
    if params.get("batch_group_count", 1) != 1 or (is_spread and (groups > 1 or set(strides) != {1})):
        return None
    digits = string.digits[: len(spread)]
    layout = tuple(
        "".join(name for _, name in sorted(zip(axes, names + digits, strict=True)))
        for axes, names in zip(
            (numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec), ("NC", "OI", "NC"), strict=True
        )
    )
    return {
        "layout": layout,
        "strides": strides,
        "pads": [int(before) for before, _ in params["padding"]],
        "dilations": _integers(params["rhs_dilation"]),
        "lhs_dilation": spread,
    }


def _windows(params: _Parameters, inputs: Sequence[Value]) -> _Attributes | None:
    """Reductions by windows."""
    if any(one != 1 for one in params.get("base_dilation", ())):
        return None
    return {
        "kernel_shape": _integers(params["window_dimensions"]),
        "strides": _integers(params["window_strides"]),
        "pads": [int(before) for before, _ in params["padding"]],
        "dilations": _integers(params["window_dilation"]),
    }


def _cumulative(params: _Parameters, inputs: Sequence[Value]) -> _Attributes:
    if "axis" in params:
        return {"axis": int(params["axis"])}
    (axis,) = (axis for axis, size in enumerate(params["window_dimensions"]) if size > 1)
    return {"axis": axis}


def _slice(params: _Parameters, inputs: Sequence[Value]) -> _Attributes:
    starts = _integers(params["start_indices"])
    return {"starts": starts, "steps": _integers(params["strides"] or [1] * len(starts))}


def _pad(params: _Parameters, inputs: Sequence[Value]) -> _Attributes:
    befores, afters, between = (_integers(sizes) for sizes in zip(*params["padding_config"], strict=True))
    return {"pads": [*befores, *afters], "dilations": [1 + number for number in between]}


def _numbers(params: _Parameters, inputs: Sequence[Value]) -> _Attributes:
    """The numbers of dimensions of a gather or scatter."""
    numbers = params["dimension_numbers"]
    found: _Attributes = {
        name: _integers(getattr(numbers, name)) for name in _NUMBERS if hasattr(numbers, name)
    }
    return found | {"axis": int(getattr(numbers, "index_vector_dim", -1))}


def _scatter(way: str = "") -> _Maker:
    """How updates are joined; StableHLO has "maximum"."""

    def attributes(params: _Parameters, inputs: Sequence[Value]) -> _Attributes:
        return {**_numbers(params, inputs), "reduction": params.get("reduction", way)[:3]}

    return attributes


def _axis(parameter: str, default: int = -1) -> _Maker:
    return lambda params, inputs: {"axis": int(params.get(parameter, default))}


def _axes(parameter: str) -> _Maker:
    return lambda params, inputs: {"axes": _integers(params[parameter])}


def _integers(numbers: Iterable[Any]) -> list[int]:
    return [int(number) for number in numbers]


_NUMBERS: Final = (
    "collapsed_slice_dims", "inserted_window_dims", "offset_dims", "operand_batching_dims",
    "scatter_indices_batching_dims", "start_indices_batching_dims", "update_window_dims",
)  # fmt: skip
_ATTRIBUTES: Final[Mapping[str, _Maker]] = {
    **dict.fromkeys(("argmax", "argmin"), _axes("axes")),
    **{f"reduce_{kind}": _axes("axes") for kind in ("and", "max", "min", "or", "prod", "sum", "xor")},
    **{f"cum{kind}": _cumulative for kind in ("logsumexp", "max", "min", "prod", "sum")},
    "approx_top_k": _axis("reduction_dimension"),
    "batch_norm_inference": _axis("feature_index"),
    "concatenate": _axis("dimension"),
    "conv_general_dilated": _convolution,
    "dot_general": _equation,
    "dynamic_update_slice": lambda params, inputs: {"mode": "slice"},
    **dict.fromkeys(("einsum", "unary_einsum"), lambda params, inputs: {"equation": params["equation"]}),
    "fft": lambda params, inputs: {"axes": [*range(-len(params["fft_lengths"]), 0)]},
    "gather": _numbers,
    "pad": _pad,
    # StableHLO's reduction by a program has the parameters of the others.
    "reduce": lambda params, inputs: {"axes": _integers(params.get("axes", params.get("dimensions", ())))},
    "rev": _axes("dimensions"),
    **dict.fromkeys(("scaled_matmul", "scaled_matmul_wrapper"), lambda params, inputs: {"transB": 1}),
    **dict.fromkeys(("scatter", "scatter_mul", "scatter_sub"), _scatter()),
    **{f"scatter_{way}": _scatter(way) for way in ("add", "max", "min")},
    "slice": _slice,
    "sort": _axis("dimension"),
    **dict.fromkeys(("split", "stack", "unstack"), _axis("axis", 0)),
    "top_k": _axis("axis"),
    "transpose": lambda params, inputs: {"perm": _integers(params["permutation"])},
}
