"""Operators of ATen as ops of the cost table: a table of ONNX names, and formulas for the others."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from go_opt.model.matrix_flops import FACTORISATION_FLOPS, conv_flops, einsum_flops, fft_flops
from go_opt.model.op_costs import OpCost, OpSignature, onnx_name, op_cost

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Operand:
    """A tensor that a node reads."""

    argument: str  # its name in the operator's signature
    shape: Shape


_FOURIER: Final = re.compile(r"fft_(?P<kind>c2c|c2r|r2c|i?(?P<real>[rh])?fft(?P<axes>[2n])?)")
# The factorisation that an operator is, or costs as much as, and the arguments that are its operands.
_FACTORISATIONS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    **dict.fromkeys(("cholesky", "linalg_cholesky", "linalg_cholesky_ex"), ("cholesky", ())),
    **dict.fromkeys(("linalg_eig", "linalg_eigvals"), ("eig", ())),
    **dict.fromkeys(("linalg_eigh", "linalg_eigvalsh"), ("eigh", ())),
    **dict.fromkeys(
        ("cholesky_inverse", "inverse", "linalg_inv", "linalg_inv_ex", "linalg_tensorinv"), ("inverse", ())
    ),
    **dict.fromkeys(
        ("det", "linalg_det", "linalg_ldl_factor", "linalg_ldl_factor_ex", "linalg_lu", "linalg_lu_factor",
         "linalg_lu_factor_ex", "linalg_slogdet", "logdet", "lu_with_info", "slogdet"),
        ("lu", ()),
    ),
    **dict.fromkeys(("linalg_matrix_exp", "matrix_exp"), ("matrix_exp", ())),
    **dict.fromkeys(("geqrf", "linalg_qr", "qr"), ("qr", ())),
    **dict.fromkeys(("linalg_householder_product", "orgqr"), ("householder_product", ())),
    **dict.fromkeys(
        ("linalg_cond", "linalg_matrix_rank", "linalg_pinv", "linalg_svd", "linalg_svdvals", "nuclear_norm",
         "pinverse", "svd"),
        ("svd", ()),
    ),
    "cholesky_solve": ("lu_solve", ("input2", "self")),
    "linalg_ldl_solve": ("lu_solve", ("LD", "B")),
    "linalg_lstsq": ("solve", ("self", "b")),
    "linalg_lu_solve": ("lu_solve", ("LU", "B")),
    "linalg_solve": ("solve", ("A", "B")),
    "linalg_solve_ex": ("solve", ("A", "B")),
    "linalg_solve_triangular": ("triangular_solve", ("self", "B")),
    "lu_solve": ("lu_solve", ("LU_data", "self")),
    "ormqr": ("ormqr", ("self", "input3")),
    "triangular_solve": ("triangular_solve", ("A", "self")),
}  # fmt: skip
_CELLS: Final = {"gru_cell": "GRU", "lstm_cell": "LSTM", "rnn_relu_cell": "RNN", "rnn_tanh_cell": "RNN"}


def formula_cost(
    name: str, attributes: Mapping[str, Any], operands: Sequence[Operand], outputs: Sequence[Shape]
) -> tuple[str, OpCost] | None:
    """ONNX name, or its own, and cost of an operator that only a formula fits; None for others."""
    fourier = _FOURIER.fullmatch(name)
    shapes = [operand.shape for operand in operands]
    by_argument = {operand.argument: operand.shape for operand in operands}
    op_class, op_type = "vector", name
    if fourier is not None:
        op_type, is_real = "DFT", bool(fourier["real"]) or fourier["kind"] in ("c2r", "r2c")
        default = {"2": [-2, -1], "n": range(-len(shapes[0]), 0)}.get(fourier["axes"] or "", [-1])
        given = attributes.get("dim", default)
        axes = [given] if isinstance(given, int) else given or default
        flops = fft_flops(shapes[0], outputs[0], axes, is_real=is_real)
    elif name in _FACTORISATIONS:
        kind, arguments = _FACTORISATIONS[name]
        if not set(arguments) <= by_argument.keys():
            return None
        flops = FACTORISATION_FLOPS[kind]([by_argument[of] for of in arguments] or shapes)
    elif name in _CELLS:
        op_class, op_type = "matrix", _CELLS[name]
        weights = [(1, *by_argument[of]) for of in ("w_ih", "w_hh")]
        rows = (1, math.prod(shapes[0][:-1]), shapes[0][-1])
        flops = op_cost(OpSignature(op_type, (rows, *weights), ((),), {})).flops
    elif name in _PRODUCTS:
        op_class, op_type = "matrix", "Conv" if name.startswith("conv") else "Einsum"
        flops = _PRODUCTS[name](attributes, shapes, outputs)
    elif name in _VECTORS:
        flops = _VECTORS[name](attributes, shapes, outputs)
    else:
        return None
    return op_type, OpCost(op_class, float(flops), (None,) * len(operands))


_Formula = Callable[[Mapping[str, Any], Sequence[Shape], Sequence[Shape]], float]


def _chain(attributes: Mapping[str, Any], shapes: Sequence[Shape], outputs: Sequence[Shape]) -> float:
    """Products of matrices from left to right."""
    letters = [chr(ord("a") + i) for i in range(len(shapes) + 1)]
    terms = [
        a + b if len(shape) > 1 else b for a, b, shape in zip(letters, letters[1:], shapes, strict=False)
    ]
    if len(shapes[-1]) == 1:
        terms[-1] = letters[-2]
    result = "".join(letter for letter in letters if sum(letter in term for term in terms) == 1)
    return einsum_flops(f"{','.join(terms)}->{result}", shapes)


def _conv_backward(attributes: Mapping[str, Any], shapes: Sequence[Shape], outputs: Sequence[Shape]) -> float:
    """The gradients of the operand and of the weight each cost as much as the convolution."""
    wanted: int = sum(attributes.get("output_mask", [True, True])[:2])
    return wanted * conv_flops(math.prod(shapes[0]), math.prod(shapes[2][1:]))


def _stft(attributes: Mapping[str, Any], shapes: Sequence[Shape], outputs: Sequence[Shape]) -> float:
    """A real transform of each frame of the spectrogram [..., bins, frames]."""
    length, spectrum = int(attributes["n_fft"]), max((*shapes, *outputs), key=math.prod)
    bins = length // 2 + 1 if attributes.get("onesided", True) else length
    return 2.5 * math.prod(spectrum) / bins * length * math.log2(max(2, length))


_PRODUCTS: Final[Mapping[str, _Formula]] = {
    "bilinear": lambda attributes, shapes, outputs: einsum_flops(
        "...a,oab,...b->...o", [shapes[0], shapes[2], shapes[1]]
    ),
    "chain_matmul": _chain,
    "conv_tbc": lambda attributes, shapes, outputs: conv_flops(
        math.prod(outputs[0]), math.prod(shapes[1][:2])
    ),
    "convolution_backward": _conv_backward,
    "linalg_multi_dot": _chain,
    "tensordot": lambda attributes, shapes, outputs: (
        2.0 * math.prod((*outputs[0], *(shapes[0][axis] for axis in attributes.get("dims_self", ()))))
    ),
}
_VECTORS: Final[Mapping[str, _Formula]] = {
    **dict.fromkeys(
        ("cdist", "cdist_forward", "euclidean_dist", "pdist", "pdist_forward"),
        # A difference, its magnitude and a sum for each pair of elements.
        lambda attributes, shapes, outputs: 3.0 * math.prod(outputs[0]) * shapes[0][-1],
    ),
    "istft": _stft,
    "stft": _stft,
}


# Aliases of their operand: no kernel and no bytes. A broadcast reads with stride 0.
VIEWS: Final = frozenset({
    "alias", "clone", "contiguous", "detach", "expand", "expand_as", "flatten", "lift_fresh",
    "lift_fresh_copy", "ravel", "reshape", "reshape_as", "resolve_conj", "resolve_neg", "squeeze",
    "unflatten", "unsafe_view", "unsqueeze", "view", "view_as",
})  # fmt: skip
# Views whose result owns its elements: writes to it do not change the operand.
COPIES: Final = frozenset({"clone", "contiguous", "lift_fresh_copy", "to", "to_copy"})
# Views unless they change the type.
CASTS: Final = frozenset({"to", "to_copy", "type_as", "convert_element_type"})
DROPOUTS: Final = frozenset({"alpha_dropout", "dropout", "feature_dropout", "native_dropout"})
TRANSPOSES: Final = frozenset({"movedim", "numpy_T", "permute", "swapaxes", "swapdims", "t", "transpose"})
# Share part of the operand's memory, or reorder it: writes to the result change the operand.
WINDOWS: Final = TRANSPOSES | frozenset({
    "as_strided", "chunk", "diagonal", "narrow", "select", "slice", "split", "split_with_sizes",
    "tensor_split", "unbind", "unfold",
})  # fmt: skip
# Constants with equal elements, which become part of the kernel that reads them.
LITERALS: Final = frozenset({
    "empty", "empty_like", "empty_permuted", "empty_strided", "full", "full_like", "new_empty", "new_full",
    "new_ones", "new_zeros", "ones", "ones_like", "scalar_tensor", "zero", "zeros", "zeros_like",
})  # fmt: skip
# Random values, which are never folded.
RANDOM: Final = frozenset({
    "bernoulli", "exponential", "multinomial", "normal", "rand", "rand_like", "randint", "randint_like",
    "randn", "randn_like", "randperm", "uniform",
})  # fmt: skip
# Kernels of whole layers, without a cost rule.
REFUSED: Final = frozenset({
    "native_multi_head_attention", "transformer_encoder_layer_fwd", "triton_multi_head_attention",
})  # fmt: skip

# Where letters differ from ONNX's.
_ONNX_TYPE: Final[Mapping[str, str]] = {
    "affine_grid_generator": "AffineGrid", "as_strided_scatter": "ScatterND", "count_nonzero": "ReduceSum",
    "cross_entropy_loss": "SoftmaxCrossEntropyLoss", "cummax": "CumSum", "cummax_helper": "CumSum",
    "cummin": "CumSum", "cummin_helper": "CumSum", "diagonal_scatter": "ScatterND",
    "dyn_quant_matmul_4bit": "MatMul", "erfc": "Erf", "exponential": "RandomUniformLike", "fmax": "Max",
    "fmin": "Min", "fractional_max_pool2d": "MaxPool", "fractional_max_pool3d": "MaxPool",
    "frobenius_norm": "ReduceL2", "grid_sampler_3d": "GridSample", "hardshrink": "Shrink",
    "index_fill": "ScatterND", "index_reduce": "ScatterND", "inner": "MatMul", "int_mm": "MatMul",
    "isfinite": "IsInf", "isneginf": "IsInf", "isposinf": "IsInf", "kron": "Mul", "kthvalue": "Sort",
    "linalg_matrix_norm": "ReduceL2", "linalg_norm": "ReduceL2", "linalg_vecdot": "MatMul",
    "logaddexp2": "logaddexp", "logcumsumexp": "CumSum", "max_unpool2d": "MaxUnpool",
    "max_unpool3d": "MaxUnpool", "median": "Sort", "mixed_dtypes_linear": "MatMul", "mode": "Sort",
    "msort": "Sort", "nanmean": "ReduceMean", "nanmedian": "Sort", "nansum": "ReduceSum",
    "native_norm": "ReduceL2", "nll_loss": "NegativeLogLikelihoodLoss",
    "nll_loss2d_forward": "NegativeLogLikelihoodLoss", "nll_loss_forward": "NegativeLogLikelihoodLoss",
    "nll_loss_nd": "NegativeLogLikelihoodLoss", "normal": "RandomNormalLike", "outer": "Mul",
    "prelu_kernel": "PRelu", "rand": "RandomUniform", "rand_like": "RandomUniformLike",
    "randint": "RandomUniform", "randint_like": "RandomUniformLike", "randn": "RandomNormal",
    "randn_like": "RandomNormalLike", "scaled_grouped_mm_v2": "MatMul", "scaled_mm_v2": "MatMul",
    "sgn": "Sign", "signbit": "Sign", "softshrink": "Shrink",
    "uniform": "RandomUniformLike", "unique2": "Sort", "unique_consecutive": "Unique", "unique_dim": "Sort",
    "vdot": "MatMul", "weight_int4pack_mm": "MatMul", "weight_int4pack_mm_for_cpu": "MatMul",
    "weight_int4pack_mm_with_scales_and_zeros": "MatMul", "weight_int8pack_mm": "MatMul", "xlog1py": "xlogy",
    "adaptive_max_pool1d": "MaxPool", "adaptive_max_pool2d": "MaxPool", "adaptive_max_pool3d": "MaxPool",
    "addbmm": "Gemm", "addmm": "Gemm", "addmv": "Gemm", "all": "ReduceMin", "amax": "ReduceMax",
    "amin": "ReduceMin", "any": "ReduceMax", "arange": "Range", "argsort": "Sort", "atan2": "Atan",
    "baddbmm": "Gemm", "bmm": "MatMul", "cat": "Concat", "chunk": "Split", "clamp": "Clip",
    "clamp_max": "Min", "clamp_min": "Max", "constant_pad_nd": "Pad", "conv_transpose1d": "ConvTranspose",
    "conv_transpose2d": "ConvTranspose", "conv_transpose3d": "ConvTranspose",
    "cudnn_batch_norm": "BatchNormalization", "dot": "MatMul", "embedding": "Gather",
    "embedding_bag": "Gather", "eq": "Equal", "exp2": "Exp", "expm1": "Exp", "floor_divide": "Div",
    "fmod": "Mod", "fused_rms_norm": "RMSNormalization", "gather": "GatherElements", "ge": "GreaterOrEqual",
    "grid_sampler": "GridSample", "grouped_mm": "MatMul", "grid_sampler_2d": "GridSample",
    "group_norm": "GroupNormalization", "gt": "Greater", "hardtanh": "Clip", "hstack": "Concat",
    "index": "Gather", "index_add": "ScatterND", "index_copy": "ScatterND", "index_put": "ScatterND",
    "index_select": "Gather", "instance_norm": "InstanceNormalization", "layer_norm": "LayerNormalization",
    "le": "LessOrEqual", "linalg_vector_norm": "ReduceL2", "linear": "Gemm", "log10": "Log", "log1p": "Log",
    "log2": "Log", "logical_and": "And", "logical_not": "Not", "logical_or": "Or", "logical_xor": "Xor",
    "logsumexp": "ReduceLogSumExp", "lt": "Less", "masked_fill": "Where", "masked_scatter": "ScatterND",
    "max_pool1d": "MaxPool", "max_pool2d": "MaxPool", "max_pool2d_with_indices": "MaxPool",
    "max_pool3d": "MaxPool", "max_pool3d_with_indices": "MaxPool", "maximum": "Max", "minimum": "Min",
    "mm": "MatMul", "mv": "MatMul", "narrow": "Slice", "native_batch_norm": "BatchNormalization",
    "native_batch_norm_legit": "BatchNormalization",
    "native_batch_norm_legit_no_training": "BatchNormalization", "native_dropout": "Mul",
    "native_group_norm": "GroupNormalization", "native_layer_norm": "LayerNormalization", "ne": "Equal",
    "norm": "ReduceL2", "pixel_shuffle": "DepthToSpace", "pixel_unshuffle": "SpaceToDepth",
    "reflection_pad1d": "Pad", "reflection_pad2d": "Pad", "reflection_pad3d": "Pad", "relu6": "Clip",
    "remainder": "Mod", "repeat": "Tile", "repeat_interleave": "Tile", "replication_pad1d": "Pad",
    "replication_pad2d": "Pad", "replication_pad3d": "Pad", "rms_norm": "RMSNormalization",
    "rnn_relu": "RNN", "rnn_tanh": "RNN", "scaled_grouped_mm": "MatMul", "scaled_mm": "MatMul",
    "rsub": "Sub", "select": "Slice", "select_scatter": "ScatterND", "silu": "Swish",
    "slice_scatter": "ScatterND", "split_with_sizes": "Split", "square": "Mul", "stack": "Concat",
    "sum": "ReduceSum", "tensor_split": "Split", "transformers.grouped_mm_fallback": "MatMul",
    "tril": "Trilu", "triu": "Trilu", "true_divide": "Div", "unbind": "Split", "vstack": "Concat",
}  # fmt: skip
# Other names of an operator, and those that cost as much.
_SAME: Final[Mapping[str, str]] = {
    **{f"arc{of}": f"a{of}" for of in ("cos", "cosh", "sin", "sinh", "tan", "tan2", "tanh")},
    **{f"{of}_impl": of for of in ("index_put",)},
    **{f"unsafe_{of}": of for of in ("chunk", "index", "index_put", "split", "split_with_sizes")},
    "absolute": "abs", "addmm_activation": "addmm", "column_stack": "cat", "concat": "cat",
    "concatenate": "cat", "divide": "div", "dstack": "cat", "erfinv": "erf_inv", "fix": "floor",
    "frac": "floor", "gammaln": "lgamma", "greater": "gt", "greater_equal": "ge", "less": "lt",
    "less_equal": "le", "linalg_matmul": "matmul", "multiply": "mul", "native_batch_norm_legit_functional":
    "native_batch_norm_legit", "negative": "neg", "not_equal": "ne", "safe_softmax": "softmax",
    "masked_softmax": "softmax", "reshape_alias": "reshape", "subtract": "sub", "trunc": "floor",
}  # fmt: skip
# Move data, but have no ONNX name.
_MOVES: Final = frozenset({
    "channel_shuffle", "diag", "diag_embed", "fft_fftshift", "fft_ifftshift", "flip", "im2col", "roll",
    "rot90", "take", "unfold", "view_as_complex", "view_as_real",
})  # fmt: skip
# FLOPs per element read: mean, centre, square, mean. The root of each result is not counted.
_PER_INPUT_ELEMENT: Final = {
    "aminmax": 2.0, "binary_cross_entropy": 8.0, "binary_cross_entropy_with_logits": 8.0, "dist": 3.0,
    "huber_loss": 4.0, "l1_loss": 3.0, "mse_loss": 3.0, "pairwise_distance": 3.0, "smooth_l1_loss": 4.0,
    "std": 4.0, "std_mean": 4.0, "var": 4.0, "var_mean": 4.0,
}  # fmt: skip
# Operands in ONNX's order, where ATen has another or some may be absent.
_LAYER: Final = ("input", "weight", "bias")
_OPERANDS: Final[Mapping[str, tuple[str, ...]]] = {
    "addbmm": ("batch1", "batch2", "self"),
    "addmm": ("mat1", "mat2", "self"),
    "addmv": ("mat", "vec", "self"),
    "baddbmm": ("batch1", "batch2", "self"),
    **{f"conv{kind}{axes}d": _LAYER for kind in ("", "_transpose") for axes in (1, 2, 3)},
    "convolution": _LAYER,
    "linear": _LAYER,
}


_CONVOLUTION: Final = re.compile(r"(\w+_)?conv(\d|olution|_depthwise|_dilated|_transpose)\w*")
# Attention of operands [B, S, H, D].
_ATTENTION_OF_ROWS: Final = ("efficient_attention_forward", "flash_attention_forward")


def operator(target: str) -> tuple[str, bool]:
    """The name of an operator without underscores, and whether it writes to its first operand.

    Operators of other libraries keep the library's name: ``mylib.attention``.
    """
    parts = target.removeprefix("torch.ops.").split(".")
    library, name = parts[0], parts[1] if len(parts) > 1 else parts[0]
    if library not in ("aten", "prims", "quantized_decomposed"):
        return f"{library}.{name}", False
    plain = name.strip("_").removeprefix("special_")
    if plain.removesuffix("_copy") in VIEWS | WINDOWS:
        plain = plain.removesuffix("_copy")
    return _SAME.get(plain, plain), name.endswith("_") and not name.startswith("__")


def onnx_type(name: str, attributes: Mapping[str, Any], outputs: Sequence[Shape]) -> str:
    """The ONNX name of an operator, or its own."""
    if name.startswith("scaled_dot_product") or name in _ATTENTION_OF_ROWS:
        return "Attention"
    if _CONVOLUTION.fullmatch(name):
        return "ConvTranspose" if attributes.get("transposed") or "transpose" in name else "Conv"
    if name.startswith("upsample"):
        return "Resize"
    if name.startswith("adaptive_avg_pool"):
        return "GlobalAveragePool" if set(outputs[0][2:]) <= {1} else "AveragePool"
    if name.startswith(("avg_pool", "quantize_", "dequantize_", "scatter", "bitwise_")):
        kinds = {"avg": "AveragePool", "quantize": "QuantizeLinear", "dequantize": "DequantizeLinear"}
        known = kinds.get(name.split("_")[0], "ScatterND" if name.startswith("scatter") else "")
        return known or "Bitwise" + name.removeprefix("bitwise_").capitalize()
    if name in ("max", "min", "mean", "prod"):
        return f"Reduce{name.capitalize()}"
    if name in TRANSPOSES:
        return "Transpose"
    if name == "batch_norm":
        return "BatchNormalization"
    if name in CASTS:
        return "Cast"
    if name in DROPOUTS:
        return "Mul"
    return _ONNX_TYPE.get(name) or onnx_name(name) or name


def permutation(name: str, attributes: Mapping[str, Any], rank: int) -> list[int]:
    """The axes of the operand of a transposition in the order of its result."""
    axes = list(range(rank))
    if name == "permute":
        return [axis % rank for axis in attributes["dims"]]
    if name == "movedim":
        sources, targets = ([given] if isinstance(given := attributes[key], int) else given
                            for key in ("source", "destination"))  # fmt: skip
        at = {target % rank: source % rank for source, target in zip(sources, targets, strict=True)}
        rest = iter(axis for axis in axes if axis not in at.values())
        return [at[axis] if axis in at else next(rest) for axis in axes]
    if name in ("transpose", "swapaxes", "swapdims") and rank:
        kind = "axis" if name == "swapaxes" else "dim"
        first, second = attributes.get(f"{kind}0", 0), attributes.get(f"{kind}1", 0)
        axes[first], axes[second] = axes[second], axes[first]
        return axes
    return axes[::-1]


def operands_in_order(name: str, operands: Sequence[Operand]) -> list[int | None]:
    """Positions of the operands in ONNX's order; None for one that is absent."""
    if name not in _OPERANDS:
        return list(range(len(operands)))
    position = {operand.argument: i for i, operand in enumerate(operands)}
    return [position.get(argument) for argument in _OPERANDS[name]]


