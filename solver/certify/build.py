"""Builds :class:`~go_opt.solver.certify.problem.RefinementProblem` from kernels or other units.

The least bytes that a chip holds and streams follow from units it certainly runs (design section 5, Memory).
A chip holds

    2 x bytes of inputs that it reads, of tensors that enter or leave it, of outputs it produces
    + the most other bytes alive at once + its weights, each once,

and streams weights from the host until the rest fits, least touched share first. More units never
lower this sum, so the units that are certainly on a chip bound its bytes from below:

* a tensor produced and read on the chip is alive while its producer and its readers run, and while
  units on paths between them run. In a fixed order
  of the units, it is alive from its producer to its last reader;
* weights that all readers touch equally stream whole, in the cost model's order. Others are
  assumed to stream first, at no cost.

Tensors are alive across a unit in any execution order if they are produced before it and read after it. A
tensor that another kernel reads is stored from its producer's kernel to its last reader's. If there are
paths from its producer to unit v and from v to a reader, it is alive while v runs, provided that the
producer or the reader is known to share v's chip. Most such tensors are residuals and skip connections.
"""

from __future__ import annotations

import itertools
from typing import Any, Final

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray, IntArray, LongArray, csr, row_pointers
from go_opt.common.compiling import compiled
from go_opt.env.cost.tables import CostTables
from go_opt.env.kernels.numbering import kernel_seconds, number_kernels
from go_opt.model.graph import INPUT, NO_PRODUCER, WEIGHT, Graph
from go_opt.solver.certify.bounds import Bound, host_bounds
from go_opt.solver.certify.problem import (
    MOST_TICKS,
    TOTAL_TICKS,
    RefinementProblem,
    UnitGraph,
    chip_memory,
    nothing_held,
)
from go_opt.solver.problem.forwarding_mode import FORWARDING_CODE, ForwardingMode
from go_opt.solver.propagation.propagators.tables import MAX_COUNTED_UNITS, count_spans

MOST_STEPS: Final = 2**25  # graph steps, about 0.1 s
MOST_PER_UNIT: Final = 32  # tensors, on average


def alive_across(
    units: UnitGraph, stored_bytes: LongArray, read_bytes: LongArray
) -> tuple[LongArray, IntArray, IntArray]:
    """Returns pairs of a unit and a tensor alive across it as a CSR over units.

    Largest tensors come first, up to :data:`MOST_STEPS` and :data:`MOST_PER_UNIT`.

    Args:
      stored_bytes: [K] bytes to count for each tensor; 0 skips it.
      read_bytes: [R] by reader, then tensor; above zero if the reader is never in the producer's kernel.

    Returns:
      [U + 1]; [P] the tensor; [P] its first reader after the unit, in another kernel than its producer.
    """
    is_apart = np.zeros(len(units.reader), np.bool_)
    is_apart[np.argsort(units.reader, kind="stable")] = read_bytes > 0
    largest_first = np.argsort(-stored_bytes, kind="stable")
    unit, tensor, reader = _walks(units, largest_first, stored_bytes, is_apart)
    ptr, by_unit = csr(unit, units.num_units)
    return ptr, tensor[by_unit], reader[by_unit]


