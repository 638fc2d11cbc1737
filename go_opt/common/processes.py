"""Python processes that run the same go-opt as this one."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path


def module_command(module: str, *arguments: str) -> tuple[str, ...]:
    """What runs a module; no module of the working directory stands in for one of the library."""
    return (sys.executable, "-P", "-m", module, *arguments)


def module_environment() -> dict[str, str]:
    """This environment, with modules found where this process finds them, from any working directory."""
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path}


def resident_bytes() -> int:
    """Of this process; 0 where the system does not tell."""
    with suppress(OSError), open("/proc/self/statm", "rb") as numbers:
        return int(numbers.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def give_back() -> None:
    """Return free memory to the system: an allocator keeps what every thread once had for itself."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
