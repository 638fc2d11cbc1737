"""Memory of segments of a kernel sequence (design section 5, Memory)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, IntArray, LongArray, csr, row_pointers
from go_opt.common.compiling import compiled, uncounted
from go_opt.env.cost import CostTables
from go_opt.env.model.addresses import most_alive, place_buffers
from go_opt.model.graph import WEIGHT
from go_opt.solver.problem.sequence import KernelSequence, unique_pairs


class SegmentMemory(NamedTuple):
    """Tensors by kernel, all bytes as stored. Axes: ``M`` kernels, ``K`` tensors, ``D`` chips.

    A state is an output of one of its kernels, with half its bytes, as outputs take twice their bytes.

    All weights may stream, so a segment that reads weights has a stream buffer. Where tensors
    are relayed, a segment has one double buffer for every tensor that crosses its start, read
    there or not: ``entering_bytes`` counts these tensors, and ``read`` does not.
    """

    write_ptr: LongArray  # [M + 1]
    write: IntArray  # [...] activations each kernel stores
    read_ptr: LongArray  # [M + 1]
    read: IntArray  # [...] activations and inputs each kernel reads from another
    size_bytes: LongArray  # [K]
    home: LongArray  # [K] kernel that produces the tensor, -1 for inputs
    last: LongArray  # [K] last kernel that reads it from another, -1: none
    is_output: BoolArray  # [K]
    buffer_bytes: LongArray  # [M] of the stream buffer; 0 if the kernel reads no weights
    buffer_before: LongArray  # [M] the last earlier kernel that reads weights, -1: none
    entering_bytes: LongArray  # [M] buffers of relayed tensors in a segment that starts here
    crossing_bytes: LongArray  # [M + 1] produced before a cut and read after it
    sram_bytes: LongArray  # [D]
    places_buffers: bool  # activations need addresses


def segment_memory(
    tables: CostTables,
    sequence: KernelSequence,
    *,
    relayed: bool = False,
) -> SegmentMemory:
    """Returns the data that determine the memory of segments of ``sequence``.

    Args:
      relayed: tensors that pass a chip are copied there.
    """
    home, last, num_kernels = sequence.home, sequence.last, sequence.num_kernels
    size, is_output = tables.stored_bytes, tables.tensor_is_output
    if len(states := np.flatnonzero(tables.is_state)):
        home, size, is_output = home.copy(), size.copy(), is_output.copy()
        home[states] = sequence.kernel_of[tables.reader_op[tables.reader_ptr[states]]]
        size[states] = -(-size[states] // 2)
        is_output[states] = True
    tensor, reader = tables.reader_tensor, sequence.kernel_of[tables.reader_op].astype(np.int64)
    is_activation = (tables.tensor_kind[tensor] != WEIGHT) & (reader != home[tensor])
    pairs = unique_pairs(reader[is_activation], tensor[is_activation])
    reads_weights = np.zeros(num_kernels, dtype=np.bool_)
    reads_weights[reader[(tables.tensor_kind[tensor] == WEIGHT) & (tables.tensor_bytes[tensor] > 0)]] = True
    last_that_reads = np.maximum.accumulate(np.where(reads_weights, np.arange(num_kernels), -1))
    crossing_bytes = _crossing_bytes(size, home, last, num_kernels)
    entering_bytes = np.zeros(num_kernels, dtype=np.int64)
    if relayed:
        pairs = pairs[home[pairs[:, 1]] < 0]
        entering_bytes = 2 * crossing_bytes[:-1]
    stored = np.flatnonzero((home >= 0) & ((last >= 0) | is_output))
    write_ptr, by_home = csr(home[stored], num_kernels)
    return SegmentMemory(
        write_ptr,
        stored[by_home].astype(np.int32),
        row_pointers(pairs[:, 0], num_kernels),
        pairs[:, 1].astype(np.int32),
        size,
        home,
        last,
        is_output,
        reads_weights * int(tables.stream_buffer_bytes.max()),
        np.concatenate([[-1], last_that_reads[:-1]]),
        entering_bytes,
        crossing_bytes,
        tables.sram_bytes,
        tables.places_buffers,
    )


def without_stream_buffer(memory: SegmentMemory) -> SegmentMemory:
    """Returns ``memory`` without stream buffers, for callers that count weights separately."""
    return memory._replace(buffer_bytes=np.zeros_like(memory.buffer_bytes))


def _crossing_bytes(size: LongArray, home: LongArray, last: LongArray, num_kernels: int) -> LongArray:
    """Returns the bytes [M + 1] of the tensors that are produced before each cut and read after it."""
    crosses = np.flatnonzero((home >= 0) & (last > home))
    change = np.zeros(num_kernels + 2, dtype=np.int64)
    np.add.at(change, home[crosses] + 1, size[crosses])
    np.add.at(change, last[crosses] + 1, -size[crosses])
    return np.cumsum(change[: num_kernels + 1])


class SegmentUsage(NamedTuple):
    """Memory use of a segment that grows towards its start; the scratch of :func:`grow_segment`."""

    total: LongArray  # [3] bytes: steady, peak of the live tensors, stream buffer
    alive: LongArray  # [M] live bytes at each kernel of the segment, without steady bytes
    seen: LongArray  # [K] the last end for which the tensor entered a segment


def segment_usage(memory: SegmentMemory) -> SegmentUsage:
    """Returns new scratch for segments of ``memory``."""
    num_kernels = len(memory.write_ptr) - 1
    return SegmentUsage(
        np.zeros(3, dtype=np.int64),
        np.zeros(num_kernels, dtype=np.int64),
        np.full(len(memory.home), -1, dtype=np.int64),
    )


def shortage_bytes(memory: SegmentMemory, cuts: LongArray) -> int:
    """Returns the most bytes by which a segment exceeds its chip's memory, with addresses for activations.

    All other memory counts here ignore the holes between activations.
    """
    peaks = segment_peaks_bytes(memory, cuts, segment_usage(memory))
    room = memory.sram_bytes[: len(peaks)] - peaks
    if memory.places_buffers:
        room -= _holes_bytes(memory, cuts, room)
    return -int(room.min())


@compiled
def _holes_bytes(memory: SegmentMemory, cuts: LongArray, room: LongArray) -> LongArray:
    """Returns the bytes of holes between each segment's activations; zero if there is ample room."""
    holes = np.zeros(len(cuts) - 1, np.int64)
    address = np.empty(len(memory.write), np.int64)
    for d in range(len(holes)):
        begin, end = memory.write_ptr[cuts[d]], memory.write_ptr[cuts[d + 1]]
        stays = memory.write[begin:end]
        stays = stays[~memory.is_output[stays] & (memory.last[stays] < cuts[d + 1])]
        size, born, dead = memory.size_bytes[stays], memory.home[stays], memory.last[stays]
        alive = most_alive(size, born, dead)
        if size.sum() - alive > room[d]:
            holes[d] = place_buffers(size, born, dead, address[: len(stays)]) - alive
    return holes


