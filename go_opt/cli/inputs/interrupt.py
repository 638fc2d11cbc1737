"""Ctrl-C during a search or training stops and keeps the result; elsewhere it ends the process."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Final, Self

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
    and on a second signal, the previous handler runs.
    """

    signals: tuple[signal.Signals, ...] = (signal.SIGINT,)

    def __init__(self) -> None:
        self.has_plan = False
        self.signal_number: int | None = None  # the received signal

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._ask) for number in self.signals}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def on_step(self, step: Step) -> None:
        """Record whether there is a plan."""
        self.has_plan = math.isfinite(step.best_s)

    def is_requested(self) -> bool:
        """Whether to stop."""
        return self.signal_number is not None

    def _ask(self, signal_number: int, frame: FrameType | None) -> None:
        before = self._before[signal.Signals(signal_number)]
        if self.has_plan and self.signal_number is None:
            self.signal_number = signal_number
        elif callable(before):
            before(signal_number, frame)


class StopOnSignals(InterruptAsks):
    """Ctrl-C or SIGTERM stops training after the running step; a second signal stops it at once."""

    signals = signal.SIGINT, signal.SIGTERM

    def _ask(self, signal_number: int, frame: FrameType | None) -> None:
        if self.is_requested():
            raise KeyboardInterrupt
        self.signal_number = signal_number
        # Not with print: the signal may have interrupted a print.
        os.write(_STDERR, b"stopping after this step; once more stops at once.\n")
