"""Ctrl-C during a search or training stops and keeps the result; elsewhere it ends the process."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Final

from go_opt.result import Step

_STDERR: Final = 2


@contextmanager
def interrupts_raised() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt in the block, so that the block can keep its results."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class InterruptAsks:
    """Once there is a plan, Ctrl-C requests that the search stop instead of aborting it.

    Compiled libraries may swallow an exception or replace it by their own. Before the first plan,
    and on a second Ctrl-C, the previous handler runs.
    """

    def __init__(self) -> None:
        self.has_plan = self._is_requested = False

    def __enter__(self) -> InterruptAsks:
        self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def on_step(self, step: Step) -> None:
        """Record whether there is a plan."""
        self.has_plan = math.isfinite(step.best_s)

    def is_requested(self) -> bool:
        """Whether to stop."""
        return self._is_requested

    def _ask(self, signal_number: int, frame: FrameType | None) -> None:
        if self.has_plan and not self._is_requested:
            self._is_requested = True
        elif callable(self._before):
            self._before(signal_number, frame)


class StopOnSignals:
    """Ctrl-C or SIGTERM stops training after the running step; a second signal stops it at once."""

    def __init__(self) -> None:
        self.signal_number: int | None = None  # the received signal

    def __enter__(self) -> StopOnSignals:
        self._before = {
            number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)
        }
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def is_requested(self) -> bool:
        """Whether to stop."""
        return self.signal_number is not None

    def _ask(self, signal_number: int, frame: FrameType | None) -> None:
        if self.signal_number is not None:
            raise KeyboardInterrupt
        self.signal_number = signal_number
        # Not with print: the signal may have interrupted a print.
        os.write(_STDERR, b"stopping after this step; once more stops at once.\n")
