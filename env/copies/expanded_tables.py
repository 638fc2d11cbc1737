"""Adds the relays and clones of a plan to cost tables, in every evaluation of a search.

The slow twin is :func:`go_opt.env.copies.relays.expand_plan`.

Ops and tensors keep their numbers. After them come one op and one tensor for each relay,
then the clones and their outputs. O(N + K + R + relays + clones).
Axes: ``N`` ops, ``K`` tensors, ``R`` reads, ``P`` relays, ``C`` clones.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import IntArray, LongArray
from go_opt.common.compiling import compiled, compiled_inner, int64, uncounted_inner
from go_opt.env.copies.relays import Copies as Copies
from go_opt.env.copies.relays import copies_of as copies_of
from go_opt.env.copies.stages import size_by_chip, with_sharers
from go_opt.env.cost import COPY, CostTables, cost_tables
from go_opt.env.model.analytical import BatchMetrics, evaluate_batch
from go_opt.env.target import Target
from go_opt.model.graph import NO_PRODUCER, Graph
from go_opt.model.plan import Plan

_NONE: Final = -1


class _Rows(NamedTuple):
    """Indices of relays and clones."""

    relay_ptr: LongArray  # [K + 1] relays of each tensor
    clone_ptr: LongArray  # [N + 1] clones of each op
    output_rank: LongArray  # [K] place among the tensors of its producer
    clone_tensor: LongArray  # [C + 1] first tensor of each clone


class PlanTables(NamedTuple):
    """The inputs of a plan's evaluation, with an op for every relay and clone. Axis: ``N`` ops."""

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
      PlanError: a relay's tensor or clone's op is not in the graph, or no op produces the tensor.
    """
    size = size_by_chip(plan.placement, plan.replication, target.num_chips)
    expanded, placement, order, group = expanded_tables(
        cost_tables(graph, target), plan.placement, plan.order, plan.fusion_group, copies_of(graph, plan)
    )
    tables = with_sharers(expanded, plan.forwards, size)
    return PlanTables(tables, placement, order, group, size[placement])


def expanded_tables(
    tables: CostTables, placement: IntArray, order: IntArray, fusion_group: IntArray, copies: Copies
) -> tuple[CostTables, IntArray, IntArray, IntArray]:
    """Tables, placement, order and kernels with an op for every relay and every clone."""
    num_relays, clone_op = len(copies.relay_tensor), copies.clone_op
    num_copies = num_relays + len(clone_op)
    if num_copies == 0:
        return tables, placement, order, fusion_group
    placed = np.concatenate([placement, copies.relay_chip, copies.clone_chip])
    first_free = int(fusion_group.max()) + 1
    alone = np.arange(first_free, first_free + num_copies, dtype=np.int32)
    group = np.concatenate([fusion_group, alone])
    rows, original, producer, *reads = _read_again(tables, placed, copies)
    kind, is_output = tables.tensor_kind[original], tables.tensor_is_output[original]
    num_tensors = len(tables.tensor_kind)
    kind[num_tensors : num_tensors + num_relays] = COPY
    is_output[num_tensors:] = False
    expanded = tables._replace(
        op_s=_with_columns(tables.op_s, num_relays, 0.0, clone_op),
        measured_s=_with_columns(tables.measured_s, num_relays, np.nan, clone_op),
        can_run=_with_columns(tables.can_run, num_relays, True, clone_op),
        tensor_bytes=tables.tensor_bytes[original],
        stored_bytes=tables.stored_bytes[original],
        tensor_kind=kind,
        tensor_producer=producer,
        tensor_is_output=is_output,
        **dict(zip(_READ_FIELDS, reads, strict=True)),
    )
    # A plan's order is read-only, others are not: a copy, so that kernels compile for only one type.
    return expanded, placed, _order(tables, placed, order.copy(), group, copies, rows), group


_READ_FIELDS = ("reader_ptr", "reader_op", "read_bytes", "reader_tensor", "op_read_ptr", "op_read")


def _with_columns(table: NDArray, num_relays: int, of_relay: float | bool, clone_op: IntArray) -> NDArray:
    """[Q, N + P + C] of a table [Q, N]."""
    of_relays = np.full((len(table), num_relays), of_relay, table.dtype)
    return np.concatenate([table, of_relays, table[:, clone_op]], axis=1)


@compiled_inner
def _pointers(row_of: IntArray | LongArray, num_rows: int) -> LongArray:
    """CSR pointers of entries in ascending order of rows."""
    pointers = np.zeros(num_rows + 1, np.int64)
    for row in row_of:
        pointers[row + 1] += 1
    for row in range(num_rows):
        pointers[row + 1] += pointers[row]
    return pointers


@compiled_inner
def _rows_of(row_of: IntArray | LongArray, num_rows: int) -> tuple[LongArray, IntArray]:
    """CSR of entries in any order; the entries of a row keep their order."""
    pointers = _pointers(row_of, num_rows)
    filled = pointers.copy()
    entries = np.empty(len(row_of), np.int32)
    for i in range(len(row_of)):
        entries[filled[row_of[i]]] = i
        filled[row_of[i]] += 1
    return pointers, entries


@compiled
def _read_again(
    tables: CostTables, placed: IntArray, copies: Copies
) -> tuple[_Rows, IntArray, IntArray, LongArray, IntArray, LongArray, IntArray, LongArray, IntArray]:
    """Reads with relays and clones, and the original and the producer of every tensor."""
    num_ops = len(tables.op_read_ptr) - 1
    num_tensors, num_reads = len(tables.tensor_kind), len(tables.reader_op)
    num_relays, num_clones = len(copies.relay_tensor), len(copies.clone_op)
    rank = np.zeros(num_tensors, np.int64)
    num_outputs = np.zeros(num_ops, np.int64)
    for k in range(num_tensors):
        if tables.tensor_producer[k] != NO_PRODUCER:
            rank[k] = num_outputs[tables.tensor_producer[k]]
            num_outputs[tables.tensor_producer[k]] += 1
    clone_tensor = np.empty(num_clones + 1, np.int64)
    clone_tensor[0] = num_tensors + num_relays
    total_reads = num_reads + num_relays
    for c in range(num_clones):
        op = copies.clone_op[c]
        clone_tensor[c + 1] = clone_tensor[c] + num_outputs[op]
        total_reads += tables.op_read_ptr[op + 1] - tables.op_read_ptr[op]
    rows = _Rows(
        _pointers(copies.relay_tensor, num_tensors), _pointers(copies.clone_op, num_ops), rank, clone_tensor
    )
    original, producer = _tensors(tables, copies, rows)
    read = np.empty(total_reads, np.int32)  # original read in the tables; none for relays
    reader = np.empty(total_reads, np.int32)
    source = np.empty(total_reads, np.int32)
    touched = np.empty(total_reads, np.int64)
    for r in range(num_reads):
        read[r], reader[r], touched[r] = r, tables.reader_op[r], tables.read_bytes[r]
    at = num_reads
    for p in range(num_relays):
        tensor = copies.relay_tensor[p]
        read[at], reader[at], touched[at] = _NONE, num_ops + p, tables.tensor_bytes[tensor]
        source[at] = tensor if p == rows.relay_ptr[tensor] else num_tensors + p - 1
        at += 1
    for c in range(num_clones):
        op = copies.clone_op[c]
        for i in range(tables.op_read_ptr[op], tables.op_read_ptr[op + 1]):
            read[at], reader[at] = tables.op_read[i], num_ops + num_relays + c
            touched[at] = tables.read_bytes[read[at]]
            at += 1
    _sources(tables, copies, rows, read, placed[reader], source)
    reader_ptr, by_tensor = _rows_of(source, len(original))
    reader = reader[by_tensor]
    op_read_ptr, op_read = _rows_of(reader, num_ops + num_relays + num_clones)
    return (
        rows, original, producer,
        reader_ptr, reader, touched[by_tensor], source[by_tensor], op_read_ptr, op_read,
    )  # fmt: skip


@compiled_inner
def _tensors(tables: CostTables, copies: Copies, rows: _Rows) -> tuple[IntArray, IntArray]:
    """The original and the producer of every tensor."""
    num_tensors, num_ops = len(tables.tensor_kind), len(rows.clone_ptr) - 1
    num_relays = len(copies.relay_tensor)
    original = np.empty(rows.clone_tensor[-1], np.int32)
    producer = np.empty(rows.clone_tensor[-1], np.int32)
    for k in range(num_tensors):
        original[k], producer[k] = k, tables.tensor_producer[k]
        if producer[k] != NO_PRODUCER:
            for c in range(rows.clone_ptr[producer[k]], rows.clone_ptr[producer[k] + 1]):
                tensor = rows.clone_tensor[c] + rows.output_rank[k]
                original[tensor], producer[tensor] = k, num_ops + num_relays + c
    for p in range(num_relays):
        original[num_tensors + p], producer[num_tensors + p] = copies.relay_tensor[p], num_ops + p
    return original, producer


@uncounted_inner
def _sources(
    tables: CostTables, copies: Copies, rows: _Rows, reads: IntArray, chips: IntArray, source: IntArray
) -> None:
    """Fill in the tensor that each of ``reads`` takes: of a clone, a relay, or the original."""
    num_tensors = len(tables.tensor_kind)
    for i in range(len(reads)):
        if reads[i] == _NONE:
            continue
        tensor, chip = tables.reader_tensor[reads[i]], chips[i]
        source[i] = tensor
        op = tables.tensor_producer[tensor]
        if op == NO_PRODUCER:
            continue
        for p in range(rows.relay_ptr[tensor], rows.relay_ptr[tensor + 1]):
            if copies.relay_chip[p] < chip:
                source[i] = num_tensors + p
        for c in range(rows.clone_ptr[op], rows.clone_ptr[op + 1]):
            if copies.clone_chip[c] == chip:
                source[i] = rows.clone_tensor[c] + rows.output_rank[tensor]


@compiled
def _order(
    tables: CostTables, placement: IntArray, order: IntArray, group: IntArray, copies: Copies, rows: _Rows
) -> IntArray:
    """The order with relays after the kernels that produce their tensors, and clones before their readers."""
    num_ops, num_relays, num_clones = len(order), len(copies.relay_tensor), len(copies.clone_op)
    kernel_of = np.empty(num_ops, np.int64)
    num_kernels = 0
    for i in range(num_ops):
        if i == 0 or group[order[i]] != group[order[i - 1]]:
            num_kernels += 1
        kernel_of[order[i]] = num_kernels - 1
    before = _first_readers(tables, placement, order, kernel_of, copies, rows)
    # Clones in the order of their originals, so that clones before the same kernel are in a valid order.
    along = np.empty(num_clones, np.int64)
    kernel_before = np.empty(num_clones, np.int64)
    at = 0
    for op in order:
        for c in range(rows.clone_ptr[op], rows.clone_ptr[op + 1]):
            along[at], kernel_before[at] = c, before[c]
            at += 1
    clone_ptr, clones = _rows_of(kernel_before, num_kernels + 1)
    relay_ptr, relays = _rows_of(tables.tensor_producer[copies.relay_tensor], num_ops)
    result = np.empty(num_ops + num_relays + num_clones, np.int32)
    at = 0
    begin = 0
    for kernel in range(num_kernels + 1):
        for i in range(clone_ptr[kernel], clone_ptr[kernel + 1]):
            result[at] = num_ops + num_relays + along[clones[i]]
            at += 1
        end = begin
        while end < num_ops and kernel_of[order[end]] == kernel:
            result[at] = order[end]
            at += 1
            end += 1
        for i in range(begin, end):
            for p in range(relay_ptr[order[i]], relay_ptr[order[i] + 1]):
                result[at] = num_ops + relays[p]
                at += 1
        begin = end
    return result


@compiled_inner
def _first_readers(
    tables: CostTables,
    placement: IntArray,
    order: IntArray,
    kernel_of: LongArray,
    copies: Copies,
    rows: _Rows,
) -> LongArray:
    """[C] the kernel that each clone comes before; if nothing reads it, the one after its original's."""
    unread = int64(len(order) + 1)
    before = np.full(len(copies.clone_op), unread, np.int64)
    for i in range(len(order) - 1, -1, -1):
        op = order[i]
        _push(tables, copies, rows, op, placement[op], kernel_of[op], before)
        for c in range(rows.clone_ptr[op], rows.clone_ptr[op + 1]):
            if before[c] == unread:
                before[c] = kernel_of[op] + 1
            _push(tables, copies, rows, op, copies.clone_chip[c], before[c], before)
    return before


@uncounted_inner
def _push(
    tables: CostTables, copies: Copies, rows: _Rows, op: int, chip: int, kernel: int, before: LongArray
) -> None:
    """Put the clones that an op on ``chip``, or its clone there, reads from before ``kernel``."""
    for i in range(tables.op_read_ptr[op], tables.op_read_ptr[op + 1]):
        producer = tables.tensor_producer[tables.reader_tensor[tables.op_read[i]]]
        if producer != NO_PRODUCER:
            for c in range(rows.clone_ptr[producer], rows.clone_ptr[producer + 1]):
                if copies.clone_chip[c] == chip:
                    before[c] = min(before[c], kernel)
