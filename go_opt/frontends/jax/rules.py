"""JAX primitives in the terms of the table of sharding rules: its op types, and ONNX's attributes.

Nothing here imports JAX, as in :mod:`go_opt.frontends.jax.primitives`.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from go_opt.frontends.jax.primitives import onnx_type
from go_opt.frontends.recording.recorder import Value

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
    make = _windows if primitive.startswith("reduce_window") else _ATTRIBUTES.get(primitive, _none)
    attributes = make(params, inputs)
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


def _none(params: _Parameters, inputs: Sequence[Value]) -> _Attributes:
    return {}


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
