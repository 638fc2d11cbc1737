"""What the graphs of the zoo are like, as the page docs/zoo_graphs.md and its picture.

Run: PYTHONPATH=. python tests/benchmarks/bench_zoo.py   (pip install '.[docs]')

Writes docs/zoo_graphs.md and docs/zoo_graphs.svg. Intervals are those of the greedy plan
and of the cheapest slicing of the default order, kernels fused, as the portfolio starts
with, on each graph's own target. Asserts that every plan is verified and none beats its
bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from zoo_picture import write_picture

from go_opt.env import cost_tables, evaluate_plan, load_target, load_zoo, loop_roles, zoo_entries
from go_opt.env.zoo import SPLITS, ZooEntry, shipped_bytes
from go_opt.model.graph import Graph
from go_opt.report.graph_stats import GraphStats, graph_stats
from go_opt.report.zoo_tables import zoo_counts
from go_opt.solver import throughput_bound, verify
from tests.zoo import first_plans
from tests.zoo_recipes.similarity import CostProfile, cost_profile, similarity

DOCS = Path(__file__).parents[2] / "docs"
HEAD = """# The graphs of the zoo

Written by `tests/benchmarks/bench_zoo.py`; [zoo.md](zoo.md) says what the zoo is.
"""
COLUMNS = (
    "graph", "family", "split", "target", "ops", "edges", "depth", "width", "GFLOP", "weights MB",
    "largest activation MB", "most chips", "greedy us", "sliced us", "bound us", "greedy/sliced",
    "nearest elsewhere",
)  # fmt: skip
LEGEND = """
*depth*: ops on the longest path. *width*: ops at the fullest depth, which is at most the largest
antichain. *largest activation*: in the model's own types. *most chips*: that a placement can use,
exact under the adjacent rule, one op a kernel; `gpu-8` has no such rule. *greedy*, *sliced*:
intervals of the greedy plan and of the cheapest slicing of the default order, default kernels;
`none` where activations do not fit. *bound*: no plan is faster, replicated stages included.
*nearest elsewhere*: the most alike graph of another split, from 0 to 1 (a duplicate).
"""


@dataclass(frozen=True)
class Row:
    """One graph."""

    entry: ZooEntry
    stats: GraphStats
    greedy_s: float  # infinite where the plan is not valid
    sliced_s: float  # infinite where no slicing fits
    bound_s: float


def main() -> None:
    entries = sorted(
        zoo_entries(), key=lambda entry: (SPLITS.index(entry.split), entry.family, entry.ops, entry.name)
    )
    rows, profiles = [], {}
    for entry in entries:
        graph = load_zoo(entry.name)
        rows.append(measured(entry, graph))
        profiles[entry.name] = cost_profile(graph)
        print(f"{entry.name}: {rows[-1].greedy_s * 1e6:.1f} us, {rows[-1].sliced_s * 1e6:.1f} us", flush=True)
    nearest = nearest_elsewhere(entries, profiles)
    write_picture(rows, DOCS / "zoo_graphs.svg")
    page = [HEAD, *summary(rows, nearest), "![](zoo_graphs.svg)\n", *table(rows, nearest), LEGEND]
    (DOCS / "zoo_graphs.md").write_text("\n".join(page), "utf-8")


def measured(entry: ZooEntry, graph: Graph) -> Row:
    target = load_target(entry.target)
    bound = throughput_bound(
        graph, cost_tables(graph, target), loop_roles(graph), fusion_is_open=True, replication_is_open=True
    )
    intervals_s = []
    for plan in first_plans(graph, target):
        metrics = plan and evaluate_plan(graph, target, plan)
        is_valid = metrics is not None and metrics.valid
        assert not is_valid or verify(graph, target, plan) == []
        intervals_s.append(metrics.interval_s if is_valid else math.inf)
    assert bound.seconds <= min(intervals_s) * (1 + 1e-9)
    return Row(entry, graph_stats(graph, target), *intervals_s, bound.seconds)


def nearest_elsewhere(
    entries: Sequence[ZooEntry], profiles: dict[str, CostProfile]
) -> dict[str, tuple[float, str]]:
    """For each graph the most alike one of another split."""
    nearest = {entry.name: (0.0, "") for entry in entries}
    for first, second in combinations(entries, 2):
        if first.split != second.split:
            value = similarity(profiles[first.name], profiles[second.name])
            nearest[first.name] = max(nearest[first.name], (value, second.name))
            nearest[second.name] = max(nearest[second.name], (value, first.name))
    return nearest


def summary(rows: Sequence[Row], nearest: dict[str, tuple[float, str]]) -> list[str]:
    """The counts, the spread of each figure, and the nearest pair of two splits."""
    counts = [f"- {line}" for line in zoo_counts([row.entry for row in rows], shipped_bytes())]
    spreads = {
        "ops": [row.entry.ops for row in rows],
        "depth": [row.stats.depth for row in rows],
        "width": [row.stats.width for row in rows],
        "GFLOP": [row.entry.flops / 1e9 for row in rows],
        "weights, MB": [row.entry.weight_bytes / 1e6 for row in rows],
        "largest activation, MB": [row.stats.activations.largest_bytes / 1e6 for row in rows],
        "median activation, kB": [row.stats.activations.median_bytes / 1e3 for row in rows],
        "most chips on `mcm-6x6`": [row.stats.most_chips for row in rows if on_package(row)],
        "greedy/sliced on `mcm-6x6`": [row.greedy_s / row.sliced_s for row in rows if comparable(row)],
        "sliced/bound on `mcm-6x6`": [row.sliced_s / row.bound_s for row in rows if comparable(row)],
    }
    value, name = max((value, name) for name, (value, _) in nearest.items())
    return [
        *counts,
        f"- nearest two of different splits: `{name}` and `{nearest[name][1]}`, {value:.3f} alike\n",
        "| over all graphs | least | 25 % | median | 75 % | most |",
        "|---|" + "---:|" * 5,
        *(spread_line(what, values) for what, values in spreads.items()),
        "",
    ]


def spread_line(what: str, values: Sequence[float]) -> str:
    quartiles = np.quantile(values, [0, 0.25, 0.5, 0.75, 1])
    cells = [f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" for value in quartiles]
    return f"| {what} | " + " | ".join(cells) + " |"


def on_package(row: Row) -> bool:
    return row.entry.target == "mcm-6x6"


def comparable(row: Row) -> bool:
    return on_package(row) and math.isfinite(row.greedy_s) and math.isfinite(row.sliced_s)


def table(rows: Sequence[Row], nearest: dict[str, tuple[float, str]]) -> list[str]:
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---|---|---|---|" + "---:|" * 12 + "---|"]
    return lines + ["| " + " | ".join(cells(row, *nearest[row.entry.name])) + " |" for row in rows]


def cells(row: Row, likeness: float, other: str) -> tuple[str, ...]:
    entry, stats = row.entry, row.stats
    return (
        entry.name,
        entry.family,
        entry.split,
        entry.target,
        str(entry.ops),
        str(entry.edges),
        str(stats.depth),
        str(stats.width),
        f"{entry.flops / 1e9:.2f}",
        f"{entry.weight_bytes / 1e6:.1f}",
        f"{stats.activations.largest_bytes / 1e6:.2f}",
        str(stats.most_chips),
        microseconds(row.greedy_s),
        microseconds(row.sliced_s),
        microseconds(row.bound_s),
        f"{row.greedy_s / row.sliced_s:.2f}" if comparable(row) else "-",
        f"{other} {likeness:.2f}",
    )


def microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.1f}" if math.isfinite(seconds) else "none"


if __name__ == "__main__":
    main()
