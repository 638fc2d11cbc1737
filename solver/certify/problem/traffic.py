"""Tensors between the units of the refinement, and traffic on the host's links."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray
from go_opt.env.cost import CostTables
from go_opt.model.graph import INPUT, NO_PRODUCER, WEIGHT


class UnitTensors(NamedTuple):
    """Tensors between units. Axis: ``K`` tensors, sorted by producer."""

    producer: IntArray  # [K]
    bytes: LongArray  # [K]
    copies: LongArray  # [K] number of graph tensors merged into this one
    reader_ptr: LongArray  # [K + 1]
    reader: IntArray
    of_tensor: LongArray  # [graph tensors] the merged tensor; -1: no other unit reads it


def unit_tensors(tables: CostTables, unit_of_op: IntArray, num_units: int) -> UnitTensors:
    """Returns activations that other units read; those with equal producer and readers are merged."""
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
    return UnitTensors(
        producer=np.array([key[0] for key in keys], dtype=np.int32),
        bytes=np.array([tables.tensor_bytes[merged[key]].sum() for key in keys], dtype=np.int64),
        copies=np.array([len(merged[key]) for key in keys], dtype=np.int64),
        reader_ptr=np.cumsum([0, *(len(row) for row in readers)]).astype(np.int64),
        reader=np.concatenate([*readers, np.zeros(0, np.int32)]).astype(np.int32),
        of_tensor=of_tensor,
    )


def own_host_traffic(
    tables: CostTables, unit_of_op: IntArray, num_units: int
) -> tuple[FloatArray, dict[int, tuple[float, IntArray]]]:
    """Returns seconds [U] of outputs and of inputs that one unit reads; other inputs with their readers."""
    own_s = np.zeros(num_units)
    leaves = tables.tensor_is_output & (tables.tensor_producer != NO_PRODUCER)
    np.add.at(
        own_s,
        unit_of_op[tables.tensor_producer[leaves]],
        tables.tensor_bytes[leaves] * tables.host_out_s_per_byte,
    )
    shared = {}
    for k in np.flatnonzero(tables.tensor_kind == INPUT):
        seconds = float(tables.tensor_bytes[k] * tables.host_in_s_per_byte)
        readers = np.unique(unit_of_op[tables.reader_op[tables.reader_ptr[k] : tables.reader_ptr[k + 1]]])
        if len(readers) == 1:
            own_s[readers[0]] += seconds
        elif len(readers):
            shared[int(k)] = (seconds, readers.astype(np.int32))
    return own_s, shared
