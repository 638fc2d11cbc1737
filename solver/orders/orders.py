"""Execution orders for slicing: by position, depth, height, and structured random keys.

Independent noise on each op's key makes orders that cut badly. A random linear mix of
op features makes structured orders, which are far better per sample.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray
from go_opt.env import CostTables, depth, height, list_schedule, priority_fusion
from go_opt.env.cost.tables import bytes_out, standardise
from go_opt.env.kernels.numbering import number_kernels
from go_opt.model.graph import Graph
from go_opt.solver.orders.instance import OrderProblem


def fixed_orders(
    graph: Graph, fusion_group: IntArray, *, cuts_joins: bool = False
) -> Iterator[tuple[str, IntArray]]:
    """Yields ``(name, order)`` of the list schedules by least depth and by greatest height.

    Args:
      cuts_joins: whether kernels, then of the default order, are cut before what joins branches. Kernels made
        along the depth order have it at the end of the longest branch. A cut inside of that one then crosses
        what is left of the others, not the larger tensor that all of them read.
    """
    kernel_of = _kernels(graph, fusion_group)
    if cuts_joins:
        is_join = np.diff(graph.predecessors[0]) > 1
        kernel_of = np.cumsum(is_join | (np.diff(fusion_group, prepend=-1) != 0), dtype=np.int32) - 1
    yield "depth order", list_schedule(graph, kernel_of, -largest_by_kernel(kernel_of, depth(graph)))
    yield "height order", list_schedule(graph, kernel_of, largest_by_kernel(kernel_of, height(graph)))


def random_orders(graph: Graph, tables: CostTables, fusion_group: IntArray, seed: int) -> Iterator[IntArray]:
    """Yields, without end, list schedules by random linear mixes of kernel features."""
    rng = np.random.default_rng(seed)
    kernel_of = _kernels(graph, fusion_group)
    features = kernel_features(graph, tables, kernel_of)
    while True:
        yield list_schedule(graph, kernel_of, features @ rng.standard_normal(features.shape[1]))


def kernel_features(graph: Graph, tables: CostTables, kernel_of: IntArray) -> FloatArray:
    """Returns standardised features [M, 6]: position, depth, height, log seconds, log bytes out, fan-out."""
    columns = np.stack(
        [
            np.arange(graph.num_ops, dtype=np.float64),
            depth(graph),
            height(graph),
            np.log(tables.op_s.min(axis=0) + 1e-9),
            np.log1p(bytes_out(tables)),
            np.diff(graph.successors[0]).astype(np.float64),
        ],
        axis=1,
    )
    by_kernel = np.stack([largest_by_kernel(kernel_of, column) for column in columns.T], axis=1)
    return standardise(by_kernel)[0]


def _kernels(graph: Graph, fusion_group: IntArray) -> IntArray:
    """Returns kernels [N], numbered along an order of whole kernels, by first ops where possible."""
    _, first, group = np.unique(fusion_group, return_index=True, return_inverse=True)
    kernel: IntArray = group.astype(np.int32)
    return number_kernels(list_schedule(graph, kernel, -first.astype(np.float64)), kernel)


def largest_by_kernel(kernel_of: IntArray, values: FloatArray) -> FloatArray:
    """Returns the largest [M] of ``values`` [N] over the ops of each kernel."""
    largest = np.full(int(kernel_of.max()) + 1, -np.inf)
    np.maximum.at(largest, kernel_of, values)
    return largest


def schedule(
    instance: OrderProblem, schedule_priority: FloatArray, fusion_priority: FloatArray
) -> tuple[IntArray, IntArray]:
    """Returns kernels [N] and order [N] for op priorities [N]; neutral priorities give the defaults."""
    group = priority_fusion(instance.graph, instance.roles, instance.fusion_group, fusion_priority)
    return group, list_schedule(instance.graph, group, largest_by_kernel(group, schedule_priority))
