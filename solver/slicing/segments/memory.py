"""Memory of segments of a kernel sequence (design section 5, Memory)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, IntArray, LongArray
from go_opt.common.compiling import compiled
from go_opt.env.cost import CostTables
from go_opt.env.model.addresses import most_alive, place_buffers
from go_opt.model.csr import row_pointers
from go_opt.model.graph import NO_PRODUCER, WEIGHT
from go_opt.solver.problem.sequence import KernelSequence, unique_pairs


class SegmentMemory(NamedTuple):
    """Tensors by kernel, all bytes as they are stored. Axes: ``M`` kernels, ``K`` tensors, ``D`` chips.

    Weights may all stream: where any are read, a stream buffer is set aside for them. Where tensors
    are relayed, every tensor that crosses a segment's start has one double buffer in it, read
    there or not: ``entering_bytes`` holds them and ``read`` does not.
    """

    write_ptr: LongArray  # [M + 1]
    write: IntArray  # [...] activations each kernel stores
    read_ptr: LongArray  # [M + 1]
    read: IntArray  # [...] activations and inputs each kernel reads from another
    size_bytes: LongArray  # [K]
    home: LongArray  # [K] kernel that produces the tensor, -1 for inputs
    last: LongArray  # [K] last kernel that reads it from another, -1: none
    is_output: BoolArray  # [K]
    buffer_bytes: LongArray  # [M] of the stream buffer, where a kernel reads weights
    buffer_before: LongArray  # [M] the last kernel before that does, -1: none
    entering_bytes: LongArray  # [M] a segment holds throughout that starts here
    crossing_bytes: LongArray  # [M + 1] produced before a cut and read after it
    sram_bytes: LongArray  # [D]
    places_buffers: bool  # activations need addresses


def segment_memory(
    tables: CostTables,
    sequence: KernelSequence,
    *,
    relayed: bool = False,
) -> SegmentMemory:
    """What the memory of segments of ``sequence`` depends on.

    Args:
      relayed: tensors that pass a chip are copied there.
    """
    kernel_of, num_kernels = sequence.kernel_of, sequence.num_kernels
    producer = tables.tensor_producer
    home = np.where(producer == NO_PRODUCER, -1, kernel_of[producer]).astype(np.int64)
    tensor, reader = tables.reader_tensor, kernel_of[tables.reader_op].astype(np.int64)
    is_activation = (tables.tensor_kind[tensor] != WEIGHT) & (reader != home[tensor])
    pairs = unique_pairs(reader[is_activation], tensor[is_activation])
    last = np.full(len(home), -1, dtype=np.int64)
    np.maximum.at(last, pairs[:, 1], pairs[:, 0])
    reads_weights = np.zeros(num_kernels, dtype=np.bool_)
    reads_weights[reader[(tables.tensor_kind[tensor] == WEIGHT) & (tables.stored_bytes[tensor] > 0)]] = True
    last_that_reads = np.maximum.accumulate(np.where(reads_weights, np.arange(num_kernels), -1))
    crossing_bytes = _crossing_bytes(tables.stored_bytes, home, last, num_kernels)
    entering_bytes = np.zeros(num_kernels, dtype=np.int64)
    if relayed:
        pairs = pairs[home[pairs[:, 1]] < 0]
        entering_bytes = 2 * crossing_bytes[:-1]
    stored = np.flatnonzero((home >= 0) & ((last >= 0) | tables.tensor_is_output))
    stored = stored[np.argsort(home[stored], kind="stable")]
    return SegmentMemory(
        row_pointers(home[stored], num_kernels),
        stored.astype(np.int32),
        row_pointers(pairs[:, 0], num_kernels),
        pairs[:, 1].astype(np.int32),
        tables.stored_bytes,
        home,
        last,
        tables.tensor_is_output,
        reads_weights * int(tables.stream_buffer_bytes.max()),
        np.concatenate([[-1], last_that_reads[:-1]]),
        entering_bytes,
        crossing_bytes,
        tables.sram_bytes,
        tables.places_buffers,
    )


def without_stream_buffer(memory: SegmentMemory) -> SegmentMemory:
    """The same for segments whose weights, and the buffer they stream through, are accounted for beside."""
    return memory._replace(buffer_bytes=np.zeros_like(memory.buffer_bytes))


def _crossing_bytes(size: LongArray, home: LongArray, last: LongArray, num_kernels: int) -> LongArray:
    """[M + 1] of the tensors that are produced before each cut and read after it."""
    crosses = np.flatnonzero((home >= 0) & (last > home))
    change = np.zeros(num_kernels + 2, dtype=np.int64)
    np.add.at(change, home[crosses] + 1, size[crosses])
    np.add.at(change, last[crosses] + 1, -size[crosses])
    return np.cumsum(change[: num_kernels + 1])


class SegmentUsage(NamedTuple):
    """What a segment that grows towards its start uses; the scratch of :func:`grow_segment`."""

    total: LongArray  # [3] held throughout, most alive beside that, stream buffer; in bytes
    alive: LongArray  # [M] alive at each kernel of the segment, beside what is held
    seen: LongArray  # [K] the last end a tensor was seen entering a segment of


def segment_usage(memory: SegmentMemory) -> SegmentUsage:
    """Fresh scratch for segments of ``memory``."""
    num_kernels = len(memory.write_ptr) - 1
    return SegmentUsage(
        np.zeros(3, dtype=np.int64),
        np.zeros(num_kernels, dtype=np.int64),
        np.full(len(memory.home), -1, dtype=np.int64),
    )


def shortage_bytes(memory: SegmentMemory, cuts: LongArray) -> int:
    """By how much the fullest segment exceeds its chip's memory, once its activations have addresses.

    What segments need is otherwise counted without the holes between them.
    """
    peaks = segment_peaks_bytes(memory, cuts, segment_usage(memory))
    room = memory.sram_bytes[: len(peaks)] - peaks
    if memory.places_buffers:
        room -= _holes_bytes(memory, cuts, room)
    return -int(room.min())


@compiled
def _holes_bytes(memory: SegmentMemory, cuts: LongArray, room: LongArray) -> LongArray:
    """What each segment's activations need beyond those alive at once; zero where there is ample room."""
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
    """Bytes each segment between two cuts needs at its peak."""
    peaks = np.zeros(len(cuts) - 1, np.int64)
    for d in range(len(cuts) - 1):
        usage.total[:] = 0
        for kernel in range(cuts[d + 1] - 1, cuts[d] - 1, -1):
            peaks[d] = grow_segment(memory, kernel, cuts[d + 1], usage)
    return peaks


@compiled
def least_needed_bytes(memory: SegmentMemory) -> LongArray:
    """[M] what a segment needs at least that holds the kernel: all that it touches is there at once."""
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


@compiled
def grow_segment(memory: SegmentMemory, start: int, end: int, usage: SegmentUsage) -> int:
    """Bytes segment [start, end) needs, after [start + 1, end) was asked for.

    A segment starts empty: ``usage.total`` is zero before its last kernel. Ends ascend.
    """
    held = usage.total[0]
    most = usage.total[1]
    usage.alive[start] = 0
    for i in range(memory.write_ptr[start], memory.write_ptr[start + 1]):
        tensor = memory.write[i]
        size = memory.size_bytes[tensor]
        # What entered the segment while it started later is now produced inside it.
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
