"""A bell that several processes can ring to wake one process."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass

_MOST_BYTES = 1 << 16


@dataclass(frozen=True)
class Bell:
    """The two ends of a pipe that never blocks."""

    hear: int
    rope: int

    @staticmethod
    def create() -> Bell:
        hear, rope = os.pipe()
        os.set_blocking(hear, False)
        os.set_blocking(rope, False)
        return Bell(hear, rope)

    def close(self) -> None:
        os.close(self.hear)
        os.close(self.rope)


def strike(rope: int) -> None:
    """Wake the process at the other end; does nothing if the pipe is full or has no reader."""
    with suppress(BlockingIOError, BrokenPipeError):
        os.write(rope, b"\0")


def quieten(hear: int) -> None:
    """Discard all rings so far."""
    with suppress(BlockingIOError):
        os.read(hear, _MOST_BYTES)
