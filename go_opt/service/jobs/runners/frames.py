"""Bytes through a pipe in frames, each behind its length: what a service and its job processes say."""

from __future__ import annotations

import os
import struct
from typing import IO, Final

STOP: Final = b"s"  # after the frames to a job process: stop after the running step
_LENGTH: Final = struct.Struct(">Q")


def write_frame(file: IO[bytes], data: bytes) -> None:
    """Write one frame, all of it."""
    file.write(_LENGTH.pack(len(data)))
    file.write(data)
    file.flush()


def read_frame(descriptor: int) -> bytes | None:
    """The next frame; None where there is no whole one any more.

    From a descriptor, since a buffered reader would swallow what comes after the frame.
    """
    header = _read(descriptor, _LENGTH.size)
    return None if header is None else _read(descriptor, _LENGTH.unpack(header)[0])


def _read(descriptor: int, size: int) -> bytes | None:
    parts = []
    while size:
        part = os.read(descriptor, min(size, 2**20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
