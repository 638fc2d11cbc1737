"""What streamed weights cost a chip, and how many bytes may stream in an interval.

Each stage may stream all bytes of the host's link within the interval except the inputs, plus the
bytes that its chips can forward. If k chips forward F bytes and each gets D from the host,
``D + F / k`` cross the host's link and ``F / k`` cross each link inside. So ``D + F`` is at
most the capacity of the host's link plus k - 1 times the capacity of a link.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from go_opt.common.compiling import int64, uncounted_inner
from go_opt.env.cost import CostTables

NEVER_FITS: Final = -1


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
