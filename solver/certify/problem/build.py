"""Builds :class:`~go_opt.solver.certify.problem.problem.RefinementProblem` from kernels or other units."""

from __future__ import annotations

from typing import Any

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray, IntArray, LongArray, row_pointers
from go_opt.env.cost import CostTables
from go_opt.env.kernels.numbering import kernel_seconds, number_kernels
from go_opt.model.graph import Graph
from go_opt.solver.certify.problem.bounds import Bound, host_bounds
from go_opt.solver.certify.problem.held import with_memory
from go_opt.solver.certify.problem.problem import (
    MOST_TICKS,
    TOTAL_TICKS,
    RefinementProblem,
    UnitGraph,
    nothing_held,
)
from go_opt.solver.certify.problem.traffic import own_host_traffic, unit_tensors
from go_opt.solver.problem.forwarding_mode import PASSING_CODE, ForwardingMode
from go_opt.solver.propagation.propagators.tables import MAX_COUNTED_UNITS, count_spans


def refinement_problem(
    graph: Graph,
    tables: CostTables,
    fusion_group: IntArray | None = None,
    order: IntArray | None = None,
    *,
    passing: ForwardingMode,
    replicates: bool = False,
    tight: bool = False,
    sure_only: bool = False,
) -> RefinementProblem:
    """Returns the problem whose units are kernels.

    Each unit has its cost on the fastest chip kind. With several kinds, the problem is a
    relaxation: bounds hold, but placements must be costed again.

    Args:
      fusion_group: [N] kernel of each op; by default each op is one.
      order: [N] an order in which the ops of a kernel are adjacent; by default the op order.
      replicates: whether stages may take several chips.
      tight: whether memory counts in a problem without replicated stages; buffers of relays do not.
      sure_only: of the adjacent rule, keep what the longest-path form of the triangle rule implies.
    """
    default = np.arange(graph.num_ops, dtype=np.int32)
    order = default if order is None else order
    unit_of_op = number_kernels(order, default if fusion_group is None else fusion_group)
    kernel_s = kernel_seconds(tables, unit_of_op)
    may_run = np.ones_like(kernel_s, dtype=np.bool_)
    kind, op = np.nonzero(~tables.can_run)
    may_run[kind, unit_of_op[op]] = False
    unit_s = np.where(may_run, kernel_s, np.inf).min(axis=0)
    return problem_of_units(
        graph,
        tables,
        unit_of_op,
        unit_s,
        passing,
        is_in_order=True,
        sure_only=sure_only,
        replicates=replicates,
        tight=tight,
    )


