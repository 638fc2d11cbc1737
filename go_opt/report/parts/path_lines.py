"""The critical path of a makespan as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.table import Table

from go_opt.common.units import format_duration
from go_opt.env.critical_path import CriticalPath
from go_opt.report.parts.wording import counted, table_of

_SAID: Final = {
    "kernel": "kernel",
    "transfer": "transfer",
    "wait": "wait for a link",
    "host in": "read from the host",
    "host out": "write to the host",
}
_IDLE: Final = {
    "kernel": "kernels of other chips",
    "link": "busy links",
    "transfer": "transfers",
    "host": "the host",
    "nothing": "nothing left to do",
}
_MOST_PLACES: Final = 3
_MOST_PIECES: Final = 16
_ROUNDING: Final = 1e-12  # what sums of floats leave over


def path_lines(path: CriticalPath) -> Iterator[str]:
    """What binds the makespan, and what kinds of pieces its path has."""
    places = [f"{name} {_share(path, seconds)}" for name, seconds in path.by_resource[:_MOST_PLACES]]
    yield f"bottleneck  {', '.join(places)} of the critical path"
    kinds = [f"{_counted(number, kind)} {_share(path, seconds)}" for kind, number, seconds in path.by_kind]
    yield f"path        {', '.join(kinds)}"


def slack_line(path: CriticalPath) -> str:
    """How much later kernels may start without a longer makespan."""
    tight = sum(kernel.slack_s <= _ROUNDING * path.makespan_s for kernel in path.kernels)
    slack_s = sorted(kernel.slack_s for kernel in path.kernels)
    median, most = format_duration(slack_s[len(slack_s) // 2]), format_duration(slack_s[-1])
    return f"slack       0 of {counted(tight, 'kernel')}, median {median}, at most {most}"


def idle_line(path: CriticalPath, num_chips: int) -> str:
    """What all chips together wait for while they run nothing."""
    all_s = num_chips * path.makespan_s
    causes = sorted(path.idle_s().items(), key=lambda item: -item[1])
    parts = [f"{_IDLE[cause]} {seconds / all_s:.0%}" for cause, seconds in causes if seconds > 0]
    return f"idle        {', '.join(parts) or 'never'}, of the time of {counted(num_chips, 'chip')}"


def idle_table(path: CriticalPath) -> Table:
    """One row a chip that runs a kernel: when it runs, and what it waits for when it does not."""
    table = table_of(("chip", "runs", *_IDLE.values()))
    for chip in sorted({kernel.chip for kernel in path.kernels}):
        runs_s = sum(kernel.seconds for kernel in path.kernels if kernel.chip == chip)
        cells = [format_duration(seconds) if seconds else "-" for seconds in path.idle_s(chip).values()]
        table.add_row(str(chip), format_duration(runs_s), *cells)
    return table


def path_table(path: CriticalPath) -> Table:
    """One row a piece, in the order of time; of many the longest."""
    table = table_of(("begins", "takes", "share", "piece", "where", "which is"))
    longest = sorted(range(len(path.pieces)), key=lambda i: -path.pieces[i].seconds)[:_MOST_PIECES]
    for i in sorted(longest):
        piece = path.pieces[i]
        table.add_row(
            format_duration(piece.start_s) if piece.start_s else "0",
            format_duration(piece.seconds),
            f"{piece.seconds / path.makespan_s:.0%}",
            piece.kind,
            piece.resource,
            f"`{piece.name}`",
        )
    if len(path.pieces) > len(longest):
        rest = [path.pieces[i].seconds for i in set(range(len(path.pieces))) - set(longest)]
        table.caption = f"and {counted(len(rest), 'shorter piece')} of {format_duration(sum(rest))} in all"
    return table


def _counted(number: int, kind: str) -> str:
    if kind == "wait":
        return f"{number} wait{'s' if number > 1 else ''} for links"
    return counted(number, _SAID[kind]) if " " not in _SAID[kind] else _SAID[kind]


def _share(path: CriticalPath, seconds: float) -> str:
    share = f" ({seconds / path.makespan_s:.0%})" if path.makespan_s > 0 else ""
    return f"{format_duration(seconds)}{share}"
