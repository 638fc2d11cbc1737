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

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import BoolArray, IntArray, LongArray, row_pointers
from go_opt.env.cost import CostTables
from go_opt.model.graph import INPUT, NO_PRODUCER, WEIGHT
from go_opt.solver.certify.problem.across import alive_across
from go_opt.solver.certify.problem.streams import ChipMemory, chip_memory
from go_opt.solver.certify.problem.traffic import UnitTensors

# Share of all memory. If weights take less, sums of resident weights seldom bind, and take time.
FULL: Final = 0.75


class HeldMemory(NamedTuple):
    """Axes: ``U`` units, ``K`` tensors between them, ``R`` reads of these, ``I`` inputs, ``G`` weights."""

    output_bytes: LongArray  # [U] double buffers of outputs, and states
    enter_bytes: LongArray  # [K] double buffer on a chip that the tensor enters
    leave_bytes: LongArray  # [K] double buffer on a chip that it leaves; without output_bytes
    made_bytes: LongArray  # [K] alive while its producer runs, if it does not leave
    read_bytes: LongArray  # [R] alive while the reader runs, if it does not enter
    across_bytes: LongArray  # [K] alive across units between, if it neither enters nor leaves
    across_ptr: LongArray  # [U + 1]
    across: IntArray  # [P] tensors produced before the unit and read after it …
    across_reader: IntArray  # [P] … by this unit
    input_ptr: LongArray  # [U + 1]
    input: IntArray
    input_bytes: LongArray  # [I] double buffer of each
    weight_ptr: LongArray  # [U + 1]
    weight: IntArray  # numbered in streaming order
    stored_bytes: LongArray  # [G]; 0: it streams wherever it is read
    touched_bytes: LongArray  # [G]; 0: unknown, counts as free
    chip: ChipMemory
    is_in_order: bool  # a chip runs its units in ascending order of their numbers
    is_full: bool  # with overlap: weights exceed FULL of all memory, so resident weights are summed
    counts: bool


def held_memory(
    tables: CostTables,
    unit_of_op: IntArray,
    num_units: int,
    tensors: UnitTensors,
    *,
    apart: BoolArray,
    is_in_order: bool,
    replicates: bool,
    tick_s: float,
) -> HeldMemory:
    """Returns the bytes that units need.

    Args:
      apart: [R] reads whose producer and reader are never in the same kernel.
      is_in_order: a chip runs its units in ascending order of their numbers.
      replicates: whether units may run on stages of several chips.
    """
    size, made = tables.stored_bytes, tables.tensor_producer != NO_PRODUCER
    input_ptr, inputs, input_of = _reads(
        tables, unit_of_op, num_units, ~made & (tables.tensor_kind != WEIGHT)
    )
    weights = _weights(tables, unit_of_op, num_units, replicates=replicates)
    most_weights = FULL * tables.num_chips * tables.sram_bytes.max()
    input_bytes = int(tables.tensor_bytes[tables.tensor_kind == INPUT].sum())
    return HeldMemory(
        **_made_here(tables, unit_of_op, num_units, tensors, apart, is_in_order, replicates),
        input_ptr=input_ptr,
        input=inputs,
        input_bytes=2 * size[input_of],
        weight_ptr=weights.ptr,
        weight=weights.weight,
        stored_bytes=weights.stored_bytes,
        touched_bytes=weights.touched_bytes,
        chip=chip_memory(
            tables, input_bytes + weights.once_bytes, tick_s, forwards=replicates and tables.may_forward
        ),
        is_in_order=is_in_order,
        is_full=bool(tables.overlap and not replicates and weights.stored_bytes.sum() > most_weights),
        counts=True,
    )


def _made_here(
    tables: CostTables,
    unit_of_op: IntArray,
    num_units: int,
    tensors: UnitTensors,
    apart: BoolArray,
    is_in_order: bool,
    replicates: bool,
) -> dict[str, NDArray]:
    """Returns the fields of :class:`HeldMemory` for tensors that ops produce."""
    size, producer, number = tables.stored_bytes, tables.tensor_producer, tensors.of_tensor
    made, stays = producer != NO_PRODUCER, ~tables.tensor_is_output
    output_bytes = np.zeros(num_units, np.int64)
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
        sums = np.zeros(len(tensors.bytes), np.int64)
        np.add.at(sums, number[inner], of_tensor[inner])
        return sums

    leave_bytes = by_number(2 * size * stays)
    read_bytes = _read_bytes(tables, unit_of_op, tensors, apart & (stays & inner)[tables.reader_tensor])
    # A fixed order gives liveness without these pairs.
    across_bytes = np.zeros_like(leave_bytes) if is_in_order else leave_bytes // 2
    across = alive_across(tensors, num_units, across_bytes, read_bytes)
    return {
        "output_bytes": output_bytes,
        "enter_bytes": by_number(2 * size),
        "leave_bytes": leave_bytes,
        "made_bytes": by_number(size * (stays & is_apart)),
        "read_bytes": read_bytes,
        "across_bytes": across_bytes,
        "across_ptr": across.ptr,
        "across": across.tensor,
        "across_reader": across.reader,
    }


def _read_bytes(
    tables: CostTables, unit_of_op: IntArray, tensors: UnitTensors, counts: BoolArray
) -> LongArray:
    """Returns bytes [R] of counted reads by units other than the producer, each tensor once per unit."""
    read_bytes = np.zeros(len(tensors.reader), np.int64)
    pairs = np.unique(
        np.stack([tables.reader_tensor[counts], unit_of_op[tables.reader_op[counts]]], axis=1), axis=0
    )
    tensor, unit = tensors.of_tensor[pairs[:, 0]], pairs[:, 1]
    foreign = tensors.producer[tensor] != unit
    tensor_of_read = np.repeat(np.arange(len(tensors.bytes)), np.diff(tensors.reader_ptr))
    by_unit = np.argsort(tensors.reader, kind="stable")
    width = max(len(tensors.bytes), 1)
    key = tensors.reader[by_unit].astype(np.int64) * width + tensor_of_read[by_unit]
    at = np.searchsorted(key, unit[foreign].astype(np.int64) * width + tensor[foreign])
    np.add.at(read_bytes, at, tables.stored_bytes[pairs[foreign, 0]])
    return read_bytes


class _Weights(NamedTuple):
    """Weights of :class:`HeldMemory`, and bytes of others that always cross the host's link."""

    ptr: LongArray  # [U + 1]
    weight: IntArray
    stored_bytes: LongArray  # [G]
    touched_bytes: LongArray  # [G]
    once_bytes: int


def _weights(tables: CostTables, unit_of_op: IntArray, num_units: int, *, replicates: bool) -> _Weights:
    """Returns the weights in streaming order."""
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
    touched_bytes = np.where((least == touched) | always, least, 0)[order]
    return _Weights(ptr, weight, np.where(always, 0, stored)[order], touched_bytes, int(touched[once].sum()))


def nothing_held() -> HeldMemory:
    """Returns the value for problems without memory."""
    none, nobody, pointers = np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(1, np.int64)
    return HeldMemory(
        none, none, none, none, none, none, pointers, nobody, nobody,
        pointers, nobody, none, pointers, nobody, none, none,
        ChipMemory(), is_in_order=False, is_full=False, counts=False,
    )  # fmt: skip


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
