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

from go_opt.model.matrix_flops import FACTORISATION_FLOPS, MATRIX_FLOPS, fft_flops

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
    is_known: bool = True  # False: no rule has the type


def op_cost(signature: OpSignature) -> OpCost:
    """Class, FLOPs and touched elements of an op; accepts unknown types."""
    op_type = signature.op_type
    touched, op_class = _touched(signature), class_of_type(op_type)
    if op_class == "matrix":
        flops = MATRIX_FLOPS[op_type](signature.input_shapes, signature.output_shapes, signature.attributes)
        return OpCost(op_class, float(flops), touched)
    mode = signature.attributes.get("mode", "nearest")
    if op_class == "data_movement" or (op_type in ("Resize", "Upsample") and mode == "nearest"):
        return OpCost("data_movement", 0.0, touched)
    return OpCost(op_class, float(_vector_flops(signature)), touched, is_known_type(op_type))


def class_of_type(op_type: str) -> str:
    """The class of an op of a type, if its shapes do not matter."""
    if op_type in MATRIX_FLOPS:
        return "matrix"
    return "data_movement" if is_view(op_type) or op_type in _MOVES else "vector"


def is_known_type(op_type: str) -> bool:
    """Whether a rule has the type; other ops cost 1 FLOP per output element."""
    return op_type in _KNOWN


def is_view(op_type: str) -> bool:
    """Whether the output is an alias of the first input: no kernel, no bytes."""
    return op_type in _VIEWS


def is_elementwise(op_type: str) -> bool:
    """Whether output element i needs only element i of each (broadcast) input."""
    return op_type in ELEMENTWISE


def is_reduction(op_type: str) -> bool:
    """Whether an output element needs many input elements; scans and sorts are excluded."""
    return (op_type in _PER_INPUT_ELEMENT or op_type in _WINDOWED) and op_type not in _SCANS


def names(text: str) -> tuple[str, ...]:
    """The words of a text."""
    return tuple(text.split())


def _flops(names_by_flops: Mapping[float, str]) -> Mapping[str, float]:
    return {name: flops for flops, text in names_by_flops.items() for name in names(text)}


# Expand is a broadcast of stride 0. Dropout is the identity at inference.
_VIEWS: Final = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Dropout", "Expand"})

_MOVES: Final = names(
    "CenterCropPad Col2Im Compress Concat ConcatFromSequence ConstantOfShape DepthToSpace EyeLike "
    "Gather GatherElements GatherND MaxUnpool OneHot Pad Range ReverseSequence Scatter ScatterElements "
    "ScatterND SequenceAt Slice SpaceToDepth Split SplitToSequence TensorScatter Tile Transpose Trilu "
    "Unique"
)

# FLOPs per output element. BatchNormalization is scale and shift, with the statistics folded in.
ELEMENTWISE: Final = _flops(
    {
        1.0: "Abs Acos Acosh Add And Asin Asinh Atan Atanh Bernoulli BitShift BitwiseAnd BitwiseNot "
        "BitwiseOr BitwiseXor Cast CastLike Ceil Cos Cosh Div Equal Erf Exp Floor Greater GreaterOrEqual "
        "IsInf IsNaN Less LessOrEqual Log Max Mean Min Mod Mul Neg Not Or Pow RandomNormalLike "
        "RandomUniformLike Reciprocal Relu Round Rsqrt Sign Sin Sinh Sqrt Sub Sum Tan Tanh Where Xor "
        "RandomNormal RandomUniform clz complex conj digamma erf_inv imag lgamma mulhi nextafter "
        "population_count random_bits real BiasAdd BiasDropout DequantizeWithOrder",
        2.0: "BatchNormalization Clip DequantizeLinear LeakyRelu PRelu QuantizeWithOrder Shrink Softplus "
        "ThresholdedRelu threshold xlogy",
        3.0: "Elu QuantizeLinear Sigmoid Softsign addcdiv addcmul addr lerp logit nan_to_num",
        4.0: "Celu HardSigmoid Selu Swish glu hypot logaddexp",
        5.0: "Gelu HardSwish Mish QuickGelu",
        6.0: "BiasGelu QLinearAdd QLinearMul QLinearSigmoid QLinearWhere",
        7.0: "QLinearLeakyRelu",
        8.0: "QOrderedGelu",
        9.0: "FastGelu",
    }
)
# Variadic ops: n inputs take n - 1 binary functions per element.
_VARIADIC: Final = frozenset({"Max", "Mean", "Min", "Sum"})

