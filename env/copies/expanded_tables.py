"""Adds the relays of a plan to cost tables, in every evaluation of a search.

The slow twin is :func:`go_opt.env.copies.relays.expand_plan`.

Ops and tensors keep their numbers. After them come one op and one tensor for each relay.
O(N + K + R + relays). Axes: ``N`` ops, ``K`` tensors, ``R`` reads, ``P`` relays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import IntArray, LongArray
from go_opt.common.compiling import compiled
from go_opt.env.copies.relays import Relays, relays_of
from go_opt.env.copies.stages import size_by_chip, with_sharers
from go_opt.env.cost import COPY, CostTables, cost_tables
from go_opt.env.model.analytical import BatchMetrics, evaluate_batch
from go_opt.env.model.memory import csr_of
from go_opt.env.target import Target
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan


class PlanTables(NamedTuple):
    """The inputs of a plan's evaluation, with an op for every relay. Axis: ``N`` ops."""

    tables: CostTables
    placement: IntArray  # [N]
    order: IntArray  # [N]
    fusion_group: IntArray  # [N]
    replication: IntArray  # [N]

    def evaluate(self) -> BatchMetrics:
        """The terms of this one plan."""
        return evaluate_batch(
            self.tables,
            self.placement[None],
            self.order[None],
            self.fusion_group[None],
            self.replication[None] if (self.replication > 1).any() else None,
        )


def plan_tables(graph: Graph, target: Target, plan: Plan) -> PlanTables:
    """Tables, placement, order, kernels and stages for the evaluation of ``plan``.

    Raises:
      PlanError: a relay's tensor is not in the graph, or no op produces it.
    """
    size = size_by_chip(plan.placement, plan.replication, target.num_chips)
    expanded, placement, order, group = expanded_tables(
        cost_tables(graph, target), plan.placement, plan.order, plan.fusion_group, relays_of(graph, plan)
    )
    tables = with_sharers(expanded, plan.forwards, size)
    return PlanTables(tables, placement, order, group, size[placement])


def expanded_tables(
    tables: CostTables, placement: IntArray, order: IntArray, fusion_group: IntArray, relays: Relays
) -> tuple[CostTables, IntArray, IntArray, IntArray]:
    """Tables, placement, order and kernels with an op for every relay."""
    num_relays, num_ops, num_tensors = len(relays.tensor), len(order), len(tables.tensor_kind)
    if num_relays == 0:
        return tables, placement, order, fusion_group
    placed = np.concatenate([placement, relays.chip])
    first_free = int(fusion_group.max()) + 1
    alone = np.arange(first_free, first_free + num_relays, dtype=np.int32)
    group = np.concatenate([fusion_group, alone])
    original = np.concatenate([np.arange(num_tensors), relays.tensor])
    kind, is_output = tables.tensor_kind[original], tables.tensor_is_output[original]
    kind[num_tensors:], is_output[num_tensors:] = COPY, False
    made = np.arange(num_ops, num_ops + num_relays, dtype=np.int32)
    reads = _read_again(tables, placed, relays)
    expanded = tables._replace(
        op_s=_with_columns(tables.op_s, num_relays, 0.0),
        measured_s=_with_columns(tables.measured_s, num_relays, np.nan),
        can_run=_with_columns(tables.can_run, num_relays, True),
        tensor_bytes=tables.tensor_bytes[original],
        stored_bytes=tables.stored_bytes[original],
        tensor_kind=kind,
        tensor_producer=np.concatenate([tables.tensor_producer, made]),
        tensor_is_output=is_output,
        **dict(zip(_READ_FIELDS, reads, strict=True)),
    )
    # A plan's order is read-only, others are not: a copy, so that kernels compile for only one type.
    return expanded, placed, _order(tables, order.copy(), group, relays), group


_READ_FIELDS = ("reader_ptr", "reader_op", "read_bytes", "reader_tensor", "op_read_ptr", "op_read")


def _with_columns(table: NDArray, num_relays: int, of_relay: float | bool) -> NDArray:
    """[Q, N + P] of a table [Q, N]."""
    return np.concatenate([table, np.full((len(table), num_relays), of_relay, table.dtype)], axis=1)


@compiled
def _read_again(
    tables: CostTables, placed: IntArray, relays: Relays
) -> tuple[LongArray, IntArray, LongArray, IntArray, LongArray, IntArray]:
    """Reads with relays: each takes the last relay before its chip, or the original."""
    num_ops, num_tensors = len(tables.op_read_ptr) - 1, len(tables.tensor_kind)
    num_reads, num_relays = len(tables.reader_op), len(relays.tensor)
    relay_ptr, _ = csr_of(relays.tensor, num_tensors)
    reader = np.empty(num_reads + num_relays, np.int32)
    source = np.empty(num_reads + num_relays, np.int32)
    touched = np.empty(num_reads + num_relays, np.int64)
    for r in range(num_reads):
        tensor = tables.reader_tensor[r]
        reader[r], source[r], touched[r] = tables.reader_op[r], tensor, tables.read_bytes[r]
        for p in range(relay_ptr[tensor], relay_ptr[tensor + 1]):
            if relays.chip[p] < placed[reader[r]]:
                source[r] = num_tensors + p
    for p in range(num_relays):
        at, tensor = num_reads + p, relays.tensor[p]
        reader[at], touched[at] = num_ops + p, tables.tensor_bytes[tensor]
        source[at] = tensor if p == relay_ptr[tensor] else num_tensors + p - 1
    reader_ptr, by_tensor = csr_of(source, num_tensors + num_relays)
    reader = reader[by_tensor]
    op_read_ptr, op_read = csr_of(reader, num_ops + num_relays)
    return reader_ptr, reader, touched[by_tensor], source[by_tensor], op_read_ptr, op_read


@compiled
def _order(tables: CostTables, order: IntArray, group: IntArray, relays: Relays) -> IntArray:
    """The order with relays after the kernels that produce their tensors."""
    num_ops = len(order)
    relay_ptr, relay = csr_of(tables.tensor_producer[relays.tensor], num_ops)
    result = np.empty(num_ops + len(relay), np.int32)
    at = begin = 0
    for end in range(1, num_ops + 1):
        result[at] = order[end - 1]
        at += 1
        if end < num_ops and group[order[end]] == group[order[end - 1]]:
            continue
        for i in range(begin, end):
            for p in range(relay_ptr[order[i]], relay_ptr[order[i] + 1]):
                result[at] = num_ops + relay[p]
                at += 1
        begin = end
    return result
