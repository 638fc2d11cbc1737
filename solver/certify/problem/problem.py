"""The problem that certificates solve: units with additive seconds on alike chips along a ring.

A placement with ``f(u) <= f(v)`` for every edge is a chain of down-sets
``{} = I_0 <= I_1 <= … <= I_D = all`` (a down-set holds the ancestors of what it holds): chip d
runs ``I_{d+1} - I_d``, and link d - 1, which enters chip d, carries ``cut(I_d)``, the bytes of
tensors produced in ``I_d`` and read outside. What a chip takes:

* overlapped: ``max(work, cut(I_d) / rate, cut(I_{d+1}) / rate)``, and the host's links;
* summed: ``work + (cut(I_d) + cut(I_{d+1})) / rate + its inputs and outputs``,

where relayed tensors add their copies to the work of every chip they pass. Memory is left
out, so bounds stay sound and plans must be checked; or it counts in a second graph, ``tight``
(:mod:`go_opt.solver.certify.problem.held`), for problems that memory-free placements do not settle.

With replication open the segments are stages, and r chips divide the work of theirs by r; the
links inside never carry more than its borders. Then memory counts
(:mod:`go_opt.solver.certify.problem.memory`): without it one stage of all chips would be best.

Axes: ``U`` units in a topological order, ``K`` tensors, ``D`` chips. Bounds count in ticks,
seconds rounded down to a tiny unit, so that sums are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from go_opt.env.cost import CostTables
from go_opt.env.kernels.numbering import kernel_seconds, number_kernels
from go_opt.model.csr import row_pointers
from go_opt.model.graph import INPUT, NO_PRODUCER, Graph
from go_opt.solver.certify.problem.bounds import Bound
from go_opt.solver.certify.problem.held import HeldMemory, held_memory, nothing_held
from go_opt.solver.certify.problem.interchange import interchange_edges
from go_opt.solver.certify.problem.memory import UnitMemory, least_memory, no_memory, planned_memory
from go_opt.solver.certify.problem.traffic import (
    UnitTensors,
    own_host_traffic,
    unit_tensors,
    without_traffic_of,
)
from go_opt.solver.problem.passing import PASSING_CODE, RELAYED, Passing
from go_opt.solver.problem.streamed_bytes import least_streamed_bytes

# One chip that runs everything takes this many ticks: rounding costs less than 1e-9 at 1e5 units.
TOTAL_TICKS: Final = 2**50
MOST_TICKS: Final = 2**55  # stands for anything that is too slow in any case


class UnitGraph(NamedTuple):
    """Units, what they pass on, and what it costs, as flat arrays for the kernels."""

    unit_ticks: NDArray[np.int64]  # [U] work; summed: and outputs, and shares of inputs
    successor_ptr: NDArray[np.int64]  # [U + 1]
    successor: NDArray[np.int32]  # units that read unit u, each once
    predecessor_ptr: NDArray[np.int64]  # [U + 1]
    predecessor: NDArray[np.int32]  # units that unit u reads, each once
    produced_ptr: NDArray[np.int64]  # [U + 1] tensors of unit u: they are sorted by producer
    read_ptr: NDArray[np.int64]  # [U + 1]
    read: NDArray[np.int32]  # tensors that unit u reads
    tensor_producer: NDArray[np.int32]  # [K]
    tensor_bytes: NDArray[np.int64]  # [K]
    reader_ptr: NDArray[np.int64]  # [K + 1]
    reader: NDArray[np.int32]  # units that read tensor k, ascending, never its producer
    relay_ticks: NDArray[np.int64]  # [K] a copy of the tensor; 0 where it passes at no cost
    input_ptr: NDArray[np.int64]  # [I + 1] inputs that several units read; summed only
    input_reader: NDArray[np.int32]
    input_ticks: NDArray[np.int64]  # [I]
    ticks_per_byte: float  # over a link
    num_chips: int
    passing: int
    overlap: bool
    replicates: bool  # whether a stage may take several chips
    memory: UnitMemory  # counts where stages may be replicated
    held: HeldMemory  # counts where they may not, and memory is tight

    @property
    def num_units(self) -> int:
        return len(self.unit_ticks)


@dataclass(frozen=True, eq=False)
class RefinementProblem:
    """A :class:`UnitGraph` with the names and seconds that certificates speak of."""

    units: UnitGraph
    tight: UnitGraph | None  # the same with memory; None where it is left out
    unit_of_op: NDArray[np.int32]  # [N]
    unit_s: NDArray[np.float64]  # [U] work
    own_s: NDArray[np.float64]  # [U] summed: what its outputs and inputs nobody else reads take
    relay_s: NDArray[np.float64]  # [K]
    input_s: NDArray[np.float64]  # [I]
    link_s_per_byte: float
    floor_s: float  # no placement is faster: the host's links where they overlap
    floor_reason: str
    tick_s: float
    op_names: tuple[str, ...]  # [N]

    def name_of(self, unit: int) -> str:
        """The first op of ``unit``."""
        return self.op_names[int(np.argmax(self.unit_of_op == unit))]


def refinement_problem(
    graph: Graph,
    tables: CostTables,
    fusion_group: NDArray[np.int32] | None = None,
    order: NDArray[np.int32] | None = None,
    *,
    passing: Passing,
    may_clone: NDArray[np.bool_] | None = None,
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
    return problem_of_units(
        graph,
        tables,
        unit_of_op,
        unit_s,
        passing=passing,
        may_clone=may_clone,
        replicates=replicates,
        tight=tight,
        is_in_order=True,
    )


def problem_of_units(
    graph: Graph,
    tables: CostTables,
    unit_of_op: NDArray[np.int32],
    unit_s: NDArray[np.float64],
    *,
    passing: Passing,
    may_clone: NDArray[np.bool_] | None = None,
    replicates: bool = False,
    apart: NDArray[np.bool_] | None = None,
    planned_kernels: NDArray[np.int32] | None = None,
    planned_s: float = 0.0,
    tight: bool = False,
    is_in_order: bool = False,
) -> RefinementProblem:
    """Units numbered in a topological order, with seconds of their own.

    Args:
      replicates: whether stages may take several chips.
      apart: [R] reads of what another kernel produces in any case; by default another unit.
      planned_kernels: [N] with ``replicates``: stages hold what a plan of these kernels would;
        by default what no plan can avoid, which makes the problem a relaxation.
      planned_s: an interval that such plans may take. Weights of which little is touched, and
        which the host's link brings in that time, need not stay where a chip cannot hold all.
      tight: without ``replicates``: whether memory counts.
      is_in_order: whether the units of a chip run in the order of their numbers.
    """
    num_units = len(unit_s)
    stored, tables = tables, tables if may_clone is None else without_traffic_of(tables, may_clone)
    pays = tables.overlap or bool(tables.pays_transfers.all())
    link_s_per_byte = float(tables.link_s_per_byte.min()) if pays and len(tables.link_s_per_byte) else 0.0
    tensors = unit_tensors(tables, unit_of_op, num_units)
    own_s, shared = own_host_traffic(tables, unit_of_op, num_units)
    if tables.overlap or not pays:
        own_s, shared = np.zeros(num_units), {}
    inputs_s = tables.tensor_bytes[tables.tensor_kind == INPUT].sum() * tables.host_in_s_per_byte
    leaves = tables.tensor_is_output & (tables.tensor_producer != NO_PRODUCER)
    outputs_s = tables.tensor_bytes[leaves].sum() * tables.host_out_s_per_byte
    streamed_s = least_streamed_bytes(tables) * tables.host_in_s_per_byte
    what = "the inputs" if streamed_s == 0 else "the inputs and the weights no memory can hold"
    floor_s, floor_reason = 0.0, "nothing crosses the host's links"
    if tables.overlap:
        floor_s, floor_reason = max(
            (float(inputs_s + streamed_s), f"{what} cross the host's link in"),
            (float(outputs_s), "the outputs cross the host's link out"),
        )
    input_s = np.array([seconds for seconds, _ in shared.values()], dtype=np.float64)
    input_readers = [readers for _, readers in shared.values()]
    one_chip_s = float(unit_s.sum() + own_s.sum() + input_s.sum())
    tick_s = one_chip_s / TOTAL_TICKS if one_chip_s > 0 else 1.0 / TOTAL_TICKS

    def ticks(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
        return np.minimum(np.floor(seconds / tick_s * (1.0 - 1e-15)), MOST_TICKS).astype(np.int64)

    input_ticks = ticks(input_s)
    unit_ticks = ticks(unit_s + own_s)
    for size, readers in zip(input_ticks, input_readers, strict=True):
        unit_ticks[readers] += size // len(readers)
    code = PASSING_CODE[passing]
    overhead_s, sram_s_per_byte = float(tables.kernel_overhead_s.min()), float(tables.sram_s_per_byte.min())
    relay_s = tensors.copies * overhead_s + 2.0 * tensors.bytes * sram_s_per_byte
    if may_clone is not None:
        relay_s[tensors.bytes == 0] = 0.0
    relay_s = relay_s if code == RELAYED else np.zeros(len(relay_s))
    memory = no_memory()
    if apart is None:
        apart = unit_of_op[tables.reader_op] != unit_of_op[tables.tensor_producer[tables.reader_tensor]]
    if replicates and planned_kernels is not None:
        least_s = max(floor_s, one_chip_s / tables.num_chips)
        memory = planned_memory(tables, unit_of_op, num_units, planned_kernels, tick_s, least_s, planned_s)
    elif replicates:
        memory = least_memory(stored, unit_of_op, num_units, apart, may_clone, tick_s)
    source = np.repeat(tensors.producer, np.diff(tensors.reader_ptr))
    reads = np.unique(np.stack([source, tensors.reader], axis=1), axis=0)
    unit_cost = [unit_ticks, memory.held_bytes, memory.alive_bytes] if replicates else [unit_ticks]
    edges = np.concatenate(
        [reads, _interchange_edges(tensors, unit_cost, ticks(relay_s), input_readers, memory)]
    )
    successor_ptr, successor, predecessor_ptr, predecessor = _neighbours(edges, num_units)
    tensor_of_read = np.repeat(np.arange(len(tensors.bytes), dtype=np.int32), np.diff(tensors.reader_ptr))
    units = UnitGraph(
        unit_ticks=unit_ticks,
        successor_ptr=successor_ptr,
        successor=successor,
        predecessor_ptr=predecessor_ptr,
        predecessor=predecessor,
        produced_ptr=row_pointers(tensors.producer, num_units),
        read_ptr=row_pointers(tensors.reader, num_units),
        read=tensor_of_read[np.argsort(tensors.reader, kind="stable")],
        tensor_producer=tensors.producer,
        tensor_bytes=tensors.bytes,
        reader_ptr=tensors.reader_ptr,
        reader=tensors.reader,
        relay_ticks=ticks(relay_s),
        input_ptr=np.cumsum([0, *(len(readers) for readers in input_readers)]).astype(np.int64),
        input_reader=np.concatenate([*input_readers, np.zeros(0, np.int32)]).astype(np.int32),
        input_ticks=input_ticks,
        ticks_per_byte=link_s_per_byte / tick_s * (1.0 - 1e-15),
        num_chips=tables.num_chips,
        passing=code,
        overlap=tables.overlap,
        replicates=replicates,
        memory=memory,
        held=nothing_held(),
    )
    with_memory = None
    if tight and not replicates:
        held = held_memory(
            stored,
            unit_of_op,
            num_units,
            tensors,
            apart=apart,
            may_clone=may_clone,
            is_in_order=is_in_order,
            tick_s=tick_s,
        )
        # Units that trade places change what chips hold.
        successor_ptr, successor, predecessor_ptr, predecessor = _neighbours(reads, num_units)
        with_memory = units._replace(
            successor_ptr=successor_ptr,
            successor=successor,
            predecessor_ptr=predecessor_ptr,
            predecessor=predecessor,
            held=held,
        )
    return RefinementProblem(
        units=units,
        tight=with_memory,
        unit_of_op=unit_of_op,
        unit_s=unit_s,
        own_s=own_s,
        relay_s=relay_s,
        input_s=input_s,
        link_s_per_byte=link_s_per_byte,
        floor_s=floor_s,
        floor_reason=floor_reason,
        tick_s=tick_s,
        op_names=graph.op_names,
    )


def _neighbours(
    edges: NDArray[np.int32], num_units: int
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]:
    """CSR of successors and of predecessors along ``edges`` [E, 2]."""
    edges = np.unique(edges, axis=0)
    backward = edges[np.argsort(edges[:, 1], kind="stable")]
    return (
        row_pointers(edges[:, 0], num_units),
        np.ascontiguousarray(edges[:, 1]),
        row_pointers(backward[:, 1], num_units),
        np.ascontiguousarray(backward[:, 0]),
    )


def _interchange_edges(
    tensors: UnitTensors,
    unit_cost: list[NDArray[np.int64]],
    relay_ticks: NDArray[np.int64],
    input_readers: list[NDArray[np.int32]],
    memory: UnitMemory,
) -> NDArray[np.int32]:
    """Edges [E, 2] that no optimum needs to break, forward along the units."""
    num_units = len(unit_cost[0])
    reads = np.zeros((num_units, len(input_readers) + len(memory.shared_bytes)), np.int64)
    for i, readers in enumerate(input_readers):
        reads[readers, i] = 1
    reads[
        np.repeat(np.arange(len(memory.shared_ptr) - 1), np.diff(memory.shared_ptr)),
        len(input_readers) + memory.shared,
    ] = 1
    return interchange_edges(
        np.concatenate([np.stack(unit_cost, axis=1), reads], axis=1),
        np.stack([tensors.bytes, relay_ticks], axis=1),
        tensors.producer,
        tensors.reader_ptr,
        tensors.reader,
    )


def trivial_bound(problem: RefinementProblem) -> Bound:
    """Total work, the longest unit, the host's links."""
    replicates = problem.units.replicates
    chips = problem.units.num_chips if replicates else min(problem.units.num_chips, problem.units.num_units)
    work_s = problem.unit_s + problem.own_s
    total_s = float(work_s.sum() + problem.input_s.sum())
    longest = int(np.argmax(work_s))
    bounds = [
        Bound(total_s / chips, f"{total_s * 1e6:.4g} us of work share {chips} chips"),
        Bound(problem.floor_s, problem.floor_reason),
    ]
    if not replicates:
        reason = f"op {problem.name_of(longest)!r} takes {work_s[longest] * 1e6:.4g} us"
        bounds.insert(1, Bound(float(work_s[longest]), reason))
    return max(bounds, key=lambda bound: bound.seconds)
