"""How much longer an op takes than at the peak rate, given the shape of its work.

A graph may lack shapes, but the shape of a product follows from its flops, output and operands:
``flops = 2 b m k n`` with an output of ``b m n`` and operands of ``b m k`` and ``b k n``
elements. A matrix unit computes whole tiles, so a partly filled one costs as much as a
full one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from go_opt.common.arrays import FloatArray
from go_opt.env.target.simulator_parameters import KindParameters, OpFactor
from go_opt.model.graph import MATRIX, VECTOR, WEIGHT, Graph


def product_shapes(graph: Graph) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """[N] each: batch, rows, inner and columns of the products of matrix ops; 1 for other ops.

    With a weight, the batch is one and rows follow from the output. So a convolution is
    the product that it lowers to, which reads its input several times.
    """
    output = _output_elements(graph)
    inner = np.maximum(1.0, np.floor(graph.op_flops / np.maximum(2.0 * output, 1.0)))
    first, second, weight = _operand_elements(graph)
    columns = np.maximum(1.0, np.floor(weight / inner))
    rows = np.maximum(1.0, np.ceil(output / columns))
    batch_rows = np.maximum(1.0, np.floor(first / inner))
    batch_columns = np.maximum(1.0, np.floor(second / inner))
    batch = np.maximum(1.0, np.round(batch_rows * batch_columns / np.maximum(output, 1.0)))
    has_weight = weight > 0
    shapes = (
        np.where(has_weight, 1.0, batch),
        np.where(has_weight, rows, np.ceil(batch_rows / batch)),
        inner,
        np.where(has_weight, columns, np.ceil(batch_columns / batch)),
    )
    is_matrix = graph.op_class == MATRIX
    batch, rows, inner, columns = (np.where(is_matrix, shape, 1.0) for shape in shapes)
    return batch, rows, inner, columns


def shaped_op_seconds(graph: Graph, op_s: FloatArray, kinds: tuple[KindParameters, ...]) -> FloatArray:
    """[Q, N] seconds of each op, with partly filled tiles and vectors that cost as much as full ones.

    ``op_s`` [Q, N] are the seconds at the peak rate; ideal kinds leave them unchanged.
    """
    if all(kind == KindParameters() for kind in kinds):
        return op_s
    batch, rows, inner, columns = product_shapes(graph)
    elements = np.maximum(_output_elements(graph), 1.0)
    is_matrix = (graph.op_class == MATRIX) & (graph.op_flops > 0)
    is_vector = (graph.op_class == VECTOR) & (graph.op_flops > 0)
    seconds = op_s.copy()
    for q, kind in enumerate(kinds):
        tiles = batch * np.ceil(rows / kind.tile_rows) * np.ceil(columns / kind.tile_columns)
        waves = np.ceil(tiles / kind.tiles_at_once)
        padded_inner = np.ceil(inner / kind.tile_inner) * kind.tile_inner
        padded = waves * kind.tiles_at_once * kind.tile_rows * kind.tile_columns * padded_inner
        # Relative to the product's own multiply-adds, so that ideal tiles change nothing.
        stretch = padded / (batch * rows * columns * inner)
        seconds[q, is_matrix] *= stretch[is_matrix]
        seconds[q, is_matrix] += kind.fill_s
        lanes = np.ceil(elements / kind.vector_lanes) * kind.vector_lanes / elements
        seconds[q, is_vector] *= lanes[is_vector]
        seconds[q] *= factors_of_ops(graph, kind.op_factors)
    return seconds


def factors_of_ops(graph: Graph, factors: Sequence[OpFactor]) -> FloatArray:
    """[N] the factor of each op: of its type and shape, else of its type, else 1."""
    result = np.ones(graph.num_ops)
    if factors:
        by_key = {(one.op_type, one.shape): one.factor for one in factors}
        shapes = np.stack(product_shapes(graph), axis=1).astype(np.int64).tolist()
        for op, (op_type, shape) in enumerate(zip(graph.op_types, shapes, strict=True)):
            result[op] = by_key.get((op_type, tuple(shape)), by_key.get((op_type, ()), 1.0))
    return result


def least_factor_shares(graph: Graph, factors: Sequence[OpFactor]) -> FloatArray:
    """[N] the least factor of an op's type for any shape, relative to the op's own."""
    of_op = factors_of_ops(graph, factors)
    least = {one.op_type: 1.0 for one in factors}  # of a shape that is not listed
    least |= {one.op_type: one.factor for one in factors if not one.shape}
    for one in factors:
        least[one.op_type] = min(least[one.op_type], one.factor)
    return np.array([least.get(name, 1.0) for name in graph.op_types]) / of_op


def _output_elements(graph: Graph) -> FloatArray:
    produced = graph.tensor_producer >= 0
    sizes = graph.tensor_elements[produced].astype(np.float64)
    totals = np.bincount(graph.tensor_producer[produced], weights=sizes, minlength=graph.num_ops)
    return totals.astype(np.float64)


def _operand_elements(graph: Graph) -> tuple[FloatArray, FloatArray, FloatArray]:
    """[N] each: the elements read of the largest activation, of the second, and of the largest weight."""
    first, second, weight = (np.zeros(graph.num_ops) for _ in range(3))
    touched = graph.reader_elements.astype(np.float64)
    is_weight = graph.tensor_kind[graph.reader_tensor] == WEIGHT
    np.maximum.at(weight, graph.reader_op[is_weight], touched[is_weight])
    order = np.lexsort((-touched, graph.reader_op))
    order = order[~is_weight[order]]
    op = graph.reader_op[order]
    place = np.arange(len(op)) - np.searchsorted(op, op, side="left")
    first[op[place == 0]] = touched[order][place == 0]
    second[op[place == 1]] = touched[order][place == 1]
    # A product of a tensor with itself reads only one tensor.
    return first, np.where(second > 0, second, first), weight
