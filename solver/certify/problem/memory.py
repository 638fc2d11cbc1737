"""Bytes that a stage holds and streams, for the problem with replicated stages.

Without a memory limit, one stage of all chips would always be best. A stage holds

    sum of held_bytes of its units + shared_bytes that any of them reads + most alive_bytes of its units,

and streams the excess over its memory from the host. It holds the touched bytes of its weights
(resident or streamed), inputs, outputs, and activations that a unit certainly reads or writes.
Each stage may stream all bytes of the host's link within the interval except the inputs, plus the
bytes that its chips can forward. If k chips forward F bytes and each gets D from the host,
``D + F / k`` cross the host's link and ``F / k`` cross each link inside. So ``D + F`` is at
most the capacity of the host's link plus k - 1 times the capacity of a link.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, IntArray, LongArray, row_pointers
from go_opt.env.cost import CostTables
from go_opt.model.graph import NO_PRODUCER, WEIGHT


class ChipMemory(NamedTuple):
    """The memory of a chip, and what its streamed weights cost."""

    sram_bytes: int = 0
    stream_buffer_bytes: int = 0  # reserved on a chip that streams
    reserved_bytes: int = 0  # cross the host's link in every interval, for any placement
    stream_bytes_per_tick: float = 0.0  # with overlap: the rate of the host's link
    forward_bytes_per_tick: float = 0.0  # rate from each chip of a stage to the next
    stream_ticks_per_byte: float = 0.0  # without overlap: chip time of a streamed byte


def chip_memory(tables: CostTables, reserved_bytes: int, tick_s: float, *, forwards: bool) -> ChipMemory:
    """Returns the largest memory and the fastest links of any chip."""
    pays = bool(tables.pays_transfers.all())  # otherwise a chip may stream at no cost
    return ChipMemory(
        int(tables.sram_bytes.max()),
        int(tables.stream_buffer_bytes.min()),
        reserved_bytes,
        tick_s / tables.host_in_s_per_byte if tables.overlap else 0.0,
        tick_s / float(tables.link_s_per_byte.min()) if forwards else 0.0,
        tables.host_in_s_per_byte / tick_s if pays and not tables.overlap else 0.0,
    )


class UnitMemory(NamedTuple):
    """Axes: ``U`` units, ``W`` words of a set of them, ``G`` groups of tensors with the same readers."""

    held_bytes: LongArray  # [U] occupied as long as the unit is on the chip
    alive_bytes: LongArray  # [U] occupied while the unit runs
    shared_bytes: LongArray  # [G] occupied once for all readers on a chip
    shared_words: LongArray  # [G, W] the readers
    shared_ptr: LongArray  # [U + 1]
    shared: IntArray  # groups that unit u reads
    word_held_bytes: LongArray  # [W] sums of held_bytes
    word_alive_bytes: LongArray  # [W] the largest of alive_bytes
    word_units: LongArray  # [W] all units of the word
    chip: ChipMemory


def no_memory() -> UnitMemory:
    """Returns the value for problems without replication, which ignore this memory."""
    return _Held(0).unit_memory(np.zeros(0, np.int64), ChipMemory())


class _Held:
    """Collects the bytes that units hold, each tensor once for all its readers on a chip."""

    def __init__(self, num_units: int) -> None:
        self.own_bytes = np.zeros(num_units, np.int64)
        self._shared: dict[bytes, int] = {}

    def add(self, readers: IntArray, size: int) -> None:
        readers = np.unique(readers)
        if len(readers) == 1:
            self.own_bytes[readers[0]] += size
        elif len(readers) > 1:
            key = readers.astype(np.int32).tobytes()
            self._shared[key] = self._shared.get(key, 0) + size

    def unit_memory(self, alive_bytes: LongArray, chip: ChipMemory) -> UnitMemory:
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
            chip=chip,
        )


def least_memory(
    tables: CostTables,
    unit_of_op: IntArray,
    num_units: int,
    apart: BoolArray,
    tick_s: float,
) -> UnitMemory:
    """Returns the bytes that stages must hold or stream, for any borders of the stages.

    Args:
      apart: [R] reads whose producer and reader are never in the same kernel.
    """
    held = _Held(num_units)
    reserved_bytes = 0
    forwards = tables.may_forward
    most_sram = int(tables.sram_bytes.max())
    room_bytes = max(int((tables.sram_bytes - tables.stream_buffer_bytes).max()), 0)
    alive_bytes, is_state = np.zeros(num_units, np.int64), tables.is_state
    for k, size in enumerate(tables.stored_bytes.tolist()):
        reads = slice(int(tables.reader_ptr[k]), int(tables.reader_ptr[k + 1]))
        readers, touched = unit_of_op[tables.reader_op[reads]], tables.read_bytes[reads]
        producer = int(tables.tensor_producer[k])
        if is_state[k]:  # the chips of a stage share the sequences
            held.add(readers[:1], size // tables.num_chips)
        elif tables.tensor_kind[k] == WEIGHT:
            is_whole = touched.max(initial=0) == tables.tensor_bytes[k]
            if size > most_sram and not (is_whole and forwards):
                # What no chip has room for streams; of a weight that is read in part, all that is read.
                stays_bytes = room_bytes if is_whole else 0
                reserved_bytes += max(int(touched.max(initial=0)) - stays_bytes, 0)
                held.add(readers[np.argmax(touched)][None], stays_bytes)
            elif len(readers):
                # Every reader touches at least the minimum; the largest reader also touches the rest.
                held.add(readers, int(touched.min()))
                held.add(readers[np.argmax(touched)][None], int(touched.max() - touched.min()))
        elif producer == NO_PRODUCER:
            reserved_bytes += int(tables.tensor_bytes[k])
            held.add(readers, 2 * size)
        elif tables.tensor_is_output[k]:
            held.add(unit_of_op[producer][None], 2 * size)
        elif apart[reads].any():
            alive_bytes[np.unique(np.append(readers[apart[reads]], unit_of_op[producer]))] += size
    return held.unit_memory(alive_bytes, chip_memory(tables, reserved_bytes, tick_s, forwards=forwards))
