"""Output types of ops that ONNX Runtime adds (domains ``com.microsoft`` and its NHWC layouts).

Optimised and quantised files have such ops, and often no value_info. Most have the shape of a standard op
of some of their inputs, which onnx infers; the others are described in the documentation of ONNX Runtime
(docs/ContribOperators.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from onnx import TensorProto

from go_opt.frontends.onnx.inference.values import Shape, Value

Kind = tuple[int, Shape]  # element type and shape
Values = Sequence[Value | None]
Attributes = Mapping[str, Any]


def at(inputs: Values, position: int) -> Value:
    """An input that has to be there."""
    value = inputs[position]
    if value is None:
        raise ValueError(position)
    return value


def projected(inputs: Values, attributes: Attributes) -> list[Kind]:
    """[batch, rows, hidden] by a weight of Q, K and V; present is [2, batch, heads, rows, depth]."""
    rows, weight = at(inputs, 0), at(inputs, 1).shape
    past = next((value.shape for value in inputs[4:] if value is not None and len(value.shape) == 5), None)
    is_quantised = rows.elem_type in (TensorProto.INT8, TensorProto.UINT8)
    elem_type = at(inputs, 3).elem_type if is_quantised else rows.elem_type
    widths = list(attributes.get("qkv_hidden_sizes") or [weight[-1] // 3] * 3)
    batch, length, heads = rows.shape[0], rows.shape[1], int(attributes["num_heads"])
    added = 0 if past and attributes.get("past_present_share_buffer") else length
    total = added + (past[3] if past else 0)
    present = (2, batch, heads, total, widths[0] // heads)
    return [(elem_type, (batch, length, widths[2])), (elem_type, present)]


def multi_head(inputs: Values, attributes: Attributes) -> list[Kind]:
    """Q, K and V of [batch, rows, width], or packed in one; past K and V are inputs 6 and 7."""
    query, heads = at(inputs, 0), int(attributes["num_heads"])
    key, value = (inputs[i] if i < len(inputs) else None for i in (1, 2))
    batch, rows = query.shape[:2]
    if len(query.shape) == 5:  # [batch, rows, heads, 3, depth]
        width, kept = heads * query.shape[-1], rows
    elif key is None:
        raise ValueError
    else:
        width = (
            value.shape[-1] * (heads if len(value.shape) == 4 else 1)
            if value is not None
            else query.shape[-1]
        )
        kept = key.shape[-2] if len(key.shape) < 5 else key.shape[1]
    past = inputs[6].shape[2] if len(inputs) > 6 and inputs[6] is not None else 0
    depth = query.shape[-1] // (1 if len(query.shape) == 5 else heads)
    present = [(query.elem_type, (batch, heads, past + kept, one)) for one in (depth, width // heads)]
    return [(query.elem_type, (batch, rows, width)), *present]


def one_step(inputs: Values, attributes: Attributes) -> list[Kind]:
    """A row by sample; K and V are rows too, or all of them with a place for each head, or packed with Q."""
    query, heads = at(inputs, 0), int(attributes["num_heads"])
    key, value, past = (inputs[i] if i < len(inputs) else None for i in (1, 2, 5))
    batch, rows, width = query.shape
    columns = past.shape[2] if past is not None else 0
    columns += 0 if past is not None and attributes.get("past_present_share_buffer") else rows
    if key is None or value is None:
        depth = at(inputs, 5).shape[3]
        depths = [depth, width // heads - 2 * depth]
    else:
        columns = key.shape[2] if len(key.shape) == 4 else columns
        depths = [one.shape[-1] // (1 if len(one.shape) == 4 else heads) for one in (key, value)]
    present = [(query.elem_type, (batch, heads, columns, depth)) for depth in depths]
    return [(query.elem_type, (batch, rows, heads * depths[1])), *present]


def packed(inputs: Values, attributes: Attributes) -> list[Kind]:
    """[rows of all samples, width]: of a weight of Q, K and V; or of V, or of Q, K and V in one."""
    query, value = at(inputs, 0), inputs[2]
    widths = attributes.get("qkv_hidden_sizes")
    if len(query.shape) == 4:  # [rows, heads, 3, depth]
        width = query.shape[1] * query.shape[3]
    elif value is not None and len(value.shape) == 2:
        width = value.shape[-1]
    else:
        width = widths[2] if widths else at(inputs, 1).shape[-1] // 3
    return [(query.elem_type, (query.shape[0], width))]


def grouped(inputs: Values, attributes: Attributes) -> list[Kind]:
    """Q of more heads than K and V; without K, input 0 holds all three."""
    query, heads = at(inputs, 0), int(attributes["num_heads"])
    groups = int(attributes.get("kv_num_heads", heads))
    batch, rows, width = query.shape
    is_packed = len(inputs) < 2 or inputs[1] is None
    depth = width // (heads + 2 * groups if is_packed else heads)
    past = inputs[3].shape[2] if len(inputs) > 3 and inputs[3] is not None else 0
    read = inputs[6].read() if len(inputs) > 6 and inputs[6] is not None else None
    total = past + rows if read is None else max(past, int(read.reshape(-1)[0]))
    present = (query.elem_type, (batch, groups, total, depth))
    return [(query.elem_type, (batch, rows, heads * depth)), present, present]


_FLOAT, _INT32 = TensorProto.FLOAT, TensorProto.INT32


@dataclass(frozen=True)
class Like:
    """An op whose output has the shape of a standard op."""

    op_type: str
    inputs: tuple[int, ...]  # its inputs, as positions in those of the op
    attributes: tuple[str, ...] = ()
    of_type: int | None = None  # the input with the output's type; the first one by default


_CONV: Final = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_POOL: Final = ("auto_pad", "ceil_mode", "count_include_pad", "dilations", "kernel_shape", "pads", "strides")
LIKE: Final[Mapping[str, Like]] = {
    "Conv": Like("Conv", (0, 1), _CONV),
    "FusedConv": Like("Conv", (0, 1), _CONV),
    "NhwcConv": Like("Conv", (0, 1), _CONV),
    "NhwcFusedConv": Like("Conv", (0, 1), _CONV),
    "QLinearConv": Like("Conv", (0, 3), _CONV, of_type=7),
    "ConvTranspose": Like("ConvTranspose", (0, 1), (*_CONV, "output_padding", "output_shape")),
    "MaxPool": Like("MaxPool", (0,), _POOL),
    "NhwcMaxPool": Like("MaxPool", (0,), _POOL),
    "AveragePool": Like("AveragePool", (0,), _POOL),
    "QLinearAveragePool": Like("AveragePool", (0,), _POOL),
    "GlobalAveragePool": Like("GlobalAveragePool", (0,)),
    "QLinearGlobalAveragePool": Like("GlobalAveragePool", (0,)),
    "FusedGemm": Like("Gemm", (0, 1), ("transA", "transB")),
    "QGemm": Like("Gemm", (0, 3), ("transA", "transB"), of_type=8),
    "MatMulInteger16": Like("MatMul", (0, 1)),
    "MatMulIntegerToFloat": Like("MatMul", (0, 1), of_type=2),
    "DynamicQuantizeMatMul": Like("MatMul", (0, 1)),
    "QOrderedMatMul": Like("MatMul", (0, 2)),
    "QLinearAdd": Like("Add", (0, 3)),
    "QLinearMul": Like("Mul", (0, 3)),
    "BiasAdd": Like("Add", (0, 1)),
    "QLinearReduceMean": Like("ReduceMean", (0,), ("axes", "keepdims")),
}
# Ops that work on [N, H, W, C]; others do if they say `channels_last`.
_NHWC: Final = frozenset({"NhwcConv", "NhwcFusedConv", "NhwcMaxPool"})
NHWC_DOMAIN: Final = "com.ms.internal.nhwc"


def is_channels_last(domain: str, op_type: str, attributes: Attributes) -> bool:
    """Whether the channels of an op's images are their last axis."""
    return domain == NHWC_DOMAIN or op_type in _NHWC or bool(attributes.get("channels_last"))


