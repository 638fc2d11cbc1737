"""What each chip holds: weights, double buffers, activations; which weights stream, and what does not fit."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from go_opt.env.cost import COPY
from go_opt.env.simulator.package import NONE
from go_opt.env.simulator.sram import NO_PLACE, place_buffers
from go_opt.graph import NO_PRODUCER, WEIGHT

FITS, TOO_LARGE, FRAGMENTED = range(3)
# A tensor that enters or leaves a chip is held twice, whatever else is buffered (design section 5).
BORDER_BUFFERS = 2


class Holdings(NamedTuple):
    """Axes: ``D`` chips, ``A`` activations that stay on their chip, ``W`` pairs of weight and chip."""

    border_bytes: NDArray[np.int64]  # [D] of tensors that enter or leave
    activation: NDArray[np.int32]  # [A] tensors, chip by chip, in the order of their kernels
    activation_ptr: NDArray[np.int64]  # [D + 1]
    born: NDArray[np.int32]  # [A] kernel that makes it
    dead: NDArray[np.int32]  # [A] kernel that reads it last
    size_bytes: NDArray[np.int64]  # [A] aligned
    weight: NDArray[np.int32]  # [W] chip by chip, the largest first
    weight_ptr: NDArray[np.int64]  # [D + 1]
    weight_touched: NDArray[np.int64]  # [W] bytes its readers on the chip touch
    weight_reader: NDArray[np.int32]  # [W] the first of them


class Fit(NamedTuple):
    """How the chips' memory is used."""

    outcome: int  # FITS, TOO_LARGE or FRAGMENTED
    chip: int  # where it does not fit
    activation: int  # the activation without a place, or NONE
    peak_bytes: NDArray[np.int64]  # [D] border buffers and activations, to the highest address
    weight_bytes: NDArray[np.int64]  # [D] resident, aligned
    address: NDArray[np.int64]  # [A]
    is_streamed: NDArray[np.bool_]  # [W]


@njit(cache=True, nogil=True)
def rows_of(row_of, num_items, num_rows):
    """CSR of items by row, in the order of the items; those whose row is NONE are left out."""
    pointers = np.zeros(num_rows + 1, np.int64)
    for item in range(num_items):
        if row_of[item] != NONE:
            pointers[row_of[item] + 1] += 1
    for row in range(num_rows):
        pointers[row + 1] += pointers[row]
    items = np.empty(pointers[num_rows], np.int32)
    filled = pointers[:num_rows].copy()
    for item in range(num_items):
        row = row_of[item]
        if row != NONE:
            items[filled[row]] = item
            filled[row] += 1
    return pointers, items


@njit(cache=True, nogil=True)
def aligned(size_bytes, alignment_bytes):
    return (size_bytes + alignment_bytes - 1) // alignment_bytes * alignment_bytes


@njit(cache=True, nogil=True)
def holdings(tables, kernel_of, kernel_chip, alignment):
    """What a plan's chips hold; ``alignment`` [D] in bytes."""
    num_chips, num_tensors = len(tables.chip_kind), len(tables.tensor_kind)
    border_bytes = np.zeros(num_chips, np.int64)
    home_of = np.full(num_tensors, NONE, np.int32)  # kernel of activations that stay
    dead_of = np.empty(num_tensors, np.int32)
    seen = np.zeros(num_chips, np.int64)
    for k in range(num_tensors):
        if tables.tensor_kind[k] == WEIGHT:
            continue
        producer = tables.tensor_producer[k]
        home = kernel_of[producer] if producer != NO_PRODUCER else NONE
        home_chip = kernel_chip[home] if home != NONE else NONE
        leaves, last = tables.tensor_is_output[k], np.int64(NONE)
        for r in range(tables.reader_ptr[k], tables.reader_ptr[k + 1]):
            kernel = kernel_of[tables.reader_op[r]]
            chip = kernel_chip[kernel]
            if kernel != home:
                last = max(last, kernel)
            if chip != home_chip and seen[chip] != k + 1:
                seen[chip] = k + 1
                border_bytes[chip] += BORDER_BUFFERS * aligned(tables.tensor_bytes[k], alignment[chip])
                leaves = True
        if home == NONE:
            continue
        if leaves and tables.tensor_kind[k] == COPY:
            continue
        if leaves:
            border_bytes[home_chip] += BORDER_BUFFERS * aligned(tables.tensor_bytes[k], alignment[home_chip])
        elif last != NONE:
            home_of[k] = home
            dead_of[k] = last
    _, by_kernel = rows_of(home_of, num_tensors, len(kernel_chip))
    chip_of = np.empty(len(by_kernel), np.int32)
    for i in range(len(by_kernel)):
        chip_of[i] = kernel_chip[home_of[by_kernel[i]]]
    activation_ptr, place = rows_of(chip_of, len(chip_of), num_chips)
    activation = by_kernel[place]
    sizes = np.empty(len(activation), np.int64)
    for i in range(len(activation)):
        chip = kernel_chip[home_of[activation[i]]]
        sizes[i] = aligned(tables.tensor_bytes[activation[i]], alignment[chip])
    weight, weight_ptr, touched, reader = _weights(tables, kernel_of, kernel_chip)
    return Holdings(
        border_bytes, activation, activation_ptr, home_of[activation], dead_of[activation], sizes,
        weight, weight_ptr, touched, reader,
    )  # fmt: skip


