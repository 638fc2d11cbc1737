"""A client that calls and then only waits, to be killed: ``vanishing.py HOST:PORT FILE...``.

Each file is named for a method and holds the request: ``go_opt.v1.Optimizer.OptimizeStream``.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc


def requests(data: bytes) -> Iterator[bytes]:
    """One, and then nothing for good."""
    yield data
    threading.Event().wait()


def main() -> None:
    channel = grpc.insecure_channel(sys.argv[1])
    calls: list[Any] = []
    for path in map(Path, sys.argv[2:]):
        service, _, method = path.name.rpartition(".")
        calls.append(channel.stream_stream(f"/{service}/{method}")(requests(path.read_bytes())))
    threading.Event().wait()


if __name__ == "__main__":
    main()