@compiled
def segment_peaks_bytes(memory: SegmentMemory, cuts: LongArray, usage: SegmentUsage) -> LongArray:
    """Returns the peak bytes of each segment between two cuts."""
    peaks = np.zeros(len(cuts) - 1, np.int64)
    for d in range(len(cuts) - 1):
        usage.total[:] = 0
        for kernel in range(cuts[d + 1] - 1, cuts[d] - 1, -1):
            peaks[d] = grow_segment(memory, kernel, cuts[d + 1], usage)
    return peaks


@compiled
def least_needed_bytes(memory: SegmentMemory) -> LongArray:
    """Returns a lower bound [M] on the bytes of any segment with the kernel: all its tensors at once."""
    needed = np.zeros(len(memory.entering_bytes), np.int64)
    for kernel in range(len(needed)):
        for w in range(memory.write_ptr[kernel], memory.write_ptr[kernel + 1]):
            tensor = memory.write[w]
            needed[kernel] += memory.size_bytes[tensor] * (2 if memory.is_output[tensor] else 1)
        for r in range(memory.read_ptr[kernel], memory.read_ptr[kernel + 1]):
            tensor = memory.read[r]
            needed[kernel] += memory.size_bytes[tensor] * (2 if memory.home[tensor] < 0 else 1)
        needed[kernel] += memory.buffer_bytes[kernel]
    return needed


@uncounted
def grow_segment(memory: SegmentMemory, start: int, end: int, usage: SegmentUsage) -> int:
    """Returns the bytes that segment [start, end) needs, after a call for [start + 1, end).

    The caller sets ``usage.total`` to zero before the first call for an end. Ends must ascend.
    """
    held = usage.total[0]
    most = usage.total[1]
    usage.alive[start] = 0
    for i in range(memory.write_ptr[start], memory.write_ptr[start + 1]):
        tensor = memory.write[i]
        size = memory.size_bytes[tensor]
        # A tensor that entered the shorter segment is now produced inside the segment.
        held -= 2 * size if usage.seen[tensor] == end else 0
        if memory.is_output[tensor] or memory.last[tensor] >= end:
            held += 2 * size
            continue
        for kernel in range(start, memory.last[tensor] + 1):
            usage.alive[kernel] += size
            most = max(most, usage.alive[kernel])
    for i in range(memory.read_ptr[start], memory.read_ptr[start + 1]):
        tensor = memory.read[i]
        if usage.seen[tensor] != end:
            usage.seen[tensor] = end
            held += 2 * memory.size_bytes[tensor]
    usage.total[2] = max(usage.total[2], memory.buffer_bytes[start])
    usage.total[0] = held
    usage.total[1] = most
    return held + most + usage.total[2] + memory.entering_bytes[start]