def operator_cost(
    name: str, attributes: Mapping[str, Any], operands: Sequence[Operand], outputs: Sequence[Shape]
) -> tuple[str, OpCost]:
    """ONNX name and cost of a node; ``touched`` is in the order of ``operands``."""
    by_formula = formula_cost(name, attributes, operands, outputs)
    if by_formula is not None:
        return by_formula
    op_type = onnx_type(name, attributes, outputs)
    if name in _ATTENTION_OF_ROWS:
        operands = [replace(one, shape=_swapped(one.shape)) for one in operands]
        outputs = [*map(_swapped, outputs)]
    order = operands_in_order(name, operands)
    shapes = tuple(None if i is None else operands[i].shape for i in order)
    if name in _MOVES:
        return name, OpCost("data_movement", 0.0, (None,) * len(operands))
    if op_type in ("GRU", "LSTM", "RNN"):
        return op_type, _recurrent(op_type, operands)
    if name in ("max", "min") and len(operands) == 2:
        op_type = name.capitalize()
    signature = OpSignature(
        op_type, shapes, tuple(outputs), _attributes(name, op_type, attributes, shapes, outputs)
    )
    cost = op_cost(signature)
    if name in _PER_INPUT_ELEMENT:
        flops = _PER_INPUT_ELEMENT[name] * math.prod(operands[0].shape)
        cost = replace(cost, flops=flops, is_known=True)
    touched: list[int | None] = [None] * len(operands)
    for place, i in enumerate(order):
        if i is not None:
            touched[i] = cost.touched[place]
    return op_type, replace(cost, touched=tuple(touched))


