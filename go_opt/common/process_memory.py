"""What processes hold of the machine's memory, and giving back what they need no more."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress


def resident_bytes(pid: int | None = None) -> int:
    """Of a process, by default this one; 0 where the system does not tell."""
    with suppress(OSError), open(f"/proc/{pid or 'self'}/statm", "rb") as numbers:
        return int(numbers.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def give_back() -> None:
    """Return free memory to the system: an allocator keeps what every thread once had for itself."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
