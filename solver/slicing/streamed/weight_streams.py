"""The exact streamed bytes of a segment of a kernel sequence, while the segment grows.

A chip streams weights in order of touched per stored bytes, then larger first, then by index,
until the others fit; of the last, only the pages that do not fit (:mod:`go_opt.env.model.memory`). Each
pair of a weight and a share of it that some kernel touches has one place in that order. A segment stores
a weight at the place of the largest share that it touches. Binary indexed trees over the places sum
stored and touched bytes: O(log places) to add a weight, and to find the streamed bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from go_opt.common.arrays import IntArray, LongArray, row_pointers
from go_opt.common.compiling import int64, uncounted, uncounted_inner
from go_opt.env.cost import CostTables
from go_opt.env.model.memory import stream_order
from go_opt.model.graph import WEIGHT
from go_opt.solver.problem.sequence import KernelSequence, unique_pairs

NOT_HELD = -1


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


def weight_reads(tables: CostTables, sequence: KernelSequence) -> WeightReads:
    """Returns the weight reads of ``sequence``, with places in the order in which chips stream."""
    tensor = tables.reader_tensor
    is_weight = (tables.tensor_kind[tensor] == WEIGHT) & (tables.tensor_bytes[tensor] > 0)
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
