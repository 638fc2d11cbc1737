"""What the searches of one request share: its clock, the caller, the methods that failed, the last gain."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NamedTuple

from numba.core import event

from go_opt.common.caches.kernels import LOADS
from go_opt.common.compiling import quick_compilation
from go_opt.result import OptimizeResult, Request, Step

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
        self.has_plan = False  # so that a search may end while kernels compile

    @property
    def runs(self) -> bool:
        return math.isinf(self._stopped_s)

    @property
    def elapsed_s(self) -> float:
        return min(time.monotonic(), self._stopped_s) - self._began_s

    @contextmanager
    def stops(self, at_most_s: float = math.inf) -> Iterator[None]:
        if not self.runs:
            yield
            return
        self._stopped_s = time.monotonic()
        try:
            yield
        finally:
            excluded_s = min(time.monotonic() - self._stopped_s, max(0.0, at_most_s - self._compiling_s))
            self._compiling_s += excluded_s if math.isfinite(at_most_s) else 0.0
            self._began_s += excluded_s
            self._stopped_s = math.inf


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

    @contextmanager
    def without_kernels(self) -> Iterator[None]:
        """Within the block, the clock stands while kernels load or compile, quickly, on this thread.

        Once there is a plan, for a minute at most.
        """
        listener = _Kernels(self.clock)
        with event.install_listener("numba:compile", listener), event.install_listener(LOADS, listener):
            yield

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


class _Kernels(event.Listener):
    """Stops the clock; functions that compile or load within others belong to these."""

    def __init__(self, clock: _Clock) -> None:
        self._clock, self._thread = clock, threading.get_ident()
        self._depth, self._stack = 0, ExitStack()

    def on_start(self, event: Any) -> None:
        if threading.get_ident() == self._thread:
            self._depth += 1
            if self._depth == 1:
                self._stack.enter_context(
                    self._clock.stops(_MOST_COMPILING_S if self._clock.has_plan else math.inf)
                )
                if event.kind != LOADS:
                    self._stack.enter_context(quick_compilation())

    def on_end(self, event: Any) -> None:
        if threading.get_ident() == self._thread and self._depth:
            self._depth -= 1
            if not self._depth:
                self._stack.close()


class Watch(NamedTuple):
    """Callbacks of the caller."""

    on_step: Callable[[Step], None]
    on_improvement: Callable[[OptimizeResult], None]
    should_stop: Callable[[], bool]
    on_interrupt: Callable[[], None] = lambda: None  # Ctrl-C ended a search, which returns its best plan


NOTABLE: Final = 1e-3  # relative gain of the objective or the bound
LEAST_S: Final = 0.3  # without a gain, until a search ends
LEAST: Final = 200  # evaluations, likewise
CLOSE: Final = 0.01  # gap of a plan that can gain next to nothing more


class Gains:
    """When a search last gained ``NOTABLE``."""

    def __init__(self, request: Request, context: Context) -> None:
        self._request, self._context = request, context
        self._began_s = self._gained_s = context.elapsed_s
        self._gained = 0  # evaluations until then
        self._objective_s, self._bound_s = math.inf, 0.0
        self._pending = 0

    def note(self, objective_s: float, bound_s: float, evaluations: int, pending: int | None = None) -> None:
        """What is reached after so many evaluations.

        Args:
          pending: of these, those of an attempt that shows its result at its end; None: as before.
        """
        self._pending = self._pending if pending is None else pending
        if objective_s < self._objective_s * (1 - NOTABLE) or bound_s > self._bound_s * (1 + NOTABLE):
            self._objective_s, self._bound_s = objective_s, bound_s
            self._gained_s, self._gained = self._context.elapsed_s, evaluations

    def are_over(self, evaluations: int) -> bool:
        """Whether as much was spent since the last gain as before it, and at least ``LEAST``.

        While the plan may be far from the best one, an attempt has not failed before its end. With a
        limit on evaluations only they count, so that equal limits give equal answers.
        """
        barren = evaluations - self._gained
        if self._objective_s > self._bound_s * (1 + CLOSE):
            barren -= self._pending
        if not self._request.early_end or barren < LEAST:
            return False
        if self._request.max_evaluations is not None:
            return barren >= self._gained
        barren_s = self._context.elapsed_s - self._gained_s
        return barren_s >= max(LEAST_S, self._gained_s - self._began_s)
