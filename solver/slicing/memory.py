"""Memory of segments of a kernel sequence (design section 5, Memory).

A segment needs its steady memory (double buffers of tensors that enter and leave it, stream buffer)
plus the peak of its live tensors. For a given end, steady memory is a sum over kernels whose summands do
not depend on the start. An entering tensor counts at its last reader and is subtracted at its producer. A
leaving tensor counts at its producer, the stream buffer at the last kernel that reads weights.

A chip streams weights in order of touched per stored bytes, then larger first, then by index,
until the others fit; of the last, only the pages that do not fit (:mod:`go_opt.env.model.memory`). Each
pair of a weight and a share of it that some kernel touches has one place in that order. A segment stores
a weight at the place of the largest share that it touches. Binary indexed trees over the places sum
stored and touched bytes: O(log places) to add a weight, and to find the streamed bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, IntArray, LongArray, csr, row_pointers
from go_opt.common.compiling import compiled, compiled_inner, int64, uncounted, uncounted_inner
from go_opt.env.cost.tables import CostTables
from go_opt.env.model.memory import most_alive, place_buffers, stream_order
from go_opt.model.graph import WEIGHT
from go_opt.solver.problem.sequence import KernelSequence, unique_pairs

NOT_HELD = -1


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
    end_ptr: LongArray  # [M + 1]
    end: IntArray  # [...] stored tensors, without outputs, that each kernel is the last to read
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
    ends = stored[~is_output[stored]]
    end_ptr, by_last = csr(last[ends], num_kernels)
    return SegmentMemory(
        write_ptr,
        stored[by_home].astype(np.int32),
        row_pointers(pairs[:, 0], num_kernels),
        pairs[:, 1].astype(np.int32),
        size,
        home,
        last,
        is_output,
        end_ptr,
        ends[by_last].astype(np.int32),
        reads_weights * int(tables.stream_buffer_bytes.max()),
        np.concatenate([[-1], last_that_reads[:-1]]),
        entering_bytes,
        crossing_bytes,
        tables.sram_bytes,
        tables.places_buffers,
    )


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
    peaks, segment = np.zeros(len(cuts) - 1, np.int64), no_segment(memory)
    for d in range(len(cuts) - 1):
        for kernel in range(cuts[d], cuts[d + 1]):
            move_end(memory, segment, kernel)
        for kernel in range(cuts[d + 1] - 1, cuts[d] - 1, -1):
            peaks[d], _ = grow_segment(memory, segment, kernel, cuts[d + 1])
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
    """Memory of segments up to the current end. Axes: ``M`` kernels, ``K`` tensors."""

    held: LongArray  # [M] summands of steady memory
    reader: LongArray  # [K] the tensor's last reader before the end, -1: none
    kept: LongArray  # [3, M] the forest of :func:`grow_segment`
    grown: LongArray  # [3] of the segment that grows: steady bytes, bytes alive at its start, their peak


@compiled_inner
def no_segment(memory: SegmentMemory) -> SegmentBytes:
    """Returns the bytes before the first end."""
    num_kernels = len(memory.entering_bytes)
    return SegmentBytes(
        np.zeros(num_kernels, np.int64),
        np.full(len(memory.home), -1, np.int64),
        np.empty((3, num_kernels), np.int64),
        np.zeros(3, np.int64),
    )


@uncounted_inner
def move_end(memory: SegmentMemory, segment: SegmentBytes, kernel: int) -> None:
    """Moves the current end from before ``kernel`` to after it, where an empty segment may grow."""
    held = segment.held
    for w in range(memory.write_ptr[kernel], memory.write_ptr[kernel + 1]):
        held[kernel] += 2 * memory.size_bytes[memory.write[w]]
    for e in range(memory.end_ptr[kernel], memory.end_ptr[kernel + 1]):
        held[memory.home[memory.end[e]]] -= 2 * memory.size_bytes[memory.end[e]]
    for r in range(memory.read_ptr[kernel], memory.read_ptr[kernel + 1]):
        tensor = memory.read[r]
        before = segment.reader[tensor] if segment.reader[tensor] >= 0 else memory.home[tensor]
        _move(held, before, kernel, 2 * memory.size_bytes[tensor])
        segment.reader[tensor] = kernel
    if memory.buffer_bytes[kernel] > 0:
        _move(held, memory.buffer_before[kernel], kernel, memory.buffer_bytes[kernel])
    segment.grown[0] = segment.grown[1] = segment.grown[2] = 0


@uncounted_inner
def _move(held: LongArray, before: int, kernel: int, size: int) -> None:
    """Moves ``size`` bytes from the summand of ``before`` to that of ``kernel``; -1: they are new."""
    if before >= 0:
        held[before] -= size
    held[kernel] += size


@uncounted_inner
def grow_segment(memory: SegmentMemory, segment: SegmentBytes, start: int, end: int) -> tuple[int, int]:
    """Returns all bytes of segment [start, end), the current end, and the peak of its live tensors.

    Called for each start from ``end - 1`` down. A new tensor is live from the first kernel on, so no kernel
    gains on the kernels before it. Only kernels fuller than all before them are kept. ``upto`` is a forest:
    the root of a kernel is the last kept kernel at or before it. ``following`` is the next kept kernel,
    fuller by ``rise`` bytes, or -1.
    """
    grown, upto, following, rise = segment.grown, segment.kept[0], segment.kept[1], segment.kept[2]
    upto[start], following[start] = start, -1
    if start + 1 < end:
        if grown[1] > 0:
            following[start], rise[start] = start + 1, grown[1]
        else:  # nothing is alive at start + 1, so drop it
            upto[start + 1], following[start], rise[start] = start, following[start + 1], rise[start + 1]
    alive_bytes, peak_bytes = int64(0), grown[2]
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
    grown[0], grown[1], grown[2] = grown[0] + segment.held[start], alive_bytes, peak_bytes
    return grown[0] + memory.entering_bytes[start] + peak_bytes, peak_bytes


class WeightReads(NamedTuple):
    """Reads of weights by kernel. Axes: ``M`` kernels, ``W`` weights, ``P`` places, from 1 on."""

    read_ptr: LongArray  # [M + 1]
    weight: IntArray  # [...] that the kernel reads
    place: IntArray  # [...] of the largest share that the kernel touches
    stored_bytes: LongArray  # [P + 1]
    touched_bytes: LongArray  # [P + 1]
    unit_bytes: LongArray  # [P + 1] pages, of which some may stay; more than is stored if none may
    num_weights: int


class HeldWeights(NamedTuple):
    """The weights of a segment; sums as binary indexed trees."""

    place: IntArray  # [W] place of each weight in the segment, or NOT_HELD
    stored_bytes: LongArray  # [P + 1]
    touched_bytes: LongArray  # [P + 1]
    total_bytes: LongArray  # [2] stored bytes; touched bytes of weights that are read in part


def weight_reads(tables: CostTables, sequence: KernelSequence, *, streams: bool = True) -> WeightReads:
    """Returns the weight reads of ``sequence``, with places in the order in which chips stream.

    Args:
      streams: whether weights stream; if not, there are no reads.
    """
    tensor = tables.reader_tensor
    is_weight = (tables.tensor_kind[tensor] == WEIGHT) & (tables.tensor_bytes[tensor] > 0) & streams
    kernel, tensor = sequence.kernel_of[tables.reader_op[is_weight]], tensor[is_weight].astype(np.int64)
    shares = unique_pairs(tensor, tables.read_bytes[is_weight])
    touched = shares[:, 1]
    order = stream_order(tables, shares[:, 0], touched)
    stored, is_whole = tables.stored_bytes[shares[:, 0]], touched == tables.tensor_bytes[shares[:, 0]]
    place_of = np.empty(len(shares), dtype=np.int64)
    place_of[order] = np.arange(1, len(shares) + 1)
    read_share = np.searchsorted(
        shares[:, 0] * (touched.max(initial=0) + 1) + touched,
        tensor * (touched.max(initial=0) + 1) + tables.read_bytes[is_weight],
    )
    # If a kernel reads a weight more than once, its last pair is the largest share.
    reads = unique_pairs(kernel.astype(np.int64), place_of[read_share])
    weights, weight_of_place = np.unique(shares[order, 0], return_inverse=True)
    zero = np.zeros(1, dtype=np.int64)
    return WeightReads(
        row_pointers(reads[:, 0], sequence.num_kernels),
        weight_of_place.reshape(-1)[reads[:, 1] - 1].astype(np.int32),
        reads[:, 1].astype(np.int32),
        np.concatenate([zero, stored[order]]),
        np.concatenate([zero, touched[order]]),
        np.concatenate([zero + 1, np.where(is_whole, tables.page_bytes, stored + 1)[order]]),
        len(weights),
    )


def no_weights_held(reads: WeightReads) -> HeldWeights:
    """Returns scratch for :func:`drop_weights` and :func:`hold_weights`."""
    places = 1 << len(reads.stored_bytes).bit_length()  # a power of two, the last ones empty
    sums = np.zeros((2, places), dtype=np.int64)
    held = np.full(reads.num_weights, NOT_HELD, dtype=np.int32)
    return HeldWeights(held, sums[0], sums[1], np.zeros(2, dtype=np.int64))


@uncounted
def drop_weights(held: HeldWeights) -> None:
    """Makes the segment empty."""
    held.total_bytes[0] = held.total_bytes[1] = 0
    for w in range(len(held.place)):
        held.place[w] = NOT_HELD
    for p in range(len(held.stored_bytes)):
        held.stored_bytes[p] = 0
        held.touched_bytes[p] = 0


@uncounted
def hold_weights(reads: WeightReads, held: HeldWeights, kernel: int) -> None:
    """Adds the weights of ``kernel`` to the segment."""
    for r in range(reads.read_ptr[kernel], reads.read_ptr[kernel + 1]):
        weight, place = reads.weight[r], reads.place[r]
        before = held.place[weight]
        if before >= place:
            continue
        held.place[weight] = place
        _add(held, place, reads.stored_bytes[place], reads.touched_bytes[place])
        held.total_bytes[1] += _touched_in_part(reads, place)
        if before == NOT_HELD:
            held.total_bytes[0] += reads.stored_bytes[place]
        else:
            _add(held, before, -reads.stored_bytes[before], -reads.touched_bytes[before])
            held.total_bytes[1] -= _touched_in_part(reads, before)


@uncounted
def streamed_bytes(reads: WeightReads, held: HeldWeights, room_bytes: int, buffer_bytes: int) -> int:
    """Returns the weight bytes that a segment streams if ``room_bytes`` of memory remain for weights.

    The stream buffer takes ``buffer_bytes`` of that room; 0 gives a lower bound.
    """
    excess = held.total_bytes[0] - room_bytes
    if excess <= 0:
        return int64(0)
    excess = min(excess + buffer_bytes, held.total_bytes[0])
    # Find the last place such that all before it stream and some excess remains. No branches, because
    # both outcomes are likely.
    place, streamed, step = int64(0), int64(0), int64(len(held.stored_bytes) >> 1)
    while step > 0:
        following = place + step
        goes_on = int64(held.stored_bytes[following] < excess)
        excess -= goes_on * held.stored_bytes[following]
        streamed += goes_on * held.touched_bytes[following]
        place += goes_on * step
        step >>= 1
    unit = reads.unit_bytes[place + 1]
    return streamed + min(-(-excess // unit) * unit, reads.touched_bytes[place + 1])


@uncounted_inner
def _touched_in_part(reads: WeightReads, place: int) -> int:
    """Returns the bytes that are touched at ``place``, or 0 if the whole weight is."""
    return reads.touched_bytes[place] if reads.unit_bytes[place] > reads.stored_bytes[place] else int64(0)


@uncounted_inner
def _add(held: HeldWeights, place: int, stored: int, touched: int) -> None:
    p = int64(place)
    while p < len(held.stored_bytes):
        held.stored_bytes[p] += stored
        held.touched_bytes[p] += touched
        p += p & -p
