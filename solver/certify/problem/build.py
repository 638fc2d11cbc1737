"""Builds :class:`~go_opt.solver.certify.problem.problem.RefinementProblem` of kernels, ops or other units."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray, IntArray, LongArray
from go_opt.env.cost import CostTables
from go_opt.env.kernels.numbering import kernel_seconds, number_kernels
from go_opt.model.csr import row_pointers
from go_opt.model.graph import NO_PRODUCER, Graph
from go_opt.solver.certify.problem.bounds import Bound, host_bounds
from go_opt.solver.certify.problem.held import held_memory, nothing_held
from go_opt.solver.certify.problem.interchange import interchange_edges
from go_opt.solver.certify.problem.memory import UnitMemory, least_memory, no_memory
from go_opt.solver.certify.problem.problem import MOST_TICKS, TOTAL_TICKS, RefinementProblem, UnitGraph
from go_opt.solver.certify.problem.traffic import (
    UnitTensors,
    own_host_traffic,
    unit_tensors,
    without_traffic_of,
)
from go_opt.solver.problem.passing import PASSING_CODE, Passing


def refinement_problem(
    graph: Graph,
    tables: CostTables,
    fusion_group: IntArray | None = None,
    order: IntArray | None = None,
    *,
    passing: Passing,
    may_clone: BoolArray | None = None,
    replicates: bool = False,
    tight: bool = False,
) -> RefinementProblem:
    """Kernels as units.

    Where kinds of chips differ every unit costs what it costs on the best kind for it, so
    the problem is a relaxation: bounds hold, placements are to be costed anew.

    Args:
      fusion_group: [N] kernel of each op; by default each op is one.
      order: [N] the order in which groups stand together; by default that of the ops.
      may_clone: [N] ops that plans may compute again elsewhere; by default none. Their
        tensors, copies and outputs then cost nothing in the problem, which makes it a relaxation.
      replicates: whether stages may take several chips.
      tight: whether memory counts, where stages may not.
    """
    default = np.arange(graph.num_ops, dtype=np.int32)
    order = default if order is None else order
    unit_of_op = number_kernels(order, default if fusion_group is None else fusion_group)
    # An op whose one tensor only readers of its clones want may as well be where one of them is. Of
    # several tensors some may be wanted, and others not written.
    written = tables
    if may_clone is not None:
        made = tables.tensor_producer[tables.tensor_producer != NO_PRODUCER]
        written = without_traffic_of(tables, may_clone & (np.bincount(made, minlength=graph.num_ops) > 1))
    kernel_s = kernel_seconds(written, unit_of_op)
    may_run = np.ones_like(kernel_s, dtype=np.bool_)
    kind, op = np.nonzero(~tables.can_run)
    may_run[kind, unit_of_op[op]] = False
    unit_s = np.where(may_run, kernel_s, np.inf).min(axis=0)
    units = Units(unit_of_op, unit_s, passing, may_clone, is_in_order=True)
    return problem_of_units(graph, tables, units, replicates=replicates, tight=tight)


@dataclass(frozen=True, eq=False)
class Units:
    """What is placed, and what may be assumed of it. Axes: ``N`` ops, ``U`` units, ``R`` reads."""

    of_op: IntArray  # [N] numbered in a topological order
    seconds: FloatArray  # [U]
    passing: Passing
    may_clone: BoolArray | None = None  # [N] ops that plans may compute again elsewhere
    apart: BoolArray | None = None  # [R] reads of what another kernel makes; by default another unit
    is_in_order: bool = False  # the units of a chip run in the order of their numbers

    def passing_on(self, tables: CostTables) -> CostTables:
        """``tables`` in which what clones may make takes no bytes."""
        return tables if self.may_clone is None else without_traffic_of(tables, self.may_clone)

    def are_apart(self, tables: CostTables) -> BoolArray:
        """[R] reads of what another kernel makes in any case."""
        if self.apart is not None:
            return self.apart
        apart: BoolArray = (
            self.of_op[tables.reader_op] != self.of_op[tables.tensor_producer[tables.reader_tensor]]
        )
        return apart


def problem_of_units(
    graph: Graph, tables: CostTables, units: Units, *, replicates: bool = False, tight: bool = False
) -> RefinementProblem:
    """The placement of ``units``.

    Args:
      replicates: whether stages may take several chips, which hold what no plan can avoid: a relaxation.
      tight: without ``replicates``: whether memory counts.
    """
    tensors = unit_tensors(units.passing_on(tables), units.of_op, len(units.seconds))
    problem = _without_memory(graph, units.passing_on(tables), units, tensors, forwards=replicates)
    if replicates:
        memory = least_memory(
            tables, units.of_op, len(units.seconds), units.are_apart(tables), units.may_clone, problem.tick_s
        )
        return _with_stages(problem, memory)
    return replace(
        _with_interchange(problem, no_memory(), []),
        tight=_with_held_memory(problem, tables, units, tensors) if tight else None,
    )


def _without_memory(
    graph: Graph, tables: CostTables, units: Units, tensors: UnitTensors, *, forwards: bool
) -> RefinementProblem:
    """One chip a stage, memory left out, units in no order but that of their reads.

    Args:
      forwards: whether stages may forward streamed weights, for what the host sends at least.
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
    graph_of_units = UnitGraph(
        unit_ticks=unit_ticks,
        **_neighbours(_reads(tensors.producer, tensors.reader_ptr, tensors.reader), num_units),
        produced_ptr=row_pointers(tensors.producer, num_units),
        read_ptr=row_pointers(tensors.reader, num_units),
        read=tensor_of_read[np.argsort(tensors.reader, kind="stable")],
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
        memory=no_memory(),
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
    """[K] seconds of a copy of each tensor; zero where it passes at no cost, or clones may make it."""
    if units.passing != "relayed":
        return np.zeros(len(tensors.bytes))
    overhead_s, sram_s_per_byte = float(tables.kernel_overhead_s.min()), float(tables.sram_s_per_byte.min())
    relay_s: FloatArray = tensors.copies * overhead_s + 2.0 * tensors.bytes * sram_s_per_byte
    if units.may_clone is not None:
        relay_s[tensors.bytes == 0] = 0.0
    return relay_s


def _host_floor(tables: CostTables, *, forwards: bool) -> Bound:
    """What crosses the host's links in any case, where that overlaps with the rest."""
    if not tables.overlap:
        return Bound(0.0, "nothing crosses the host's links")
    return max(host_bounds(tables, forwards=forwards), key=lambda bound: bound.seconds)


def _with_stages(problem: RefinementProblem, memory: UnitMemory) -> RefinementProblem:
    """``problem`` where stages take as many chips as they like, and hold ``memory``."""
    staged = replace(problem, units=problem.units._replace(replicates=True, memory=memory))
    return _with_interchange(staged, memory, [memory.held_bytes, memory.alive_bytes])


def _with_interchange(
    problem: RefinementProblem, memory: UnitMemory, held: list[LongArray]
) -> RefinementProblem:
    """``problem`` with edges between units that may trade places, alike in what is ``held`` [U] too."""
    units = problem.units
    reads = _reads(units.tensor_producer, units.reader_ptr, units.reader)
    edges = np.concatenate([reads, _interchange_edges(units, [units.unit_ticks, *held], memory)])
    return replace(problem, units=units._replace(**_neighbours(edges, units.num_units)))


def _with_held_memory(
    problem: RefinementProblem, tables: CostTables, units: Units, tensors: UnitTensors
) -> UnitGraph:
    """Units of which memory counts; they do not trade places, as that changes what chips hold."""
    held = held_memory(
        tables,
        units.of_op,
        len(units.seconds),
        tensors,
        apart=units.are_apart(tables),
        may_clone=units.may_clone,
        is_in_order=units.is_in_order,
        tick_s=problem.tick_s,
    )
    return problem.units._replace(held=held)


def _reads(producer: IntArray, reader_ptr: LongArray, reader: IntArray) -> IntArray:
    """[E, 2] pairs of a unit and one that reads it."""
    return np.unique(np.stack([np.repeat(producer, np.diff(reader_ptr)), reader], axis=1), axis=0)


def _neighbours(edges: IntArray, num_units: int) -> dict[str, Any]:
    """The fields of :class:`UnitGraph` for successors and predecessors along ``edges`` [E, 2]."""
    edges = np.unique(edges, axis=0)
    backward = edges[np.argsort(edges[:, 1], kind="stable")]
    return {
        "successor_ptr": row_pointers(edges[:, 0], num_units),
        "successor": np.ascontiguousarray(edges[:, 1]),
        "predecessor_ptr": row_pointers(backward[:, 1], num_units),
        "predecessor": np.ascontiguousarray(backward[:, 0]),
    }


def _interchange_edges(units: UnitGraph, unit_cost: list[LongArray], memory: UnitMemory) -> IntArray:
    """Edges [E, 2] that no optimum needs to break, forward along the units."""
    num_inputs = len(units.input_ticks)
    reads = np.zeros((units.num_units, num_inputs + len(memory.shared_bytes)), np.int64)
    reads[units.input_reader, np.repeat(np.arange(num_inputs), np.diff(units.input_ptr))] = 1
    unit = np.repeat(np.arange(len(memory.shared_ptr) - 1), np.diff(memory.shared_ptr))
    reads[unit, num_inputs + memory.shared] = 1
    return interchange_edges(
        np.concatenate([np.stack(unit_cost, axis=1), reads], axis=1),
        np.stack([units.tensor_bytes, units.relay_ticks], axis=1),
        units.tensor_producer,
        units.reader_ptr,
        units.reader,
    )