def problem_of_units(
    graph: Graph,
    tables: CostTables,
    unit_of_op: IntArray,
    unit_s: FloatArray,
    passing: ForwardingMode,
    *,
    apart: BoolArray | None = None,
    is_in_order: bool = False,
    sure_only: bool = False,
    replicates: bool = False,
    tight: bool = False,
) -> RefinementProblem:
    """Returns the problem of placing units. Axes: ``N`` ops, ``U`` units, ``R`` reads.

    Args:
      unit_of_op: [N] numbered in a topological order.
      unit_s: [U] seconds.
      apart: [R] reads whose producer and reader are never in one kernel; by default, reads between units.
      is_in_order: a chip runs its units in ascending order of their numbers.
      sure_only: of the adjacent rule, keep what the longest-path form implies.
      replicates: whether stages may take several chips; then memory counts, and they may forward streamed
        weights, which affects the least host traffic.
      tight: without ``replicates``: whether memory counts.
    """
    num_units = len(unit_s)
    tensors, copies, of_tensor = unit_tensors(tables, unit_of_op, num_units)
    pays = tables.overlap or bool(tables.pays_transfers.all())
    link_s_per_byte = float(tables.link_s_per_byte.min()) if pays and len(tables.link_s_per_byte) else 0.0
    own_s, input_s, input_readers = own_host_traffic(tables, unit_of_op, num_units)
    if tables.overlap or not pays:
        own_s, input_s, input_readers = np.zeros(num_units), np.zeros(0), []
    one_chip_s = float(unit_s.sum() + own_s.sum() + input_s.sum())
    tick_s = one_chip_s / TOTAL_TICKS if one_chip_s > 0 else 1.0 / TOTAL_TICKS
    input_ticks = _ticks(input_s, tick_s)
    unit_ticks = _ticks(unit_s + own_s, tick_s)
    for size, readers in zip(input_ticks, input_readers, strict=True):
        unit_ticks[readers] += size // len(readers)
    relay_s = np.zeros(len(copies))  # zero if relays are free
    if passing == "relayed":
        overhead_s, s_per_byte = float(tables.kernel_overhead_s.min()), float(tables.sram_s_per_byte.min())
        relay_s = copies * overhead_s + 2.0 * tensors["tensor_bytes"] * s_per_byte
    floor = _host_floor(tables, forwards=replicates)
    units = UnitGraph(
        unit_ticks=unit_ticks,
        **_neighbours(tensors, num_units, sure_only),
        **tensors,
        relay_ticks=_ticks(relay_s, tick_s),
        input_reader_ptr=np.cumsum([0, *(len(readers) for readers in input_readers)]).astype(np.int64),
        input_reader=np.concatenate([*input_readers, np.zeros(0, np.int32)]).astype(np.int32),
        input_ticks=input_ticks,
        ticks_per_byte=link_s_per_byte / tick_s * (1.0 - 1e-15),
        num_chips=tables.num_chips,
        passing=PASSING_CODE[passing],
        overlap=tables.overlap,
        replicates=False,
        **nothing_held(),
    )
    tight_units = None
    if replicates or tight:
        if apart is None:
            apart = unit_of_op[tables.reader_op] != unit_of_op[tables.tensor_producer[tables.reader_tensor]]
        tight_units = with_memory(
            tables,
            unit_of_op,
            units,
            of_tensor,
            apart=apart,
            is_in_order=is_in_order,
            replicates=replicates,
            tick_s=tick_s,
        )
    return RefinementProblem(
        units=tight_units if tight_units and replicates else units,
        tight=None if replicates else tight_units,
        unit_of_op=unit_of_op,
        unit_s=unit_s,
        own_s=own_s,
        relay_s=relay_s,
        input_s=input_s,
        link_s_per_byte=link_s_per_byte,
        floor_s=floor.seconds,
        floor_reason=floor.reason,
        tick_s=tick_s,
        op_names=graph.op_names,
    )


def _ticks(seconds: FloatArray, tick_s: float) -> LongArray:
    return np.minimum(np.floor(seconds / tick_s * (1.0 - 1e-15)), MOST_TICKS).astype(np.int64)


def _host_floor(tables: CostTables, *, forwards: bool) -> Bound:
    """Returns the bound from the host's links; zero without overlap."""
    if not tables.overlap:
        return Bound(0.0, "nothing crosses the host's links")
    return max(host_bounds(tables, forwards=forwards), key=lambda bound: bound.seconds)


def _neighbours(tensors: dict[str, Any], num_units: int, sure_only: bool) -> dict[str, Any]:
    """Returns the fields of :class:`UnitGraph` for successors and predecessors."""
    producer = np.repeat(tensors["tensor_producer"], np.diff(tensors["reader_ptr"]))
    edges = np.unique(np.stack([producer, tensors["reader"]], axis=1), axis=0)
    rows = _rows("successor", "predecessor", edges, num_units)
    near = edges[_are_near(rows, num_units)] if sure_only else edges
    return rows | _rows("next", "last", near, num_units)


def _rows(forward: str, backward: str, edges: IntArray, num_units: int) -> dict[str, Any]:
    """Returns the fields of these names: the ``edges`` [E, 2], which are sorted, from both of their ends."""
    rows = {}
    for name, ends in ((forward, edges), (backward, np.unique(edges[:, ::-1], axis=0))):
        rows[f"{name}_ptr"] = row_pointers(ends[:, 0], num_units)
        rows[name] = np.ascontiguousarray(ends[:, 1])
    return rows


def _are_near(rows: dict[str, Any], num_units: int) -> BoolArray:
    """Returns the edges [E] whose ends the longest-path form keeps on one chip or on neighbours.

    Units on a path between the ends run on one of their two chips: elsewhere they would make a detour. If
    all other units are ancestors of one end or descendants of the other, nothing is left to run between.
    """
    if num_units > MAX_COUNTED_UNITS:
        return np.zeros(len(rows["successor"]), np.bool_)
    span, *_ = count_spans(
        rows["successor_ptr"],
        rows["successor"].astype(np.int64),
        rows["predecessor_ptr"],
        rows["predecessor"].astype(np.int64),
        np.arange(num_units),
        between_counts=False,
    )
    near: BoolArray = span == 1
    return near
