"""Graphs padded to a few shapes, so that the network compiles once for each.

The sizes of a bucket are powers of two. A mask is True for real rows; the values of padding
rows have no influence.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from go_opt.agents.inputs.features import GraphFeatures
from go_opt.model.graph import Graph

LEAST_OPS: Final = 128  # a power of two, divisible by the segment length
Array = Any  # NumPy outside the network, JAX inside


class Bucket(NamedTuple):
    """The shape a graph is padded to."""

    ops: int
    edges: int


class PaddedGraph(NamedTuple):
    """Features in the shape of a bucket: a pytree. Axes: ``N`` ops, ``E`` edges, padded.

    Each edge is listed twice, sorted by reader and by producer: sums over sorted segments are cheap.
    """

    op_type: Array  # [N] int32
    ops: Array  # [N, len(OP_COLUMNS)] float32
    op_mask: Array  # [N] bool
    reader_of: Array  # [E] int32 readers, ascending
    read_from: Array  # [E] int32 the producer each of them reads from
    producer_of: Array  # [E] int32 producers, ascending
    read_by: Array  # [E] int32 the reader of each of them
    edge_mask: Array  # [E] bool
    package: Array  # [len(GLOBAL_COLUMNS)] float32


def smallest_bucket(graph: Graph) -> Bucket:
    """The smallest bucket that holds ``graph``."""
    return Bucket(
        ops=_power_of_two(graph.num_ops, LEAST_OPS),
        edges=_power_of_two(graph.num_edges, LEAST_OPS),
    )


def pad(features: GraphFeatures, bucket: Bucket) -> PaddedGraph:
    """``features`` in the shape of ``bucket``, padded with zeros."""
    by_producer = np.lexsort((features.edge_dst, features.edge_src))
    return PaddedGraph(
        op_type=_padded(features.op_type, bucket.ops),
        ops=_padded(features.ops, bucket.ops),
        op_mask=_padded(np.ones(features.num_ops, dtype=np.bool_), bucket.ops),
        reader_of=_padded(features.edge_dst, bucket.edges),
        read_from=_padded(features.edge_src, bucket.edges),
        producer_of=_padded(features.edge_src[by_producer], bucket.edges),
        read_by=_padded(features.edge_dst[by_producer], bucket.edges),
        edge_mask=_padded(np.ones(features.num_edges, dtype=np.bool_), bucket.edges),
        package=features.package,
    )


def rows_to_ops(features: GraphFeatures, rows: NDArray) -> NDArray:
    """[N, …] in the graph's own order of ops, from padded rows [bucket.ops, …]."""
    by_op = np.empty((features.num_ops, *rows.shape[1:]), dtype=rows.dtype)
    by_op[features.row_op] = rows[: features.num_ops]
    return by_op


def ops_to_rows(features: GraphFeatures, by_op: NDArray, bucket: Bucket) -> NDArray:
    """[bucket.ops, …] padded rows, from [N, …] in the graph's own order of ops."""
    return _padded(by_op[features.row_op], bucket.ops)


def _padded(rows: NDArray, size: int) -> NDArray:
    padded = np.zeros((size, *rows.shape[1:]), dtype=rows.dtype)
    padded[: len(rows)] = rows
    return padded


def _power_of_two(least: int, smallest: int) -> int:
    return max(smallest, 1 << (max(least, 1) - 1).bit_length())
