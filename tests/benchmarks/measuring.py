"""What the benchmarks share: the quickest of some runs, and lines of Markdown tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any


def best_s(
    run: Callable[[], Any], repeats: int = 7, clock: Callable[[], float] = time.perf_counter
) -> tuple[float, Any]:
    """The least seconds of ``repeats`` runs after a first one, and what the last returned."""
    run()
    times = []
    for _ in range(repeats):
        started_s = clock()
        result = run()
        times.append(clock() - started_s)
    return min(times), result


def header(columns: Sequence[str], texts: int = 1) -> None:
    """The head of a table; the first ``texts`` columns are text, the others numbers."""
    row(columns)
    print("|" + "---|" * texts + "---:|" * (len(columns) - texts), flush=True)


def row(cells: Sequence[str]) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)