# Scans and sorts read many elements too, but cannot share a loop with other ops.
_SCANS: Final = frozenset({"CumProd", "CumSum", "TopK"})

# FLOPs per element of the first input. Softmax: maximum, subtract, exp, sum, divide. LayerNormalization:
# mean, centre, square, mean, rescale, scale, shift. TopK: a selection network, about log2 of the candidates.
_PER_INPUT_ELEMENT: Final = _flops(
    {
        1.0: "ArgMax ArgMin CumProd CumSum GlobalAveragePool GlobalMaxPool QLinearGlobalAveragePool "
        "ReduceLogSum ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum",
        2.0: "GlobalLpPool Hardmax NegativeLogLikelihoodLoss ReduceL1 ReduceL2 ReduceSumSquare",
        3.0: "LpNormalization ReduceLogSumExp",
        5.0: "DynamicQuantizeLinear LogSoftmax RMSNormalization SimplifiedLayerNormalization Softmax",
        6.0: "BiasSoftmax MeanVarianceNormalization QLinearReduceMean SkipSimplifiedLayerNormalization",
        7.0: "SoftmaxCrossEntropyLoss",
        8.0: "GroupNorm GroupNormalization InstanceNormalization LayerNormalization",
        9.0: "SkipGroupNorm SkipLayerNormalization",
        10.0: "QLinearSoftmax Sort TopK",
        11.0: "QOrderedLayerNormalization",
    }
)
# FLOPs per output element times the window.
_WINDOWED: Final = _flops(
    {1.0: "AveragePool MaxPool MaxRoiPool NhwcMaxPool QLinearAveragePool", 2.0: "LRN LpPool"}
)
# FLOPs per output element of vector ops that are neither element-wise nor reductions.
_PER_OUTPUT_ELEMENT: Final = _flops(
    {
        2.0: "GatherBlockQuantized",
        3.0: "RotaryEmbedding",
        5.0: "QLinearConcat",
        6.0: "AffineGrid BiasSplitGelu",
        7.0: "Resize Upsample",
        10.0: "EmbedLayerNormalization bucketize searchsorted",
        11.0: "GridSample RoiAlign",
    }
)

# Parameter inputs (axes, starts, sizes): a compiler treats them as constants, so no kernel reads them.
_PARAMETER_INPUTS: Final[Mapping[str, tuple[int, ...]]] = {
    **dict.fromkeys(names("ConstantOfShape EyeLike RandomNormalLike RandomUniformLike"), (0,)),
    **dict.fromkeys(
        names(
            "CastLike CenterCropPad CumSum Expand OneHot ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp "
            "ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Reshape Split "
            "SplitToSequence Squeeze Tile TopK Trilu Unsqueeze Upsample"
        ),
        (1,),
    ),
    **dict.fromkeys(names("Clip Col2Im Dropout"), (1, 2)),
    **dict.fromkeys(names("Pad Resize"), (1, 2, 3)),
    "Range": (0, 1, 2),
    "Slice": (1, 2, 3, 4),
}
# These ops read only as many elements of their first input as they write.
_SELECTIONS: Final = frozenset(
    {"CenterCropPad", "Compress", "Gather", "GatherElements", "GatherND", "Slice", "Split", "Trilu"}
)


_KNOWN: Final = dict.fromkeys(
    (
        *(*MATRIX_FLOPS, *_VIEWS, *_MOVES, *ELEMENTWISE),
        *(*_PER_INPUT_ELEMENT, *_WINDOWED, *_PER_OUTPUT_ELEMENT, "DFT", "Inverse", "STFT"),
    )
)
_BY_LETTERS: Final = {name.lower(): name for name in _KNOWN}


def onnx_name(name: str) -> str | None:
    """The known ONNX name that differs from ``name`` only in case and underscores; None without one."""
    return _BY_LETTERS.get(name.replace("_", ""))


