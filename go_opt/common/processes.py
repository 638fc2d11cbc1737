"""Processes: how to start one of the same go-opt; cores that this one may use, and its memory."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

_CGROUPS: Final = Path("/sys/fs/cgroup")
_OWN_CGROUPS: Final = Path("/proc/self/cgroup")


def module_command(module: str, *arguments: str) -> tuple[str, ...]:
    """The command that runs a module; modules in the working directory do not shadow the library's (-P)."""
    return (sys.executable, "-P", "-m", module, *arguments)


def module_environment() -> dict[str, str]:
    """This environment with this process's module path, made absolute."""
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path}


def give_back() -> None:
    """Return free memory to the system; the allocator keeps the freed memory of each thread."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def num_cores(cgroups: Path = _CGROUPS, own_cgroups: Path = _OWN_CGROUPS) -> int:
    """Cores that this process may keep busy: the lesser of its CPU mask and its CPU quota, rounded down.

    Args:
      cgroups: mount point of the control groups, version 2 or 1.
      own_cgroups: file that lists the control groups of this process.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([allowed, *map(int, _quotas(cgroups, own_cgroups))]))


def _quotas(cgroups: Path, own_cgroups: Path) -> Iterator[float]:
    """Yields the limits, in CPUs, of the process's groups and their parents, if they have any."""
    for folder in _own_folders(own_cgroups):
        # A container may see only its own group, mounted at the root but listed with its outer path.
        for group in (folder, *folder.parents):
            for read in (_quota_v2, _quota_v1):
                with suppress(OSError, ValueError, ZeroDivisionError):
                    quota = read(cgroups, group)
                    if quota > 0:
                        yield quota


def _own_folders(own_cgroups: Path) -> list[PurePosixPath]:
    """Paths of the groups that may limit CPUs, relative to the mount point."""
    with suppress(OSError):
        lines = [line.split(":", 2) for line in own_cgroups.read_text().splitlines()]
        return [
            PurePosixPath(path.lstrip("/"))
            for _, controllers, path in lines
            if controllers == "" or "cpu" in controllers.split(",")
        ]
    return []


def _quota_v2(cgroups: Path, group: PurePosixPath) -> float:
    quota_us, period_us = (cgroups / group / "cpu.max").read_text().split()
    return float(quota_us) / float(period_us)  # "max": ValueError


def _quota_v1(cgroups: Path, group: PurePosixPath) -> float:
    folder = cgroups / "cpu" / group
    quota_us = (folder / "cpu.cfs_quota_us").read_text()  # -1: no limit
    return float(quota_us) / float((folder / "cpu.cfs_period_us").read_text())
