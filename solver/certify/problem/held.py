"""The least bytes that a chip holds and streams, given units it certainly runs (design section 5, Memory).

A chip holds

    2 x bytes of inputs that it reads, of tensors that enter or leave it, of outputs it produces
    + the most other bytes alive at once + its weights, each once,

and streams weights from the host until the rest fits, least touched share first. More units never
lower this sum, so the units that are certainly on a chip bound its bytes from below:

* a tensor produced and read on the chip is alive while its producer and its readers run, and while
  units on paths between them run (:mod:`go_opt.solver.certify.problem.across`). In a fixed order
  of the units, it is alive from its producer to its last reader;
* weights that all readers touch equally stream whole, in the cost model's order. Others are
  assumed to stream first, at no cost.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from go_opt.common.arrays import BoolArray, IntArray, LongArray, row_pointers
from go_opt.env.cost import CostTables
from go_opt.model.graph import INPUT, NO_PRODUCER, WEIGHT
from go_opt.solver.certify.problem.across import alive_across
from go_opt.solver.certify.problem.problem import UnitGraph
from go_opt.solver.certify.problem.streams import chip_memory

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
