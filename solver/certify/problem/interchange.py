"""Symmetry breaking: an order among interchangeable chains of units that loses no optimum.

In a chain, only the next unit reads each unit, and reads nothing else. Let the chains
``u_1 … u_m`` and ``v_1 … v_m`` cost the same unit by unit and begin with the same reads. If
every reader of ``v_m`` is or descends from a reader of ``u_m``, and every reader of ``u_m``
is or leads to a reader of ``v_m``, then

    f'(u_i) = min(f(u_i), f(v_i)),    f'(v_i) = max(f(u_i), f(v_i))

keeps every edge and every span of at most one chip. Chips do the same work, links carry the
same bytes (each tensor of a pair starts and ends where one of the two did), and no tensor
passes more chips. So the problem may require ``u_i`` before ``v_i``, for all neighbours in a
sorted group at once. Projections of one tensor for many layers, or weights transposed at the
start and read much later, then have one order instead of exponentially many.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import IntArray, LongArray
from go_opt.common.compiling import compiled, compiled_inner, int64, uncounted_inner
from go_opt.model.csr import row_pointers

# Readers are compared by graph search; chains compared after these steps get no order.
MOST_STEPS: Final = 1_000_000


class _Reads(NamedTuple):
    """Producers and readers of tensors. Axes: ``U`` units, ``K`` tensors, ``R`` reads."""

    unit_class: LongArray  # [U] equal for units with equal costs
    tensor_class: LongArray  # [K] equal for tensors with equal costs
    producer: IntArray  # [K]
    reader_ptr: LongArray  # [K + 1]
    reader: IntArray  # [R]
    read_ptr: LongArray  # [U + 1]
    read: LongArray  # [R] tensors that each unit reads, ascending
    produced_ptr: LongArray  # [U + 1]
    produced: LongArray  # [K] tensors that each unit produces


class _Search(NamedTuple):
    """Scratch of searches among units."""

    seen: LongArray  # [U] mark of the last search that visited or wants the unit
    stack: LongArray  # [U]
    spent: LongArray  # [2] steps of all searches, and the last mark


def interchange_edges(
    unit_cost: LongArray,
    tensor_cost: LongArray,
    producer: IntArray,
    reader_ptr: LongArray,
    reader: IntArray,
) -> IntArray:
    """Returns pairs [E, 2] of units; the first may be required to come before the second.

    Args:
      unit_cost: [U, …] rows are equal for units that cost the same.
      tensor_cost: [K, …] rows are equal for tensors that cost the same.
      producer: [K] unit that produces each tensor.
      reader_ptr: [K + 1]
      reader: [R] units that read each tensor.
    """
    num_units = len(unit_cost)
    tensor_of_read = np.repeat(np.arange(len(producer)), np.diff(reader_ptr))
    reads = _Reads(
        _classes(unit_cost),
        _classes(tensor_cost),
        producer,
        reader_ptr,
        reader,
        row_pointers(reader, num_units),
        tensor_of_read[np.argsort(reader, kind="stable")],
        row_pointers(producer, num_units),
        np.argsort(producer, kind="stable"),
    )
    chain_ptr, units, hashes, due = _chains(reads)
    # Sort groups of equal chains by their first chain, and the chains of a group by their first readers.
    _, first, group = np.unique(hashes, return_index=True, return_inverse=True)
    order = np.lexsort((units[chain_ptr[:-1]], due, first[group]))
    edges: IntArray = _edges(reads, chain_ptr, units, hashes, order)
    return edges


def _classes(rows: LongArray) -> LongArray:
    """Returns class numbers [n], the same for equal rows."""
    as_bytes = np.ascontiguousarray(rows).view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1])))
    return np.unique(as_bytes.ravel(), return_inverse=True)[1].astype(np.int64)


@compiled
def _chains(reads: _Reads) -> tuple[LongArray, LongArray, LongArray, LongArray]:
    """Returns the longest chains as CSR, a hash of the costs and reads of each, and its first reader."""
    num_units = len(reads.unit_class)
    num_produced = np.diff(reads.produced_ptr)
    following, is_first = np.full(num_units, -1, np.int64), np.ones(num_units, np.bool_)
    for unit in range(num_units):
        if reads.read_ptr[unit + 1] - reads.read_ptr[unit] != 1:
            continue
        k = reads.read[reads.read_ptr[unit]]
        source = reads.producer[k]
        if reads.reader_ptr[k + 1] - reads.reader_ptr[k] == 1 and num_produced[source] == 1:
            following[source] = unit
            is_first[unit] = False
    chain_ptr, units = np.zeros(num_units + 1, np.int64), np.empty(num_units, np.int64)
    hashes, due = np.zeros(num_units, np.int64), np.full(num_units, num_units, np.int64)
    number, size = 0, 0
    for first in range(num_units):
        if not is_first[first] or num_produced[first] > 1:
            continue
        for r in range(reads.read_ptr[first], reads.read_ptr[first + 1]):
            hashes[number] = _hashed(hashes[number], reads.read[r])
        member = int64(first)
        while member >= 0 and num_produced[member] <= 1:
            units[size] = member
            size += 1
            hashes[number] = _hashed(hashes[number], reads.unit_class[member])
            hashes[number] = _hashed(hashes[number], _class_of_product(reads, member))
            member = following[member]
        for reader in _readers(reads, units[size - 1]):
            due[number] = min(due[number], int64(reader))
        number += 1
        chain_ptr[number] = size
    return chain_ptr[: number + 1], units[:size], hashes[:number], due[:number]


@uncounted_inner
def _hashed(value: int, part: int) -> int:
    # Two polynomials modulo primes below 2^31, so products never overflow (or warn in NumPy).
    high = ((value >> 31) * 48271 + part + 2) % 2147483647
    low = ((value & 0x7FFFFFFF) * 69621 + part + 2) % 2147483629
    return (high << 31) | low


@compiled_inner
def _readers(reads: _Reads, unit: int) -> IntArray:
    """Returns the readers of the tensor of ``unit``, which produces at most one."""
    at = reads.produced_ptr[unit]
    if at == reads.produced_ptr[unit + 1]:
        return reads.reader[:0]
    k = reads.produced[at]
    return reads.reader[reads.reader_ptr[k] : reads.reader_ptr[k + 1]]


@uncounted_inner
def _class_of_product(reads: _Reads, unit: int) -> int:
    at = reads.produced_ptr[unit]
    return reads.tensor_class[reads.produced[at]] if at < reads.produced_ptr[unit + 1] else int64(-1)


@compiled
def _edges(
    reads: _Reads, chain_ptr: LongArray, units: LongArray, hashes: LongArray, order: LongArray
) -> IntArray:
    """Returns unit pairs of neighbouring chains in ``order`` that are interchangeable in that order."""
    num_units = len(reads.unit_class)
    edges, number = np.empty((num_units, 2), np.int32), 0
    search = _Search(np.zeros(num_units, np.int64), np.empty(num_units, np.int64), np.zeros(2, np.int64))
    for at in range(1, len(order)):
        if hashes[order[at]] != hashes[order[at - 1]]:
            continue
        before = units[chain_ptr[order[at - 1]] : chain_ptr[order[at - 1] + 1]]
        after = units[chain_ptr[order[at]] : chain_ptr[order[at] + 1]]
        if not _are_alike(reads, before, after):
            continue
        ascends = True
        for i in range(len(before)):
            ascends = ascends and before[i] < after[i]
        if not ascends:
            continue
        if _is_due_before(reads, _readers(reads, before[-1]), _readers(reads, after[-1]), search):
            for i in range(len(before)):
                edges[number, 0], edges[number, 1] = before[i], after[i]
                number += 1
    return edges[:number]


@uncounted_inner
def _are_alike(reads: _Reads, before: LongArray, after: LongArray) -> bool:
    """Returns whether two chains cost the same, unit by unit, and begin with the same reads."""
    if len(before) != len(after):
        return False
    begins = reads.read[reads.read_ptr[before[0]] : reads.read_ptr[before[0] + 1]]
    begins_after = reads.read[reads.read_ptr[after[0]] : reads.read_ptr[after[0] + 1]]
    if not _are_equal(begins, begins_after):
        return False
    for u, v in zip(before, after):  # noqa: B905 (numba knows no strict zip)
        if reads.unit_class[u] != reads.unit_class[v]:
            return False
        if _class_of_product(reads, u) != _class_of_product(reads, v):
            return False
    return True


@uncounted_inner
def _are_equal(a: IntArray, b: IntArray) -> bool:
    is_equal = len(a) == len(b)
    for i in range(min(len(a), len(b))):
        is_equal = is_equal and a[i] == b[i]
    return is_equal


@uncounted_inner
def _is_due_before(reads: _Reads, readers: IntArray, later: IntArray, search: _Search) -> bool:
    if _are_equal(readers, later):
        return True
    if len(readers) == 0 or search.spent[0] > MOST_STEPS:
        return False
    return _all_reached(reads, readers, later, True, search) and _all_reached(
        reads, later, readers, False, search
    )


@uncounted_inner
def _all_reached(
    reads: _Reads, sources: IntArray, wanted: IntArray, is_forward: bool, search: _Search
) -> bool:
    """Returns whether each of ``wanted`` is in ``sources`` or reachable from them."""
    seen, stack, spent = search.seen, search.stack, search.spent
    spent[1] += 2
    is_wanted, is_seen = spent[1] - 1, spent[1]
    height, missing = 0, len(wanted)
    last = int64(0) if is_forward else int64(len(seen))  # the search goes no further
    for unit in wanted:
        seen[unit] = is_wanted
        last = max(last, int64(unit)) if is_forward else min(last, int64(unit))
    for unit in sources:
        missing -= seen[unit] == is_wanted
        seen[unit] = is_seen
        stack[height] = unit
        height += 1
    ptr, tensors = (reads.produced_ptr, reads.produced) if is_forward else (reads.read_ptr, reads.read)
    while height > 0 and missing > 0:
        height -= 1
        unit = stack[height]
        spent[0] += 1
        for t in range(ptr[unit], ptr[unit + 1]):
            k = tensors[t]
            near = reads.producer[k : k + 1]
            if is_forward:
                near = reads.reader[reads.reader_ptr[k] : reads.reader_ptr[k + 1]]
            for other in near:
                is_beyond = other > last if is_forward else other < last
                if not is_beyond and seen[other] != is_seen:
                    missing -= seen[other] == is_wanted
                    seen[other] = is_seen
                    stack[height] = other
                    height += 1
    return missing == 0