# The operand whose type is that of the products; scales of floating type tell nothing.
_INTEGER_OPERAND: Final = {
    **dict.fromkeys(["MatMulIntegerToFloat", "QAttention", "QGemm", "QLinearConv", "QLinearMatMul"], 0),
    **dict.fromkeys(["QOrderedAttention", "QOrderedLongformerAttention", "QOrderedMatMul"], 0),
    **dict.fromkeys(["DynamicQuantizeLSTM", "DynamicQuantizeMatMul"], 1),
}


def computed_in(op_type: str, inputs: Values) -> str | None:
    """The type in which a quantised op computes; None for other ops."""
    position = _INTEGER_OPERAND.get(op_type)
    operand = inputs[position] if position is not None and position < len(inputs) else None
    return None if operand is None else operand.dtype


def own_outputs(op_type: str, inputs: Values, attributes: Attributes) -> list[Kind] | None:
    """The outputs of an op that is like no standard one; None if it is not known, or lacks an input.

    Optional outputs are included.
    """
    rule = _OWN.get(op_type)
    if rule is None or not inputs or inputs[0] is None:
        return None
    try:
        return rule(inputs, attributes)
    except (IndexError, ValueError, ZeroDivisionError, AttributeError):
        return None


def _same(inputs: Values, attributes: Attributes) -> list[Kind]:
    first = at(inputs, 0)
    return [(first.elem_type, first.shape)]


