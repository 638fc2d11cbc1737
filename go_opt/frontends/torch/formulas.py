"""FLOPs of operators of ATen that have no ONNX op: transforms, factorisations, cells, further products."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from go_opt.model.matrix_flops import FACTORISATION_FLOPS, conv_flops, einsum_flops, fft_flops
from go_opt.model.op_costs import OpCost, OpSignature, op_cost

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


def _tensordot(attributes: Mapping[str, Any], shapes: Sequence[Shape], outputs: Sequence[Shape]) -> float:
    summed = [shapes[0][axis] for axis in attributes.get("dims_self", ())]
    return 2.0 * float(math.prod(outputs[0]) * math.prod(summed))


def _bilinear(attributes: Mapping[str, Any], shapes: Sequence[Shape], outputs: Sequence[Shape]) -> float:
    return einsum_flops("...a,oab,...b->...o", [shapes[0], shapes[2], shapes[1]])


def _conv_backward(attributes: Mapping[str, Any], shapes: Sequence[Shape], outputs: Sequence[Shape]) -> float:
    """The gradients of the operand and of the weight each cost as much as the convolution."""
    wanted: int = sum(attributes.get("output_mask", [True, True])[:2])
    return wanted * conv_flops(math.prod(shapes[0]), math.prod(shapes[2][1:]))


def _conv_tbc(attributes: Mapping[str, Any], shapes: Sequence[Shape], outputs: Sequence[Shape]) -> float:
    return conv_flops(math.prod(outputs[0]), math.prod(shapes[1][:2]))


def _stft(attributes: Mapping[str, Any], shapes: Sequence[Shape], outputs: Sequence[Shape]) -> float:
    """A real transform of each frame of the spectrogram [..., bins, frames]."""
    length, spectrum = int(attributes["n_fft"]), max((*shapes, *outputs), key=math.prod)
    bins = length // 2 + 1 if attributes.get("onesided", True) else length
    return 2.5 * math.prod(spectrum) / bins * length * math.log2(max(2, length))


_PRODUCTS: Final[Mapping[str, _Formula]] = {
    "bilinear": _bilinear,
    "chain_matmul": _chain,
    "conv_tbc": _conv_tbc,
    "convolution_backward": _conv_backward,
    "linalg_multi_dot": _chain,
    "tensordot": _tensordot,
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
