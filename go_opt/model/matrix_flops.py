"""FLOPs of matrix ops by ONNX type name, of factorisations and of Fourier transforms.

A multiply-add is 2; matrices are dense.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

Shape = tuple[int, ...]
InputShapes = Sequence[Shape | None]
Formula = Callable[[InputShapes, Sequence[Shape], Mapping[str, Any]], float]


def matmul_flops(batch: int, m: int, n: int, k: int) -> float:
    """``2 · batch · m · n · k``: ``batch`` products of [m, k] with [k, n]."""
    return 2.0 * batch * m * n * k


def conv_flops(output_elements: int, kernel_elements_per_output: int) -> float:
    """``2 · outputs · (input channels of the group · kernel window)``."""
    return 2.0 * output_elements * kernel_elements_per_output


def einsum_flops(equation: str, input_shapes: InputShapes) -> float:
    """FLOPs of contracting the operands from left to right: ``2 · Π`` sizes of all labels per step.

    A step that sums over no label is an outer product: 1 FLOP per element.
    """
    terms, result, sizes = _parse_einsum(equation, [shape or () for shape in input_shapes])
    done = terms[0]
    flops = 0.0
    for i, term in enumerate(terms[1:], start=1):
        involved = done | term
        needed_later = set(result).union(*terms[i + 1 :])
        summed = bool(involved - needed_later)
        flops += (2.0 if summed else 1.0) * math.prod(sizes[label] for label in involved)
        done = involved & needed_later
    if len(terms) == 1:
        flops = float(math.prod(sizes[label] for label in done))
    return flops


def fft_flops(source: Shape, result: Shape, axes: Iterable[int], *, is_real: bool) -> float:
    """``5 · elements · log2(length)`` of a complex Fourier transform over ``axes``; half for a real one."""
    lengths = [max(source[axis], result[axis]) for axis in axes]
    flops = 5.0 * max(math.prod(source), math.prod(result)) * math.log2(max(2, math.prod(lengths)))
    return flops / 2 if is_real else flops


def _factorised(factor: float) -> Callable[[Sequence[Shape]], float]:
    """``factor · n³`` per matrix of a batch, textbooks' leading term; the shorter side of [m, n] twice."""
    return lambda shapes: factor * math.prod(shapes[0]) * min(shapes[0][-2:])


def _per_right_side(factor: float) -> Callable[[Sequence[Shape]], float]:
    """``factor · n²`` for each right-hand side of n elements; the matrix is the first operand."""
    return lambda shapes: factor * math.prod(shapes[1]) * shapes[0][-1]


FACTORISATION_FLOPS: Final[Mapping[str, Callable[[Sequence[Shape]], float]]] = {
    "cholesky": _factorised(1 / 3),
    "eig": _factorised(25.0),
    "eigh": _factorised(9.0),
    "geqp3": _factorised(4 / 3),
    "geqrf": _factorised(4 / 3),
    "hessenberg": _factorised(10 / 3),
    "householder_product": _factorised(4 / 3),
    "inverse": _factorised(2.0),
    "lu": _factorised(2 / 3),
    "lu_solve": _per_right_side(2.0),
    "matrix_exp": _factorised(20.0),  # about ten products
    "ormqr": lambda shapes: 4.0 * math.prod(shapes[-1]) * shapes[0][-1],
    "qr": _factorised(4 / 3),
    "schur": _factorised(25.0),
    "solve": lambda shapes: _factorised(2 / 3)(shapes) + _per_right_side(2.0)(shapes),
    "svd": _factorised(22.0),
    "triangular_solve": _per_right_side(1.0),
    "tridiagonal": _factorised(4 / 3),
    "tridiagonal_solve": lambda shapes: 8.0 * math.prod(shapes[-1]),
}


