"""Wakes one process from several others, by a pipe."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass

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