def _dropout(inputs: Values, attributes: Attributes) -> list[Kind]:
    first = at(inputs, 0)
    return [(first.elem_type, first.shape), (TensorProto.BOOL, first.shape)]


def _normalised(inputs: Values, attributes: Attributes) -> list[Kind]:
    """Output, mean and deviation by row, and the sum with the skip connection."""
    (whole,) = _same(inputs, attributes)
    by_row = (_FLOAT, (*whole[1][:-1], 1))
    return [whole, by_row, by_row, whole]


def _embedded(inputs: Values, attributes: Attributes) -> list[Kind]:
    ids, table = at(inputs, 0).shape, at(inputs, 2)
    whole = (table.elem_type, (*ids, table.shape[-1]))
    return [whole, (_INT32, ids[:1]), whole]


def _fused_matmul(inputs: Values, attributes: Attributes) -> list[Kind]:
    a, b = (list(at(inputs, i).shape) for i in (0, 1))
    for shape, side in (a, "A"), (b, "B"):
        if attributes.get(f"transBatch{side}"):  # [M, batch, K] for [batch, M, K]
            shape[:-1] = [*shape[1:-1], shape[0]]
        if attributes.get(f"trans{side}") and len(shape) > 1:
            shape[-2:] = shape[:-3:-1]
    rows, columns = ([1, *a] if len(a) == 1 else a), ([*b, 1] if len(b) == 1 else b)
    batch = np.broadcast_shapes(tuple(rows[:-2]), tuple(columns[:-2]))
    sizes = (*batch, *(rows[-2:-1] if len(a) > 1 else ()), *(columns[-1:] if len(b) > 1 else ()))
    return [(at(inputs, 0).elem_type, sizes)]


def _columns(inputs: Values, attributes: Attributes) -> list[Kind]:
    """Products with a packed weight of N columns."""
    first = at(inputs, 0)
    return [(first.elem_type, (*first.shape[:-1], int(attributes.get("N", 0))))]


def _gathered(inputs: Values, attributes: Attributes) -> list[Kind]:
    """Rows of a table, which bytes hold packed along the last axis."""
    table, axis = at(inputs, 0), int(attributes.get("gather_axis", 0))
    sizes = [*table.shape[:axis], *at(inputs, 1).shape, *table.shape[axis:][1:]]
    sizes[-1] *= 8 // int(attributes.get("bits", 4)) if table.elem_type == TensorProto.UINT8 else 1
    return [(at(inputs, 2).elem_type, tuple(sizes))]