def _touched(signature: OpSignature) -> tuple[int | None, ...]:
    touched: list[int | None] = [None] * len(signature.input_shapes)
    for position in _PARAMETER_INPUTS.get(signature.op_type, ()):
        if position < len(touched):
            touched[position] = 0
    if signature.op_type in _SELECTIONS and touched and signature.input_shapes[0] is not None:
        written = sum(math.prod(shape) for shape in signature.output_shapes)
        touched[0] = min(written, math.prod(signature.input_shapes[0]))
    if signature.op_type == "EmbedLayerNormalization":  # rows of tables of words, positions and segments
        for position, shape in list(enumerate(signature.input_shapes))[2:5]:
            if shape is not None:
                touched[position] = min(math.prod(signature.output_shapes[0]), math.prod(shape))
    if signature.op_type in ("GatherBlockQuantized", "MoE", "QMoE"):
        _touch_chosen(signature, touched)
    return tuple(touched)


def _touch_chosen(signature: OpSignature, touched: list[int | None]) -> None:
    """Of tables, only the rows that are chosen; of experts, at most as many as all rows choose."""
    shapes, attributes = signature.input_shapes, signature.attributes
    if signature.op_type == "GatherBlockQuantized":
        tables, axis = [0, 2, 3], int(attributes.get("gather_axis", 0))
        chosen = math.prod(shapes[1] or ())
    else:
        tables, axis = list(range(2, 14)), 0
        chosen = math.prod(signature.output_shapes[0][:-1]) * int(attributes.get("k", 1))
    rows = (shapes[tables[0]] or (1,))[axis]
    for position in tables:
        shape = shapes[position] if position < len(shapes) else None
        if shape and shape[axis] == rows and rows:
            touched[position] = math.prod(shape) // rows * min(rows, chosen)


def _vector_flops(signature: OpSignature) -> float:
    op_type = signature.op_type
    output_elements = math.prod(signature.output_shapes[0]) if signature.output_shapes else 0
    first = signature.input_shapes[0] if signature.input_shapes else None
    if op_type in _VARIADIC:
        return output_elements * max(1, len(signature.input_shapes) - 1)
    if op_type in _PER_INPUT_ELEMENT and first is not None:
        activation = 4.0 * (op_type.endswith("GroupNorm") and bool(signature.attributes.get("activation")))
        return (_PER_INPUT_ELEMENT[op_type] + _has_bias(signature) + activation) * math.prod(first)
    if op_type in _WINDOWED:
        return _WINDOWED[op_type] * output_elements * _window(signature)
    if op_type == "DFT" and first:
        # The last dimension holds the parts of complex numbers.
        source, result = first[:-1], signature.output_shapes[0][:-1]
        axis = int(signature.attributes.get("axis", -2))
        axes = () if not source else ((axis + 1 if axis < 0 else axis) % len(source),)
        return fft_flops(source, result, axes, is_real=first[-1] == 1)
    if op_type == "Inverse" and first and len(first) > 1:
        return FACTORISATION_FLOPS["inverse"]((first,))
    if op_type == "STFT":
        bins = signature.output_shapes[0][-2] if len(signature.output_shapes[0]) > 1 else 1
        length = max(2, 2 * (bins - 1) if signature.attributes.get("onesided", 1) else bins)
        return 2.5 * output_elements / max(1, 2 * bins) * length * math.log2(length)
    per_element = ELEMENTWISE.get(op_type, _PER_OUTPUT_ELEMENT.get(op_type, 1.0))
    return (per_element + _has_bias(signature)) * output_elements


# An optional last input that is added.
_BIASES: Final = {
    "FastGelu": 1,
    "SkipGroupNorm": 4,
    "SkipLayerNormalization": 4,
    "SkipSimplifiedLayerNormalization": 3,
}


def _has_bias(signature: OpSignature) -> bool:
    bias = _BIASES.get(signature.op_type)
    return bias is not None and any(shape is not None for shape in signature.input_shapes[bias : bias + 1])


def _window(signature: OpSignature) -> int:
    kernel_shape = signature.attributes.get("kernel_shape", ())
    return int(math.prod(kernel_shape)) * int(signature.attributes.get("size", 1))
