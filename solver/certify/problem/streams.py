"""Bytes that stages stream, compiled (:mod:`go_opt.solver.certify.problem.memory`)."""

from __future__ import annotations

from typing import Final

from go_opt.common.arrays import LongArray
from go_opt.common.compiling import int64, uncounted_inner
from go_opt.solver.certify.problem.memory import ChipMemory, UnitMemory

NEVER_FITS: Final = -1


@uncounted_inner
def spare_bytes(chip: ChipMemory, ticks: int) -> int:
    """Returns the bytes that the host's link may stream in an interval of ``ticks``."""
    if chip.stream_bytes_per_tick == 0:
        return int64(2) ** 60
    spare = chip.stream_bytes_per_tick * (ticks + 1.0) * (1.0 + 1e-12) - chip.reserved_bytes
    return int64(min(max(spare, 0.0), 2.0**60))


@uncounted_inner
def forwarded_bytes(chip: ChipMemory, ticks: int) -> int:
    """Returns the bytes that each chip of a stage but the first adds to :func:`spare_bytes`."""
    return int64(min(chip.forward_bytes_per_tick * (ticks + 1.0) * (1.0 + 1e-12), 2.0**50))


@uncounted_inner
def streamed_bytes(memory: UnitMemory, held: int, active: int) -> int:
    """Returns the bytes that a stage streams, or NEVER_FITS if ``active`` bytes of activations do not fit."""
    if active > memory.chip.sram_bytes:
        return NEVER_FITS
    excess = held + active - memory.chip.sram_bytes
    return excess + memory.chip.stream_buffer_bytes if excess > 0 else int64(0)


@uncounted_inner
def least_streamed(memory: UnitMemory, inside: LongArray, outside: LongArray, state: int, after: int) -> int:
    """Returns the least bytes streamed by any stage from ``state`` to ``after``, or NEVER_FITS."""
    held = int64(0)
    alive = int64(0)
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
                unit = 64 * word + bit
                held += memory.held_bytes[unit]
                alive = max(alive, memory.alive_bytes[unit])
    for group in range(len(memory.shared_bytes)):
        for word in range(first, last + 1):
            if memory.shared_words[group, word] & inside[after, word] & outside[state, word]:
                held += memory.shared_bytes[group]
                break
    return streamed_bytes(memory, held, alive)
