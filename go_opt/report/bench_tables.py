"""Standings as text tables, and records as JSON types."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from rich.table import Table

from go_opt.bench.matches import Record
from go_opt.bench.standings import OPEN_GAP, Cell, Standings
from go_opt.common.units import format_duration, format_ratio
from go_opt.report.parts.wording import table_of
from go_opt.result_json import finite


def rows_table(standings: Standings) -> Table:
    """One row per graph: medians over seeds, with least and most if they differ."""
    columns = ("graph", "ops", *standings.methods, "bound", "gap", "rival / ours", "best rival")
    rows = (
        (
            row.graph,
            row.ops,
            *(format_cell(row.cells.get(method)) for method in standings.methods),
            format_duration(row.bound_s or math.inf),
            format_ratio(row.gap),
            _factor(row.ratio),
            row.best_rival or "-",
        )
        for row in standings.rows
    )
    return table_of(columns, rows, text=("graph", "best rival"))


def tallies_table(standings: Standings) -> Table:
    """One row per method: its results against the hero, and its time to the best plan."""
    columns = ("method", "geometric mean", "wins", "ties", "losses", "time to best", "evaluations")
    rows = (
        (
            tally.against,
            *("----" if is_hero else (_factor(tally.ratio), tally.wins, tally.ties, tally.losses)),
            format_duration(tally.time_to_best_s),
            f"{tally.evaluations:.0f}" if math.isfinite(tally.evaluations) else "-",
        )
        for tally in standings.tallies
        for is_hero in [tally.against == standings.hero]
    )
    return table_of(columns, rows, text=("method",))


def summary_lines(standings: Standings) -> Iterator[str]:
    """A summary of the tables."""
    best = standings.against_best
    if best is None:
        return
    yield (
        f"{standings.hero} against the best rival of each graph: geometric mean {_factor(best.ratio)}, "
        f"{best.wins} wins, {best.ties} ties, {best.losses} losses"
    )
    yield (
        f"where bound and best rival differ by more than {OPEN_GAP:.0%}: {_factor(standings.open_ratio)} "
        f"on {standings.open_graphs} graphs"
    )


def format_cell(cell: Cell | None) -> str:
    """``100.4 us``, or ``100.4 us (99.8 us-101 us)`` if seeds differ."""
    if cell is None:
        return "-"
    text = format_duration(cell.interval_s)
    if cell.least_s == cell.most_s:
        return text
    return f"{text} ({format_duration(cell.least_s)}-{format_duration(cell.most_s)})"


def format_record(record: Record) -> str:
    """A line of progress."""
    match = record.match
    what = record.error or (
        f"{format_duration(record.interval_s)} after {format_duration(record.time_to_best_s)}, "
        f"{record.evaluations} evaluations in {record.wall_s:.2f} s"
    )
    return f"{match.graph}, {match.method}, seed {match.seed}: {what}"


def improvements(record: Record) -> Iterator[dict[str, Any]]:
    """For JSON: the best interval after so many samples, for each better plan and at the end.

    A sample is an evaluation of a plan, also of an invalid one. Without a valid plan the interval is None.
    """
    match = record.match
    run = {"graph": match.graph, "method": match.method, "seed": match.seed}
    for point in record.curve:
        yield run | {"samples": point.evaluations, "interval_s": point.interval_s}
    end = run | {"samples": record.evaluations, "interval_s": finite(record.interval_s)}
    yield end | ({"error": record.error} if record.error else {})


def _factor(ratio: float) -> str:
    return f"{ratio:.3f}" if math.isfinite(ratio) else "-"
