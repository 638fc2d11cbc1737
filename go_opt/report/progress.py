"""Progress on stderr for searches longer than a second, and for kernel compilation."""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from go_opt.common.units import format_duration
from go_opt.result import Objective, Step

_QUIET_S: Final = 1.0
_COMPILING_QUIET_S: Final = 10.0  # it may take a minute and more


class SearchProgress:
    """One line per second after the first: the best so far and, if it fits, the current method."""

    def __init__(self, objective: Objective = "throughput") -> None:
        self._what = "makespan" if objective == "latency" else "interval"
        self._next_s = _QUIET_S
        self.best = ""  # text about the best plan so far

    def on_step(self, step: Step) -> None:
        if math.isfinite(step.best_s):
            self.best = f"  best {self._what} {format_duration(step.best_s)}"
        if step.elapsed_s < self._next_s:
            return
        self._next_s = step.elapsed_s + _QUIET_S
        line = f"{step.elapsed_s:5.1f} s{self.best}  {step.evaluations} evaluations"
        tried = f"  ({step.method})"
        # Longer lines would wrap in the terminal.
        room = shutil.get_terminal_size().columns if sys.stderr.isatty() else math.inf
        print(line + tried if len(line + tried) <= room else line, file=sys.stderr, flush=True)


def announce_compilation(best: Callable[[], str] = lambda: "") -> None:
    """Say on stderr, each ten seconds, that kernels are compiled, which happens once after an install.

    Kernels from the cache raise no event.

    Args:
      best: returns text about the best plan so far.
    """
    from numba.core import event

    class Notice(event.Listener):
        next_s = 0.0

        def on_start(self, event: Any) -> None:
            if time.monotonic() >= self.next_s:
                self.next_s = time.monotonic() + _COMPILING_QUIET_S
                print(f"compiling kernels, once after an install{best()}", file=sys.stderr, flush=True)

        def on_end(self, event: Any) -> None:
            pass

    event.register("numba:compile", Notice())  # type: ignore[no-untyped-call]