def _swapped(shape: Shape) -> Shape:
    """[B, S, H, D] as [B, H, S, D]."""
    return (shape[0], shape[2], shape[1], *shape[3:]) if len(shape) == 4 else shape


def _attributes(
    name: str,
    op_type: str,
    attributes: Mapping[str, Any],
    shapes: Sequence[Shape | None],
    outputs: Sequence[Shape],
) -> dict[str, Any]:
    """The attributes that the cost formulas of ONNX ops need."""
    if op_type in ("AveragePool", "MaxPool"):
        return {"kernel_shape": _window(attributes, shapes[0] or (), outputs[0])}
    if op_type == "Einsum":
        return {"equation": attributes.get("equation", "")}
    if op_type == "Resize":
        return {"mode": "nearest" if "nearest" in name else "linear"}
    return {}


def _window(attributes: Mapping[str, Any], source: Shape, output: Shape) -> list[int]:
    given: list[int] | None = attributes.get("kernel_size")
    if given is None:  # adaptive: source elements per output element, rounded up
        return [-(-a // max(1, b)) for a, b in zip(source[2:], output[2:], strict=False)]
    return given * (len(output) - 2) if len(given) == 1 else given


def _recurrent(op_type: str, operands: Sequence[Operand]) -> OpCost:
    """The cost of all layers and directions; each has two matrices, like one ONNX op."""
    matrices = [
        operand.shape for operand in operands if operand.argument == "params" and len(operand.shape) == 2
    ]
    flops = 0.0
    for of_input, of_state in zip(matrices[::2], matrices[1::2], strict=True):
        shapes = (operands[0].shape, (1, *of_input), (1, *of_state))
        flops += op_cost(OpSignature(op_type, shapes, ((),), {})).flops
    return OpCost("matrix", flops, (None,) * len(operands))
