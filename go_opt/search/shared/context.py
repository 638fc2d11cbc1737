"""What the searches of one request share: its clock, and the methods that failed."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from numba.core import event

RAISES: Final = "GO_OPT_RAISES"  # set: an error in a method ends the search, as in tests
OVERTIME_S: Final = 1.0  # after the time limit, for a search that has no plan yet
_MOST_COMPILING_S: Final = 60.0  # for which the clock stands still, once there may be a plan
_log = logging.getLogger(__name__)


def errors_are_raised() -> bool:
    """Whether an error of ours ends the search; else the search goes on, and says so."""
    return bool(os.environ.get(RAISES))


class Context:
    """Made once for a request, and handed to every search inside its search.

    Args:
      around: of the search that this one is a part of; what is excluded here is excluded there.
    """

    def __init__(self, limit_s: float, around: Context | None = None) -> None:
        self.limit_s, self._around = limit_s, around
        self._began_s, self._stopped_s = time.monotonic(), math.inf  # finite: the clock stands there
        self._compiling_s = 0.0
        self._dropped: dict[str, str] = {}  # method -> its error

    @property
    def elapsed_s(self) -> float:
        """Seconds since the request began, without those of compilation."""
        return min(time.monotonic(), self._stopped_s) - self._began_s

    @property
    def is_over(self) -> bool:
        """Whether a search ends even without a plan."""
        return self.elapsed_s > self.limit_s + OVERTIME_S

    def after(self, seconds: float) -> Callable[[], bool]:
        """Tells whether so many seconds have passed from now on."""
        until_s = self.elapsed_s + seconds
        return lambda: self.elapsed_s > until_s

    @contextmanager
    def compiling(self, at_most_s: float = math.inf) -> Iterator[None]:
        """Exclude the time of the block; of all blocks with a limit, at most ``at_most_s``."""
        self._stopped_s = time.monotonic()
        try:
            yield
        finally:
            self._exclude(time.monotonic() - self._stopped_s, at_most_s)
            self._stopped_s = math.inf

    @staticmethod
    def most_compiling_s(*, has_plan: bool) -> float:
        """The seconds of compilation that are excluded at most, with a plan to answer with or without one."""
        return _MOST_COMPILING_S if has_plan else math.inf

    @contextmanager
    def excludes_compilation(self) -> Iterator[None]:
        """Within the block, exclude also what compiles outside such blocks, on this thread."""
        with event.install_listener("numba:compile", _Unforeseen(self)):
            yield

    def _exclude(self, seconds: float, at_most_s: float) -> None:
        excluded_s = min(seconds, max(0.0, at_most_s - self._compiling_s))
        self._compiling_s += excluded_s if math.isfinite(at_most_s) else 0.0
        self._began_s += excluded_s
        if self._around is not None:
            self._around._began_s += excluded_s

    @contextmanager
    def tolerates(self, method: str, *answers: type[Exception]) -> Iterator[None]:
        """Drop ``method`` if the block fails: the search goes on without it, unless ``GO_OPT_RAISES`` is set.

        Errors of the types ``answers`` are raised.
        """
        try:
            yield
        except answers:
            raise
        except Exception as error:
            if errors_are_raised():
                raise
            _log.exception("search method %r failed and was dropped", method)
            self._dropped.setdefault(method, f"{type(error).__name__}: {error}")

    def is_dropped(self, method: str) -> bool:
        return method in self._dropped

    @property
    def dropped_methods(self) -> tuple[str, ...]:
        """The methods that failed, each with its error."""
        return tuple(f"{method}: {error}" for method, error in self._dropped.items())


class _Unforeseen(event.Listener):
    """Excludes the compilation of kernels that were not loaded while the clock stood still."""

    def __init__(self, context: Context) -> None:
        self._context, self._thread = context, threading.get_ident()
        self._began_s: list[float] = []  # a compilation, and those within it

    def on_start(self, event: Any) -> None:
        if threading.get_ident() == self._thread:
            self._began_s.append(self._context.elapsed_s)

    def on_end(self, event: Any) -> None:
        if threading.get_ident() == self._thread and self._began_s:
            began_s = self._began_s.pop()
            if not self._began_s:
                self._context._exclude(self._context.elapsed_s - began_s, _MOST_COMPILING_S)
