"""Progress on stderr for anything longer than a second, and for kernels being compiled."""

from __future__ import annotations

import math
import shutil
import sys
from typing import Any, Final

from go_opt.common.units import format_duration
from go_opt.result import Objective, Step

_QUIET_S: Final = 1.0


class SearchProgress:
    """A line a second, from the first second on: the best so far and, where there is room, what was tried."""

    def __init__(self, objective: Objective = "throughput") -> None:
        self._what = "makespan" if objective == "latency" else "interval"
        self._next_s = _QUIET_S

    def on_step(self, step: Step) -> None:
        if step.elapsed_s < self._next_s:
            return
        self._next_s = step.elapsed_s + _QUIET_S
        line = (
            f"{step.elapsed_s:5.1f} s  best {self._what} {format_duration(step.best_s)}  "
            f"{step.evaluations} evaluations"
        )
        tried = f"  ({step.method})"
        # Lines that the terminal would break are no lines.
        room = shutil.get_terminal_size().columns if sys.stderr.isatty() else math.inf
        print(line + tried if len(line + tried) <= room else line, file=sys.stderr, flush=True)


def announce_compilation() -> None:
    """Say once, on stderr, when kernels have to be compiled: only after an install.

    Kernels that come from the cache raise no event.
    """
    from numba.core import event

    class Notice(event.Listener):
        said = False

        def on_start(self, event: Any) -> None:
            if not self.said:
                self.said = True
                print("compiling kernels, once after an install ...", file=sys.stderr, flush=True)

        def on_end(self, event: Any) -> None:
            pass

    event.register("numba:compile", Notice())  # type: ignore[no-untyped-call]
