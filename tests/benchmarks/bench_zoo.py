"""What the graphs of the zoo are like, as the page docs/zoo_graphs.md and its picture.

Run: PYTHONPATH=. python tests/benchmarks/bench_zoo.py   (pip install '.[docs]')

Writes docs/zoo_graphs.md and docs/zoo_graphs.svg. Prints the intervals of the greedy plan
and of the cheapest slicing of the default order, kernels fused, as the portfolio starts
with, on each graph's own target. Asserts that every plan is verified and none beats its
bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
from zoo_picture import write_picture

from go_opt.env import Target, cost_tables, evaluate_plan, load_target, load_zoo, loop_roles, zoo_entries
from go_opt.env.zoo import SPLITS, ZooEntry, shipped_bytes
from go_opt.model.graph import Graph
from go_opt.report.graph_stats import GraphStats, graph_stats
from go_opt.report.zoo_tables import zoo_counts
from go_opt.solver import throughput_bound, verify
from tests.zoo import first_plans
from tests.zoo_recipes.similarity import CostProfile, cost_profile, similarity

DOCS = Path(__file__).parents[2] / "docs"
HEAD = """# The graphs of the zoo

This page lists the graphs that ship with go-opt, for maintainers who choose graphs to test or train on. \
`tests/benchmarks/bench_zoo.py` writes it; [zoo.md](zoo.md) says how graphs are chosen, split and added.
"""
COLUMNS = ("graph", "family", "ops", "width", "GFLOP", "weights MB")
LEGEND = """
*depth*: ops on the longest path. *width*: ops at the fullest depth. *largest activation*: in the model's \
own types. *most chips*: that a placement can use under the adjacent rule, with one op per kernel. \
*alike*: from 0 to 1 (a duplicate), by `tests/zoo_recipes/similarity.py`.
"""


class Row(NamedTuple):
    """One graph."""

    entry: ZooEntry
    stats: GraphStats


def main() -> None:
    entries = sorted(
        zoo_entries(), key=lambda entry: (SPLITS.index(entry.split), entry.family, entry.ops, entry.name)
    )
    rows, profiles = [], {}
    for entry in entries:
        graph = load_zoo(entry.name)
        rows.append(Row(entry, graph_stats(graph, load_target(entry.target))))
        profiles[entry.name] = cost_profile(graph)
        greedy_s, sliced_s = first_intervals_s(graph, load_target(entry.target))
        print(f"{entry.name}: {greedy_s * 1e6:.1f} us, {sliced_s * 1e6:.1f} us", flush=True)
    write_picture(entries, DOCS / "zoo_graphs.svg")
    page = [HEAD, *summary(rows, nearest_pair(entries, profiles)), "![](zoo_graphs.svg)"]
    page += [line for split in SPLITS for line in table(split, rows)]
    (DOCS / "zoo_graphs.md").write_text("\n".join([*page, LEGEND]), "utf-8")


def first_intervals_s(graph: Graph, target: Target) -> list[float]:
    """Of the greedy plan and of the slicing; infinite where activations do not fit."""
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
    return intervals_s


def nearest_pair(
    entries: Sequence[ZooEntry], profiles: dict[str, CostProfile]
) -> tuple[float, ZooEntry, ZooEntry]:
    """The most alike two graphs of different splits."""
    return max(
        (
            (similarity(profiles[first.name], profiles[second.name]), first, second)
            for first, second in combinations(entries, 2)
            if first.split != second.split
        ),
        key=lambda pair: pair[0],
    )


def summary(rows: Sequence[Row], nearest: tuple[float, ZooEntry, ZooEntry]) -> list[str]:
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
        "most chips on `mcm-6x6`": [row.stats.most_chips for row in rows if row.entry.target == "mcm-6x6"],
    }
    value, first, second = nearest
    return [
        *counts,
        f"- nearest two of different splits: `{first.name}` and `{second.name}`, {value:.3f} alike\n",
        "| over all graphs | least | 25 % | median | 75 % | most |",
        "|---|" + "---:|" * 5,
        *(spread_line(what, values) for what, values in spreads.items()),
        "",
    ]


def spread_line(what: str, values: Sequence[float]) -> str:
    quartiles = np.quantile(values, [0, 0.25, 0.5, 0.75, 1])
    cells = [f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" for value in quartiles]
    return f"| {what} | " + " | ".join(cells) + " |"


def table(split: str, rows: Sequence[Row]) -> list[str]:
    head = [f"\n## {split.capitalize()}\n", "| " + " | ".join(COLUMNS) + " |", "|---|---|" + "---:|" * 4]
    return head + ["| " + " | ".join(cells(row)) + " |" for row in rows if row.entry.split == split]


def cells(row: Row) -> tuple[str, ...]:
    entry = row.entry
    return (
        entry.name,
        entry.family,
        str(entry.ops),
        str(row.stats.width),
        f"{entry.flops / 1e9:.2f}",
        f"{entry.weight_bytes / 1e6:.1f}",
    )


if __name__ == "__main__":
    main()
