"""What split ops are worth: with and without them, for the same time, against the bound of whole ops.

Run: PYTHONPATH=. python tests/benchmarks/bench_splits.py [--budget SECONDS] [--evaluations N] [--seeds N]
    [--no-replication] [--rivals] [NAME ...]

Graphs are those with ops that may be split. Each is optimised without splits and with them; medians over
seeds. *gain*: how many times the interval
is shorter; *at least*: the lower bound of all plans of whole ops over the interval with splits, so that no
better plan of whole ops makes the gain smaller. Plans are simulated as well. ``--rivals`` runs those of
``split_rivals.py`` for the same time; their evaluator leaves out how long chips wait for streamed weights.
Budgets are of processor time, or with ``--evaluations`` of evaluations alone. Asserts that plans are verified
and no better than their bounds. Prints a Markdown table and means.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import go_opt
from go_opt.env import Target, zoo_entries
from go_opt.errors import InfeasibleError
from go_opt.model.graph import Graph
from go_opt.result import OptimizeResult, Request
from go_opt.search.splits.ways import divisible_ops, ways_to_split
from tests.benchmarks.split_rivals import RIVALS, Walk

COLUMNS = ("graph", "ops", "whole, us", "bound", "split, us", "bound", "status", "simulated", "gain",
           "of each seed", "at least", "latency", "split")  # fmt: skip


@dataclass(frozen=True)
class Way:
    """The answers of one way to ask, by seed."""

    results: tuple[OptimizeResult, ...]

    @property
    def median(self) -> OptimizeResult | None:
        """The answer with the median interval; the better one of two."""
        ranked = sorted(self.results, key=lambda result: result.objective_s)
        return ranked[(len(ranked) - 1) // 2] if ranked else None

    @property
    def bound_s(self) -> float:
        return max((result.lower_bound_s for result in self.results), default=0.0)


def asked(graph: Graph, target: Target, options: Mapping[str, Any], seeds: int, *, splits: bool) -> Way:
    results = []
    for seed in range(seeds):
        try:
            result = go_opt.optimize(graph, target, seed=seed, policy=None, splits=splits, **options)
        except InfeasibleError:
            continue
        assert go_opt.verify(graph, target, result.plan) == []
        assert result.objective_s >= result.lower_bound_s * (1 - 1e-9)
        results.append(result)
    return Way(tuple(results))


def rows(
    name: str, target: Target, options: Mapping[str, Any], seeds: int, *, rivals: bool
) -> Iterator[tuple[str, float, float]]:
    """A line with both gains, if there are ops that may be split."""
    graph, request = go_opt.load(f"zoo:{name}"), Request(**options)
    if not divisible_ops(graph, target, request).any():
        return
    whole, split = (asked(graph, target, options, seeds, splits=splits) for splits in (False, True))
    text, *gains = row(name, graph, whole, split)
    others = rival_cells(graph, target, request.time_limit_s, seeds, request) if rivals else ""
    yield text + others, *gains


def rival_cells(graph: Graph, target: Target, budget_s: float, seeds: int, request: Request) -> str:
    """The median interval of each rival, over that of the portfolio's row it stands behind."""
    most = ways_to_split(graph, target, request)[-1]
    cells = []
    for rival in RIVALS.values():
        reached_s = []
        for seed in range(seeds):
            walk = Walk(graph, target, most, budget_s, seed)
            rival(walk)
            reached_s.append(walk.best_s)
        cells.append(f" {statistics.median(reached_s) * 1e6:,.1f} |")
    return "".join(cells)


def row(name: str, graph: Graph, whole: Way, split: Way) -> tuple[str, float, float]:
    before, after = whole.median, split.median
    if after is None:
        return f"| {name} | {graph.num_ops:,} | {interval(before)} | no plan |", math.nan, math.nan
    gain = before.objective_s / after.objective_s if before else math.inf
    least = whole.bound_s / after.objective_s
    pairs = zip(whole.results, split.results, strict=False)
    each = ", ".join(f"{one.objective_s / other.objective_s:.2f}" for one, other in pairs)
    latency = after.metrics.latency_s / before.metrics.latency_s if before else math.nan
    simulated_s = after.simulated_interval_s or math.nan
    kinds = sorted({use.parts for use in after.plan.splits})
    parts = (
        f"{len(after.plan.splits)} into {'-'.join(map(str, sorted({kinds[0], kinds[-1]})))}"
        if kinds
        else "none"
    )
    cells = (
        name, f"{graph.num_ops:,}", interval(before), f"{whole.bound_s * 1e6:,.1f}", interval(after),
        f"{split.bound_s * 1e6:,.1f}", after.status,
        f"{simulated_s / after.objective_s:.3f}x", f"{gain:.3f}x", each,
        f"{least:.2f}x", f"{latency:.2f}x", parts,
    )  # fmt: skip
    return f"| {' | '.join(cells)} |", gain, least


def interval(result: OptimizeResult | None) -> str:
    return "no plan" if result is None else f"{result.objective_s * 1e6:,.1f}"


def mean(gains: Sequence[float]) -> float:
    finite = [gain for gain in gains if math.isfinite(gain)]
    return statistics.geometric_mean(finite) if finite else math.nan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--budget", type=float, default=5.0)
    parser.add_argument("--evaluations", type=int)
    parser.add_argument("--no-replication", action="store_true")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--split", default="test")
    parser.add_argument("--target", default="mcm-6x6")
    parser.add_argument("--rivals", action="store_true")
    given = parser.parse_args()
    time.monotonic = time.process_time  # budgets are the same on a busy machine
    target = go_opt.target(given.target)
    names = given.names or [entry.name for entry in zoo_entries() if entry.split == given.split]
    columns = (*COLUMNS, *(RIVALS if given.rivals else ()))
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    options = {"budget_s": None if given.evaluations else given.budget, "max_evaluations": given.evaluations,
               "replication": not given.no_replication}  # fmt: skip
    gains, least = list[float](), list[float]()
    for name in names:
        for text, gain, at_least in rows(name, target, options, given.seeds, rivals=given.rivals):
            print(text, flush=True)
            gains.append(gain)
            least.append(at_least)
    print(f"\nGeometric means: gain {mean(gains):.2f}x, at least {mean(least):.2f}x over {len(gains)} rows.")


if __name__ == "__main__":
    main()
