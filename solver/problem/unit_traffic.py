"""Tensors between units: who makes each, who reads it, and what it costs to move.

Axes: ``U`` units, ``K`` tensors, ``R`` reads. Ragged data is CSR.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from go_opt.env.cost import CostTables
from go_opt.model.csr import row_pointers
from go_opt.model.graph import INPUT, NO_PRODUCER, WEIGHT


class UnitTraffic(NamedTuple):
    """Tensors that more than one unit touches, by the units that touch them."""

    tensor: NDArray[np.int32]  # [K] of the graph
    home: NDArray[np.int32]  # [K] unit that makes the tensor, NO_PRODUCER for inputs and weights
    num_bytes: NDArray[np.int64]  # [K]
    is_weight: NDArray[np.bool_]  # [K]
    reader_ptr: NDArray[np.int64]  # [K + 1]
    reader: NDArray[np.int32]  # [R] units that read tensor k: ascending, unique, never its home
    read_ptr: NDArray[np.int64]  # [U + 1]
    read: NDArray[np.int32]  # [R] tensors that unit u reads and does not make
    write_ptr: NDArray[np.int64]  # [U + 1]
    write: NDArray[np.int32]  # [K] tensors that unit u makes


def unit_traffic(tables: CostTables, unit_of_op: NDArray[np.int32]) -> UnitTraffic:
    """The tensors of a graph between its units; weights of one unit are no traffic."""
    num_units = int(unit_of_op.max()) + 1
    made = tables.tensor_producer != NO_PRODUCER
    home = np.where(made, unit_of_op[tables.tensor_producer], NO_PRODUCER).astype(np.int32)
    reads = np.stack([tables.reader_tensor, unit_of_op[tables.reader_op]], axis=1)
    reads = np.unique(reads[home[reads[:, 0]] != reads[:, 1]], axis=0).reshape(-1, 2)
    num_readers = np.bincount(reads[:, 0], minlength=len(home))
    is_private = (tables.tensor_kind == WEIGHT) & (num_readers == 1)
    tensor = np.flatnonzero((num_readers > 0) & ~is_private).astype(np.int32)
    number = np.full(len(home), -1, np.int32)
    number[tensor] = np.arange(len(tensor))
    reads = reads[~is_private[reads[:, 0]]]
    row, reader = number[reads[:, 0]], reads[:, 1].astype(np.int32)
    by_reader = np.argsort(reader, kind="stable")
    written = np.flatnonzero(home[tensor] != NO_PRODUCER)
    by_home = written[np.argsort(home[tensor][written], kind="stable")].astype(np.int32)
    return UnitTraffic(
        tensor=tensor,
        home=home[tensor],
        num_bytes=tables.tensor_bytes[tensor],
        is_weight=tables.tensor_kind[tensor] == WEIGHT,
        reader_ptr=row_pointers(row, len(tensor)),
        reader=reader,
        read_ptr=row_pointers(reader, num_units),
        read=row[by_reader],
        write_ptr=row_pointers(home[tensor][by_home], num_units),
        write=by_home,
    )


def private_weight_bytes(tables: CostTables, unit_of_op: NDArray[np.int32]) -> NDArray[np.int64]:
    """[U] weights that one unit alone reads, each once."""
    is_weight = tables.tensor_kind[tables.reader_tensor] == WEIGHT
    reads = np.stack([tables.reader_tensor[is_weight], unit_of_op[tables.reader_op[is_weight]]], axis=1)
    reads = np.unique(reads, axis=0).reshape(-1, 2)
    is_only = np.bincount(reads[:, 0], minlength=len(tables.tensor_kind))[reads[:, 0]] == 1
    held = np.zeros(int(unit_of_op.max()) + 1, np.int64)
    np.add.at(held, reads[is_only, 1], tables.tensor_bytes[reads[is_only, 0]])
    return held


def host_seconds(
    tables: CostTables, unit_of_op: NDArray[np.int32]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[U] each: inputs that no unit before reads, and outputs, over the host's links.

    An input that several units read is charged to the first of them only, so that
    chips pay no less in truth.
    """
    num_units = int(unit_of_op.max()) + 1
    is_input = np.flatnonzero(tables.tensor_kind[tables.reader_tensor] == INPUT)
    first = np.full(len(tables.tensor_kind), num_units, np.int64)
    np.minimum.at(first, tables.reader_tensor[is_input], unit_of_op[tables.reader_op[is_input]])
    host_in_s, host_out_s = np.zeros(num_units), np.zeros(num_units)
    read = np.flatnonzero(first < num_units)
    np.add.at(host_in_s, first[read], tables.tensor_bytes[read] * tables.host_in_s_per_byte)
    left = np.flatnonzero(tables.tensor_is_output & (tables.tensor_producer != NO_PRODUCER))
    units = unit_of_op[tables.tensor_producer[left]]
    np.add.at(host_out_s, units, tables.tensor_bytes[left] * tables.host_out_s_per_byte)
    return host_in_s, host_out_s
