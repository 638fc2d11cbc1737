"""Along which axes of their operands and results products can be divided."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import onnx_ir as ir

from go_opt.errors import ModelError
from go_opt.run.cut.reads import Reads


class Axes(NamedTuple):
    """The axes of columns: in each sliced operand, by position, and in the output."""

    operands: Mapping[int, int]
    output: int


def column_axes(node: ir.Node, reads: Reads) -> Axes:
    """The axes of columns: columns lie along the output axis that comes from the weight."""
    rank = len(shape_of(node.outputs[0]))
    constant = [value is not None and not reads.bases_of([value]) for value in node.inputs]
    if node.op_type == "Conv" and constant[1]:
        if _integer(node, "group", 1) != 1:
            raise ModelError(f"op {node.name!r} cannot be split: its channels are in groups.")
        return Axes({1: 0, 2: 0} if len(constant) > 2 else {1: 0}, 1)
    if node.op_type == "Gemm" and constant[0] != constant[1]:
        output = 1 if constant[1] else 0
        operand = (
            {1: 0 if _integer(node, "transB", 0) else 1} if constant[1] else {0: _integer(node, "transA", 0)}
        )
        return Axes(operand | ({2: output - 2} if len(constant) > 2 else {}), output)
    if node.op_type == "MatMul" and constant[0] != constant[1]:
        return Axes({1: -1}, rank - 1) if constant[1] else Axes({0: -2}, rank - 2)
    raise ModelError(f"op {node.name!r} ({node.op_type}) cannot be split: it has not one weight.")


def inner_axes(node: ir.Node, reads: Reads) -> tuple[int, int, int]:
    """The place of the weight, and the axes of the inner dimension in the weight and in the activation."""
    at = 1 if node.inputs[1] is not None and not reads.bases_of([node.inputs[1]]) else 0
    if node.op_type == "Gemm":
        turned = [_integer(node, name, 0) for name in ("transA", "transB")]
        axes = [0 if turned[0] else 1, 1 if turned[1] else 0]
    else:
        ranks = [len(shape_of(value)) if value is not None else 0 for value in node.inputs]
        axes = [-1, -2 if ranks[1] > 1 else -1]
    return at, axes[at], axes[1 - at]


def shape_of(value: ir.Value) -> tuple[int | ir.SymbolicDim, ...]:
    if value.shape is None:
        raise ModelError(f"tensor {value.name!r} has no known size, so that it cannot be split.")
    return tuple(value.shape)


def size_along(value: ir.Value, axis: int) -> int:
    """The size along an axis; 0 if unknown."""
    size = shape_of(value)[axis]
    return size if isinstance(size, int) else 0


def _integer(node: ir.Node, name: str, otherwise: int) -> int:
    return node.attributes[name].as_int() if name in node.attributes else otherwise
