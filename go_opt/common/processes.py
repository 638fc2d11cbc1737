"""Starts Python processes that run the same go-opt as this one; memory of processes."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path


def module_command(module: str, *arguments: str) -> tuple[str, ...]:
    """The command that runs a module; modules in the working directory do not shadow the library's (-P)."""
    return (sys.executable, "-P", "-m", module, *arguments)


def module_environment() -> dict[str, str]:
    """This environment with this process's module path, made absolute."""
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path}


def resident_bytes() -> int:
    """Resident memory of this process; 0 if the system does not report it."""
    with suppress(OSError), open("/proc/self/statm", "rb") as numbers:
        return int(numbers.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def give_back() -> None:
    """Return free memory to the system; the allocator keeps the freed memory of each thread."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