@compiled
def _walks(
    graph: UnitGraph, largest_first: LongArray, stored_bytes: LongArray, is_apart: BoolArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Returns the unit, tensor and reader [P] of every pair."""
    producer, reader_ptr, reader = graph.tensor_producer, graph.reader_ptr, graph.reader
    read_ptr, read = graph.read_ptr, graph.read
    num_units = len(read_ptr) - 1
    room = MOST_PER_UNIT * num_units
    units = np.empty(room, np.int32)
    passing = np.empty(room, np.int32)
    readers = np.empty(room, np.int32)
    size = 0
    steps = 0
    is_behind = np.zeros(num_units, np.bool_)  # a descendant of the producer
    is_before = np.zeros(num_units, np.bool_)  # a reader or an ancestor of one
    is_done = np.zeros(num_units, np.bool_)
    for k in largest_first:
        home = producer[k]
        last = home
        for r in range(reader_ptr[k], reader_ptr[k + 1]):
            if is_apart[r]:
                last = reader[r]
        if stored_bytes[k] == 0 or last == home:
            continue
        for unit in range(home + 1, last + 1):
            is_behind[unit] = False
            is_done[unit] = False
            for i in range(read_ptr[unit], read_ptr[unit + 1]):
                before = producer[read[i]]
                is_behind[unit] |= before == home or (before > home and is_behind[before])
        steps += last - home
        for r in range(reader_ptr[k], reader_ptr[k + 1]):
            if not is_apart[r]:
                continue
            is_done[reader[r]] = True  # it reads the tensor itself
            for unit in range(home, reader[r] + 1):
                is_before[unit] = False
            is_before[reader[r]] = True
            for unit in range(reader[r], home, -1):
                if not is_before[unit]:
                    continue
                for i in range(read_ptr[unit], read_ptr[unit + 1]):
                    if producer[read[i]] > home:
                        is_before[producer[read[i]]] = True
                if is_behind[unit] and not is_done[unit]:
                    if size == room:
                        return units[:size], passing[:size], readers[:size]
                    is_done[unit] = True
                    units[size] = unit
                    passing[size] = k
                    readers[size] = reader[r]
                    size += 1
            steps += 2 * (reader[r] - home)
        if steps > MOST_STEPS:
            break
    return units[:size], passing[:size], readers[:size]


# Share of all memory. If weights take less, sums of resident weights seldom bind, and take time.
FULL: Final = 0.75


def with_memory(
    tables: CostTables,
    unit_of_op: IntArray,
    units: UnitGraph,
    of_tensor: LongArray,
    *,
    apart: BoolArray,
    is_in_order: bool,
    replicates: bool,
    tick_s: float,
) -> UnitGraph:
    """Returns ``units`` with the bytes that they need.

    Args:
      units: the units without memory.
      of_tensor: the tensor of ``units`` for each tensor of the graph, -1: no other unit reads it.
      apart: [R] reads whose producer and reader are never in the same kernel.
      is_in_order: a chip runs its units in ascending order of their numbers.
      replicates: whether units may run on stages of several chips.
    """
    size, made = tables.stored_bytes, tables.tensor_producer != NO_PRODUCER
    input_ptr, inputs, input_of = _reads(
        tables, unit_of_op, units.num_units, ~made & (tables.tensor_kind != WEIGHT)
    )
    weights, once_bytes = _weights(tables, unit_of_op, units.num_units, replicates=replicates)
    most_weights = FULL * tables.num_chips * tables.sram_bytes.max()
    input_bytes = int(tables.tensor_bytes[tables.tensor_kind == INPUT].sum())
    return units._replace(
        **_made_here(tables, unit_of_op, units, of_tensor, apart, is_in_order, replicates),
        input_ptr=input_ptr,
        input=inputs,
        input_bytes=2 * size[input_of],
        **weights,
        chip=chip_memory(
            tables, input_bytes + once_bytes, tick_s, forwards=replicates and tables.may_forward
        ),
        is_in_order=is_in_order,
        is_full=bool(tables.overlap and not replicates and weights["stored_bytes"].sum() > most_weights),
        counts_memory=True,
        replicates=replicates,
    )


def _made_here(
    tables: CostTables,
    unit_of_op: IntArray,
    units: UnitGraph,
    number: LongArray,
    apart: BoolArray,
    is_in_order: bool,
    replicates: bool,
) -> dict[str, Any]:
    """Returns the fields of :class:`UnitGraph` for tensors that ops produce."""
    size, producer = tables.stored_bytes, tables.tensor_producer
    made, stays = producer != NO_PRODUCER, ~tables.tensor_is_output
    output_bytes = np.zeros(units.num_units, np.int64)
    outputs = made & tables.tensor_is_output
    np.add.at(output_bytes, unit_of_op[producer[outputs]], 2 * size[outputs])
    states = np.flatnonzero(tables.is_state & (np.diff(tables.reader_ptr) > 0))
    # The chips of a stage share the sequences, of which one chip has no fewer than any other.
    sequences = max(tables.sequences, 1)
    kept = -(-sequences // min(tables.num_chips, sequences)) if replicates else sequences
    readers = tables.reader_op[tables.reader_ptr[states]]
    np.add.at(output_bytes, unit_of_op[readers], size[states] * kept // sequences)
    inner, is_apart = number >= 0, np.zeros(len(size), np.bool_)
    is_apart[tables.reader_tensor[apart]] = True

    def by_number(of_tensor: LongArray) -> LongArray:
        sums = np.zeros(len(units.tensor_bytes), np.int64)
        np.add.at(sums, number[inner], of_tensor[inner])
        return sums

    leave_bytes = by_number(2 * size * stays)
    read_bytes = _read_bytes(tables, unit_of_op, units, number, apart & (stays & inner)[tables.reader_tensor])
    # A fixed order gives liveness without these pairs.
    across_bytes = np.zeros_like(leave_bytes) if is_in_order else leave_bytes // 2
    across_ptr, across, across_reader = alive_across(units, across_bytes, read_bytes)
    return {
        "output_bytes": output_bytes,
        "enter_bytes": by_number(2 * size),
        "leave_bytes": leave_bytes,
        "made_bytes": by_number(size * (stays & is_apart)),
        "read_bytes": read_bytes,
        "across_bytes": across_bytes,
        "across_ptr": across_ptr,
        "across": across,
        "across_reader": across_reader,
    }


def _read_bytes(
    tables: CostTables, unit_of_op: IntArray, units: UnitGraph, number: LongArray, counts: BoolArray
) -> LongArray:
    """Returns bytes [R] of counted reads by units other than the producer, each tensor once per unit."""
    read_bytes = np.zeros(len(units.read), np.int64)
    pairs = np.unique(
        np.stack([tables.reader_tensor[counts], unit_of_op[tables.reader_op[counts]]], axis=1), axis=0
    )
    tensor, unit = number[pairs[:, 0]], pairs[:, 1].astype(np.int64)
    foreign = units.tensor_producer[tensor] != unit
    width = max(len(units.tensor_bytes), 1)
    key = np.repeat(np.arange(units.num_units), np.diff(units.read_ptr)) * width + units.read
    at = np.searchsorted(key, unit[foreign] * width + tensor[foreign])
    np.add.at(read_bytes, at, tables.stored_bytes[pairs[foreign, 0]])
    return read_bytes


def _weights(
    tables: CostTables, unit_of_op: IntArray, num_units: int, *, replicates: bool
) -> tuple[dict[str, Any], int]:
    """Returns the fields of :class:`UnitGraph` for weights, and bytes that always cross the host's link."""
    size, is_weight = tables.tensor_bytes, tables.tensor_kind == WEIGHT
    stored = tables.stored_bytes
    touched = np.zeros(len(size), np.int64)
    np.maximum.at(touched, tables.reader_tensor, tables.read_bytes)
    least = touched.copy()
    np.minimum.at(least, tables.reader_tensor, tables.read_bytes)
    order = tables.weight_by_size[size[tables.weight_by_size] > 0]
    share = np.where(least[order] == touched[order], touched[order] / size[order], -1.0)
    order = order[np.argsort(share, kind="stable")]
    # Weights that no chip can hold, and no op reads as a whole, always stream. Those read by one unit, or
    # touched differently by their readers, count once on the host's link, for any placement.
    always = is_weight & (stored > int(tables.sram_bytes.max())) & (touched < size)
    readers = np.zeros(len(size), np.int64)
    pairs = np.unique(np.stack([tables.reader_tensor, unit_of_op[tables.reader_op]], axis=1), axis=0)
    np.add.at(readers, pairs[:, 0], 1)
    once = always & (replicates | (readers == 1) | (least < touched)) & tables.overlap
    order = order[~once[order]]
    ptr, weight, _ = _reads(tables, unit_of_op, num_units, is_weight, order)
    fields = {
        "weight_ptr": ptr,
        "weight": weight,
        "stored_bytes": np.where(always, 0, stored)[order],
        "touched_bytes": np.where((least == touched) | always, least, 0)[order],
    }
    return fields, int(touched[once].sum())


def _reads(
    tables: CostTables,
    unit_of_op: IntArray,
    num_units: int,
    which: BoolArray,
    numbered: IntArray | None = None,
) -> tuple[LongArray, IntArray, LongArray]:
    """Returns a CSR over units of the tensors that each unit reads, once, and ``numbered``.

    Tensors are positions in ``numbered``, by default the tensors that the mask ``which`` selects.
    """
    tensors = np.flatnonzero(which) if numbered is None else numbered.astype(np.int64)
    number = np.full(len(which), -1, np.int64)
    number[tensors] = np.arange(len(tensors))
    of_read = number[tables.reader_tensor]
    counts = of_read >= 0
    pairs = np.unique(np.stack([unit_of_op[tables.reader_op[counts]], of_read[counts]], axis=1), axis=0)
    return row_pointers(pairs[:, 0], num_units), pairs[:, 1].astype(np.int32), tensors


def unit_tensors(
    tables: CostTables, unit_of_op: IntArray, num_units: int
) -> tuple[dict[str, Any], LongArray, LongArray]:
    """Returns activations that other units read; those with equal producer and readers are merged.

    Returns:
      the fields of :class:`~go_opt.solver.certify.problem.UnitGraph` for these K tensors; [K] the
      number of graph tensors merged into each; and of each graph tensor the merged one, -1: no other unit
      reads it.
    """
    home = np.where(
        tables.tensor_producer == NO_PRODUCER, -1, unit_of_op[np.maximum(tables.tensor_producer, 0)]
    )
    reader = unit_of_op[tables.reader_op]
    passed_on = (home[tables.reader_tensor] >= 0) & (home[tables.reader_tensor] != reader)
    passed_on &= tables.tensor_kind[tables.reader_tensor] != WEIGHT
    pairs = np.stack([tables.reader_tensor[passed_on], reader[passed_on]], axis=1)
    pairs = np.unique(pairs, axis=0).astype(np.int64).reshape(-1, 2)
    merged: dict[tuple[int, bytes], list[int]] = {}
    starts = np.flatnonzero(np.diff(pairs[:, 0], prepend=-1))
    for start, end in itertools.pairwise([*starts.tolist(), len(pairs)]):
        k = int(pairs[start, 0])
        merged.setdefault((int(home[k]), pairs[start:end, 1].tobytes()), []).append(k)
    keys = sorted(merged)
    readers = [np.frombuffer(key[1], dtype=np.int64).astype(np.int32) for key in keys]
    of_tensor = np.full(len(home), -1, dtype=np.int64)
    for number, key in enumerate(keys):
        of_tensor[merged[key]] = number
    by_tensor = np.concatenate([*readers, np.zeros(0, np.int32)]).astype(np.int32)
    read_ptr, by_reader = csr(by_tensor, num_units)
    tensor_of_read = np.repeat(np.arange(len(keys), dtype=np.int32), [len(row) for row in readers])
    producer = np.array([key[0] for key in keys], dtype=np.int32)
    fields: dict[str, Any] = {
        "produced_ptr": row_pointers(producer, num_units),
        "read_ptr": read_ptr,
        "read": tensor_of_read[by_reader],
        "tensor_producer": producer,
        "tensor_bytes": np.array([tables.tensor_bytes[merged[key]].sum() for key in keys], dtype=np.int64),
        "reader_ptr": np.cumsum([0, *(len(row) for row in readers)]).astype(np.int64),
        "reader": by_tensor,
    }
    return fields, np.array([len(merged[key]) for key in keys], dtype=np.int64), of_tensor


def own_host_traffic(
    tables: CostTables, unit_of_op: IntArray, num_units: int
) -> tuple[FloatArray, FloatArray, list[IntArray]]:
    """Returns seconds [U] of outputs and of inputs that one unit reads; others [I], and their readers."""
    own_s = np.zeros(num_units)
    leaves = tables.tensor_is_output & (tables.tensor_producer != NO_PRODUCER)
    np.add.at(
        own_s,
        unit_of_op[tables.tensor_producer[leaves]],
        tables.tensor_bytes[leaves] * tables.host_out_s_per_byte,
    )
    input_s, input_readers = [], []
    for k in np.flatnonzero(tables.tensor_kind == INPUT):
        seconds = float(tables.tensor_bytes[k] * tables.host_in_s_per_byte)
        readers = np.unique(unit_of_op[tables.reader_op[tables.reader_ptr[k] : tables.reader_ptr[k + 1]]])
        if len(readers) == 1:
            own_s[readers[0]] += seconds
        elif len(readers):
            input_s.append(seconds)
            input_readers.append(readers.astype(np.int32))
    return own_s, np.array(input_s, dtype=np.float64), input_readers


def refinement_problem(
    graph: Graph,
    tables: CostTables,
    fusion_group: IntArray | None = None,
    order: IntArray | None = None,
    *,
    forwarding: ForwardingMode,
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
        forwarding,
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
    forwarding: ForwardingMode,
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
    if forwarding == "relayed":
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
        forwarding=FORWARDING_CODE[forwarding],
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
