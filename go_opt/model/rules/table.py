"""The table of sharding rules by ONNX op type, for every frontend.

Attributes are ONNX's, with what newer operator sets read as inputs (axes, starts, pads) among them. Besides,
``equation`` of a MatMul is that of an Einsum, and ``layout`` of a Conv names the dimensions of its operand,
weight and result ("NC01", "OI01", "NC01"), as JAX's do. ``gather`` and ``scatter`` are StableHLO's, whose
``index_vector_dim`` is the ``axis``. An op without a rule is never divided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from go_opt.model.matrix_flops import FACTORISATION_FLOPS
from go_opt.model.op_costs import ELEMENTWISE, OpSignature
from go_opt.model.rule import Rule, Shape
from go_opt.model.rules.elements import (
    along_axis,
    along_last,
    along_rest,
    channels_mixed,
    elementwise,
    experts,
    fourier,
    generated,
    largest,
    normalised_images,
    of_matrices,
    of_planes,
    one_hot,
    outer,
    per_channel,
    reduced,
    turned,
)
from go_opt.model.rules.maker import NoRuleError, RuleMaker, names
from go_opt.model.rules.moves import (
    depth_to_space,
    gathered,
    gathered_elements,
    gathered_nd,
    gathered_slices,
    halved,
    joined,
    parted,
    resized,
    sampled,
    scattered,
    scattered_slices,
    tiled,
    transposed,
)
from go_opt.model.rules.products import (
    attention,
    einsum,
    grouped_attention,
    matmul,
    matmul_of_packed,
    recurrent,
)
from go_opt.model.rules.windows import (
    convolution,
    convolution_of_third,
    padded,
    pooled,
    pooled_whole,
    sliced,
    transposed_convolution,
)

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
_RULES: Final[Mapping[str, _Maker]] = {
    # random_bits follow from a key, and parts of them would be equal.
    **dict.fromkeys(ELEMENTWISE.keys() - {"random_bits"}, elementwise),
    "addr": outer,
    "glu": halved,
    **dict.fromkeys(names("BatchNormalization DequantizeLinear QuantizeLinear"), per_channel),
    **dict.fromkeys(names("CumProd CumSum Hardmax LogSoftmax LpNormalization Softmax Sort"), along_axis),
    "DFT": fourier,
    **dict.fromkeys(
        names("LayerNormalization RMSNormalization SimplifiedLayerNormalization rev"), along_rest
    ),
    **dict.fromkeys(names("SkipLayerNormalization SkipSimplifiedLayerNormalization"), along_last),
    **dict.fromkeys(names("GroupNormalization InstanceNormalization"), normalised_images),
    "LRN": channels_mixed,
    **dict.fromkeys(
        names(
            "ArgMax ArgMin ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin "
            "ReduceProd ReduceSum ReduceSumSquare"
        ),
        reduced,
    ),
    "Einsum": einsum,
    **dict.fromkeys(
        names(
            "DynamicQuantizeMatMul FusedGemm FusedMatMul Gemm MatMul MatMulInteger MatMulInteger16 "
            "MatMulIntegerToFloat QLinearMatMul"
        ),
        matmul,
    ),
    **dict.fromkeys(names("MatMulBnb4 MatMulFpQ4 MatMulNBits"), matmul_of_packed),
    **dict.fromkeys(names("Conv ConvInteger FusedConv"), convolution),
    "QLinearConv": convolution_of_third,
    "ConvTranspose": transposed_convolution,
    **dict.fromkeys(names("AveragePool LpPool MaxPool QLinearAveragePool"), pooled),
    **dict.fromkeys(names("GlobalAveragePool GlobalLpPool GlobalMaxPool"), pooled_whole),
    "Transpose": transposed,
    "Concat": joined,
    "Split": parted,
    "Slice": sliced,
    "Pad": padded,
    "Trilu": of_planes,
    "Tile": tiled,
    **dict.fromkeys(("Resize", "Upsample"), resized),
    "Gather": gathered,
    **dict.fromkeys(("GatherElements", "ScatterElements"), gathered_elements),
    "GatherND": gathered_nd,
    "ScatterND": scattered,
    "gather": gathered_slices,
    "scatter": scattered_slices,
    "TopK": largest,
    "OneHot": one_hot,
    **dict.fromkeys(names("ConstantOfShape EyeLike RandomNormal RandomUniform Range"), generated),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), depth_to_space),
    "GridSample": sampled,
    **dict.fromkeys(("GRU", "LSTM", "RNN"), recurrent),
    **dict.fromkeys(names("Attention MultiHeadAttention"), attention),
    "GroupQueryAttention": grouped_attention,
    **dict.fromkeys((*FACTORISATION_FLOPS, "Inverse"), of_matrices),
    **dict.fromkeys(("MoE", "QMoE"), experts),
    "RotaryEmbedding": turned,
}
