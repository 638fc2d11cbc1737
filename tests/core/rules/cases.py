"""The random nodes of each op type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from go_opt.model.op_costs import ELEMENTWISE
from tests.core.rules import layers, nodes, others
from tests.core.rules.nodes import Make


def _of(names: str, *makes: Make) -> dict[str, Sequence[Make]]:
    return dict.fromkeys(names.split(), makes)


CASES: Final[Mapping[str, Sequence[Make]]] = {
    **dict.fromkeys(ELEMENTWISE.keys() - {"random_bits"}, (nodes.element_wise,)),
    **_of("addr", nodes.outer),
    **_of("glu", nodes.halved),
    **_of("RandomNormal RandomUniform ConstantOfShape EyeLike Range", layers.made),
    **_of("BatchNormalization DequantizeLinear QuantizeLinear", nodes.channels),
    **_of("CumProd CumSum Hardmax LogSoftmax LpNormalization Softmax Sort", nodes.along_one_axis),
    **_of("DFT", nodes.transform),
    **_of("LayerNormalization RMSNormalization SimplifiedLayerNormalization", nodes.layer_norm),
    **_of("rev", nodes.reversal),
    **_of("SkipLayerNormalization SkipSimplifiedLayerNormalization", nodes.skip_norm),
    **_of("GroupNormalization InstanceNormalization", nodes.image_norm),
    **_of("LRN", nodes.neighbours),
    **_of(
        "ArgMax ArgMin ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin "
        "ReduceProd ReduceSum ReduceSumSquare",
        nodes.reduction,
    ),
    **_of("RotaryEmbedding", nodes.rotated),
    **_of("MoE QMoE", nodes.experts),
    **_of("Einsum", layers.contraction),
    **_of("MatMul", layers.product, layers.contraction),
    **_of("FusedMatMul", layers.product),
    **_of("FusedGemm Gemm", layers.gemm),
    **_of(
        "DynamicQuantizeMatMul MatMulInteger MatMulInteger16 MatMulIntegerToFloat QLinearMatMul",
        layers.quantised_product,
    ),
    **_of("MatMulBnb4 MatMulFpQ4 MatMulNBits", layers.packed_product),
    **_of("Conv", layers.convolution, layers.laid_out_convolution),
    **_of("ConvInteger FusedConv QLinearConv", layers.convolution),
    **_of("ConvTranspose", layers.transposed_convolution, layers.laid_out_convolution),
    **_of("AveragePool LpPool MaxPool", layers.pooling, layers.pooling_of_all),
    **_of("QLinearAveragePool", layers.pooling),
    **_of("GlobalAveragePool GlobalLpPool GlobalMaxPool", layers.whole_pooling),
    **_of("Transpose", layers.permutation),
    **_of("Concat", layers.joining, layers.stacking),
    **_of("Split", layers.parting, layers.unstacking),
    **_of("Slice", layers.slicing),
    **_of("Pad", layers.padding),
    **_of("Tile", layers.tiling),
    **_of("Trilu", layers.triangle),
    **_of("Resize Upsample", layers.resizing),
    **_of("Gather", layers.look_up),
    **_of("GatherElements ScatterElements", layers.elements_by_index),
    **_of("GatherND", layers.slices_by_index),
    **_of("ScatterND", layers.slices_by_index, layers.updated_slice),
    **_of("TopK", layers.largest),
    **_of("OneHot", layers.one_hot),
    **_of("DepthToSpace", layers.blocks),
    **_of("SpaceToDepth", layers.blocks, layers.unshuffled),
    **_of("GridSample", layers.sampling),
    **_of("GRU LSTM RNN", layers.sequences),
    **_of("gather scatter", others.slices_at_indices),
    **dict.fromkeys(others.FACTORISATIONS, (others.factorisation,)),
    **_of("Attention MultiHeadAttention", layers.attention),
    "GroupQueryAttention": (others.grouped_attention,),
}
