"""What was made of files, made again when they change."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

from go_opt.errors import GoOptError

_LOOK_EVERY_S: Final = 1.0
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class Watched(Generic[_T]):
    """A value read from files; looked at again when it is asked for, at most once a second.

    Files that cannot be used any more, or not yet, are reported once, and the value stays.

    Args:
      read: makes the value, or raises a GoOptError.
    """

    def __init__(self, paths: Sequence[Path], read: Callable[[], _T]) -> None:
        self._paths = tuple(paths)
        self._read = read
        self._lock = threading.Lock()
        self._seen = self._look()
        self._value = read()
        self._next_look_s = time.monotonic() + _LOOK_EVERY_S

    def value(self) -> _T:
        """The value of the files as they are; called from any thread."""
        with self._lock:
            now_s = time.monotonic()
            if now_s >= self._next_look_s:
                self._next_look_s = now_s + _LOOK_EVERY_S
                self._refresh()
            return self._value

    def _refresh(self) -> None:
        seen = self._look()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._value = self._read()
        except GoOptError as error:
            _log.error("%s The former one stays in use.", error)
        else:
            _log.info("read %s again.", ", ".join(str(path) for path in self._paths))

    def _look(self) -> tuple[object, ...]:
        return tuple(_version(path) for path in self._paths)


def _version(path: Path) -> object:
    """Differs from that of any other content, links that are switched to another file included."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size
