"""Operators of ATen in the terms of the table of sharding rules: its op types, and ONNX's attributes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from go_opt.frontends.recording.recorder import Value
from go_opt.frontends.torch.aten import TRANSPOSES, permutation
from go_opt.model.op_costs import is_elementwise

Shape = tuple[int, ...]
_Attributes = Mapping[str, Any]


class Ruled(NamedTuple):
    """What the table of rules asks for."""

    op_type: str
    attributes: _Attributes
    inputs: Sequence[Value | None]
    written: Sequence[Shape]


def in_terms_of_table(
    name: str, op_type: str, attributes: _Attributes, inputs: Sequence[Value | None], written: Sequence[Shape]
) -> Ruled | None:
    """An operator as the table of rules has it; None if it has none.

    Args:
      op_type: its name in the graph.
      inputs: in ONNX's order.
    """
    found = Ruled(op_type, attributes, inputs, written)
    make = _MAKERS.get(name)
    if make is not None:
        return make(found)
    if name.startswith("upsample"):
        return found._replace(attributes={})
    is_plain = is_elementwise(op_type) and name not in _NOT_ELEMENTWISE
    return found._replace(attributes={}) if is_plain else None


_Maker = Callable[[Ruled], Ruled | None]
_NOT_ELEMENTWISE: Final = ("kron", "outer")  # though their cost is as if they were


def _with(**attributes: Any) -> _Maker:
    return lambda op: op._replace(attributes=attributes)


def _along(default: int = -1, op_type: str = "") -> _Maker:
    """Ops along the axis ``dim``."""
    return lambda op: op._replace(
        op_type=op_type or op.op_type, attributes={"axis": op.attributes.get("dim", default)}
    )


def _shape(op: Ruled, place: int = 0) -> Shape:
    value = op.inputs[place]
    return () if value is None else value.shape


def _reduced(op_type: str = "") -> _Maker:
    """Reductions over ``dim``, or all axes; of several results, partial ones cannot be joined."""

    def make(op: Ruled) -> Ruled | None:
        given = op.attributes.get("dim")
        axes = [given] if isinstance(given, int) else given or [*range(len(_shape(op)))]
        kind = "ReduceProd" if len(op.written) > 1 else op_type or op.op_type
        return op._replace(op_type=kind, attributes={"axes": axes}, inputs=op.inputs[:1])

    return make


def _sizes(attributes: _Attributes, name: str, axes: int, default: Sequence[int]) -> list[int]:
    """One number for each axis; one given number is for all."""
    given = attributes.get(name)
    given = [given] if isinstance(given, int) else given or default
    return [*given] * axes if len(given) == 1 else [*given]


def _convolution(op: Ruled) -> Ruled | None:
    given, axes = op.attributes, len(_shape(op)) - 2
    if len(op.inputs) < 2 or len(_shape(op, 1)) != axes + 2:  # an image without a batch
        return None
    padding = given.get("padding", 0)
    made: dict[str, Any] = {
        "strides": _sizes(given, "stride", axes, [1]),
        "dilations": _sizes(given, "dilation", axes, [1]),
        "group": given.get("groups", 1),
    }
    if isinstance(padding, str):
        made["auto_pad"] = "SAME_UPPER" if padding == "same" else "VALID"
    else:
        made["pads"] = _sizes(given, "padding", axes, [0])
    return op._replace(attributes=made)


def _pool(axes: int) -> _Maker:
    def make(op: Ruled) -> Ruled:
        window = _sizes(op.attributes, "kernel_size", axes, [1])
        made = {
            "kernel_shape": window,
            "strides": _sizes(op.attributes, "stride", axes, window),
            "pads": _sizes(op.attributes, "padding", axes, [0]),
            "dilations": _sizes(op.attributes, "dilation", axes, [1]),
        }
        return op._replace(attributes=made)

    return make


def _adaptive_pool(op: Ruled) -> Ruled:
    """Windows of the same size if they tile the image, else of sizes that differ."""
    pairs = [*zip(_shape(op), op.written[0], strict=True)]
    if any(before % after for before, after in pairs):
        return op._replace(op_type="Resize", attributes={})
    windows = [before // after for before, after in pairs]
    kind = "MaxPool" if "Max" in op.op_type else "AveragePool"
    return op._replace(op_type=kind, attributes={"kernel_shape": windows, "strides": windows})


def _normalised(op: Ruled) -> Ruled:
    return op._replace(attributes={"axes": [*range(-len(op.attributes["normalized_shape"]), 0)]})


def _groups(name: str) -> _Maker:
    return lambda op: op._replace(attributes={"num_groups": op.attributes[name]})


def _of_channels(op: Ruled) -> Ruled:
    """PReLU: a weight of one axis is along the channels."""
    (image, weight), rank = op.inputs, len(_shape(op))
    if weight is not None and weight.elements > 1 and rank > 1:
        seen = (weight.elements, *[1] * (rank - 2))
        weight = weight.viewed((seen, weight.dtype), "channels")
    return op._replace(attributes={}, inputs=[image, weight])


def _joined(default: int, rank: int | None = None) -> _Maker:
    """Concatenation, along the last axis at most."""

    def make(op: Ruled) -> Ruled | None:
        shapes = [_shape(op, place) for place in range(len(op.inputs))]
        if rank is None and any(len(shape) != len(op.written[0]) for shape in shapes):
            return None  # column_stack
        axis = op.attributes.get("dim", default)
        return op._replace(attributes={"axis": min(axis, len(op.written[0]) - 1)})

    return make


def _slice(op: Ruled) -> Ruled:
    """Starts and steps that lead to the size of the result; others are symbols, which are left out."""
    given, shape = op.attributes, _shape(op)
    axis = given.get("dim", 0) % len(shape)
    start, step = given.get("start", 0), given.get("step", 1)
    end = given.get("end", start + given["length"] if "length" in given else shape[axis])
    if len(range(*slice(start, end, step).indices(shape[axis]))) != op.written[0][axis]:
        return op._replace(op_type="Slice", attributes={})
    return op._replace(op_type="Slice", attributes={"axes": [axis], "starts": [start], "steps": [step]})


def _select(op: Ruled) -> Ruled:
    """One position along an axis, which the result does not have."""
    axis, (shape,) = op.attributes.get("dim", 0) % len(_shape(op)), op.written
    attributes = {"axes": [axis], "starts": [op.attributes.get("index", 0)]}
    return op._replace(attributes=attributes, written=[(*shape[:axis], 1, *shape[axis:])])


def _padded(mode: str = "") -> _Maker:
    """Pads before and after axes, the last one first."""

    def make(op: Ruled) -> Ruled:
        pads, rank = op.attributes.get("pad", op.attributes.get("padding")), len(_shape(op))
        if pads is None:
            return op._replace(attributes={})
        befores, afters = ([*pads[i::2], *[0] * (rank - len(pads) // 2)][::-1] for i in (0, 1))
        kind = mode or op.attributes.get("mode", "constant")
        return op._replace(attributes={"pads": [*befores, *afters], "mode": kind})

    return make


def _transposed(name: str) -> _Maker:
    return lambda op: op._replace(attributes={"perm": permutation(name, op.attributes, len(_shape(op)))})


def _indexed(op: Ruled) -> Ruled | None:
    """Indices of one axis, which the shapes tell."""
    table, index = _shape(op), _shape(op, 1)
    axes = [i for i in range(len(table)) if op.written[0] == (*table[:i], *index, *table[i + 1 :])]
    return op._replace(attributes={"axis": axes[0]}) if len(axes) == 1 and len(op.inputs) == 2 else None


def _added_rows(op: Ruled) -> Ruled | None:
    """Slices along an axis, at indices of one axis."""
    table = _shape(op)
    if len(op.inputs) < 3 or len(_shape(op, 1)) != 1:
        return None
    axis = op.attributes.get("dim", 0) % len(table)
    attributes = {
        "axis": 1,  # each index is a number
        "inserted_window_dims": [axis],
        "update_window_dims": [i for i in range(len(table)) if i != axis],
        "operand_batching_dims": [],
        "scatter_indices_batching_dims": [],
    }
    return op._replace(op_type="scatter", attributes=attributes)


def _put(op: Ruled) -> Ruled | None:
    """Slices along the first axis, at indices of it, which may be added to those that are there."""
    if len(op.inputs) != 3:
        return None
    table, index, values = (_shape(op, place) for place in range(3))
    attributes = {
        "axis": len(index),  # each index is a number
        "inserted_window_dims": [0],
        "update_window_dims": [*range(len(index), len(values))],
        "operand_batching_dims": [],
        "scatter_indices_batching_dims": [],
        "reduction": "add" if op.attributes.get("accumulate") else "",
    }
    is_known = (*index, *table[1:]) == tuple(values)
    return op._replace(op_type="scatter", attributes=attributes) if is_known else None


def _tiled(op: Ruled) -> Ruled:
    """A tensor of fewer axes than repeats has axes of one element before its own."""
    value, (shape,) = op.inputs[0], op.written
    if value is not None:
        value = value.viewed(((1,) * (len(shape) - len(value.shape)) + value.shape, value.dtype), "repeat")
    return op._replace(inputs=[value], attributes={})


def _reordered(op: Ruled) -> Ruled:
    """Flips and rotations along ``dims``."""
    axes = op.attributes.get("dims") or [*range(len(_shape(op)))]
    return op._replace(op_type="rev", attributes={"axes": axes})


def _fourier(default: Sequence[int] | None = (-1,)) -> _Maker:
    def make(op: Ruled) -> Ruled:
        given = op.attributes.get("dim", default)
        axes = [given] if isinstance(given, int) else given or [*range(len(_shape(op)))]
        return op._replace(attributes={"axes": [*axes]})

    return make


def _shuffled(parameter: str) -> _Maker:
    return lambda op: op._replace(attributes={"blocksize": op.attributes[parameter], "mode": "CRD"})


_PRODUCTS: Final = (
    "addmm", "addmv", "baddbmm", "bmm", "dot", "int_mm", "matmul", "mm", "mv", "scaled_mm", "vdot",
)  # fmt: skip
_REDUCTIONS: Final = (
    "all", "amax", "amin", "any", "argmax", "argmin", "count_nonzero", "frobenius_norm", "linalg_vector_norm",
    "logsumexp", "mean", "nanmean", "nansum", "norm", "prod", "sum",
)  # fmt: skip
_WHOLE_REDUCTIONS: Final = (
    "aminmax", "kthvalue", "median", "mode", "nanmedian", "std", "std_mean", "var", "var_mean",
)  # fmt: skip
_MAKERS: Final[Mapping[str, _Maker]] = {
    **dict.fromkeys(_PRODUCTS, _with()),
    "scaled_dot_product_attention": lambda op: op._replace(
        attributes={"is_causal": int(op.attributes.get("is_causal", False))}
    ),
    "linear": _with(transB=1),
    "einsum": lambda op: op._replace(attributes={"equation": op.attributes["equation"]}),
    **{f"conv{kind}{axes}d": _convolution for kind in ("", "_transpose") for axes in (1, 2, 3)},
    "convolution": _convolution,
    **{f"{kind}_pool{axes}d": _pool(axes) for kind in ("avg", "max") for axes in (1, 2, 3)},
    **{f"max_pool{axes}d_with_indices": _pool(axes) for axes in (2, 3)},
    **{f"adaptive_{kind}_pool{axes}d": _adaptive_pool for kind in ("avg", "max") for axes in (1, 2, 3)},
    **dict.fromkeys(("fused_rms_norm", "layer_norm", "native_layer_norm", "rms_norm"), _normalised),
    **dict.fromkeys(
        ("batch_norm", "cudnn_batch_norm", "native_batch_norm", "native_batch_norm_legit",
         "native_batch_norm_legit_no_training"),
        # At inference; in training, statistics are taken of the whole batch.
        lambda op: None if op.attributes.get("training") else op._replace(attributes={"axis": 1}),
    ),
    "group_norm": _groups("num_groups"),
    "native_group_norm": _groups("group"),
    "instance_norm": _with(),
    "prelu": _of_channels,
    **dict.fromkeys(_REDUCTIONS, _reduced()),
    **dict.fromkeys(_WHOLE_REDUCTIONS, _reduced("ReduceProd")),
    **dict.fromkeys(
        ("max", "min"), lambda op: op._replace(attributes={}) if len(op.inputs) > 1 else _reduced()(op)
    ),
    **dict.fromkeys(
        ("argsort", "cummax", "cummin", "cumprod", "cumsum", "log_softmax", "logcumsumexp", "one_hot",
         "softmax", "sort", "topk"),
        _along(),
    ),
    "msort": _along(0),
    **dict.fromkeys(("chunk", "split", "split_with_sizes", "tensor_split", "unbind"), _along(0)),
    **dict.fromkeys(("gather", "index_select"), _along(0)),
    **dict.fromkeys(("scatter", "scatter_add", "scatter_reduce"), _along(0, "ScatterElements")),
    **dict.fromkeys(("index_add", "index_copy"), _added_rows),
    "cat": _joined(0),
    "hstack": _joined(1),
    "stack": _along(0),
    "vstack": _joined(0, 1),
    **dict.fromkeys(("narrow", "slice"), _slice),
    "select": _select,
    "index_put": _put,
    "slice_scatter": _with(mode="slice"),
    **dict.fromkeys(("constant_pad_nd", "pad"), _padded()),
    **{f"reflection_pad{axes}d": _padded("reflect") for axes in (1, 2, 3)},
    **{f"replication_pad{axes}d": _padded("edge") for axes in (1, 2, 3)},
    **{name: _transposed(name) for name in TRANSPOSES},
    "embedding": _with(axis=0),
    "index": _indexed,
    "repeat": _tiled,
    **dict.fromkeys(("flip", "roll"), _reordered),
    **dict.fromkeys(("tril", "triu"), _with()),
    "pixel_shuffle": _shuffled("upscale_factor"),
    "pixel_unshuffle": _shuffled("downscale_factor"),
    **dict.fromkeys(("grid_sampler", "grid_sampler_2d", "grid_sampler_3d"), _with()),
    **{f"fft_{way}fft": _fourier() for way in ("", "i", "r", "ir", "h", "ih")},
    **{f"fft_{way}fft2": _fourier((-2, -1)) for way in ("", "i", "r", "ir")},
    **{f"fft_{way}fftn": _fourier(None) for way in ("", "i", "r", "ir")},
    **{f"fft_{way}": _fourier() for way in ("c2c", "c2r", "r2c")},
}  # fmt: skip