def _half(inputs: Values, attributes: Attributes) -> list[Kind]:
    first = at(inputs, 0)
    return [(first.elem_type, (*first.shape[:-1], first.shape[-1] // 2))]


def _quantised(inputs: Values, attributes: Attributes) -> list[Kind]:
    has_zero = len(inputs) > 2 and inputs[2] is not None
    return [(at(inputs, 2).elem_type if has_zero else TensorProto.UINT8, at(inputs, 0).shape)]


def _dequantised(inputs: Values, attributes: Attributes) -> list[Kind]:
    return [(at(inputs, 1).elem_type, at(inputs, 0).shape)]


def _concatenated(inputs: Values, attributes: Attributes) -> list[Kind]:
    """Y's scale and zero point, then tensor, scale and zero point of each input."""
    parts = [at(inputs, i).shape for i in range(2, len(inputs), 3)]
    axis = int(attributes["axis"]) % len(parts[0])
    joined = (*parts[0][:axis], sum(shape[axis] for shape in parts), *parts[0][axis + 1 :])
    return [(at(inputs, 1).elem_type, joined)]


def _chosen(inputs: Values, attributes: Attributes) -> list[Kind]:
    shape = np.broadcast_shapes(*(at(inputs, i).shape for i in (0, 1, 4)))
    return [(at(inputs, 1).elem_type, shape)]


def _lstm(inputs: Values, attributes: Attributes) -> list[Kind]:
    """Y, Y_h and Y_c; the weights are [directions, inputs, 4 · hidden]."""
    first, weight = at(inputs, 0), at(inputs, 1).shape
    steps, batch, hidden = first.shape[0], first.shape[1], weight[-1] // 4
    last = (first.elem_type, (weight[0], batch, hidden))
    return [(first.elem_type, (steps, weight[0], batch, hidden)), last, last]


_Rule = Callable[[Values, Attributes], list[Kind]]
_TYPES: Final[Mapping[_Rule, str]] = {
    _same: "BiasGelu BiasSoftmax FastGelu Gelu GroupNorm Inverse LongformerAttention MoE QLinearLeakyRelu "
    "QLinearSigmoid QLinearSoftmax QMoE QOrderedGelu QOrderedLayerNormalization "
    "QOrderedLongformerAttention QuickGelu RotaryEmbedding",
    _normalised: "SimplifiedLayerNormalization SkipLayerNormalization SkipSimplifiedLayerNormalization",
    _columns: "MatMulNBits MatMulBnb4 MatMulFpQ4",
    projected: "Attention DecoderMaskedSelfAttention QAttention",
    _dropout: "BiasDropout",
    _half: "BiasSplitGelu",
    one_step: "DecoderMaskedMultiHeadAttention",
    _dequantised: "DequantizeLinear",
    _lstm: "DynamicQuantizeLSTM",
    _embedded: "EmbedLayerNormalization",
    _fused_matmul: "FusedMatMul",
    _gathered: "GatherBlockQuantized",
    grouped: "GroupQueryAttention",
    multi_head: "MultiHeadAttention",
    packed: "PackedAttention PackedMultiHeadAttention",
    _concatenated: "QLinearConcat",
    _chosen: "QLinearWhere",
    _quantised: "QuantizeLinear",
}
_OWN: Final[Mapping[str, _Rule]] = {
    **{op_type: rule for rule, types in _TYPES.items() for op_type in types.split()},
    "DequantizeWithOrder": lambda inputs, attributes: [(int(attributes["to"]), at(inputs, 0).shape)],
    "QOrderedAttention": lambda inputs, _: [
        (at(inputs, 0).elem_type, (*at(inputs, 0).shape[:-1], at(inputs, 7).shape[-1]))
    ],
    "QuantizeWithOrder": lambda inputs, _: [(TensorProto.INT8, at(inputs, 0).shape)],
    "SkipGroupNorm": lambda inputs, attributes: _same(inputs, attributes) * 2,
}
