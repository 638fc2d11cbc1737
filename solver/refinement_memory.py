"""What a stage holds, for the problem with replicated stages.

Without a limit of memory one stage of all chips would always be best. A stage holds the
weights of its units; what exceeds its memory is streamed from the host, over a link that all
chips share. Two readings of the same rule, in which a stage holds

    sum of held_bytes of its units + shared_bytes that any of them reads
    + most alive_bytes of its units + num_buffers * bytes that cross its borders:

* :func:`least_memory`, for bounds: what readers touch of a weight, whether it stays or
  streams. Activations count for nothing; streams may take all the host's link brings within
  the interval beside the inputs.
* :func:`planned_memory`, for plans: whole weights, inputs, outputs and activations in the
  units' order. Of the weights with one reader those that plans stream first may stream, as
  many as the host's link can bring in the shortest interval there is.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from go_opt.csr import row_pointers
from go_opt.env.cost import CostTables
from go_opt.graph import INPUT, NO_PRODUCER, WEIGHT


class UnitMemory(NamedTuple):
    """Axes: ``U`` units, ``W`` words of a set of them, ``G`` groups of tensors with the same readers."""

    held_bytes: NDArray[np.int64]  # [U] for as long as the unit is on the chip
    alive_bytes: NDArray[np.int64]  # [U] while the unit runs
    shared_bytes: NDArray[np.int64]  # [G] held once for all readers on a chip
    shared_words: NDArray[np.int64]  # [G, W] the readers
    shared_ptr: NDArray[np.int64]  # [U + 1]
    shared: NDArray[np.int32]  # groups that unit u reads
    word_held_bytes: NDArray[np.int64]  # [W] sums of held_bytes
    word_alive_bytes: NDArray[np.int64]  # [W] the largest of alive_bytes
    word_units: NDArray[np.int64]  # [W] all units of the word
    num_buffers: int  # of what crosses a border
    sram_bytes: int
    reserved_bytes: int  # that the host's link brings in every interval, wherever units are
    stream_bytes_per_tick: float  # overlapped: the host's rate, 0 where nothing may stream
    stream_ticks_per_byte: float  # summed: what a streamed byte takes its chip


def no_memory() -> UnitMemory:
    """For problems without replication: memory is left out."""
    none = np.zeros(0, np.int64)
    return UnitMemory(
        none, none, none, none[None], none, none.astype(np.int32), none, none, none, 0, 0, 0, 0.0, 0.0
    )


class _Held:
    """Bytes that units hold, each tensor once for all its readers on a chip."""

    def __init__(self, num_units: int) -> None:
        self.own_bytes = np.zeros(num_units, np.int64)
        self._shared: dict[bytes, int] = {}

    def add(self, readers: NDArray[np.int32], size: int) -> None:
        readers = np.unique(readers)
        if len(readers) == 1:
            self.own_bytes[readers[0]] += size
        elif len(readers) > 1:
            key = readers.astype(np.int32).tobytes()
            self._shared[key] = self._shared.get(key, 0) + size

    def unit_memory(
        self,
        alive_bytes: NDArray[np.int64],
        *,
        num_buffers: int,
        sram_bytes: int,
        reserved_bytes: int,
        stream_bytes_per_tick: float,
        stream_ticks_per_byte: float,
    ) -> UnitMemory:
        num_units = len(self.own_bytes)
        padding = (0, -num_units % 64)
        readers = [np.frombuffer(key, np.int32) for key in self._shared]
        reads = np.zeros((len(readers) + 1, num_units), np.bool_)
        for row, units in zip(reads, readers, strict=False):
            row[units] = True
        reads[-1] = True
        words = np.packbits(np.pad(reads, ((0, 0), padding)), axis=1, bitorder="little").view(np.int64)
        unit, group = np.nonzero(reads[:-1].T)
        return UnitMemory(
            held_bytes=self.own_bytes,
            alive_bytes=alive_bytes,
            shared_bytes=np.array(list(self._shared.values()), dtype=np.int64),
            shared_words=words[:-1],
            shared_ptr=row_pointers(unit, num_units),
            shared=group.astype(np.int32),
            word_held_bytes=np.pad(self.own_bytes, padding).reshape(-1, 64).sum(axis=1),
            word_alive_bytes=np.pad(alive_bytes, padding).reshape(-1, 64).max(axis=1),
            word_units=words[-1].copy(),
            num_buffers=num_buffers,
            sram_bytes=sram_bytes,
            reserved_bytes=reserved_bytes,
            stream_bytes_per_tick=stream_bytes_per_tick,
            stream_ticks_per_byte=stream_ticks_per_byte,
        )


def least_memory(
    tables: CostTables, unit_of_op: NDArray[np.int32], num_units: int, tick_s: float
) -> UnitMemory:
    """What stages cannot but hold or stream, wherever they begin and end."""
    held = _Held(num_units)
    reserved_bytes = int(tables.tensor_bytes[tables.tensor_kind == INPUT].sum())
    most_sram = int(tables.sram_bytes.max())
    for k in np.flatnonzero(tables.tensor_kind == WEIGHT):
        reads = slice(int(tables.reader_ptr[k]), int(tables.reader_ptr[k + 1]))
        touched = tables.read_bytes[reads]
        if tables.tensor_bytes[k] > most_sram:
            reserved_bytes += int(touched.max(initial=0))
            continue
        readers = unit_of_op[tables.reader_op[reads]]
        # Every reader touches the least of it, and the greediest the rest.
        held.add(readers, int(touched.min(initial=most_sram)))
        if len(readers):
            held.add(readers[np.argmax(touched)][None], int(touched.max() - touched.min()))
    return held.unit_memory(
        np.zeros(num_units, np.int64),
        num_buffers=0,
        sram_bytes=most_sram,
        reserved_bytes=reserved_bytes,
        stream_bytes_per_tick=tick_s / tables.host_in_s_per_byte if tables.overlap else 0.0,
        stream_ticks_per_byte=0.0 if tables.overlap else tables.host_in_s_per_byte / tick_s,
    )


def planned_memory(
    tables: CostTables,
    unit_of_op: NDArray[np.int32],
    num_units: int,
    kernel_of: NDArray[np.int32],
    least_s: float,
) -> UnitMemory:
    """What stages that are cut out of the units' order hold; no interval is below ``least_s``."""
    held = _Held(num_units)
    may_stream = _streamed_within(tables, unit_of_op, least_s)
    # A kernel needs what it reads and writes for as long as it runs.
    start = np.full(len(unit_of_op), num_units, np.int32)
    end = np.zeros(len(unit_of_op), np.int32)
    np.minimum.at(start, kernel_of, unit_of_op)
    np.maximum.at(end, kernel_of, unit_of_op + 1)
    change = np.zeros(num_units + 1, np.int64)
    for k, size in enumerate(tables.tensor_bytes.tolist()):
        readers_op = tables.reader_op[tables.reader_ptr[k] : tables.reader_ptr[k + 1]]
        readers = unit_of_op[readers_op]
        if tables.tensor_kind[k] == WEIGHT:
            held.add(readers, 0 if may_stream[k] else size)
            continue
        if tables.tensor_producer[k] == NO_PRODUCER:
            held.add(readers, 2 * size)
            continue
        home = tables.tensor_producer[k]
        if tables.tensor_is_output[k]:
            held.add(unit_of_op[home][None], 2 * size)
        elif (kernel_of[readers_op] != kernel_of[home]).any():
            change[start[kernel_of[home]]] += size
            change[end[kernel_of[readers_op]].max()] -= size
    return held.unit_memory(
        np.cumsum(change)[:num_units],
        num_buffers=2,
        sram_bytes=int(tables.sram_bytes.min()),
        reserved_bytes=0,
        stream_bytes_per_tick=0.0,
        stream_ticks_per_byte=0.0,
    )


