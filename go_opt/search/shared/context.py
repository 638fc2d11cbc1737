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


class _Clock:
    """Seconds without those of compilation; one for a request and all searches inside its search."""

    def __init__(self) -> None:
        self._began_s, self._stopped_s = time.monotonic(), math.inf  # finite: the clock stands there
        self._compiling_s = 0.0  # excluded with a limit
        self.is_heard = False  # whether what compiles outside blocks is excluded

    @property
    def runs(self) -> bool:
        return math.isinf(self._stopped_s)

    @property
    def elapsed_s(self) -> float:
        return min(time.monotonic(), self._stopped_s) - self._began_s

    @contextmanager
    def stops(self, at_most_s: float) -> Iterator[None]:
        self._stopped_s = time.monotonic()
        try:
            yield
        finally:
            self.exclude(time.monotonic() - self._stopped_s, at_most_s)
            self._stopped_s = math.inf

    def exclude(self, seconds: float, at_most_s: float) -> None:
        excluded_s = min(seconds, max(0.0, at_most_s - self._compiling_s))
        self._compiling_s += excluded_s if math.isfinite(at_most_s) else 0.0
        self._began_s += excluded_s


class Context:
    """Made once for a request, and handed to every search inside its search.

    Args:
      around: of the search that this one is a part of; what is excluded here is excluded there.
    """

    def __init__(self, limit_s: float, around: Context | None = None) -> None:
        self.limit_s = limit_s
        self.clock: _Clock = _Clock() if around is None else around.clock
        self._began_s = self.clock.elapsed_s
        self._dropped: dict[str, str] = {}  # method -> its error

    @property
    def elapsed_s(self) -> float:
        """Seconds since this search began, without those of compilation."""
        return self.clock.elapsed_s - self._began_s

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
        with self.clock.stops(at_most_s):
            yield

    @staticmethod
    def most_compiling_s(*, has_plan: bool) -> float:
        """The seconds of compilation that are excluded at most, with a plan to answer with or without one."""
        return _MOST_COMPILING_S if has_plan else math.inf

    @contextmanager
    def excludes_compilation(self) -> Iterator[None]:
        """Within the block, exclude also what compiles outside such blocks, on this thread."""
        if self.clock.is_heard:  # by a search around this one
            yield
            return
        self.clock.is_heard = True
        try:
            with event.install_listener("numba:compile", _Unforeseen(self.clock)):
                yield
        finally:
            self.clock.is_heard = False

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

    def __init__(self, clock: _Clock) -> None:
        self._clock, self._thread = clock, threading.get_ident()
        self._began_s: list[float] = []  # a compilation, and those within it

    def on_start(self, event: Any) -> None:
        if threading.get_ident() == self._thread:
            self._began_s.append(self._clock.elapsed_s)

    def on_end(self, event: Any) -> None:
        if threading.get_ident() == self._thread and self._began_s:
            began_s = self._began_s.pop()
            if not self._began_s:
                self._clock.exclude(self._clock.elapsed_s - began_s, _MOST_COMPILING_S)
