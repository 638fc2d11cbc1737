"""Encoders as ONNX models: attention, and two products with an activation between them."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from tests.exports import info, integers, model, node


def encoder(
    layers: int, tokens: int, width: int, heads: int, *, causal: bool = False, weights: bool = True
) -> onnx.ModelProto:
    """``x`` [1, tokens, width] to ``y`` of the same shape.

    Args:
      causal: adds a mask [1, 1, tokens, tokens] to the scores.
      weights: with random weights; else these are in a file that does not exist, as go-opt needs none.
    """
    constants = [
        integers("to_heads", 1, tokens, heads, width // heads),
        integers("to_width", 1, tokens, width),
        numpy_helper.from_array(np.float32((width // heads) ** -0.5).reshape(()), "scale"),
        numpy_helper.from_array(np.triu(np.full((1, 1, tokens, tokens), -1e4, np.float32), 1), "mask"),
    ]

    def given(name: str, *shape: int) -> str:
        if weights:
            values = np.random.default_rng([*name.encode()]).normal(0, shape[0] ** -0.5, shape)
            constants.append(numpy_helper.from_array(values.astype(np.float32), name))
        else:
            where = [onnx.StringStringEntryProto(key="location", value="none.bin")]
            constants.append(
                onnx.TensorProto(
                    name=name, dims=shape, data_type=onnx.TensorProto.FLOAT,
                    data_location=onnx.TensorProto.EXTERNAL, external_data=where,
                )
            )  # fmt: skip
        return name

    def linear(source: str, name: str, columns: tuple[int, int]) -> list[onnx.NodeProto]:
        product = node("MatMul", f"{source} {given(f'{name}_w', *columns)}", f"{name}_m", f"{name}_product")
        return [product, node("Add", f"{name}_m {given(f'{name}_b', columns[1])}", name, f"{name}_bias")]

    def norm(source: str, name: str) -> onnx.NodeProto:
        scales = f"{given(f'{name}_g', width)} {given(f'{name}_o', width)}"
        return node("LayerNormalization", f"{source} {scales}", name, f"{name}_norm", axis=-1)

    nodes = [node("Add", f"x {given('places', tokens, width)}", "h0", "embedding")]
    for i in range(layers):
        p, h, out = f"l{i}", f"h{i}", "y" if i == layers - 1 else f"h{i + 1}"
        nodes.append(norm(h, f"{p}n"))
        for one, perm in {"q": [0, 2, 1, 3], "k": [0, 2, 3, 1], "v": [0, 2, 1, 3]}.items():
            nodes += linear(f"{p}n", f"{p}{one}", (width, width))
            nodes.append(node("Reshape", f"{p}{one} to_heads", f"{p}{one}h", f"{p}{one}_view"))
            nodes.append(node("Transpose", f"{p}{one}h", f"{p}{one}t", f"{p}{one}_turn", perm=perm))
        nodes.append(node("MatMul", f"{p}qt {p}kt", f"{p}s", f"{p}_scores"))
        nodes.append(node("Mul", f"{p}s scale", f"{p}f", f"{p}_scaled"))
        if causal:
            nodes.append(node("Add", f"{p}f mask", f"{p}fm", f"{p}_masked"))
        nodes += [
            node("Softmax", f"{p}fm" if causal else f"{p}f", f"{p}a", f"{p}_softmax", axis=-1),
            node("MatMul", f"{p}a {p}vt", f"{p}c", f"{p}_context"),
            node("Transpose", f"{p}c", f"{p}ct", f"{p}_back", perm=[0, 2, 1, 3]),
            node("Reshape", f"{p}ct to_width", f"{p}cw", f"{p}_back_view"),
            *linear(f"{p}cw", f"{p}o", (width, width)),
            node("Add", f"{h} {p}o", f"{p}r", f"{p}_residual"),
            norm(f"{p}r", f"{p}m"),
            *linear(f"{p}m", f"{p}u", (width, 4 * width)),
            node("Gelu", f"{p}u", f"{p}g", f"{p}_gelu"),
            *linear(f"{p}g", f"{p}d", (4 * width, width)),
            node("Add", f"{p}r {p}d", out, f"{p}_sum"),
        ]
    return model(nodes, [info("x", (1, tokens, width))], [info("y", (1, tokens, width))], constants)
