"""What processes share: memory, which is freed with the last that has it open, and a pipe that wakes one."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from go_opt.common.units import format_bytes
from go_opt.errors import EnvironmentFailedError


@contextmanager
def shared_memory(size_bytes: int) -> Iterator[tuple[int, memoryview]]:
    """A file descriptor for other processes to inherit, and the memory, filled with zeros.

    Raises:
      EnvironmentFailedError: there is not enough memory.
    """
    descriptor = -1
    try:
        descriptor = _open()
        os.ftruncate(descriptor, size_bytes)
        if hasattr(os, "posix_fallocate"):
            # Without this, a write to a page that cannot be allocated would kill the process.
            os.posix_fallocate(descriptor, 0, size_bytes)
        mapped = mmap.mmap(descriptor, size_bytes)
    except OSError as error:
        if descriptor >= 0:
            os.close(descriptor)
        raise EnvironmentFailedError(
            f"the tensors between the stages need {format_bytes(size_bytes)} of shared memory, which cannot"
            f" be had: {error.strerror or error}."
        ) from None
    try:
        yield descriptor, memoryview(mapped)
    finally:
        os.close(descriptor)  # the mapping lives on until the last array that uses it


def opened(descriptor: int) -> memoryview:
    """The memory behind an inherited descriptor."""
    return memoryview(mmap.mmap(descriptor, os.fstat(descriptor).st_size))


def own_bytes() -> int:
    """Bytes of this process that it shares with no file or other process; 0 where the system does not say."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            return next((1024 * int(line.split()[1]) for line in status if line.startswith("RssAnon")), 0)
    except OSError:
        return 0


def _open() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("go-opt")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


_MOST_BYTES = 1 << 16


@dataclass(frozen=True)
class Wakeup:
    """The two ends of a pipe that never blocks."""

    read_fd: int
    write_fd: int

    @staticmethod
    def create() -> Wakeup:
        read_fd, write_fd = os.pipe()
        os.set_blocking(read_fd, False)
        os.set_blocking(write_fd, False)
        return Wakeup(read_fd, write_fd)

    def close(self) -> None:
        os.close(self.read_fd)
        os.close(self.write_fd)


def notify(write_fd: int) -> None:
    """Wake the process at the other end; does nothing if the pipe is full or has no reader."""
    with suppress(BlockingIOError, BrokenPipeError):
        os.write(write_fd, b"\0")


def drain(read_fd: int) -> None:
    """Discard all wakeups so far."""
    with suppress(BlockingIOError):
        os.read(read_fd, _MOST_BYTES)
