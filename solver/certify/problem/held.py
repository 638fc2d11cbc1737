"""What a chip that runs certain units cannot but hold and stream (design section 5, Memory).

A chip holds

    2 x bytes of inputs that it reads, of tensors that enter or leave it, of outputs it makes
    + the most that is alive beside them + its weights, each once,

and streams weights from the host until that fits, those touched least first. More units never
make it less, so what is certain to be on a chip bounds what the chip holds:

* a tensor made and read on it is alive while its maker and its readers run, and while what is
  between them runs (:mod:`go_opt.solver.certify.problem.across`); in a given order of the units
  always in between;
* weights that all readers touch alike leave in the model's order, whole. Of others it is
  assumed that they leave first and cost nothing;
* clones may take any of their tensors off a border, but not out of the chip that reads it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import BoolArray, IntArray, LongArray
from go_opt.env.cost import CostTables
from go_opt.model.csr import row_pointers
from go_opt.model.graph import INPUT, NO_PRODUCER, WEIGHT
from go_opt.solver.certify.problem.across import alive_across
from go_opt.solver.certify.problem.traffic import UnitTensors

# Of all memory: where weights take less, their sums over chips seldom bind, and take time.
FULL: Final = 0.75


class HeldMemory(NamedTuple):
    """Axes: ``U`` units, ``K`` tensors between them, ``R`` reads of these, ``I`` inputs, ``G`` weights."""

    output_bytes: LongArray  # [U] double buffers of outputs
    enter_bytes: LongArray  # [K] double buffer where it comes in
    leave_bytes: LongArray  # [K] where it goes out; outputs are held in any case
    made_bytes: LongArray  # [K] alive where it is made, if it does not leave
    read_bytes: LongArray  # [R] alive where it is read, if it does not come in
    across_bytes: LongArray  # [K] alive across what is between, if it neither comes in nor goes out
    across_ptr: LongArray  # [U + 1]
    across: IntArray  # [P] tensors made before the unit and read behind it …
    across_reader: IntArray  # [P] … by this unit
    input_ptr: LongArray  # [U + 1]
    input: IntArray
    input_bytes: LongArray  # [I] double buffer of each
    weight_ptr: LongArray  # [U + 1]
    weight: IntArray  # numbered in the order in which they stream
    stored_bytes: LongArray  # [G]; 0: no memory holds it, so that it streams wherever it is read
    touched_bytes: LongArray  # [G]
    sram_bytes: int
    stream_buffer_bytes: int  # set aside on a chip that streams
    reserved_bytes: int  # that the host's link brings in every interval, wherever units are
    stream_bytes_per_tick: float  # overlapped: the host's rate
    stream_ticks_per_byte: float  # summed: what a streamed byte takes its chip
    is_in_order: bool  # units of a chip run in the order of their numbers
    is_full: bool  # weights take so much of all memory that what chips hold of them is summed up
    counts: bool


def held_memory(
    tables: CostTables,
    unit_of_op: IntArray,
    num_units: int,
    tensors: UnitTensors,
    *,
    apart: BoolArray,
    may_clone: BoolArray | None,
    is_in_order: bool,
    tick_s: float,
) -> HeldMemory:
    """What chips hold of ``tables``, all bytes in it.

    Args:
      apart: [R] reads of what another kernel produces in any case.
      may_clone: [N] ops that may be computed again wherever they are read.
      is_in_order: units of a chip run in the order of their numbers.
    """
    size, made = tables.stored_bytes, tables.tensor_producer != NO_PRODUCER
    input_ptr, inputs, input_of = _reads(
        tables, unit_of_op, num_units, ~made & (tables.tensor_kind != WEIGHT)
    )
    weights = _weights(tables, unit_of_op, num_units)
    pays = tables.overlap or bool(tables.pays_transfers.all())
    return HeldMemory(
        **_made_here(tables, unit_of_op, num_units, tensors, apart, may_clone, is_in_order),
        input_ptr=input_ptr,
        input=inputs,
        input_bytes=2 * size[input_of],
        weight_ptr=weights.ptr,
        weight=weights.weight,
        stored_bytes=weights.stored_bytes,
        touched_bytes=weights.touched_bytes,
        sram_bytes=int(tables.sram_bytes.max()),
        stream_buffer_bytes=int(tables.stream_buffer_bytes.min()),
        reserved_bytes=int(tables.tensor_bytes[tables.tensor_kind == INPUT].sum()) + weights.once_bytes,
        stream_bytes_per_tick=tick_s / tables.host_in_s_per_byte if tables.overlap else 0.0,
        stream_ticks_per_byte=tables.host_in_s_per_byte / tick_s if pays and not tables.overlap else 0.0,
        is_in_order=is_in_order,
        is_full=bool(
            tables.overlap and weights.stored_bytes.sum() > FULL * tables.num_chips * tables.sram_bytes.max()
        ),
        counts=True,
    )


def _made_here(
    tables: CostTables,
    unit_of_op: IntArray,
    num_units: int,
    tensors: UnitTensors,
    apart: BoolArray,
    may_clone: BoolArray | None,
    is_in_order: bool,
) -> dict[str, NDArray]:
    """The fields of :class:`HeldMemory` for what ops write."""
    size, producer, number = tables.stored_bytes, tables.tensor_producer, tensors.of_tensor
    made, stays = producer != NO_PRODUCER, ~tables.tensor_is_output
    is_cloned = np.zeros(len(size), np.bool_)
    if may_clone is not None:
        is_cloned = made & may_clone[np.maximum(producer, 0)]
    output_bytes = np.zeros(num_units, np.int64)
    outputs = made & tables.tensor_is_output & ~is_cloned
    np.add.at(output_bytes, unit_of_op[producer[outputs]], 2 * size[outputs])
    inner, is_apart = number >= 0, np.zeros(len(size), np.bool_)
    is_apart[tables.reader_tensor[apart]] = True

    def by_number(of_tensor: LongArray) -> LongArray:
        sums = np.zeros(len(tensors.bytes), np.int64)
        np.add.at(sums, number[inner], of_tensor[inner])
        return sums

    leave_bytes = by_number(2 * size * (stays & ~is_cloned))
    read_bytes = _read_bytes(tables, unit_of_op, tensors, apart & (stays & inner)[tables.reader_tensor])
    # Clones may run as late as they are read; what is alive in a given order is known without.
    across_bytes = np.zeros_like(leave_bytes) if is_in_order else leave_bytes // 2
    across = alive_across(tensors, num_units, across_bytes, read_bytes)
    return {
        "output_bytes": output_bytes,
        "enter_bytes": by_number(2 * size * ~is_cloned),
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
    """[R] bytes of the reads that count, by units other than the maker, each tensor once a unit."""
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
    """Those of :class:`HeldMemory`, and what others load the host's link with in any case."""

    ptr: LongArray  # [U + 1]
    weight: IntArray
    stored_bytes: LongArray  # [G]
    touched_bytes: LongArray  # [G]
    once_bytes: int


