"""Tensors alive across a unit in any execution order: produced before it and read after it.

A tensor that another kernel reads is stored from its producer's kernel to its last reader's.
If there are paths from its producer to unit v and from v to a reader, it is alive while v runs,
provided that the producer or the reader is known to share v's chip. Most such tensors are
residuals and skip connections.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from go_opt.common.arrays import BoolArray, IntArray, LongArray, csr
from go_opt.common.compiling import compiled
from go_opt.solver.certify.problem.problem import UnitGraph

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
