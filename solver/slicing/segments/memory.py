"""Memory of segments of a kernel sequence (design section 5, Memory).

A segment needs its steady memory (double buffers of tensors that enter and leave it, stream buffer)
plus the peak of its live tensors. For a given end, steady memory is a sum over kernels whose summands do
not depend on the start. An entering tensor counts at its last reader and is subtracted at its producer. A
leaving tensor counts at its producer, the stream buffer at the last kernel that reads weights.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, IntArray, LongArray, csr, row_pointers
from go_opt.common.compiling import compiled, compiled_inner, int64, uncounted_inner
from go_opt.env.cost import CostTables
from go_opt.env.model.addresses import most_alive, place_buffers
from go_opt.env.model.memory import csr_of
from go_opt.model.graph import WEIGHT
from go_opt.solver.problem.sequence import KernelSequence, unique_pairs

BLOCK: Final = 64  # starts
NONE = int64(-1)  # numba compiles anew for every literal


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


def bytes_of_states(tables: CostTables, sequence: KernelSequence) -> LongArray:
    """Returns the bytes [M] of the states of one sequence, at the first kernel that reads each."""
    states = np.flatnonzero(tables.is_state & (np.diff(tables.reader_ptr) > 0))
    kernel = sequence.kernel_of[tables.reader_op[tables.reader_ptr[states]]]
    state_bytes = np.zeros(sequence.num_kernels, np.int64)
    np.add.at(state_bytes, kernel, tables.stored_bytes[states] // tables.sequences)
    return state_bytes


def states_of_stages(
    tables: CostTables, state_bytes: LongArray, cuts: LongArray, sizes: LongArray
) -> LongArray:
    """Returns the bytes [S] of states on the busiest chip of each stage between ``cuts``, of ``sizes`` [S].

    Args:
      state_bytes: :func:`bytes_of_states`.
    """
    of_stage: LongArray = np.add.reduceat(state_bytes, cuts[:-1]) * -(-tables.sequences // sizes)
    return of_stage


def without_states(tables: CostTables) -> CostTables:
    """Returns tables in which states take no memory, for callers that count them separately."""
    return tables._replace(stored_bytes=np.where(tables.is_state, 0, tables.stored_bytes))


def shortage_bytes(memory: SegmentMemory, cuts: LongArray, beside: LongArray | None = None) -> int:
    """Returns the most bytes by which a segment exceeds its chip's memory, with addresses for activations.

    All other memory counts here ignore the holes between activations.

    Args:
      beside: [S] bytes that each segment has in addition.
    """
    peaks = segment_peaks_bytes(memory, cuts)
    if beside is not None:
        peaks += beside
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
def segment_peaks_bytes(memory: SegmentMemory, cuts: LongArray) -> LongArray:
    """Returns the peak bytes of each segment between two cuts."""
    peaks, held = np.zeros(len(cuts) - 1, np.int64), no_segment(memory)
    for d in range(len(cuts) - 1):
        for kernel in range(cuts[d], cuts[d + 1]):
            move_end(memory, held, kernel)
        for kernel in range(cuts[d + 1] - 1, cuts[d] - 1, -1):
            peaks[d], _ = grow_segment(memory, held, kernel, cuts[d + 1])
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


class SegmentBytes(NamedTuple):
    """Memory of segments up to the current end. Axes: ``M`` kernels, ``K`` tensors, ``B`` blocks."""

    steady: LongArray  # [M] summands that are never negative
    entering: LongArray  # [M] summands that may be negative
    reader: LongArray  # [K] the tensor's last reader before the end, -1: none
    end_ptr: LongArray  # [M + 1]
    end: IntArray  # [...] tensors, without outputs, that each kernel is the last to read
    most_alive: LongArray  # [M] bound on the bytes alive at each kernel, in any segment
    is_fresh: BoolArray  # [B] whether ``total`` and ``most_held`` are up to date
    total: LongArray  # [2, B] sums of the summands
    most_held: LongArray  # [B] maximum over the starts in the block of the sum from there on
    most_alive_in: LongArray  # [B] maximum of ``most_alive``
    kept: LongArray  # [3, M] the forest of :func:`grow_peak`
    grown: LongArray  # [3] of the segment that grows: steady bytes, bytes alive at its start, their peak


@compiled_inner
def no_segment(memory: SegmentMemory) -> SegmentBytes:
    """Returns the bytes before the first end."""
    num_kernels = len(memory.entering_bytes)
    num_blocks = num_kernels // BLOCK + 1
    dead, alive = np.full(len(memory.home), NONE, np.int32), np.zeros(num_kernels + 1, np.int64)
    for tensor in memory.write:
        if not memory.is_output[tensor]:
            dead[tensor] = memory.last[tensor]
            alive[memory.home[tensor]] += memory.size_bytes[tensor]
            alive[memory.last[tensor] + 1] -= memory.size_bytes[tensor]
    most_alive_in = np.zeros(num_blocks, np.int64)
    for kernel in range(num_kernels):
        most_alive_in[kernel // BLOCK] = max(most_alive_in[kernel // BLOCK], alive[kernel])
        alive[kernel + 1] += alive[kernel]
    end_ptr, end = csr_of(dead, num_kernels)
    return SegmentBytes(
        np.zeros(num_kernels, np.int64),
        np.zeros(num_kernels, np.int64),
        np.full(len(memory.home), -1, np.int64),
        end_ptr,
        end,
        alive,
        np.zeros(num_blocks, np.bool_),
        np.zeros((2, num_blocks), np.int64),
        np.zeros(num_blocks, np.int64),
        most_alive_in,
        np.empty((3, num_kernels), np.int64),
        np.zeros(3, np.int64),
    )


@uncounted_inner
def move_end(memory: SegmentMemory, held: SegmentBytes, kernel: int) -> None:
    """Moves the current end from before ``kernel`` to after it, where an empty segment may grow."""
    for w in range(memory.write_ptr[kernel], memory.write_ptr[kernel + 1]):
        _move(held, held.steady, NONE, kernel, 2 * memory.size_bytes[memory.write[w]])
    for e in range(held.end_ptr[kernel], held.end_ptr[kernel + 1]):
        tensor = held.end[e]
        _move(held, held.steady, memory.home[tensor], NONE, 2 * memory.size_bytes[tensor])
    for r in range(memory.read_ptr[kernel], memory.read_ptr[kernel + 1]):
        tensor = memory.read[r]
        home, before = memory.home[tensor], held.reader[tensor]
        summands = held.steady if home < 0 else held.entering
        _move(held, summands, before if before >= 0 else home, kernel, 2 * memory.size_bytes[tensor])
        held.reader[tensor] = kernel
    if memory.buffer_bytes[kernel] > 0:
        _move(held, held.steady, memory.buffer_before[kernel], kernel, memory.buffer_bytes[kernel])
    held.grown[0] = held.grown[1] = held.grown[2] = 0


@uncounted_inner
def _move(held: SegmentBytes, summands: LongArray, source: int, kernel: int, size: int) -> None:
    """Moves ``size`` bytes from the summand of ``source`` to that of ``kernel``; -1: no kernel."""
    if source >= 0:
        summands[source] -= size
        held.is_fresh[source // BLOCK] = False
    if kernel >= 0:
        summands[kernel] += size
        held.is_fresh[kernel // BLOCK] = False


@uncounted_inner
def grow_segment(memory: SegmentMemory, held: SegmentBytes, start: int, end: int) -> tuple[int, int]:
    """Returns all bytes of segment [start, end), the current end, and the peak of its live tensors.

    Called for each start from ``end - 1`` down.
    """
    steady_bytes = held.grown[0] + held.steady[start] + held.entering[start]
    alive_bytes, peak_bytes = grow_peak(memory, held.kept, start, end, held.grown[1], held.grown[2])
    held.grown[0], held.grown[1], held.grown[2] = steady_bytes, alive_bytes, peak_bytes
    return steady_bytes + memory.entering_bytes[start] + peak_bytes, peak_bytes


@uncounted_inner
def grow_peak(
    memory: SegmentMemory, kept: LongArray, start: int, end: int, alive_bytes: int, peak_bytes: int
) -> tuple[int, int]:
    """Returns the bytes alive at ``start`` and the peak in [start, end), given those of [start + 1, end).

    A new tensor is live from the first kernel on, so no kernel gains on the kernels before it. Only
    kernels fuller than all before them are kept. ``upto`` is a forest: the root of a kernel is the last
    kept kernel at or before it. ``following`` is the next kept kernel, fuller by ``rise`` bytes, or -1.
    """
    upto, following, rise = kept[0], kept[1], kept[2]
    upto[start], following[start] = start, -1
    if start + 1 < end:
        if alive_bytes > 0:
            following[start], rise[start] = start + 1, alive_bytes
        else:  # nothing is alive at start + 1, so drop it
            upto[start + 1], following[start], rise[start] = start, following[start + 1], rise[start + 1]
    alive_bytes = int64(0)
    for w in range(memory.write_ptr[start], memory.write_ptr[start + 1]):
        tensor = memory.write[w]
        if memory.is_output[tensor] or memory.last[tensor] >= end:
            continue
        size = memory.size_bytes[tensor]
        alive_bytes += size
        kernel = memory.last[tensor]
        while upto[kernel] != kernel:
            upto[kernel] = upto[upto[kernel]]
            kernel = upto[kernel]
        if following[kernel] < 0:
            peak_bytes += size
            continue
        rise[kernel] -= size
        while following[kernel] >= 0 and rise[kernel] <= 0:
            after = following[kernel]
            upto[after] = kernel
            if following[after] < 0:
                peak_bytes -= rise[kernel]
            else:
                rise[kernel] += rise[after]
            following[kernel] = following[after]
    return alive_bytes, peak_bytes
