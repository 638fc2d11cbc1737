"""Execution orders for slicing: by position, depth, height, structured random keys, towers, and arrival.

Independent noise on each op's key makes orders that cut badly. A random linear mix of
op features makes structured orders, which are far better per sample.

Towers are large parts of a graph that only its last ops join, as the two encoders of a contrastive model.
On a ring each tower may have chips of its own, one tower after the other. The results of all but the last one
then pass chips, which the adjacent rule forbids; the longest-path form of the triangle rule allows it, since
no other path of chips leads where they go. Axis ``N`` ops.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray
from go_opt.env import CostTables, depth, height, list_schedule, priority_fusion
from go_opt.env.cost.tables import bytes_out, standardise, transfer_s
from go_opt.env.kernels.numbering import kernel_seconds, number_kernels
from go_opt.model.graph import NO_PRODUCER, Graph
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


LARGE: Final = 0.05  # share of the work: smaller parts are no towers


def towers(graph: Graph, tables: CostTables) -> tuple[IntArray, CostTables, IntArray] | None:
    """Returns an order by towers of ``graph``, and what slicing along it asks for; ``None`` without two.

    Returns:
      [N] one tower after the other, then all other ops; the tables without what readers outside a tower take
      from all towers but the last; [2, T - 1] the last op of a tower and the first op of the next one, which
      share no chip.
    """
    tower, num_towers = _tower_of(graph, np.where(tables.can_run, tables.op_s, np.inf).min(axis=0))
    if num_towers < 2:
        return None
    order = np.argsort(tower, kind="stable").astype(np.int32)
    ends = np.cumsum(np.bincount(tower))[: num_towers - 1]
    producer = tables.tensor_producer[tables.reader_tensor]
    keeps = (
        (producer < 0) | (tower[producer] == tower[tables.reader_op]) | (tower[producer] >= num_towers - 1)
    )
    return order, tables.with_reads(keeps), np.stack([order[ends - 1], order[ends]])


def _tower_of(graph: Graph, work_s: FloatArray) -> tuple[LongArray, int]:
    """Returns the number [N] of each op's tower, of all other ops the number of towers; and that number.

    Ops join the parts that they read, one after the other; an op that would join two large parts does not,
    nor do its descendants.
    """
    ptr, source = graph.predecessors
    part, part_s = list(range(graph.num_ops)), work_s.tolist()
    is_apart = np.zeros(graph.num_ops, np.bool_)
    least_s = LARGE * work_s.sum()
    for op in range(graph.num_ops):
        read = source[ptr[op] : ptr[op + 1]]
        roots = {_root(part, before) for before in read.tolist()}
        is_apart[op] = is_apart[read].any() or sum(part_s[root] >= least_s for root in roots) > 1
        for root in set() if is_apart[op] else roots:
            part[root] = op
            part_s[op] += part_s[root]
    root_of = np.array([_root(part, op) for op in range(graph.num_ops)])
    is_apart |= np.array(part_s)[root_of] < least_s
    large = np.unique(root_of[~is_apart])
    return np.searchsorted(large, np.where(is_apart, graph.num_ops, root_of)), len(large)


def _root(part: list[int], op: int) -> int:
    while part[op] != op:
        part[op] = part[part[op]]
        op = part[op]
    return op


def by_arrival(tables: CostTables, placement: IntArray, order: IntArray, fusion_group: IntArray) -> IntArray:
    """[N] the order of a list schedule of a sample: of what has arrived on a chip, the longest way first.

    Args:
      placement, order, fusion_group: [N] of a plan; the kernels stay as they are.
    """
    kernel_of = number_kernels(order, fusion_group)
    number = int(kernel_of.max()) + 1
    chip = np.zeros(number, np.int64)
    chip[kernel_of] = placement
    seconds = kernel_seconds(tables, kernel_of)[tables.chip_kind[chip], np.arange(number)].tolist()
    chips = chip.tolist()
    readers: list[dict[int, float]] = [{} for _ in range(number)]  # with the seconds of the longest transfer
    for tensor, op in zip(tables.reader_tensor.tolist(), tables.reader_op.tolist(), strict=True):
        if tables.tensor_producer[tensor] == NO_PRODUCER:
            continue
        source, reader = int(kernel_of[tables.tensor_producer[tensor]]), int(kernel_of[op])
        if source != reader:
            sent_s = transfer_s(tables, chips[source], chips[reader], int(tables.tensor_bytes[tensor]))
            readers[source][reader] = max(sent_s, readers[source].get(reader, 0.0))
    left_s, waits = [0.0] * number, [0] * number  # until the end of the sample
    for kernel in reversed(range(number)):
        after = (sent_s + left_s[reader] for reader, sent_s in readers[kernel].items())
        left_s[kernel] = seconds[kernel] + max(after, default=0.0)
        for reader in readers[kernel]:
            waits[reader] += 1
    arrived_s, free_s = [0.0] * number, [0.0] * tables.num_chips
    waiting = [(0.0, -left_s[kernel], kernel) for kernel in range(number) if not waits[kernel]]
    heapq.heapify(waiting)
    place = np.zeros(number, np.int64)
    done = 0
    while waiting:
        start_s, _, kernel = heapq.heappop(waiting)
        if start_s < free_s[chips[kernel]]:  # another kernel has taken the chip
            heapq.heappush(waiting, (free_s[chips[kernel]], -left_s[kernel], kernel))
            continue
        place[kernel], done = done, done + 1
        free_s[chips[kernel]] = end_s = start_s + seconds[kernel]
        for reader, sent_s in readers[kernel].items():
            arrived_s[reader] = max(arrived_s[reader], end_s + sent_s)
            waits[reader] -= 1
            if not waits[reader]:
                start_s = max(arrived_s[reader], free_s[chips[reader]])
                heapq.heappush(waiting, (start_s, -left_s[reader], reader))
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    return np.lexsort((position, place[kernel_of])).astype(np.int32)
