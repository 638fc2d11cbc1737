"""What a graph is like: its shape, its ops by type, its tensors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from go_opt.common.arrays import BoolArray
from go_opt.env import Target, depth
from go_opt.model.dtypes import size_bytes
from go_opt.model.graph import ACTIVATION, INPUT, WEIGHT, Graph
from go_opt.solver import most_chips_adjacent, placement_problem


@dataclass(frozen=True)
class OpTypeStats:
    """All ops of one type."""

    op_type: str
    ops: int
    flops: float


@dataclass(frozen=True)
class TensorStats:
    """All tensors of one kind; bytes are those of the model's own types."""

    count: int
    total_bytes: int
    median_bytes: int
    largest_bytes: int


@dataclass(frozen=True)
class GraphStats:
    """A graph's distribution of work and bytes, and how far it can be spread on a target."""

    depth: int  # ops on the longest path
    width: int  # ops at the fullest depth, a lower bound on the largest antichain
    most_chips: int  # that a placement on the target can use
    op_types: tuple[OpTypeStats, ...]  # most FLOPs first, then most ops
    inputs: TensorStats
    outputs: TensorStats
    activations: TensorStats  # the outputs among them
    weights: TensorStats


def graph_stats(graph: Graph, target: Target) -> GraphStats:
    """The statistics of ``graph``, its most chips on ``target``."""
    ops_at_depth = np.bincount(depth(graph).astype(np.int64))
    return GraphStats(
        depth=len(ops_at_depth),
        width=int(ops_at_depth.max()),
        most_chips=_most_chips(graph, target),
        op_types=_op_types(graph),
        inputs=_tensors(graph, graph.tensor_kind == INPUT),
        outputs=_tensors(graph, graph.tensor_is_output),
        activations=_tensors(graph, graph.tensor_kind == ACTIVATION),
        weights=_tensors(graph, graph.tensor_kind == WEIGHT),
    )


def _most_chips(graph: Graph, target: Target) -> int:
    """Exact under the adjacent rule; without a triangle rule every op may have its own chip."""
    if target.constraints.triangle == "off":
        return min(graph.num_ops, target.num_chips)
    return most_chips_adjacent(placement_problem(graph, target))


def _op_types(graph: Graph) -> tuple[OpTypeStats, ...]:
    names, type_of, counts = np.unique(graph.op_types, return_inverse=True, return_counts=True)
    flops = np.bincount(type_of, weights=graph.op_flops)
    rows = [OpTypeStats(str(name), int(n), float(f)) for name, n, f in zip(names, counts, flops, strict=True)]
    return tuple(sorted(rows, key=lambda row: (-row.flops, -row.ops, row.op_type)))


def _tensors(graph: Graph, chosen: BoolArray) -> TensorStats:
    sizes = size_bytes(graph.tensor_elements[chosen], graph.tensor_dtype[chosen])
    if len(sizes) == 0:
        return TensorStats(0, 0, 0, 0)
    return TensorStats(len(sizes), int(sizes.sum()), int(np.median(sizes)), int(sizes.max()))