def _parse_einsum(
    equation: str, shapes: Sequence[Shape]
) -> tuple[list[set[str]], set[str], Mapping[str, int]]:
    """Labels of each operand, labels of the result, and the size of each label."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    sizes: dict[str, int] = {}
    terms: list[set[str]] = []
    for term, shape in zip(left.split(","), shapes, strict=False):
        named, dots, tail = term.partition("...")
        batch = len(shape) - len(named) - len(tail) if dots else 0
        # Ellipsis dimensions align from the right, so they are numbered from there.
        labels = [*named, *(f".{batch - j}" for j in range(batch)), *tail]
        for label, size in zip(labels, shape, strict=False):
            sizes[label] = max(size, sizes.get(label, 1)) if size else 0
        terms.append(set(labels) & set(sizes))
    batch_labels = {label for label in sizes if label.startswith(".")}
    if arrow:
        result = set(right.replace(".", ""))
    else:
        letters = left.replace(",", "").replace(".", "")
        result = {letter for letter in letters if letters.count(letter) == 1}
    return terms, result | batch_labels, sizes


def _shape(shapes: InputShapes, position: int) -> Shape:
    """The shape of an input; an absent input counts as a scalar."""
    shape = shapes[position] if position < len(shapes) else None
    return () if shape is None else shape


def _present(shapes: InputShapes, position: int) -> bool:
    return 0 <= position < len(shapes) and shapes[position] is not None


def _conv(weight: int, bias: int) -> Formula:
    """Convolutions: the weight is [C_out, C_in / group, window…]."""

    def flops(inputs: InputShapes, outputs: Sequence[Shape], attributes: Mapping[str, Any]) -> float:
        outputs_elements = math.prod(outputs[0])
        bias_flops = outputs_elements if _present(inputs, bias) else 0
        return conv_flops(outputs_elements, math.prod(_shape(inputs, weight)[1:])) + bias_flops

    return flops


def _conv_transpose(inputs: InputShapes, outputs: Sequence[Shape], attributes: Mapping[str, Any]) -> float:
    # The weight is [C_in, C_out / group, window…]: every input element is multiplied by one row.
    bias_flops = math.prod(outputs[0]) if _present(inputs, 2) else 0
    return conv_flops(math.prod(_shape(inputs, 0)), math.prod(_shape(inputs, 1)[1:])) + bias_flops


def _matmul(inputs: InputShapes, outputs: Sequence[Shape], attributes: Mapping[str, Any]) -> float:
    a = _shape(inputs, 0)
    contracted = a[-2] if attributes.get("transA") and len(a) > 1 else (a[-1] if a else 1)
    return matmul_flops(1, math.prod(outputs[0]), 1, contracted)


def _gemm(inputs: InputShapes, outputs: Sequence[Shape], attributes: Mapping[str, Any]) -> float:
    bias_flops = math.prod(outputs[0]) if _present(inputs, 2) else 0
    return _matmul(inputs, outputs, attributes) + bias_flops


def _matmul_nbits(inputs: InputShapes, outputs: Sequence[Shape], attributes: Mapping[str, Any]) -> float:
    # The weight is packed in blocks: attribute K is the contracted length.
    contracted = int(attributes.get("K", 0)) or (_shape(inputs, 0) or (1,))[-1]
    return matmul_flops(1, math.prod(outputs[0]), 1, contracted)


def _recurrent(*of_gates: int) -> Formula:
    """Layers of cells; along the axes ``of_gates`` of the weight of inputs lie directions and gates."""

    def flops(inputs: InputShapes, outputs: Sequence[Shape], attributes: Mapping[str, Any]) -> float:
        # X is [steps, batch, inputs] (or batch first). Every step multiplies by W and R of each direction.
        rows, first = math.prod(_shape(inputs, 0)[:2]), _shape(inputs, 1)
        gates = math.prod(first[axis] for axis in of_gates if axis < len(first)) if first else 1
        weights = math.prod(first) + math.prod(_shape(inputs, 2))
        return matmul_flops(1, rows, 1, weights) + 4.0 * rows * gates

    return flops


def _scored(rows: int, columns: float, heads: int, width: int, width_out: int) -> float:
    """Q·Kᵀ, scale and softmax (6 per score), and scores·V; ``rows`` are those of all samples."""
    return 2.0 * rows * columns * (width + width_out) + 6.0 * rows * columns * heads


def _seen(rows: int, columns: int, attributes: Mapping[str, Any]) -> float:
    """The mean number of columns that a row of a sample sees: a causal one none that comes after it."""
    if not (attributes.get("is_causal") or attributes.get("unidirectional")) or rows > columns:
        return columns
    return columns - (rows - 1) / 2


def _projected_attention(*weights: int, bias: int) -> Formula:
    """ONNX Runtime's attention of one input by weights of Q, K and V, in one or three.

    Rows that attend to all others, beside a window, are known only at run time, and not counted.
    """

    def flops(inputs: InputShapes, outputs: Sequence[Shape], attributes: Mapping[str, Any]) -> float:
        *batch, columns, hidden = _shape(inputs, 0)
        rows, width_out = math.prod(outputs[0][:-1]), outputs[0][-1]
        if "window" in attributes:  # of one side
            columns = min(2 * int(attributes["window"]) + 1, columns)
        elif not batch:  # samples without their padding: at most the longest one
            columns = _shape(inputs, 3)[-1]
        elif len(outputs) > 1 and len(outputs[1]) == 5:
            columns = outputs[1][3]  # of the present keys
        widths = sum(_shape(inputs, weight)[-1] for weight in weights)
        projection = matmul_flops(1, rows, widths, hidden) + rows * widths * _present(inputs, bias)
        heads = int(attributes.get("num_heads", 1))
        return projection + _scored(rows, columns, heads, (widths - width_out) // 2, width_out)

    return flops


def _packed_attention(inputs: InputShapes, outputs: Sequence[Shape], attributes: Mapping[str, Any]) -> float:
    """Samples without their padding: each row sees at most as many as the longest has."""
    query, (rows, width_out) = _shape(inputs, 0), outputs[0]  # Q, K and V in one: [rows, heads, 3, depth]
    width = query[1] * query[3] if len(query) == 4 else query[-1]
    return _scored(rows, _shape(inputs, 4)[-1], int(attributes.get("num_heads", 1)), width, width_out)


def _step_attention(inputs: InputShapes, outputs: Sequence[Shape], attributes: Mapping[str, Any]) -> float:
    """One row by sample, of keys [batch, heads, columns, depth] that are given or kept."""
    kept = [_shape(inputs, 1), *outputs[1:2], _shape(inputs, 5)]
    *rows, width_out = outputs[0]
    _, heads, columns, depth = next((shape for shape in kept if len(shape) == 4), (1, 1, 1, width_out))
    return _scored(math.prod(rows), columns, int(attributes.get("num_heads", 1)), heads * depth, width_out)


def _experts(*weights: int, bits: int) -> Formula:
    """Each row goes through the weights [experts, …] of ``k`` experts; packed ones have ``bits`` each."""

    def flops(inputs: InputShapes, outputs: Sequence[Shape], attributes: Mapping[str, Any]) -> float:
        experts, chosen = _shape(inputs, weights[0])[0], int(attributes.get("k", 1))
        kind = str(attributes.get("quant_type", "int"))
        stored = (
            8 if kind == "fp8" else 4 if "fp4" in kind else int(attributes.get("expert_weight_bits", bits))
        )
        elements = sum(
            math.prod(_shape(inputs, weight)[1:]) for weight in weights if _present(inputs, weight)
        )
        return matmul_flops(1, math.prod(outputs[0][:-1]), min(chosen, experts), elements * 8 // stored)

    return flops


def _attention(inputs: InputShapes, outputs: Sequence[Shape], attributes: Mapping[str, Any]) -> float:
    """Q·Kᵀ, scale and softmax (6 per score), and scores·V; operands [B, H, S, D] or [B, S, H·D]."""
    query, key, output = _shape(inputs, 0), _shape(inputs, 1), outputs[0]
    if len(query) == 3 and len(key) == 2:
        return _projected_attention(1, bias=2)(inputs, outputs, attributes)
    if len(query) < 3 or (len(key) < 3 and len(query) < 5) or not output:
        return float(math.prod(output))
    if len(query) == 5:  # Q, K and V in one: [batch, rows, heads, 3, depth]
        batch, rows, heads, _, depth = query
        columns, width, width_out = rows, heads * depth, output[-1]
    elif len(query) == 4:
        batch, heads, rows, depth = query
        columns, width_out = key[2], heads * output[-1]
        width = heads * depth
    else:
        batch, rows, width = query
        heads = int(attributes.get("q_num_heads", attributes.get("num_heads", 1)))
        columns, width_out = key[1] if len(key) == 5 else key[-2], output[-1]
    pasts = [shape for shape in inputs[3:] if shape is not None and len(shape) == 4]
    if len(outputs) > 1 and len(outputs[1]) == 4:
        columns = outputs[1][2]  # of the present keys
    elif len(pasts) > 1:  # keys and values, after a mask or a bias of four axes
        columns += pasts[-2][2]
    return _scored(batch * rows, _seen(rows, columns, attributes), heads, width, width_out)


def _grouped_attention(inputs: InputShapes, outputs: Sequence[Shape], attributes: Mapping[str, Any]) -> float:
    """Heads of Q share those of K and V; with `do_rotary`, 3 FLOPs by element of Q and K."""
    batch, rows, width = outputs[0]
    heads = int(attributes.get("num_heads", 1))
    past = _shape(inputs, 3)
    columns = outputs[1][2] if len(outputs) > 1 else rows + (past[2] if len(past) == 4 else 0)
    groups = int(attributes.get("kv_num_heads", heads))
    turned = batch * rows * width * (1 + groups / heads) if attributes.get("do_rotary") else 0
    seen = _seen(rows, columns, {"is_causal": 1})
    return _scored(batch * rows, seen, heads, width, width) + 3.0 * turned


# The product and at most one bias, without a fused activation or scale: the shape of a product follows from
# its FLOPs (go_opt.env.cost.shapes).
MATRIX_FLOPS: Final[Mapping[str, Formula]] = {
    **dict.fromkeys(("Attention", "MultiHeadAttention", "QAttention"), _attention),
    **dict.fromkeys(("Conv", "FusedConv", "NhwcConv", "NhwcFusedConv"), _conv(weight=1, bias=2)),
    "ConvInteger": _conv(weight=1, bias=-1),
    "ConvTranspose": _conv_transpose,
    "DeformConv": _conv(weight=1, bias=3),
    "QLinearConv": _conv(weight=3, bias=8),
    "Einsum": lambda inputs, outputs, given: einsum_flops(str(given.get("equation", "")), inputs),
    **dict.fromkeys(("FusedGemm", "Gemm"), _gemm),
    **dict.fromkeys(("DynamicQuantizeMatMul", "FusedMatMul", "MatMul", "MatMulInteger"), _matmul),
    **dict.fromkeys(("MatMulInteger16", "MatMulIntegerToFloat", "QGemm", "QLinearMatMul"), _matmul),
    "QOrderedMatMul": _matmul,
    **dict.fromkeys(("MatMulBnb4", "MatMulFpQ4", "MatMulNBits"), _matmul_nbits),
    "DecoderMaskedMultiHeadAttention": _step_attention,
    "GroupQueryAttention": _grouped_attention,
    "PackedMultiHeadAttention": _packed_attention,
    **dict.fromkeys(
        ("DecoderMaskedSelfAttention", "LongformerAttention", "PackedAttention"),
        _projected_attention(1, bias=2),
    ),
    "QOrderedAttention": _projected_attention(5, 6, 7, bias=11),
    "QOrderedLongformerAttention": _projected_attention(2, bias=4),
    "MoE": _experts(2, 4, 6, bits=8),
    "QMoE": _experts(2, 5, 8, bits=4),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _recurrent(0, 1)),
    "DynamicQuantizeLSTM": _recurrent(0, -1),
}