def _weights(tables: CostTables, unit_of_op: IntArray, num_units: int) -> _Weights:
    """Weights in the order in which they stream."""
    size, is_weight = tables.tensor_bytes, tables.tensor_kind == WEIGHT
    stored = tables.stored_bytes
    touched = np.zeros(len(size), np.int64)
    np.maximum.at(touched, tables.reader_tensor, tables.read_bytes)
    least = touched.copy()
    np.minimum.at(least, tables.reader_tensor, tables.read_bytes)
    order = tables.weight_by_size[size[tables.weight_by_size] > 0]
    share = np.where(least[order] == touched[order], touched[order] / size[order], -1.0)
    order = order[np.argsort(share, kind="stable")]
    # Of weights that stream in any case those that one unit reads, or that are touched in several
    # ways, load the host's link once, wherever they are read.
    always, readers = is_weight & (stored > int(tables.sram_bytes.max())), np.zeros(len(size), np.int64)
    pairs = np.unique(np.stack([tables.reader_tensor, unit_of_op[tables.reader_op]], axis=1), axis=0)
    np.add.at(readers, pairs[:, 0], 1)
    once = always & ((readers == 1) | (least < touched)) & tables.overlap
    order = order[~once[order]]
    ptr, weight, _ = _reads(tables, unit_of_op, num_units, is_weight, order)
    touched_bytes = np.where((least == touched) | always, least, 0)[order]
    return _Weights(ptr, weight, np.where(always, 0, stored)[order], touched_bytes, int(touched[once].sum()))


def nothing_held() -> HeldMemory:
    """Memory is left out."""
    none, nobody, pointers = np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(1, np.int64)
    return HeldMemory(
        none, none, none, none, none, none, pointers, nobody, nobody,
        pointers, nobody, none, pointers, nobody, none, none,
        0, 0, 0, 0.0, 0.0, is_in_order=False, is_full=False, counts=False,
    )  # fmt: skip


def _reads(
    tables: CostTables,
    unit_of_op: IntArray,
    num_units: int,
    which: BoolArray,
    numbered: IntArray | None = None,
) -> tuple[LongArray, IntArray, LongArray]:
    """CSR over units of those tensors that each reads, once, by their place in ``numbered``.

    By default they are numbered as the tensors that ``which`` [K] says.
    """
    tensors = np.flatnonzero(which) if numbered is None else numbered.astype(np.int64)
    number = np.full(len(which), -1, np.int64)
    number[tensors] = np.arange(len(tensors))
    of_read = number[tables.reader_tensor]
    counts = of_read >= 0
    pairs = np.unique(np.stack([unit_of_op[tables.reader_op[counts]], of_read[counts]], axis=1), axis=0)
    return row_pointers(pairs[:, 0], num_units), pairs[:, 1].astype(np.int32), tensors
