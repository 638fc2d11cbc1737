"""Relays (design section 8): ops that pass a tensor on, added to a graph or to cost tables.

A *relay* of a tensor on a chip is a ``data_movement`` kernel of its own that reads and writes the tensor
once, behind the kernel that produces it; its output shares the double buffer of its input. An op or relay on
chip c reads a tensor from its last relay before c, or else from the producer. Graph outputs leave only from
originals. ``tests/relay_twin.py`` says so read by read.

Ops and tensors keep their numbers; after them come one op and one tensor for each relay. Only in a graph, the
ops of relays follow those that produce their tensors. O(N + K + R + relays), in every evaluation of a search.
Axes: ``N`` ops, ``K`` tensors, ``R`` reads, ``P`` relays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from go_opt.common.arrays import IntArray, LongArray, frozen, row_pointers
from go_opt.common.compiling import compiled
from go_opt.env.copies.stages import size_by_chip, with_sharers
from go_opt.env.cost.tables import COPY, COPY_TYPE, CostTables, cost_tables
from go_opt.env.model.analytical import BatchMetrics, evaluate_batch
from go_opt.env.model.memory import csr_of
from go_opt.env.target import Target
from go_opt.errors import PlanError
from go_opt.model.graph import DATA_MOVEMENT, NO_PRODUCER, Graph
from go_opt.model.plan import Plan


class Relays(NamedTuple):
    """The relays of a plan, each pair once. Axis: ``P`` relays."""

    tensor: IntArray  # [P] ascending
    chip: IntArray  # [P] ascending for each tensor


def relay_name(tensor: str, chip: int) -> str:
    """The name of the relay of ``tensor`` on ``chip``, and of its output."""
    return f"{tensor}/relay {chip}"


def relays_of(graph: Graph, plan: Plan) -> Relays:
    """The relays of ``plan`` as arrays.

    Raises:
      PlanError: a relay's tensor is not in the graph, or no op produces it.
    """
    pairs = {(_relayed_tensor(graph, relay.tensor), chip) for relay in plan.relays for chip in relay.chips}
    rows = np.array(sorted(pairs), dtype=np.int32).reshape(-1, 2)
    return Relays(rows[:, 0].copy(), rows[:, 1].copy())


def _relayed_tensor(graph: Graph, name: str) -> int:
    tensor = graph.tensor_index.get(name)
    if tensor is None:
        raise PlanError(f"plan: relays: the graph has no tensor {name[:80]!r}.", field="relays")
    if graph.tensor_producer[tensor] == NO_PRODUCER:
        raise PlanError(
            f"plan: relays: no op produces tensor {name[:80]!r}; the host sends it to every reader.",
            field="relays",
        )
    return tensor


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
    placed, along, group = _placed(placement, order, fusion_group, tables.tensor_producer, relays)
    original = np.concatenate([np.arange(num_tensors), relays.tensor])
    kind, is_output = tables.tensor_kind[original], tables.tensor_is_output[original]
    kind[num_tensors:], is_output[num_tensors:] = COPY, False
    made = np.arange(num_ops, num_ops + num_relays, dtype=np.int32)
    reads = _read_again(
        tables.reader_tensor.copy(), tables.reader_op, tables.read_bytes, tables.tensor_bytes, placed, relays
    )
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
    return expanded, placed, along, group


def expand_plan(graph: Graph, target: Target, plan: Plan) -> tuple[Graph, Plan]:
    """The graph with an op for every relay, and its plan; without relays both are returned unchanged.

    Raises:
      PlanError: a relay's tensor is not in the graph, or no op produces it.
    """
    return _expanded(graph, target, plan) if plan.relays else (graph, plan)


@lru_cache(maxsize=8)
def _expanded(graph: Graph, target: Target, plan: Plan) -> tuple[Graph, Plan]:
    relays = relays_of(graph, plan)
    relayed, producer = relays.tensor, graph.tensor_producer
    placed, along, group = _placed(plan.placement, plan.order, plan.fusion_group, producer, relays)
    stored = np.argsort(np.concatenate([np.arange(graph.num_ops), producer[relayed]]), kind="stable")
    index = np.argsort(stored)
    reads = (graph.reader_tensor, graph.reader_op, graph.reader_elements, graph.tensor_elements)
    _, reader, touched, source, _, _ = _read_again(*(one.copy() for one in reads), placed, relays)
    by_tensor = np.lexsort((index[reader], source))
    pairs = zip(relayed.tolist(), relays.chip.tolist(), strict=True)
    names = [relay_name(graph.tensor_names[k], chip) for k, chip in pairs]

    def more(values: NDArray, of_relays: ArrayLike) -> NDArray:
        return frozen(np.concatenate([values, np.broadcast_to(of_relays, len(relayed))]), values.dtype)

    def per_op(values: NDArray, of_relays: ArrayLike) -> NDArray:
        return frozen(more(values, of_relays)[stored])

    def per_op_as_tuple(values: tuple[Any, ...], of_relays: Sequence[Any]) -> tuple[Any, ...]:
        of_all = [*values, *of_relays]
        return tuple(of_all[op] for op in stored.tolist())

    expanded = replace(
        graph,
        op_names=per_op_as_tuple(graph.op_names, names),
        op_types=per_op_as_tuple(graph.op_types, [COPY_TYPE] * len(names)),
        op_class=per_op(graph.op_class, DATA_MOVEMENT),
        op_flops=per_op(graph.op_flops, 0.0),
        op_dtype=per_op(graph.op_dtype, graph.tensor_dtype[relayed]),
        tensor_names=(*graph.tensor_names, *names),
        tensor_elements=more(graph.tensor_elements, graph.tensor_elements[relayed]),
        tensor_dtype=more(graph.tensor_dtype, graph.tensor_dtype[relayed]),
        tensor_kind=more(graph.tensor_kind, graph.tensor_kind[relayed]),
        tensor_producer=more(
            np.where(producer == NO_PRODUCER, producer, index[producer]).astype(np.int32),
            index[graph.num_ops :],
        ),
        tensor_is_output=more(graph.tensor_is_output, False),
        reader_ptr=frozen(row_pointers(source, graph.num_tensors + len(names))),
        reader_op=frozen(index[reader[by_tensor]], np.int32),
        reader_elements=frozen(touched[by_tensor]),
        measured_s={kind: per_op(seconds, np.nan) for kind, seconds in graph.measured_s.items()},
        excluded={kind: per_op(excluded, False) for kind, excluded in graph.excluded.items()},
        op_rules=per_op_as_tuple(graph.op_rules, [None] * len(names)) if graph.op_rules else (),
    )
    size = size_by_chip(plan.placement, plan.replication, target.num_chips)
    return expanded, Plan.create(
        expanded,
        target.source,
        target.fingerprint,
        placement=placed[stored],
        order=index[along],
        fusion_group=group[stored],
        replication=size[placed[stored]],
        provenance="relays as ops",
        forwards=plan.forwards,
    )


_READ_FIELDS = ("reader_ptr", "reader_op", "read_bytes", "reader_tensor", "op_read_ptr", "op_read")


def _with_columns(table: NDArray, num_relays: int, of_relay: float | bool) -> NDArray:
    """[Q, N + P] of a table [Q, N]."""
    return np.concatenate([table, np.full((len(table), num_relays), of_relay, table.dtype)], axis=1)


def _placed(
    placement: IntArray, order: IntArray, fusion_group: IntArray, producer: IntArray, relays: Relays
) -> tuple[IntArray, IntArray, IntArray]:
    """Placement, order and kernels of ops and relays; ``producer`` [K] is that of tensors."""
    first_free = int(fusion_group.max()) + 1
    alone = np.arange(first_free, first_free + len(relays.chip), dtype=np.int32)
    group = np.concatenate([fusion_group, alone])
    # A plan's order is read-only, others are not: a copy, so that kernels compile for only one type.
    along = _order(order.copy(), group, producer[relays.tensor])
    return np.concatenate([placement, relays.chip]), along, group


@compiled
def _read_again(
    tensor: IntArray, op: IntArray, size: LongArray, whole: LongArray, placed: IntArray, relays: Relays
) -> tuple[LongArray, IntArray, LongArray, IntArray, LongArray, IntArray]:
    """Reads with relays: each takes the last relay before its chip, or the original.

    Args:
      tensor, op, size: [R] of the reads; sizes are bytes or elements.
      whole: [K] sizes of tensors.
      placed: [N + P] chips of ops and relays.

    Returns:
      by tensor: pointers, ops, sizes, tensors; by op: pointers, reads.
    """
    num_tensors, num_reads, num_relays = len(whole), len(op), len(relays.tensor)
    num_ops = len(placed) - num_relays
    relay_ptr, _ = csr_of(relays.tensor, num_tensors)
    reader = np.empty(num_reads + num_relays, np.int32)
    source = np.empty(num_reads + num_relays, np.int32)
    touched = np.empty(num_reads + num_relays, np.int64)
    for r in range(num_reads):
        reader[r], source[r], touched[r] = op[r], tensor[r], size[r]
        for p in range(relay_ptr[tensor[r]], relay_ptr[tensor[r] + 1]):
            if relays.chip[p] < placed[op[r]]:
                source[r] = num_tensors + p
    for p in range(num_relays):
        at, relayed = num_reads + p, relays.tensor[p]
        reader[at], touched[at] = num_ops + p, whole[relayed]
        source[at] = relayed if p == relay_ptr[relayed] else num_tensors + p - 1
    reader_ptr, by_tensor = csr_of(source, num_tensors + num_relays)
    reader = reader[by_tensor]
    op_read_ptr, op_read = csr_of(reader, num_ops + num_relays)
    return reader_ptr, reader, touched[by_tensor], source[by_tensor], op_read_ptr, op_read


@compiled
def _order(order: IntArray, group: IntArray, producer: IntArray) -> IntArray:
    """The order with relays after the kernels of the ops ``producer`` [P] that make their tensors."""
    num_ops = len(order)
    relay_ptr, relay = csr_of(producer, num_ops)
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
