"""A least-recently-used cache with a limit in bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

_V = TypeVar("_V")


class SizedCache(Generic[_V]):
    """Keeps the most recently used values, up to a number of bytes; thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._values: OrderedDict[bytes, tuple[_V, int]] = OrderedDict()
        self.size_bytes = 0  # of the values kept
        self.hits = 0

    def get(self, key: bytes) -> _V | None:
        """The value for the key, if it is in the cache."""
        with self._lock:
            if key not in self._values:
                return None
            self.hits += 1
            self._values.move_to_end(key)
            return self._values[key][0]

    def put(self, key: bytes, value: _V, size_bytes: int) -> None:
        """Store a value; drop the least recently used values if there is no room."""
        if size_bytes > self._max_bytes:
            return
        with self._lock:
            if key in self._values:
                self.size_bytes -= self._values.pop(key)[1]
            self._values[key] = value, size_bytes
            self.size_bytes += size_bytes
            while self.size_bytes > self._max_bytes:
                self.size_bytes -= self._values.popitem(last=False)[1][1]