@njit(cache=True, nogil=True)
def _weights(tables, kernel_of, kernel_chip):
    num_chips = len(tables.chip_kind)
    capacity = len(tables.reader_op)
    weight, chip_of = np.empty(capacity, np.int32), np.empty(capacity, np.int32)
    touched, reader = np.empty(capacity, np.int64), np.empty(capacity, np.int32)
    slot_of = np.full(num_chips, NONE, np.int64)
    pairs = np.int64(0)
    for rank in range(len(tables.weight_by_size)):
        k = tables.weight_by_size[rank]
        begin = pairs
        for r in range(tables.reader_ptr[k], tables.reader_ptr[k + 1]):
            kernel = kernel_of[tables.reader_op[r]]
            chip = kernel_chip[kernel]
            if slot_of[chip] < begin:
                slot_of[chip] = pairs
                weight[pairs], chip_of[pairs] = k, chip
                touched[pairs], reader[pairs] = 0, kernel
                pairs += 1
            slot = slot_of[chip]
            touched[slot] = max(touched[slot], tables.read_bytes[r])
            reader[slot] = min(reader[slot], kernel)
    weight_ptr, place = rows_of(chip_of, pairs, num_chips)
    return weight[place], weight_ptr, touched[place], reader[place]


@njit(cache=True, nogil=True)
def fit_chips(tables, held, kernel_chip, alignment, stream_buffer_bytes, by_size):
    """Choose what streams and give every activation a place.

    Weights stream as in the analytical model, until sizes and the stream buffer add up
    to the chip's memory. Then ``by_size`` is content; otherwise every activation needs an
    address, and may find none though enough bytes are free: more weights stream until all have one.
    """
    num_chips = len(tables.chip_kind)
    peak = held.border_bytes + _live_bytes(held, kernel_chip)
    resident = np.zeros(num_chips, np.int64)
    address = np.full(len(held.activation), NONE, np.int64)
    is_streamed = np.zeros(len(held.weight), np.bool_)
    for chip in range(num_chips):
        begin, end = held.activation_ptr[chip], held.activation_ptr[chip + 1]
        for pair in range(held.weight_ptr[chip], held.weight_ptr[chip + 1]):
            resident[chip] += aligned(tables.tensor_bytes[held.weight[pair]], alignment[chip])
        limit, by_use, streamed = tables.sram_bytes[chip], np.empty(0, np.int64), 0
        while True:
            left = limit - resident[chip]
            outcome, lost = TOO_LARGE, NONE
            if peak[chip] <= left:
                outcome = FITS
                if not by_size:
                    lost = _place(held, begin, end, left - held.border_bytes[chip], address)
                    outcome = FITS if lost == NONE else FRAGMENTED
            if outcome == FITS or resident[chip] == 0:
                break
            if streamed == 0:
                limit, by_use = limit - stream_buffer_bytes[chip], _by_use(tables, held, chip)
            pair = by_use[streamed]
            streamed += 1
            is_streamed[pair] = True
            resident[chip] -= aligned(tables.tensor_bytes[held.weight[pair]], alignment[chip])
        if outcome != FITS:
            return Fit(outcome, chip, lost, peak, resident, address, is_streamed)
        for i in range(end if by_size else begin, end):
            peak[chip] = max(peak[chip], held.border_bytes[chip] + address[i] + held.size_bytes[i])
    return Fit(FITS, NONE, NONE, peak, resident, address, is_streamed)


@njit(cache=True, nogil=True)
def _place(held, begin, end, limit_bytes, address):
    """Give the activations of a chip addresses; the first that finds none, or NONE."""
    address[begin:end] = NONE
    lost = place_buffers(
        held.size_bytes[begin:end],
        held.born[begin:end],
        held.dead[begin:end],
        limit_bytes,
        address[begin:end],
    )
    return NONE if lost == NO_PLACE else begin + lost


@njit(cache=True, nogil=True)
def _by_use(tables, held, chip):
    """The weights of a chip that take memory, the least touched per stored byte first."""
    pairs = np.arange(held.weight_ptr[chip], held.weight_ptr[chip + 1])
    size = tables.tensor_bytes[held.weight[pairs]]
    pairs, size = pairs[size > 0], size[size > 0]
    return pairs[np.argsort(held.weight_touched[pairs] / size, kind="mergesort")]


@njit(cache=True, nogil=True)
def _live_bytes(held, kernel_chip):
    """[D] most bytes of activations alive at once."""
    num_chips, num_kernels = len(held.border_bytes), len(kernel_chip)
    born_bytes, dead_bytes = np.zeros(num_kernels, np.int64), np.zeros(num_kernels, np.int64)
    for i in range(len(held.activation)):
        born_bytes[held.born[i]] += held.size_bytes[i]
        dead_bytes[held.dead[i]] += held.size_bytes[i]
    live, highest = np.zeros(num_chips, np.int64), np.zeros(num_chips, np.int64)
    for kernel in range(num_kernels):
        chip = kernel_chip[kernel]
        live[chip] += born_bytes[kernel]
        highest[chip] = max(highest[chip], live[chip])
        live[chip] -= dead_bytes[kernel]
    return highest
