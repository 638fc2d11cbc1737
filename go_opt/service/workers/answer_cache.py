"""Answers given before, up to a number of bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final, Protocol

DEFAULT_MAX_BYTES: Final = 64 * 2**20


class Answers(Protocol):
    """Where answers are kept."""

    def get(self, key: str) -> bytes | None:
        """The answer kept under the key, if there is one."""

    def put(self, key: str, answer: bytes) -> None:
        """Keep an answer, for as long as there is room."""


class AnswerCache:
    """Keeps the answers asked for last, up to a number of bytes; for several threads."""

    def __init__(self, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._answers: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0
        self.hits = 0

    @property
    def size_bytes(self) -> int:
        """Of the answers kept."""
        return self._bytes

    def get(self, key: str) -> bytes | None:
        """The answer kept under the key, if there is one."""
        with self._lock:
            if key in self._answers:
                self.hits += 1
                self._answers.move_to_end(key)
            return self._answers.get(key)

    def put(self, key: str, answer: bytes) -> None:
        """Keep an answer, and drop those not asked for longest where there is no room."""
        if len(answer) > self._max_bytes:
            return
        with self._lock:
            self._bytes += len(answer) - len(self._answers.pop(key, b""))
            self._answers[key] = answer
            while self._bytes > self._max_bytes:
                self._bytes -= len(self._answers.popitem(last=False)[1])
