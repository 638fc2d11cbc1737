"""How long ops take, given the shape of their work.

The shape of a product is that of its sharding rule. Where a caller sends none, it follows from flops, output
and operands: ``flops = 2 b m k n`` with an output of ``b m n`` and operands of ``b m k`` and ``b k n``
elements. A matrix unit computes whole tiles, so a partly filled one costs as much as a full one. Units that
work at once share the steps of all tiles, also those along the inner dimension.

An op never takes less time if one of its dimensions grows: what counts are whole steps and flops, no
quotients of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray
from go_opt.env.target.kinds import KindParameters, OpFactor
from go_opt.model.graph import MATRIX, VECTOR, WEIGHT, Graph
from go_opt.model.rule import product_of

_SEVERAL_PRODUCTS: Final = ("Attention", "GRU", "LSTM", "MoE", "RNN")  # how the names of such types end
_ROUNDING: Final = 1e-9  # relative, of quotients


class _Operands(NamedTuple):
    """[N] each: elements that matrix ops read."""

    first: FloatArray  # of the largest activation
    second: FloatArray  # of the next activation; 0 without one
    weight: FloatArray  # of the largest weight
    number: FloatArray  # operands, not elements


@lru_cache(maxsize=16)
def product_shapes(graph: Graph) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """[N] each: batch, rows, inner and columns of the products of matrix ops; 1 for other ops.

    Ops that are several products, such as attention, have no shape: all four are 1.
    """
    products = np.flatnonzero(graph.op_class == MATRIX).tolist()
    if any(graph.rule_of(op) is None for op in products):
        shapes = np.stack(_shapes_by_sizes(graph), axis=1)
    else:
        shapes = np.ones((graph.num_ops, 4))
    is_weight = (graph.tensor_kind == WEIGHT).tolist()
    known: dict[tuple[int, ...], tuple[int, ...]] = {}  # equal layers share rules
    for op in products:
        row = graph.rule_of(op)
        if row is None:
            continue
        weights = tuple(is_weight[k] for k in row.operands)
        is_sum = graph.op_types[op] == "Einsum"
        is_several = graph.op_types[op].endswith(_SEVERAL_PRODUCTS) or (is_sum and len(weights) > 2)
        key = id(row.rule), is_several, *weights
        if key not in known:
            known[key] = (1, 1, 1, 1) if is_several else product_of(row.rule, weights)
        shapes[op] = known[key]
    batch, rows, inner, columns = np.ascontiguousarray(shapes.T)
    return batch, rows, inner, columns


def _shapes_by_sizes(graph: Graph) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """The shapes of products whose rule is not known.

    With a weight, the batch is one and rows follow from the output. So a convolution is the product that it
    lowers to, which reads its input several times.
    """
    output, read = np.maximum(output_elements(graph), 1.0), _operands(graph)
    inner = np.maximum(graph.op_flops / (2.0 * output), 1.0)
    has_bias = read.number > 2  # which is half a multiply-add
    inner = np.where(has_bias & (inner % 1.0 == 0.5), np.floor(inner), inner)
    has_weight = _has_weight(graph, output, inner, read)
    columns = np.maximum(read.weight / inner, 1.0)
    # Packed weights have too few elements, and of a transposed convolution each input element is read once.
    is_transposed = has_weight & _has_type(graph, "ConvTranspose")
    of_bias = np.where(is_transposed & has_bias, output, 0.0)
    by_input = np.maximum((graph.op_flops - of_bias) / np.maximum(2.0 * read.first, 1.0), 1.0)
    columns = np.where(is_transposed | _has_type(graph, "MatMulNBits"), by_input, columns)
    rows = output / columns
    inner = np.where(is_transposed, np.maximum(read.weight / columns, 1.0), inner)
    rows = np.where(is_transposed, read.first / inner, rows)
    second = np.where(read.second > 0, read.second, read.first)  # a product of a tensor with itself
    batch = read.first * second / (inner**2 * output)
    whole = np.maximum(np.round(batch), 1.0)
    shapes = (
        np.where(has_weight, 1.0, whole),
        np.where(has_weight, rows, read.first / inner / whole),
        inner,
        np.where(has_weight, columns, second / inner / whole),
    )
    is_product = has_weight | (np.abs(batch - whole) <= _ROUNDING * whole)
    is_product &= (graph.op_class == MATRIX) & ~_has_type(graph, *_SEVERAL_PRODUCTS)
    batch, rows, inner, columns = (
        np.where(is_product, np.maximum(np.ceil(shape * (1.0 - _ROUNDING)), 1.0), 1.0) for shape in shapes
    )
    return batch, rows, inner, columns


def shaped_op_seconds(
    graph: Graph, op_s: FloatArray, kinds: tuple[KindParameters, ...], divisible: BoolArray | None = None
) -> FloatArray:
    """[Q, N] seconds of each op, with partly filled tiles and vectors that cost as much as full ones.

    ``op_s`` [Q, N] are the seconds at the peak rate; ideal kinds leave them unchanged. Of ops that are
    ``divisible`` [N], the seconds are no more than those of all parts that they may be divided into.
    """
    if all(kind == KindParameters() for kind in kinds):
        return op_s
    batch, rows, inner, columns = product_shapes(graph)
    elements = np.maximum(_vector_elements(graph), 1.0)
    is_matrix = (graph.op_class == MATRIX) & (graph.op_flops > 0)
    is_vector = (graph.op_class == VECTOR) & (graph.op_flops > 0)
    # The larger of two activations is the one with rows, so parts may fill tiles better than the op does;
    # not where the other one has a single column, as no part has fewer rows than that.
    swaps = (_operands(graph).weight == 0) & (columns > 1)
    is_tiled = is_matrix if divisible is None else is_matrix & ~(divisible & swaps)
    work = np.where(is_matrix, graph.op_flops / 2.0, 1.0)  # multiply-adds
    seconds = op_s.copy()
    for q, kind in enumerate(kinds):
        tile = kind.tile_rows * kind.tile_inner * kind.tile_columns
        steps = np.ceil(rows / kind.tile_rows) * np.ceil(inner / kind.tile_inner)
        steps *= batch * np.ceil(columns / kind.tile_columns)
        padded = np.ceil(steps / kind.tiles_at_once) * kind.tiles_at_once * tile
        if tile * kind.tiles_at_once > 1:
            seconds[q, is_tiled] *= np.maximum(padded / work, 1.0)[is_tiled]
        seconds[q, is_matrix] += kind.fill_s
        lanes = np.ceil(elements / kind.vector_lanes) * kind.vector_lanes / elements
        seconds[q, is_vector] *= lanes[is_vector]
        least = 1.0 if divisible is None else np.where(divisible, _least_shares(graph, kind.op_factors), 1.0)
        seconds[q] *= factors_of_ops(graph, kind.op_factors) * least
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


def _least_shares(graph: Graph, factors: Sequence[OpFactor]) -> FloatArray:
    """[N] the least factor of an op's type for any shape, relative to the op's own."""
    of_op = factors_of_ops(graph, factors)
    least = {one.op_type: 1.0 for one in factors}  # of a shape that is not listed
    least |= {one.op_type: one.factor for one in factors if not one.shape}
    for one in factors:
        least[one.op_type] = min(least[one.op_type], one.factor)
    return np.array([least.get(name, 1.0) for name in graph.op_types]) / of_op


def _has_type(graph: Graph, *endings: str) -> BoolArray:
    """[N] True for ops whose type ends like that."""
    return graph.has_type(lambda name: name.endswith(endings))


def _has_weight(graph: Graph, output: FloatArray, inner: FloatArray, read: _Operands) -> BoolArray:
    """[N] True for products with a weight; a weight besides two activations may be a bias or a scale."""
    is_alone = read.second == 0
    is_operand = read.first * read.weight >= inner**2 * output * (1.0 - _ROUNDING)
    is_convolution = graph.has_type(lambda name: "conv" in name.lower())
    return (read.weight > 0) & (is_alone | is_operand | is_convolution)


def output_elements(graph: Graph) -> FloatArray:
    """[N] elements of all results."""
    produced = graph.tensor_producer >= 0
    sizes = graph.tensor_elements[produced].astype(np.float64)
    totals = np.bincount(graph.tensor_producer[produced], weights=sizes, minlength=graph.num_ops)
    return totals.astype(np.float64)


@lru_cache(maxsize=16)
def _vector_elements(graph: Graph) -> FloatArray:
    """[N] the elements that an op works on one by one: those it writes, but a selection those it reads."""
    read = _operands(graph)
    return np.where(_has_type(graph, "TopK"), np.maximum(read.first, read.weight), output_elements(graph))


@lru_cache(maxsize=16)
def _operands(graph: Graph) -> _Operands:
    num_ops = graph.num_ops
    first, second, weight = (np.zeros(num_ops) for _ in range(3))
    touched = graph.reader_elements.astype(np.float64)
    is_weight = graph.tensor_kind[graph.reader_tensor] == WEIGHT
    np.maximum.at(weight, graph.reader_op[is_weight], touched[is_weight])
    order = np.lexsort((-touched, graph.reader_op))
    order = order[~is_weight[order]]
    op = graph.reader_op[order]
    place = np.arange(len(op)) - np.searchsorted(op, op, side="left")
    first[op[place == 0]] = touched[order][place == 0]
    second[op[place == 1]] = touched[order][place == 1]
    number = np.bincount(graph.reader_op, minlength=num_ops).astype(np.float64)
    return _Operands(first, second, weight, number)
