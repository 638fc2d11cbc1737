"""The numbers of the tables, by hand."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from go_opt.bench.matches import Match, Record
from go_opt.bench.rivals import Point
from go_opt.bench.standings import standings
from go_opt.report.bench_tables import rows_table, summary_lines, tallies_table


def record(graph: str, method: str, seed: int, interval_s: float, bound_s: float = 0.0, **fields) -> Record:
    curve = (Point(1, 0.5, interval_s * 2), Point(5 + seed, 1.0 + seed, interval_s))
    found = {"curve": curve} if math.isfinite(interval_s) else {}
    values = {"evaluations": 100 * (seed + 1), "wall_s": 10.0, "bound_s": bound_s} | found | fields
    return Record(Match(f"zoo:{graph}", "mcm-6x6", method, seed, 10.0), 7, interval_s, **values)


RECORDS = [
    # a: medians portfolio 2, slice 6, genetic 4 (3-5); bound 1.
    *(
        record("a", "portfolio", seed, s, bound)
        for seed, (s, bound) in enumerate([(2, 0.5), (2, 1), (3, 0.9)])
    ),
    *(record("a", "slice", seed, 6) for seed in range(3)),
    *(record("a", "genetic", seed, s) for seed, s in enumerate([4, 5, 3])),
    # b: a tie, and the bound met.
    *(record("b", "portfolio", seed, 8, 8) for seed in range(3)),
    *(record("b", "slice", seed, 8) for seed in range(3)),
    *(record("b", "genetic", seed, 8) for seed in range(3)),
    # c: genetic wins; slice has no plan.
    *(record("c", "portfolio", seed, 5, 2) for seed in range(3)),
    *(record("c", "slice", seed, math.inf) for seed in range(3)),
    *(record("c", "genetic", seed, s) for seed, s in enumerate([4, 4, 9])),
    # A run that failed says nothing.
    Record(Match("zoo:c", "mcm-6x6", "metis", 0, 10.0), error="killed"),
]
METHODS = ("slice", "genetic", "metis", "portfolio")


def test_medians_and_spread() -> None:
    row = standings(RECORDS, METHODS).rows[0]
    assert (row.graph, row.ops, row.best_rival) == ("a", 7, "genetic")
    cell = row.cells["genetic"]
    assert (cell.interval_s, cell.least_s, cell.most_s) == (4, 3, 5)
    assert (cell.time_to_best_s, cell.evaluations) == (2.0, 200)
    assert row.ratio == 2.0
    assert (row.bound_s, row.gap, row.rival_gap) == (1, 1.0, 3.0)
    assert "metis" not in row.cells


def test_wins_ties_losses_and_means() -> None:
    stand = standings(RECORDS, METHODS)
    assert stand.hero == "portfolio"
    by_method = {tally.against: tally for tally in stand.tallies}
    against_slice = by_method["slice"]
    assert (against_slice.wins, against_slice.ties, against_slice.losses) == (2, 1, 0)
    assert against_slice.ratio == pytest.approx(math.sqrt(3.0 * 1.0))  # no plan on c: no ratio
    against_genetic = by_method["genetic"]
    assert (against_genetic.wins, against_genetic.ties, against_genetic.losses) == (1, 1, 1)
    assert against_genetic.ratio == pytest.approx((2.0 * 1.0 * 0.8) ** (1 / 3))
    assert math.isnan(by_method["metis"].ratio)
    best = stand.against_best
    assert best is not None
    assert (best.wins, best.ties, best.losses) == (1, 1, 1)
    assert best.ratio == pytest.approx(1.6 ** (1 / 3))
    # b is closed: its bound is met.
    assert stand.open_graphs == 2
    assert stand.open_ratio == pytest.approx(math.sqrt(1.6))


def test_without_the_portfolio_the_first_method_is_measured() -> None:
    records = [r for r in RECORDS if r.match.method != "portfolio"]
    stand = standings(records, ["genetic", "slice"])
    assert stand.hero == "genetic"
    assert stand.rows[0].best_rival == "slice"
    assert stand.rows[0].ratio == 1.5
    assert math.isinf(stand.rows[0].gap)
    assert (stand.open_graphs, math.isnan(stand.open_ratio)) == (0, True)  # nobody knows


def test_nothing_played() -> None:
    stand = standings([], ["slice"])
    assert stand.rows == ()
    assert stand.against_best is None


def test_tables() -> None:
    stand = standings(RECORDS, METHODS)
    screen = Console(width=240, record=True, file=io.StringIO())
    screen.print(rows_table(stand))
    screen.print(tallies_table(stand))
    for line in summary_lines(stand):
        screen.print(line)
    text = screen.export_text()
    assert "4 s (3 s-5 s)" in text
    assert (
        "portfolio against the best rival of each graph: geometric mean 1.170, 1 wins, 1 ties, 1 losses"
        in text
    )
    assert "differ by more than 5%: 1.265 on 2 graphs" in text
