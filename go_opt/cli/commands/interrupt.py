"""Ctrl-C during a search or a training: stop and keep what was reached. Elsewhere it ends the process."""

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
    """Ctrl-C raises KeyboardInterrupt, for the block to keep what it has."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class InterruptAsks:
    """Once there is a plan, Ctrl-C asks the search to stop instead of ending it in the middle.

    Compiled libraries may swallow an exception, or turn it into one of their own. Before
    the first plan, and when pressed once more, it does what it did outside of the block.
    """

    def __init__(self) -> None:
        self._has_plan = self._is_asked = False

    def __enter__(self) -> InterruptAsks:
        self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def on_step(self, step: Step) -> None:
        """Note whether there is a plan."""
        self._has_plan = math.isfinite(step.best_s)

    def is_asked(self) -> bool:
        """Whether to stop."""
        return self._is_asked

    def _ask(self, signal_number: int, frame: FrameType | None) -> None:
        if self._has_plan and not self._is_asked:
            self._is_asked = True
        elif callable(self._before):
            self._before(signal_number, frame)


class StopOnSignals:
    """Ctrl-C and SIGTERM ask a training to stop after its running step; a second one stops it at once."""

    def __init__(self) -> None:
        self.signal_number: int | None = None  # the one that came

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

    def is_asked(self) -> bool:
        """Whether to stop."""
        return self.signal_number is not None

    def _ask(self, signal_number: int, frame: FrameType | None) -> None:
        if self.signal_number is not None:
            raise KeyboardInterrupt
        self.signal_number = signal_number
        # Not by print: the signal may have come in the middle of one.
        os.write(_STDERR, b"stopping after this step; once more stops at once.\n")
