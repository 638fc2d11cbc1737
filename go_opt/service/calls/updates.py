"""Updates on their way from a thread to a reader that may be slow."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

from google.protobuf.message import Message


class Updates:
    """An asynchronous iterator of the newest update; a slow reader misses older ones.

    Args:
      loop: where it is read; :meth:`emit` is called from any thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._pending: bytes | None = None
        self._changed = asyncio.Event()
        self._is_finished = False

    def emit(self, message: Message) -> None:
        """Send the message, unless another follows before the reader takes it."""
        data = message.SerializeToString()
        with self._lock:
            if self._is_finished:
                return
            self._pending = data
        with suppress(RuntimeError):  # the loop is gone, and so is the reader
            self._loop.call_soon_threadsafe(self._changed.set)

    def finish(self) -> None:
        """Nothing more comes; called from the loop."""
        with self._lock:
            self._is_finished = True
        self._changed.set()

    def __aiter__(self) -> Updates:
        return self

    async def __anext__(self) -> bytes:
        while True:
            self._changed.clear()
            with self._lock:
                data, self._pending = self._pending, None
                is_finished = self._is_finished
            if data is not None:
                return data
            if is_finished:
                raise StopAsyncIteration
            await self._changed.wait()
