"""Tensors between the units of the refinement, and traffic on the host's links."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray, csr, row_pointers
from go_opt.env.cost import CostTables
from go_opt.model.graph import INPUT, NO_PRODUCER, WEIGHT


def unit_tensors(
    tables: CostTables, unit_of_op: IntArray, num_units: int
) -> tuple[dict[str, Any], LongArray, LongArray]:
    """Returns activations that other units read; those with equal producer and readers are merged.

    Returns:
      the fields of :class:`~go_opt.solver.certify.problem.problem.UnitGraph` for these K tensors; [K] the
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
