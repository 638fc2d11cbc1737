"""Files that ONNX Runtime optimised or quantised: its own ops have the shapes that they have at run time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from go_opt import from_onnx
from go_opt.model.dtypes import DTYPES
from go_opt.model.graph import MATRIX, Graph
from go_opt.model.op_costs import OpSignature, op_cost
from tests.shaped import shapes_of
from tests.transformers import encoder

ort = pytest.importorskip("onnxruntime")
MICROSOFT = "com.microsoft"
B, S, H, D = 2, 5, 4, 8  # batch, rows, heads, depth
W = H * D


def floats(*shape: int) -> NDArray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def bytes_(*shape: int) -> NDArray:
    return np.random.default_rng(0).integers(0, 200, shape).astype(np.uint8)


SCALE, ZERO = np.float32(0.1), np.uint8(7)
Q = [SCALE, ZERO]  # scale and zero point
X, IDS = floats(B, S, W), np.arange(B * S, dtype=np.int32).reshape(B, S)
IMAGE, BYTES = floats(1, 3, 9, 8), bytes_(1, 3, 9, 8)
PAST = floats(B, H, 3, D)
CONV: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 1], "pads": [1, 1, 0, 1]}
GQA = {"num_heads": H, "kv_num_heads": 2}
# Op type: its inputs (arrays; None for an absent one), attributes and number of outputs.
CASES: dict[str, tuple[str, list[Any], Mapping[str, Any], int]] = {
    "QuickGelu": ("QuickGelu", [X], {}, 1),
    "BiasGelu": ("BiasGelu", [X, floats(W)], {}, 1),
    "Gelu": ("Gelu", [X], {}, 1),
    "FastGelu": ("FastGelu", [X, floats(W)], {}, 1),
    "FusedMatMul": ("FusedMatMul", [floats(B, W, S), floats(7, W)], {"transA": 1, "transB": 1}, 1),
    "FusedMatMul of a vector": ("FusedMatMul", [floats(W), floats(B, W, S)], {"alpha": 0.5}, 1),
    "FusedMatMul of a batch": ("FusedMatMul", [floats(S, B, W), floats(B, W, 7)], {"transBatchA": 1}, 1),
    "FusedConv": ("FusedConv", [IMAGE, floats(4, 3, 3, 3)], CONV | {"activation": "Relu"}, 1),
    "FusedGemm": ("FusedGemm", [floats(5, 6), floats(7, 6)], {"transB": 1, "activation": "Relu"}, 1),
    "SkipLayerNormalization": ("SkipLayerNormalization", [X, X, *(floats(W),) * 3], {}, 4),
    "SkipSimplifiedLayerNormalization": ("SkipSimplifiedLayerNormalization", [X, X, floats(W)], {}, 4),
    "EmbedLayerNormalization": (
        "EmbedLayerNormalization",
        [IDS, IDS % 2, floats(99, W), floats(50, W), floats(2, W), floats(W), floats(W)], {}, 2,
    ),
    "Attention": ("Attention", [X, floats(W, 3 * W), floats(3 * W)], {"num_heads": H}, 1),
    "Attention with a past": (
        "Attention", [X, floats(W, 3 * W), floats(3 * W), None, floats(2, B, H, 3, D)], {"num_heads": H}, 2,
    ),
    "MultiHeadAttention": ("MultiHeadAttention", [X, floats(B, 7, W), floats(B, 7, W)], {"num_heads": H}, 1),
    "MultiHeadAttention with a past": (
        "MultiHeadAttention", [X, X, X, *(None,) * 3, PAST, PAST], {"num_heads": H}, 3,
    ),
    "GroupQueryAttention": (
        "GroupQueryAttention",
        [X, floats(B, S, 2 * D), floats(B, S, 2 * D), None, None, np.full(B, S - 1, np.int32), np.int32(S)],
        GQA, 3,
    ),
    "GroupQueryAttention of one tensor": (
        "GroupQueryAttention",
        [floats(B, S, W + 4 * D), *(None,) * 4, np.full(B, S - 1, np.int32), np.int32(S)], GQA, 3,
    ),
    "MatMulNBits": (
        "MatMulNBits", [X, bytes_(6, 2, 8), floats(12)], {"K": W, "N": 6, "bits": 4, "block_size": 16}, 1,
    ),
    "RotaryEmbedding": (
        "RotaryEmbedding", [X, IDS.astype(np.int64), floats(99, D // 2), floats(99, D // 2)],
        {"num_heads": H}, 1,
    ),
    "QLinearAdd": ("QLinearAdd", [bytes_(2, 3), *Q, bytes_(4, 1, 3), *Q, *Q], {}, 1),
    "QLinearMul": ("QLinearMul", [bytes_(2, 3), *Q, bytes_(3), *Q, *Q], {}, 1),
    "QLinearSigmoid": ("QLinearSigmoid", [bytes_(2, 3), *Q, *Q], {}, 1),
    "QLinearLeakyRelu": ("QLinearLeakyRelu", [bytes_(2, 3), *Q, *Q], {"alpha": 0.1}, 1),
    "QLinearSoftmax": ("QLinearSoftmax", [bytes_(2, 3), *Q, *Q], {"opset": 13}, 1),
    "QLinearConcat": ("QLinearConcat", [*Q, bytes_(2, 3), *Q, bytes_(2, 4), *Q], {"axis": -1}, 1),
    "QLinearGlobalAveragePool": ("QLinearGlobalAveragePool", [BYTES, *Q, *Q], {}, 1),
    "QLinearGlobalAveragePool, channels last": (
        "QLinearGlobalAveragePool", [BYTES, *Q, *Q], {"channels_last": 1}, 1,
    ),
    "QLinearAveragePool": ("QLinearAveragePool", [BYTES, *Q, *Q], CONV, 1),
    "QLinearConv, channels last": (
        "QLinearConv", [bytes_(1, 9, 8, 3), *Q, bytes_(4, 3, 3, 3), *Q, *Q], CONV | {"channels_last": 1}, 1,
    ),
    "QGemm": ("QGemm", [bytes_(5, 6), *Q, bytes_(7, 6), *Q], {"transB": 1}, 1),
    "QAttention": (
        "QAttention", [bytes_(B, S, W), bytes_(W, 3 * W), floats(3 * W), SCALE, SCALE, None, ZERO, ZERO],
        {"num_heads": H}, 1,
    ),
    "DynamicQuantizeMatMul": ("DynamicQuantizeMatMul", [X, bytes_(W, 6), SCALE, ZERO], {}, 1),
    "MatMulIntegerToFloat": (
        "MatMulIntegerToFloat", [bytes_(B, S, W), bytes_(W, 6), SCALE, SCALE, ZERO, ZERO], {}, 1,
    ),
    "DynamicQuantizeLSTM": (
        "DynamicQuantizeLSTM",
        [X, bytes_(1, W, 24), bytes_(1, 6, 24), *(None,) * 5, *(floats(1), bytes_(1)) * 2],
        {"hidden_size": 6}, 3,
    ),
    "NhwcMaxPool": ("NhwcMaxPool", [bytes_(1, 9, 8, 3)], CONV, 1),
    "QuantizeLinear": ("QuantizeLinear", [X, *Q], {}, 1),
    "DequantizeLinear": ("DequantizeLinear", [bytes_(2, 3), *Q], {}, 1),
    "Inverse": ("Inverse", [np.stack([np.eye(5, dtype=np.float32)] * 3)], {}, 1),
    "MoE": (
        "MoE", [X, floats(10, 4), floats(4, 6, W), floats(4, 6), floats(4, W, 6), floats(4, W)],
        {"k": 2, "activation_type": "gelu"}, 1,
    ),
    "GatherBlockQuantized": (
        "GatherBlockQuantized", [bytes_(9, 16), IDS % 9, floats(9, 2)],
        {"bits": 4, "block_size": 16, "gather_axis": 0, "quantize_axis": 1}, 1,
    ),
    "DecoderMaskedMultiHeadAttention": (
        "DecoderMaskedMultiHeadAttention",
        [*(floats(B, 1, W),) * 3, None, None, PAST, PAST, np.int32([2])],
        {"num_heads": H, "past_present_share_buffer": 1}, 3,
    ),
}  # fmt: skip
LONGFORMER = {"num_heads": H, "window": 1}
INT8 = np.zeros((B, S, W), np.int8)
MASK, WIDE, WIDE8 = floats(B, S), floats(W, 3 * W), np.zeros((W, 3 * W), np.int8)
OFFSETS = [np.zeros((B, S), np.int32), np.zeros(B + 1, np.int32)]
SQUARE8, VECTOR = np.zeros((W, W), np.int8), floats(W)
# Ops that not every machine runs: as CASES, with shapes of the outputs.
UNRUN: dict[str, tuple[str, list[Any], Mapping[str, Any], list[tuple[int, ...]]]] = {
    "GroupNorm": ("GroupNorm", [floats(2, 3, 3, W), VECTOR, VECTOR], {"activation": 0}, [(2, 3, 3, W)]),
    "GroupNorm, Swish": (
        "GroupNorm", [floats(2, 3, 3, W), VECTOR, VECTOR], {"activation": 1}, [(2, 3, 3, W)],
    ),
    "SkipGroupNorm": (
        "SkipGroupNorm", [floats(2, 3, 3, W), VECTOR, VECTOR, floats(2, 3, 3, W), VECTOR], {"activation": 1},
        [(2, 3, 3, W)] * 2,
    ),
    "QMoE": (
        "QMoE", [X, floats(10, 4), bytes_(4, 6, 16), floats(4, 6), None, bytes_(4, W, 3), floats(4, W)],
        {"k": 2}, [(B, S, W)],
    ),
    "LongformerAttention": (
        "LongformerAttention", [X, WIDE, floats(3 * W), MASK, WIDE, floats(3 * W), IDS], LONGFORMER,
        [(B, S, W)],
    ),
    "DecoderMaskedSelfAttention": (
        "DecoderMaskedSelfAttention",
        [floats(B, 1, W), WIDE, floats(3 * W), None, floats(2, B, H, 3, D), None, np.int32([3])],
        {"num_heads": H}, [(B, 1, W), (2, B, H, 4, D)],
    ),
    "DecoderMaskedMultiHeadAttention, longer": (
        "DecoderMaskedMultiHeadAttention", [*(floats(B, 1, W),) * 3, None, None, PAST, PAST],
        {"num_heads": H}, [(B, 1, W), *((B, H, 4, D),) * 2],
    ),
    "DecoderMaskedMultiHeadAttention, crossed": (
        "DecoderMaskedMultiHeadAttention", [floats(B, 1, W), PAST, PAST], {"num_heads": H},
        [(B, 1, W), (B, H, 3, D)],
    ),
    "DecoderMaskedMultiHeadAttention, packed": (
        "DecoderMaskedMultiHeadAttention",
        [floats(B, 1, 3 * W), *(None,) * 4, PAST, PAST, np.int32([2])],
        {"num_heads": H, "past_present_share_buffer": 1}, [(B, 1, W), (B, H, 3, D)],
    ),
    "PackedAttention": (
        "PackedAttention", [floats(7, W), WIDE, floats(3 * W), *OFFSETS], {"num_heads": H}, [(7, W)],
    ),
    "PackedMultiHeadAttention": (
        "PackedMultiHeadAttention", [*(floats(7, W),) * 3, None, *OFFSETS], {"num_heads": H}, [(7, W)],
    ),
    "PackedMultiHeadAttention of one tensor": (
        "PackedMultiHeadAttention", [floats(7, H, 3, D), None, None, None, *OFFSETS], {"num_heads": H},
        [(7, W)],
    ),
    "QOrderedAttention": (
        "QOrderedAttention",
        [INT8, *(SCALE,) * 4, *(SQUARE8,) * 3, *(SCALE,) * 3, *(VECTOR,) * 3, None, None, SCALE],
        {"num_heads": H}, [(B, S, W)],
    ),
    "QOrderedLongformerAttention": (
        "QOrderedLongformerAttention",
        [INT8, SCALE, WIDE8, SCALE, floats(3 * W), SCALE, SCALE, MASK, WIDE8, SCALE, floats(3 * W), SCALE,
         IDS, SCALE],
        LONGFORMER, [(B, S, W)],
    ),
    "QOrderedMatMul": (
        "QOrderedMatMul", [INT8, SCALE, np.zeros((W, 6), np.int8), SCALE, SCALE, floats(6)], {}, [(B, S, 6)],
    ),
    "QOrderedGelu": ("QOrderedGelu", [INT8, SCALE, SCALE], {}, [(B, S, W)]),
    "QOrderedLayerNormalization": (
        "QOrderedLayerNormalization", [INT8, SCALE, VECTOR, VECTOR, SCALE], {}, [(B, S, W)],
    ),
    "QuantizeWithOrder": ("QuantizeWithOrder", [X, SCALE], {}, [(B, S, W)]),
    "DequantizeWithOrder": ("DequantizeWithOrder", [INT8, SCALE], {"to": 1}, [(B, S, W)]),
}  # fmt: skip


def projected(rows: int) -> int:
    """FLOPs of Q, K and V of so many rows of W, with their bias."""
    return 2 * rows * W * 3 * W + rows * 3 * W


def scored(rows: int, columns: int) -> int:
    """FLOPs of both products of attention, and 6 for each score."""
    return 2 * rows * columns * 2 * W + 6 * rows * columns * H


FLOPS = {
    "GroupNorm": 8 * 18 * W,
    "GroupNorm, Swish": 12 * 18 * W,
    "SkipGroupNorm": (9 + 1 + 4) * 18 * W,
    "Inverse": 3 * 2 * 5**3,
    "MoE": 10 * 2 * 2 * 2 * 6 * W,  # rows, experts of each, products
    "QMoE": 10 * 2 * 2 * 2 * 6 * W,
    "GatherBlockQuantized": 2 * 10 * W,
    "LongformerAttention": projected(10) + scored(10, 3),
    "QOrderedLongformerAttention": projected(10) + scored(10, 3),
    "QOrderedAttention": projected(10) + scored(10, S),
    "PackedAttention": projected(7) + scored(7, S),
    "PackedMultiHeadAttention": scored(7, S),
    "PackedMultiHeadAttention of one tensor": scored(7, S),
    "DecoderMaskedSelfAttention": projected(B) + scored(B, 4),
    "DecoderMaskedMultiHeadAttention": scored(B, 3),
    "DecoderMaskedMultiHeadAttention, longer": scored(B, 4),
    "DecoderMaskedMultiHeadAttention, crossed": scored(B, 3),
    "DecoderMaskedMultiHeadAttention, packed": scored(B, 3),
    "QOrderedMatMul": 2 * 10 * W * 6,
    "QOrderedGelu": 8 * 10 * W,
    "QOrderedLayerNormalization": 11 * 10 * W,
    "QuantizeWithOrder": 2 * 10 * W,
    "DequantizeWithOrder": 10 * W,
}


def node_model(case: str) -> tuple[onnx.ModelProto, dict[str, NDArray]]:
    """A model of one op whose first input is that of the model."""
    op_type, arrays, attributes, outputs = (
        CASES[case] if case in CASES else (*UNRUN[case][:3], len(UNRUN[case][3]))
    )
    names = [f"i{i}" if array is not None else "" for i, array in enumerate(arrays)]
    written = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op_type, names, written, name="op", domain=MICROSOFT, **attributes)
    weights = [
        numpy_helper.from_array(np.asarray(array), name)
        for name, array in zip(names[1:], arrays[1:], strict=True)
        if name
    ]
    first = np.asarray(arrays[0])
    elem_type = helper.np_dtype_to_tensor_dtype(first.dtype)
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("i0", elem_type, first.shape)],
        [onnx.ValueInfoProto(name=name) for name in written],
        initializer=weights,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), {"i0": first}


def run(model: onnx.ModelProto, inputs: Mapping[str, NDArray]) -> dict[str, NDArray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def elements(graph: Graph) -> dict[str, int]:
    return dict(zip(graph.tensor_names, graph.tensor_elements.tolist(), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_shapes_are_those_at_run_time(case: str) -> None:
    model, inputs = node_model(case)
    graph = from_onnx(model, precision="as-is")
    assert graph.unknown_ops == ()
    assert graph.op_flops[0] > 0 or case == "NhwcMaxPool"
    shapes = shapes_of(graph)
    for name, array in run(model, inputs).items():
        if array.size:
            assert shapes.get(name, array.shape) == array.shape, name
            assert elements(graph)[name] == array.size, name


@pytest.mark.parametrize("case", FLOPS)
def test_flops_follow_from_shapes_and_attributes(case: str) -> None:
    graph = from_onnx(node_model(case)[0], precision="as-is")
    assert graph.unknown_ops == ()
    assert graph.op_flops.tolist() == [FLOPS[case]]
    if case in UNRUN:
        for i, shape in enumerate(UNRUN[case][3]):
            assert elements(graph)[f"y{i}"] == np.prod(shape)


def test_only_the_experts_and_rows_that_are_chosen_are_read() -> None:
    one_row = ((1, W), (1, 4), (4, 6, W), None, (4, W, 6))
    cost = op_cost(OpSignature("MoE", one_row, ((1, W),), {"k": 2}))
    assert cost.touched == (None, None, 2 * 6 * W, None, 2 * 6 * W)
    of_table = OpSignature("GatherBlockQuantized", ((9, 16), (1, 5), (9, 2)), ((1, 5, W),), {"bits": 4})
    assert op_cost(of_table).touched == (5 * 16, None, 5 * 2)


def test_products_of_integers_are_costed_as_such() -> None:
    for case in "QAttention", "DynamicQuantizeMatMul", "MatMulIntegerToFloat", "QGemm":
        graph = from_onnx(node_model(case)[0], precision="as-is")
        assert DTYPES[graph.op_dtype[0]] == "uint8"
    for case in "QOrderedAttention", "QOrderedLongformerAttention", "QOrderedMatMul":
        graph = from_onnx(node_model(case)[0], precision="as-is")
        assert DTYPES[graph.op_dtype[0]] == "int8"


def matrix_flops(graph: Graph) -> float:
    return float(graph.op_flops[graph.op_class == MATRIX].sum())


def stripped(path: Path) -> onnx.ModelProto:
    """The model of a file without value_info."""
    model = onnx.load(path)
    del model.graph.value_info[:]
    return model


def check_against_run(model: onnx.ModelProto, rows: int, width: int) -> Graph:
    """The graph of a model; each tensor has as many elements as at run time."""
    graph = from_onnx(model, precision="as-is")
    assert graph.unknown_ops == ()
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    known = {output.name for output in model.graph.output}
    made = [name for node in model.graph.node for name in node.output if name]
    shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made if name not in known)
    found = run(shown, {"x": floats(1, rows, width)})
    sizes = elements(graph)
    compared = [name for name in found if name in sizes]
    assert len(compared) > graph.num_ops / 2
    assert {name: sizes[name] for name in compared} == {name: found[name].size for name in compared}
    return graph


@pytest.mark.parametrize("level", ["ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"])
def test_an_optimised_transformer_costs_what_the_file_costs(tmp_path: Path, level: str) -> None:
    model = encoder(2, 16, 64, 4)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    graph, plain = check_against_run(stripped(tmp_path / "optimised.onnx"), 16, 64), from_onnx(model)
    assert {"SkipLayerNormalization", "FusedMatMul"} & set(graph.op_types)
    assert matrix_flops(graph) == pytest.approx(matrix_flops(plain), rel=0.02)
    assert graph.op_flops.sum() == pytest.approx(plain.op_flops.sum(), rel=0.02)


def test_a_quantised_transformer_multiplies_as_much(tmp_path: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    path, quantised = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(encoder(2, 16, 64, 4), path)
    quantize_dynamic(path, quantised, weight_type=QuantType.QUInt8)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(tmp_path / "fused.onnx")
    ort.InferenceSession(str(quantised), options, providers=["CPUExecutionProvider"])
    plain = from_onnx(path)
    for file in (quantised, tmp_path / "fused.onnx"):
        graph = check_against_run(stripped(file), 16, 64)
        # Scaling the products is work of theirs where they are fused.
        assert matrix_flops(graph) == pytest.approx(matrix_flops(plain), rel=0.1)
