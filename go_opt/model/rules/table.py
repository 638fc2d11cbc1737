"""The table of sharding rules by ONNX op type, for every frontend.

Attributes are ONNX's, with what newer operator sets read as inputs (axes, starts, pads) among them. Besides,
``equation`` of a MatMul is that of an Einsum, and ``layout`` of a Conv names the dimensions of its operand,
weight and result ("NC01", "OI01", "NC01"), as JAX's do. ``gather`` and ``scatter`` are StableHLO's, whose
``index_vector_dim`` is the ``axis``. An op without a rule is never divided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, Final

from go_opt.model.matrix_flops import FACTORISATION_FLOPS
from go_opt.model.op_costs import ELEMENTWISE, OpSignature, names
from go_opt.model.rule import Rule, Shape
from go_opt.model.rules import elements, products, windows
from go_opt.model.rules.maker import NoRuleError, RuleMaker

_ATTRIBUTES: Final = frozenset(
    names(
        "activation auto_pad axes axis batch_dims block_size blocksize channels_last "
        "collapsed_slice_dims coordinate_transformation_mode dilations equation group "
        "inserted_window_dims is_causal keep_aspect_ratio_policy kernel_shape kv_num_heads layout "
        "lhs_dilation mode num_groups num_heads offset_dims operand_batching_dims pads perm q_num_heads "
        "reduction scales scatter_indices_batching_dims seed start_indices_batching_dims starts steps "
        "strides training_mode transA transB transBatchA transBatchB unidirectional update_window_dims"
    )
)


def rule_of(signature: OpSignature) -> Rule | None:
    """The rule of an op, with an operand for each input that is present; None if none is known.

    Equal signatures have the same rule, the same object.
    """
    attributes = tuple(
        (name, _frozen(value)) for name, value in sorted(signature.attributes.items()) if name in _ATTRIBUTES
    )
    return _rule(signature.op_type, signature.input_shapes, signature.output_shapes, attributes)


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


@lru_cache(maxsize=4096)
def _rule(
    op_type: str,
    inputs: tuple[Shape | None, ...],
    outputs: tuple[Shape, ...],
    attributes: tuple[tuple[str, Any], ...],
) -> Rule | None:
    make = _RULES.get(op_type)
    shapes = [*(shape for shape in inputs[:1] if shape is not None), *outputs]
    if make is None or not outputs or any(0 in shape for shape in shapes):
        return None
    op = RuleMaker(op_type, inputs, outputs, dict(attributes))
    try:
        make(op)
    except (NoRuleError, IndexError, KeyError, TypeError, ValueError):
        return None  # the attributes do not fit the shapes
    return op.rule()


_Maker = Callable[[RuleMaker], None]
_TYPES: Final[Mapping[_Maker, str]] = {
    elements.outer: "addr",
    elements.per_channel: "BatchNormalization DequantizeLinear QuantizeLinear",
    elements.along(lambda op, rank: [op.axis(rank)]): "CumProd CumSum Hardmax LogSoftmax LpNormalization "
    "Softmax Sort",
    elements.along(lambda op, rank: range(op.axis(rank), rank)): "LayerNormalization RMSNormalization "
    "SimplifiedLayerNormalization rev",
    elements.along(lambda op, rank: [rank - 1]): "SkipLayerNormalization SkipSimplifiedLayerNormalization",
    elements.along(lambda op, rank: [rank - 2, rank - 1]): "Trilu",  # what counts is the place in a matrix
    elements.along(lambda op, rank: [1]): "LRN",
    elements.normalised_images: "GroupNormalization InstanceNormalization",
    elements.fourier: "DFT",
    elements.reduced: "ArgMax ArgMin ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean "
    "ReduceMin ReduceProd ReduceSum ReduceSumSquare",
    elements.largest: "TopK",
    elements.one_hot: "OneHot",
    elements.generated: "ConstantOfShape EyeLike RandomNormal RandomUniform Range",
    elements.of_matrices: "Inverse",
    elements.experts: "MoE QMoE",
    elements.turned: "RotaryEmbedding",
    products.einsum: "Einsum",
    products.matmul: "DynamicQuantizeMatMul FusedGemm FusedMatMul Gemm MatMul MatMulInteger MatMulInteger16 "
    "MatMulIntegerToFloat QLinearMatMul",
    products.matmul_of_packed: "MatMulBnb4 MatMulFpQ4 MatMulNBits",
    products.recurrent: "GRU LSTM RNN",
    products.attention: "Attention MultiHeadAttention",
    products.grouped_attention: "GroupQueryAttention",
    windows.convolution: "Conv ConvInteger FusedConv",
    partial(windows.convolution, weight=3): "QLinearConv",
    windows.transposed_convolution: "ConvTranspose",
    windows.pooled: "AveragePool LpPool MaxPool QLinearAveragePool",
    windows.pooled_whole: "GlobalAveragePool GlobalLpPool GlobalMaxPool",
    windows.sliced: "Slice",
    windows.padded: "Pad",
    elements.halved: "glu",
    elements.transposed: "Transpose",
    elements.joined: "Concat",
    elements.parted: "Split",
    elements.tiled: "Tile",
    elements.resized: "Resize Upsample",
    elements.gathered: "Gather",
    elements.gathered_elements: "GatherElements ScatterElements",
    elements.gathered_nd: "GatherND",
    elements.scattered: "ScatterND",
    elements.gathered_slices: "gather",
    elements.scattered_slices: "scatter",
    elements.depth_to_space: "DepthToSpace SpaceToDepth",
    elements.sampled: "GridSample",
}
_RULES: Final[Mapping[str, _Maker]] = {
    # random_bits follow from a key, and parts of them would be equal.
    **dict.fromkeys(ELEMENTWISE.keys() - {"random_bits"}, elements.elementwise),
    **dict.fromkeys(FACTORISATION_FLOPS, elements.of_matrices),
    **{op_type: make for make, types in _TYPES.items() for op_type in names(types)},
}
