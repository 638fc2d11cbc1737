"""Standings: the results of the methods over seeds, per graph and in total.

A method's result on a graph is its median over seeds. The *hero* is the method that is compared
with the others: the portfolio if it takes part. Ratios are other / hero; above one means that
the hero is better.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from go_opt.bench.matches import OURS, Record

EQUAL: Final = 1e-6  # largest relative difference of tied intervals
OPEN_GAP: Final = 0.05  # a graph is open if the best rival's gap is larger


@dataclass(frozen=True)
class Cell:
    """One method on one graph; medians over seeds."""

    interval_s: float
    least_s: float
    most_s: float
    time_to_best_s: float
    evaluations: float
    bound_s: float  # the highest bound that the method has proven


@dataclass(frozen=True)
class Row:
    """One graph."""

    graph: str
    ops: int
    cells: dict[str, Cell]  # by method; only methods with a record
    best_rival: str  # empty if no rival took part
    ratio: float  # best rival / hero; NaN where one of them has no plan
    bound_s: float  # the hero's; 0 if none
    gap: float  # hero / bound - 1; infinite without a bound
    rival_gap: float  # the same for the best rival


@dataclass(frozen=True)
class Tally:
    """The hero against one method, or against the best rival of each graph."""

    against: str
    ratio: float  # geometric mean over graphs where both have a plan; NaN without one
    wins: int  # of the hero
    ties: int
    losses: int
    time_to_best_s: float  # of the method; the median over graphs
    evaluations: float


@dataclass(frozen=True)
class Standings:
    """Rows in the order of the records, and their totals."""

    hero: str
    methods: tuple[str, ...]
    rows: tuple[Row, ...]
    tallies: tuple[Tally, ...]  # the first is the hero against itself
    against_best: Tally | None  # None if no rival took part
    open_ratio: float  # geometric mean over open graphs; NaN without one
    open_graphs: int


def standings(records: Sequence[Record], methods: Sequence[str]) -> Standings:
    """The standings of ``records``, with columns in the order of ``methods``."""
    hero = next((method for method in OURS if method in methods), methods[0])
    played = [record for record in records if not record.error]
    graphs = list(dict.fromkeys(record.match.graph for record in played))
    rows = tuple(
        _row(graph, [r for r in played if r.match.graph == graph], methods, hero) for graph in graphs
    )
    others = [method for method in methods if method != hero]
    has_rival = any(row.best_rival for row in rows)
    is_open = [row for row in rows if OPEN_GAP < row.rival_gap < math.inf and not math.isnan(row.ratio)]
    return Standings(
        hero=hero,
        methods=tuple(methods),
        rows=rows,
        tallies=tuple(_tally(rows, hero, method) for method in (hero, *others)),
        against_best=_sum_up("best rival", rows, hero, [row.best_rival for row in rows])
        if has_rival
        else None,
        open_ratio=_geometric_mean([row.ratio for row in is_open]),
        open_graphs=len(is_open),
    )


def _row(graph: str, records: list[Record], methods: Sequence[str], hero: str) -> Row:
    cells = {
        method: _cell(of_method)
        for method in methods
        if (of_method := [record for record in records if record.match.method == method])
    }
    rivals = [method for method in cells if method not in OURS and method != hero]
    best = min(rivals, key=lambda method: cells[method].interval_s, default="")
    ours_s = cells[hero].interval_s if hero in cells else math.inf
    best_s = cells[best].interval_s if best else math.inf
    bound_s = cells[hero].bound_s if hero in cells else 0.0
    return Row(
        graph=graph,
        ops=records[0].ops,
        cells=cells,
        best_rival=best,
        ratio=_ratio(best_s, ours_s),
        bound_s=bound_s,
        gap=ours_s / bound_s - 1.0 if bound_s > 0 else math.inf,
        rival_gap=best_s / bound_s - 1.0 if bound_s > 0 else math.inf,
    )


def _cell(records: list[Record]) -> Cell:
    intervals_s = [record.interval_s for record in records]
    return Cell(
        interval_s=statistics.median(intervals_s),
        least_s=min(intervals_s),
        most_s=max(intervals_s),
        time_to_best_s=statistics.median(record.time_to_best_s for record in records),
        evaluations=statistics.median(record.evaluations for record in records),
        bound_s=max(record.bound_s for record in records),
    )


def _tally(rows: Sequence[Row], hero: str, method: str) -> Tally:
    return _sum_up(method, rows, hero, [method] * len(rows))


def _sum_up(against: str, rows: Sequence[Row], hero: str, methods: list[str]) -> Tally:
    """Leaves out graphs where either method has no record; no plan counts as worse than any plan."""
    pairs = [
        (row.cells[method], row.cells[hero])
        for row, method in zip(rows, methods, strict=True)
        if method in row.cells and hero in row.cells
    ]
    ratios = [_ratio(other.interval_s, ours.interval_s) for other, ours in pairs]
    wins = losses = 0
    for other, ours in pairs:
        wins += ours.interval_s < other.interval_s * (1.0 - EQUAL)
        losses += other.interval_s < ours.interval_s * (1.0 - EQUAL)
    return Tally(
        against,
        _geometric_mean([ratio for ratio in ratios if not math.isnan(ratio)]),
        wins,
        len(pairs) - wins - losses,
        losses,
        statistics.median(other.time_to_best_s for other, _ in pairs) if pairs else math.nan,
        statistics.median(other.evaluations for other, _ in pairs) if pairs else math.nan,
    )


def _ratio(other_s: float, ours_s: float) -> float:
    return other_s / ours_s if math.isfinite(other_s) and math.isfinite(ours_s) else math.nan


def _geometric_mean(ratios: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios))) if ratios else math.nan
