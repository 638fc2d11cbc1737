"""Op types as rows of an embedding table: hash buckets first, then the known names.

Each ONNX type that go-opt costs has its own row. Any other name (a custom op, a JAX primitive)
shares one of a few rows, chosen by its CRC-32. Unlike Python's ``hash``, CRC-32 is the same in
every process. Weinberger et al., "Feature hashing for large scale multitask learning", ICML 2009.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

import numpy as np

from go_opt.common.arrays import IntArray

# The position of a name is its row in trained embeddings: append, never reorder.
_ONNX_TYPES: Final = (
    "Abs Acos Acosh Add AffineGrid And ArgMax ArgMin Asin Asinh Atan Atanh Attention AveragePool "
    "BatchNormalization Bernoulli BiasGelu BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast "
    "CastLike Ceil Celu CenterCropPad Clip Col2Im Compress Concat ConcatFromSequence ConstantOfShape "
    "Conv ConvInteger ConvTranspose Cos Cosh CumProd CumSum DFT DeformConv DepthToSpace "
    "DequantizeLinear Div DynamicQuantizeLinear Einsum Elu Equal Erf Exp EyeLike FastGelu Floor "
    "FusedConv FusedGemm FusedMatMul GRU Gather GatherElements GatherND Gelu Gemm GlobalAveragePool "
    "GlobalLpPool GlobalMaxPool Greater GreaterOrEqual GridSample GroupNormalization HardSigmoid "
    "HardSwish Hardmax InstanceNormalization IsInf IsNaN LRN LSTM LayerNormalization LeakyRelu Less "
    "LessOrEqual Log LogSoftmax LpNormalization LpPool MatMul MatMulInteger MatMulNBits Max MaxPool "
    "MaxRoiPool MaxUnpool Mean MeanVarianceNormalization Min Mish Mod Mul MultiHeadAttention Neg "
    "NegativeLogLikelihoodLoss Not OneHot Or PRelu Pad Pow QLinearAdd QLinearAveragePool QLinearConv "
    "QLinearGlobalAveragePool QLinearMatMul QLinearMul QLinearSigmoid QuantizeLinear QuickGelu "
    "RMSNormalization RNN RandomNormalLike RandomUniformLike Range Reciprocal ReduceL1 ReduceL2 "
    "ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare "
    "Relu Resize ReverseSequence RoiAlign RotaryEmbedding Round Rsqrt Scatter ScatterElements "
    "ScatterND Selu SequenceAt Shrink Sigmoid Sign SimplifiedLayerNormalization Sin Sinh "
    "SkipLayerNormalization SkipSimplifiedLayerNormalization Slice Softmax SoftmaxCrossEntropyLoss "
    "Softplus Softsign Sort SpaceToDepth Split SplitToSequence Sqrt Sub Sum Swish Tan Tanh "
    "TensorScatter ThresholdedRelu Tile TopK Transpose Trilu Unique Upsample Where Xor"
)
KNOWN_OP_TYPES: Final[tuple[str, ...]] = tuple(_ONNX_TYPES.split())
NUM_HASH_BUCKETS: Final = 32
NUM_OP_TYPES: Final = NUM_HASH_BUCKETS + len(KNOWN_OP_TYPES)

_ROW: Final = {name: NUM_HASH_BUCKETS + place for place, name in enumerate(KNOWN_OP_TYPES)}


def op_type_rows(op_types: Sequence[str]) -> IntArray:
    """[N] row of each op type in a table of ``NUM_OP_TYPES``."""
    row_of = {name: _row(name) for name in set(op_types)}
    return np.array([row_of[name] for name in op_types], dtype=np.int32)


def _row(name: str) -> int:
    return _ROW.get(name, zlib.crc32(name.encode()) % NUM_HASH_BUCKETS)
