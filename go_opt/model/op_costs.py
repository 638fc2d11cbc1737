"""The table of FLOPs, classes and touched elements of ops, by ONNX type name.

Conventions: a multiply-add is 2 FLOPs, and every other elementary function (add, exp,
tanh, erf, compare, …) is 1. A fused op (``Gelu``, ``Softmax``) thus costs as much as its
textbook decomposition. Matrix ops are counted dense: causal masks and sparsity
save nothing. Data movement costs 0. A type that is not in the table is a vector op of
1 FLOP per output element.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from go_opt.model.matrix_flops import MATRIX_FLOPS, conv_flops, matmul_flops

__all__ = [
    "OpCost",
    "OpSignature",
    "conv_flops",
    "is_elementwise",
    "is_reduction",
    "is_view",
    "matmul_flops",
    "op_cost",
]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class OpSignature:
    """The properties of an op that determine its cost."""

    op_type: str  # ONNX name
    input_shapes: tuple[Shape | None, ...]  # None: absent optional input
    output_shapes: tuple[Shape, ...]
    attributes: Mapping[str, Any]  # plain Python values (ints, floats, lists, str)


@dataclass(frozen=True)
class OpCost:
    """The cost of one execution of an op, independent of the chip."""

    op_class: str  # "matrix" | "vector" | "data_movement"
    flops: float  # 2 per multiply-add
    touched: tuple[int | None, ...]  # elements read of each input; None: all of it


def op_cost(signature: OpSignature) -> OpCost:
    """Class, FLOPs and touched elements of an op; accepts unknown types."""
    op_type = signature.op_type
    touched = _touched(signature)
    if op_type in MATRIX_FLOPS:
        flops = MATRIX_FLOPS[op_type](signature.input_shapes, signature.output_shapes, signature.attributes)
        return OpCost("matrix", float(flops), touched)
    if is_view(op_type) or op_type in _MOVES or _is_nearest_resize(signature):
        return OpCost("data_movement", 0.0, touched)
    return OpCost("vector", float(_vector_flops(signature)), touched)


def is_view(op_type: str) -> bool:
    """Whether the output is an alias of the first input: no kernel, no bytes."""
    return op_type in _VIEWS


def is_elementwise(op_type: str) -> bool:
    """Whether output element i needs only element i of each (broadcast) input."""
    return op_type in _ELEMENTWISE


def is_reduction(op_type: str) -> bool:
    """Whether an output element needs many input elements; scans and sorts are excluded."""
    return (op_type in _PER_INPUT_ELEMENT or op_type in _WINDOWED) and op_type not in _SCANS


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Expand is a broadcast of stride 0. Dropout is the identity at inference.
_VIEWS: Final = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Dropout", "Expand"})

_MOVES: Final = _names(
    "CenterCropPad Col2Im Compress Concat ConcatFromSequence ConstantOfShape DepthToSpace EyeLike "
    "Gather GatherElements GatherND MaxUnpool OneHot Pad Range ReverseSequence Scatter ScatterElements "
    "ScatterND SequenceAt Slice SpaceToDepth Split SplitToSequence TensorScatter Tile Transpose Trilu "
    "Unique"
)

# FLOPs per output element.
_ELEMENTWISE: Final[Mapping[str, float]] = dict.fromkeys(
    _names(
        "Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor "
        "Cast CastLike Ceil Cos Cosh Div Equal Erf Exp Floor Greater GreaterOrEqual IsInf IsNaN Less "
        "LessOrEqual Log Mod Mul Neg Not Or Pow Reciprocal Relu Round Rsqrt Sign Sin Sinh Sqrt Sub Tan Tanh "
        "Where Xor RandomNormalLike RandomUniformLike Bernoulli erf_inv random_bits"
    ),
    1.0,
) | {
    "BatchNormalization": 2.0,  # scale and shift, with the statistics folded in
    "BiasGelu": 6.0,
    "Celu": 4.0,
    "Clip": 2.0,
    "DequantizeLinear": 2.0,
    "Elu": 3.0,
    "FastGelu": 9.0,
    "Gelu": 5.0,
    "HardSigmoid": 4.0,
    "HardSwish": 5.0,
    "LeakyRelu": 2.0,
    "Max": 1.0,
    "Mean": 1.0,
    "Min": 1.0,
    "Mish": 5.0,
    "PRelu": 2.0,
    "QLinearAdd": 6.0,
    "QLinearMul": 6.0,
    "QLinearSigmoid": 6.0,
    "QuantizeLinear": 3.0,
    "QuickGelu": 5.0,
    "Selu": 4.0,
    "Shrink": 2.0,
    "Sigmoid": 3.0,
    "Softplus": 2.0,
    "Softsign": 3.0,
    "Sum": 1.0,
    "Swish": 4.0,
    "ThresholdedRelu": 2.0,
}
# Variadic ops: n inputs take n - 1 binary functions per element.
_VARIADIC: Final = frozenset({"Max", "Mean", "Min", "Sum"})

# Scans and sorts read many elements too, but cannot share a loop with other ops.
_SCANS: Final = frozenset({"CumProd", "CumSum", "TopK"})

# FLOPs per element of the first input.
_PER_INPUT_ELEMENT: Final[Mapping[str, float]] = {
    "ArgMax": 1.0,
    "ArgMin": 1.0,
    "CumProd": 1.0,
    "CumSum": 1.0,
    "DynamicQuantizeLinear": 5.0,
    "GlobalAveragePool": 1.0,
    "GlobalLpPool": 2.0,
    "GlobalMaxPool": 1.0,
    "GroupNormalization": 8.0,
    "Hardmax": 2.0,
    "InstanceNormalization": 8.0,
    "LayerNormalization": 8.0,  # mean, centre, square, mean, rescale, scale, shift
    "LogSoftmax": 5.0,
    "LpNormalization": 3.0,
    "MeanVarianceNormalization": 6.0,
    "NegativeLogLikelihoodLoss": 2.0,
    "QLinearGlobalAveragePool": 1.0,
    "RMSNormalization": 5.0,
    "ReduceL1": 2.0,
    "ReduceL2": 2.0,
    "ReduceLogSum": 1.0,
    "ReduceLogSumExp": 3.0,
    "ReduceMax": 1.0,
    "ReduceMean": 1.0,
    "ReduceMin": 1.0,
    "ReduceProd": 1.0,
    "ReduceSum": 1.0,
    "ReduceSumSquare": 2.0,
    "SimplifiedLayerNormalization": 5.0,
    "SkipLayerNormalization": 9.0,
    "SkipSimplifiedLayerNormalization": 6.0,
    "Softmax": 5.0,  # maximum, subtract, exp, sum, divide
    "SoftmaxCrossEntropyLoss": 7.0,
    "Sort": 10.0,
    "TopK": 10.0,  # a selection network: about log2 of the number of candidates
}
# FLOPs per output element times the window.
_WINDOWED: Final[Mapping[str, float]] = {
    "AveragePool": 1.0,
    "LRN": 2.0,
    "LpPool": 2.0,
    "MaxPool": 1.0,
    "MaxRoiPool": 1.0,
    "QLinearAveragePool": 1.0,
}
# FLOPs per output element of vector ops that are neither element-wise nor reductions.
_PER_OUTPUT_ELEMENT: Final[Mapping[str, float]] = {
    "AffineGrid": 6.0,
    "GridSample": 11.0,
    "Resize": 7.0,
    "RoiAlign": 11.0,
    "RotaryEmbedding": 3.0,
    "Upsample": 7.0,
}

# Parameter inputs (axes, starts, sizes): a compiler treats them as constants, so no kernel reads them.
_PARAMETER_INPUTS: Final[Mapping[str, tuple[int, ...]]] = {
    "CastLike": (1,),
    "CenterCropPad": (1,),
    "Clip": (1, 2),
    "Col2Im": (1, 2),
    "ConstantOfShape": (0,),
    "CumSum": (1,),
    "Dropout": (1, 2),
    "Expand": (1,),
    "EyeLike": (0,),
    "OneHot": (1,),
    "Pad": (1, 2, 3),
    "ReduceL1": (1,),
    "ReduceL2": (1,),
    "ReduceLogSum": (1,),
    "ReduceLogSumExp": (1,),
    "ReduceMax": (1,),
    "ReduceMean": (1,),
    "ReduceMin": (1,),
    "ReduceProd": (1,),
    "ReduceSum": (1,),
    "ReduceSumSquare": (1,),
    "RandomNormalLike": (0,),
    "RandomUniformLike": (0,),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "SplitToSequence": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Trilu": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
}
# These ops read only as many elements of their first input as they write.
_SELECTIONS: Final = frozenset(
    {"CenterCropPad", "Compress", "Gather", "GatherElements", "GatherND", "Slice", "Split", "Trilu"}
)


def _touched(signature: OpSignature) -> tuple[int | None, ...]:
    touched: list[int | None] = [None] * len(signature.input_shapes)
    for position in _PARAMETER_INPUTS.get(signature.op_type, ()):
        if position < len(touched):
            touched[position] = 0
    if signature.op_type in _SELECTIONS and touched and signature.input_shapes[0] is not None:
        written = sum(math.prod(shape) for shape in signature.output_shapes)
        touched[0] = min(written, math.prod(signature.input_shapes[0]))
    return tuple(touched)


def _is_nearest_resize(signature: OpSignature) -> bool:
    return (
        signature.op_type in ("Resize", "Upsample")
        and signature.attributes.get("mode", "nearest") == "nearest"
    )


def _vector_flops(signature: OpSignature) -> float:
    op_type = signature.op_type
    output_elements = math.prod(signature.output_shapes[0]) if signature.output_shapes else 0
    first = signature.input_shapes[0] if signature.input_shapes else None
    if op_type in _VARIADIC:
        return output_elements * max(1, len(signature.input_shapes) - 1)
    if op_type in _PER_INPUT_ELEMENT and first is not None:
        return _PER_INPUT_ELEMENT[op_type] * math.prod(first)
    if op_type in _WINDOWED:
        return _WINDOWED[op_type] * output_elements * _window(signature)
    if op_type == "DFT" and first is not None:
        transform = max(2, max(signature.output_shapes[0], default=1))
        return 5.0 * output_elements * math.log2(transform)
    per_element = _ELEMENTWISE.get(op_type, _PER_OUTPUT_ELEMENT.get(op_type, 1.0))
    return per_element * output_elements


def _window(signature: OpSignature) -> int:
    kernel_shape = signature.attributes.get("kernel_shape", ())
    return int(math.prod(kernel_shape)) * int(signature.attributes.get("size", 1))