def _streamed_within(tables: CostTables, unit_of_op: NDArray[np.int32], least_s: float) -> NDArray[np.bool_]:
    """[K] weights that stream in any case, and what the host's link brings beside in ``least_s``.

    In the order in which plans stream (design section 5): least touched for stored bytes first.
    """
    touched = np.zeros(len(tables.tensor_bytes), np.int64)
    np.maximum.at(touched, tables.reader_tensor, tables.read_bytes)
    unit = unit_of_op[tables.reader_op]
    first = np.full(len(touched), len(unit_of_op), np.int32)
    last = np.full(len(touched), -1, np.int32)
    np.minimum.at(first, tables.reader_tensor, unit)
    np.maximum.at(last, tables.reader_tensor, unit)
    weights = tables.weight_by_size
    in_any_case = tables.tensor_bytes[weights] > tables.sram_bytes.max()
    always, others = weights[in_any_case], weights[~in_any_case & (first == last)[weights]]
    share = touched[others] / np.maximum(tables.tensor_bytes[others], 1)
    others = others[np.argsort(share, kind="stable")]
    spare = -1.0
    if tables.overlap:
        inputs = tables.tensor_bytes[tables.tensor_kind == INPUT].sum()
        spare = least_s / tables.host_in_s_per_byte - inputs - touched[always].sum()
    may_stream = np.zeros(len(touched), np.bool_)
    may_stream[always] = True
    may_stream[others] = np.cumsum(touched[others]) <= spare
    return may_stream


@njit(cache=True, nogil=True)
def room_bytes(memory, ticks):
    """What a stage may hold and stream within intervals of ``ticks``."""
    streamed = memory.stream_bytes_per_tick * (ticks + 1.0) * (1.0 + 1e-12) - memory.reserved_bytes
    return memory.sram_bytes + np.int64(min(max(streamed, 0.0), 2.0**60))


@njit(cache=True, nogil=True)
def forced_bytes(memory, inside, outside, state, after):
    """Bytes that any stage between a down-set of ``state`` and one of ``after`` holds, borders left out."""
    held = np.int64(0)
    alive = np.int64(0)
    first = len(memory.word_units)
    last = -1
    for word in range(len(memory.word_units)):
        forced = inside[after, word] & outside[state, word]
        if forced == 0:
            continue
        first = min(first, word)
        last = word
        if forced == memory.word_units[word]:
            held += memory.word_held_bytes[word]
            alive = max(alive, memory.word_alive_bytes[word])
            continue
        for bit in range(min(64, len(memory.held_bytes) - 64 * word)):
            if (forced >> bit) & 1:
                held += memory.held_bytes[64 * word + bit]
                alive = max(alive, memory.alive_bytes[64 * word + bit])
    for group in range(len(memory.shared_bytes)):
        for word in range(first, last + 1):
            if memory.shared_words[group, word] & inside[after, word] & outside[state, word]:
                held += memory.shared_bytes[group]
                break
    return held + alive
