"""The tables of GO's workloads from the lines that tests/benchmarks/bench_go_table.py wrote."""

from __future__ import annotations

import statistics
from typing import Any, Final

from tests.benchmarks.go_table_rows import ROWS, Row
from tests.benchmarks.measuring import header
from tests.benchmarks.measuring import row as print_row

PORTFOLIO: Final = "portfolio"
COLUMNS: Final = (
    "one device", "human", "metis", "heft", "peft", "critical path", "join-all", "hdp", "hdp x10",
    PORTFOLIO, "portfolio + policy", "portfolio + untrained",
)  # fmt: skip
BEHIND: Final = 1.001  # a ratio that counts as a loss

Line = dict[str, Any]
Found = dict[tuple[str, str], list[Line]]  # by graph and method, a line for each seed


def print_tables(lines: list[Line]) -> None:
    found: Found = {}
    for line in lines:
        found.setdefault((line["graph"], line["method"]), []).append(line)
    _makespans(found)
    _ratios(found)
    _paper(found)
    _simulated(found)


def _makespans(found: Found) -> None:
    _title("Makespan in microseconds, predicted")
    header(["workload", "GPUs", "bound", *COLUMNS, "gap"])
    for row in ROWS:
        bound_s = _bound_s(found, row)
        ours_s = median_s(found, row, PORTFOLIO)
        gap = f"{ours_s / bound_s - 1:.1%}" if bound_s and ours_s else ""
        cells = [_spread(found.get((row.graph, method), [])) for method in COLUMNS]
        print_row([_label(row), str(row.devices), f"{bound_s * 1e6:.0f}" if bound_s else "", *cells, gap])


def _ratios(found: Found) -> None:
    _title(f"Times as long as the {PORTFOLIO}: geometric mean, and rows that the {PORTFOLIO} wins and loses")
    header(["method", "rows", "predicted", "least", "wins", "losses", "lost", "simulated"], texts=1)
    for method in COLUMNS:
        ratios = ratios_to_ours(found, method)
        if not ratios:
            continue
        lost = [graph for graph, ratio in ratios.items() if ratio < 1 / BEHIND]
        wins = sum(ratio > BEHIND for ratio in ratios.values())
        print_row(
            [
                method, str(len(ratios)), f"{statistics.geometric_mean(ratios.values()):.3f}",
                f"{min(ratios.values()):.3f}", str(wins), str(len(lost)), ", ".join(lost),
                f"{statistics.geometric_mean(ratios_to_ours(found, method, 'simulated_s').values()):.3f}",
            ]
        )  # fmt: skip


def _paper(found: Found) -> None:
    """The paper's ratios are of seconds of a training step on real GPUs, ours of predicted makespans."""
    _title(f"Rival over GO in the paper, rival over the {PORTFOLIO} here")
    rivals = {"human": "human_s", "metis": "metis_s", "hdp": "hdp_s"}
    header(["workload", *(f"{method}, {where}" for method in rivals for where in ("paper", "here"))])
    columns: dict[str, list[float]] = {}
    for row in ROWS:
        cells = [_label(row)]
        for method, field in rivals.items():
            rival_s, ours = getattr(row, field), ratios_to_ours(found, method).get(row.graph)
            theirs = None if rival_s is None else rival_s / row.go_s
            for where, ratio, none in (("paper", theirs, "out of memory"), ("here", ours, "")):
                cells.append(none if ratio is None else f"{ratio:.2f}")
                columns.setdefault(f"{method}, {where}", []).extend([] if ratio is None else [ratio])
        print_row(cells)
    means = [f"{statistics.geometric_mean(of):.2f}" if of else "" for of in columns.values()]
    print_row(["geometric mean", *means])


def _simulated(found: Found) -> None:
    _title("Simulated over predicted")
    methods = [method for method in COLUMNS if any(name == method for _, name in found)]
    header(["workload", *methods])
    columns: dict[str, list[float]] = {method: [] for method in methods}
    for row in ROWS:
        cells = [_label(row)]
        for method in methods:
            predicted_s, simulated_s = (
                median_s(found, row, method, f) for f in ("makespan_s", "simulated_s")
            )
            cells.append("")
            if predicted_s and simulated_s:
                columns[method].append(simulated_s / predicted_s)
                cells[-1] = f"{columns[method][-1]:.3f}"
        print_row(cells)
    print_row(["geometric mean", *(f"{statistics.geometric_mean(of):.3f}" for of in columns.values())])


def median_s(found: Found, row: Row, method: str, field: str = "makespan_s") -> float | None:
    lines = found.get((row.graph, method))
    return statistics.median(line[field] for line in lines) if lines else None


def ratios_to_ours(found: Found, method: str, field: str = "makespan_s") -> dict[str, float]:
    """By graph: how many times as long a method's plan takes as the portfolio's."""
    ratios = {}
    for row in ROWS:
        theirs_s, ours_s = (median_s(found, row, name, field) for name in (method, PORTFOLIO))
        if theirs_s and ours_s:
            ratios[row.graph] = theirs_s / ours_s
    return ratios


def _bound_s(found: Found, row: Row) -> float | None:
    """The best that any search has proven: all are asked the same."""
    bounds = [
        line["bound_s"]
        for (graph, _), of in found.items()
        for line in of
        if graph == row.graph and "bound_s" in line
    ]
    return max(bounds, default=None)


def _spread(lines: list[Line]) -> str:
    """Median, and the range where it is not a point."""
    if not lines:
        return ""
    values = sorted(line["makespan_s"] * 1e6 for line in lines)
    middle, least, most = (f"{value:.0f}" for value in (statistics.median(values), values[0], values[-1]))
    return middle if least == most else f"{middle} ({least}-{most})"


def _label(row: Row) -> str:
    return f"{row.label} ({row.note})" if row.note else row.label


def _title(text: str) -> None:
    print(f"\n**{text}**\n")
