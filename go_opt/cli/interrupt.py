"""Ctrl-C during a search: stop and keep what was reached."""

from __future__ import annotations

import math
import signal
from types import FrameType, TracebackType

from go_opt.result import Step


class InterruptAsks:
    """Once there is a plan, Ctrl-C asks the search to stop instead of raising in the middle of it.

    Compiled libraries may swallow the exception, or turn it into one of their own. Before
    the first plan, and when pressed once more, it is raised.
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
        if self._is_asked or not self._has_plan:
            raise KeyboardInterrupt
        self._is_asked = True
