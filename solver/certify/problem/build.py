"""Builds :class:`~go_opt.solver.certify.problem.problem.RefinementProblem` from kernels or other units."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray, IntArray, LongArray, csr, row_pointers
from go_opt.env.cost import CostTables
from go_opt.env.kernels.numbering import kernel_seconds, number_kernels
from go_opt.model.graph import Graph
from go_opt.solver.certify.problem.bounds import Bound, host_bounds
from go_opt.solver.certify.problem.held import held_memory, nothing_held
from go_opt.solver.certify.problem.problem import MOST_TICKS, TOTAL_TICKS, RefinementProblem, UnitGraph
from go_opt.solver.certify.problem.traffic import UnitTensors, own_host_traffic, unit_tensors
from go_opt.solver.problem.forwarding_mode import PASSING_CODE, ForwardingMode
from go_opt.solver.propagation.propagators.reachability import MAX_COUNTED_UNITS, count_spans


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
    units = Units(unit_of_op, unit_s, passing, is_in_order=True, sure_only=sure_only)
    return problem_of_units(graph, tables, units, replicates=replicates, tight=tight)


@dataclass(frozen=True, eq=False)
class Units:
    """The units to place, and assumptions about them. Axes: ``N`` ops, ``U`` units, ``R`` reads."""

    of_op: IntArray  # [N] numbered in a topological order
    seconds: FloatArray  # [U]
    passing: ForwardingMode
    apart: BoolArray | None = None  # [R] reads between kernels; by default, reads between units
    is_in_order: bool = False  # a chip runs its units in ascending order of their numbers
    sure_only: bool = False  # of the adjacent rule, what the longest-path form implies

    def are_apart(self, tables: CostTables) -> BoolArray:
        """Returns the reads [R] whose producer and reader are never in the same kernel."""
        if self.apart is not None:
            return self.apart
        apart: BoolArray = (
            self.of_op[tables.reader_op] != self.of_op[tables.tensor_producer[tables.reader_tensor]]
        )
        return apart


def problem_of_units(
    graph: Graph, tables: CostTables, units: Units, *, replicates: bool = False, tight: bool = False
) -> RefinementProblem:
    """Returns the problem of placing ``units``.

    Args:
      replicates: whether stages may take several chips; then memory counts.
      tight: without ``replicates``: whether memory counts.
    """
    tensors = unit_tensors(tables, units.of_op, len(units.seconds))
    problem = _without_memory(graph, tables, units, tensors, forwards=replicates)
    if not (replicates or tight):
        return problem
    held = held_memory(
        tables,
        units.of_op,
        len(units.seconds),
        tensors,
        apart=units.are_apart(tables),
        is_in_order=units.is_in_order,
        replicates=replicates,
        tick_s=problem.tick_s,
    )
    with_memory = problem.units._replace(held=held, replicates=replicates)
    return replace(problem, units=with_memory) if replicates else replace(problem, tight=with_memory)


def _without_memory(
    graph: Graph, tables: CostTables, units: Units, tensors: UnitTensors, *, forwards: bool
) -> RefinementProblem:
    """Returns the problem with one chip per stage, without memory.

    Args:
      forwards: whether stages may forward streamed weights, which affects the least host traffic.
    """
    num_units = len(units.seconds)
    pays = tables.overlap or bool(tables.pays_transfers.all())
    link_s_per_byte = float(tables.link_s_per_byte.min()) if pays and len(tables.link_s_per_byte) else 0.0
    own_s, shared = own_host_traffic(tables, units.of_op, num_units)
    if tables.overlap or not pays:
        own_s, shared = np.zeros(num_units), {}
    input_s = np.array([seconds for seconds, _ in shared.values()], dtype=np.float64)
    input_readers = [readers for _, readers in shared.values()]
    one_chip_s = float(units.seconds.sum() + own_s.sum() + input_s.sum())
    tick_s = one_chip_s / TOTAL_TICKS if one_chip_s > 0 else 1.0 / TOTAL_TICKS
    input_ticks = _ticks(input_s, tick_s)
    unit_ticks = _ticks(units.seconds + own_s, tick_s)
    for size, readers in zip(input_ticks, input_readers, strict=True):
        unit_ticks[readers] += size // len(readers)
    relay_s = _relay_s(tables, units, tensors)
    floor = _host_floor(tables, forwards=forwards)
    tensor_of_read = np.repeat(np.arange(len(tensors.bytes), dtype=np.int32), np.diff(tensors.reader_ptr))
    read_ptr, by_reader = csr(tensors.reader, num_units)
    graph_of_units = UnitGraph(
        unit_ticks=unit_ticks,
        **_neighbours(tensors, num_units, units.sure_only),
        produced_ptr=row_pointers(tensors.producer, num_units),
        read_ptr=read_ptr,
        read=tensor_of_read[by_reader],
        tensor_producer=tensors.producer,
        tensor_bytes=tensors.bytes,
        reader_ptr=tensors.reader_ptr,
        reader=tensors.reader,
        relay_ticks=_ticks(relay_s, tick_s),
        input_ptr=np.cumsum([0, *(len(readers) for readers in input_readers)]).astype(np.int64),
        input_reader=np.concatenate([*input_readers, np.zeros(0, np.int32)]).astype(np.int32),
        input_ticks=input_ticks,
        ticks_per_byte=link_s_per_byte / tick_s * (1.0 - 1e-15),
        num_chips=tables.num_chips,
        passing=PASSING_CODE[units.passing],
        overlap=tables.overlap,
        replicates=False,
        held=nothing_held(),
    )
    return RefinementProblem(
        units=graph_of_units,
        tight=None,
        unit_of_op=units.of_op,
        unit_s=units.seconds,
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


def _relay_s(tables: CostTables, units: Units, tensors: UnitTensors) -> FloatArray:
    """Returns the seconds [K] of a relay of each tensor; zero if relays are free."""
    if units.passing != "relayed":
        return np.zeros(len(tensors.bytes))
    overhead_s, sram_s_per_byte = float(tables.kernel_overhead_s.min()), float(tables.sram_s_per_byte.min())
    relay_s: FloatArray = tensors.copies * overhead_s + 2.0 * tensors.bytes * sram_s_per_byte
    return relay_s


def _host_floor(tables: CostTables, *, forwards: bool) -> Bound:
    """Returns the bound from the host's links; zero without overlap."""
    if not tables.overlap:
        return Bound(0.0, "nothing crosses the host's links")
    return max(host_bounds(tables, forwards=forwards), key=lambda bound: bound.seconds)


def _neighbours(tensors: UnitTensors, num_units: int, sure_only: bool) -> dict[str, Any]:
    """Returns the fields of :class:`UnitGraph` for successors and predecessors."""
    reads = np.stack([np.repeat(tensors.producer, np.diff(tensors.reader_ptr)), tensors.reader], axis=1)
    edges = np.unique(reads, axis=0)
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
    spans = count_spans(
        rows["successor_ptr"],
        rows["successor"].astype(np.int64),
        rows["predecessor_ptr"],
        rows["predecessor"].astype(np.int64),
        np.arange(num_units),
        between_counts=False,
    )
    near: BoolArray = spans.span == 1
    return near
