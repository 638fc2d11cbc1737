"""What splits by rows and in blocks are worth: for a low latency, and where stages are not replicated.

Run: PYTHONPATH=. python tests/benchmarks/bench_row_splits.py [--budget SECONDS] [--seeds N] [MODEL ...]

Light models of the `onnx` package, encoders of the sizes of two models, and graphs of the zoo (`zoo:NAME`),
on `mcm-6x6`, medians over seeds. First without a limit; *proven* is the least latency of whole ops. Then with
limits that are the latency of that plan over 1.25, 1.5 and 2: interval, in parentheses latency and numbers of
ops split by columns and inner dimensions, and by rows. Last without replicated stages: the interval of whole
ops with its bound, with splits, and of the rivals of ``split_rivals.py`` with splits by rows. Budgets are of
processor time. With `--no-heads` graphs do not say which ops keep heads apart. Asserts that plans are
verified, keep the limit and are no better than their bounds. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from dataclasses import replace
from typing import Any

import go_opt
from go_opt import from_onnx
from go_opt.env import Target, cost_tables, loop_roles
from go_opt.errors import InfeasibleError
from go_opt.model.graph import Graph
from go_opt.result import OptimizeResult
from go_opt.search.splits.rows import rows_by_op, rows_of_way, split_along, steps_of
from go_opt.solver.scheduling.bounds import latency_bound
from tests.benchmarks.split_rivals import RIVALS, Walk
from tests.exports import LIGHT
from tests.transformers import encoder

# Layers, tokens, width and heads.
ENCODERS = {"bert_base": (12, 128, 768, 12), "whisper_base": (6, 500, 512, 8)}
SHARES = (1.25, 1.5, 2.0)
MOST_PARTS = 8
COLUMNS = ("model", "interval", "latency", "proven", *(f"latency / {share:g}" for share in SHARES),
           "no replicas", "bound", "split", *RIVALS)  # fmt: skip


def median(graph: Graph, target: Target, options: dict[str, Any], seeds: int) -> OptimizeResult:
    """The answer with the median interval.

    Raises:
      InfeasibleError: a seed finds none.
    """
    results = []
    for seed in range(seeds):
        result = go_opt.optimize(graph, target, seed=seed, policy=None, **options)
        assert go_opt.verify(graph, target, result.plan) == []
        assert result.metrics.latency_s <= options.get("max_latency_s", math.inf)
        assert result.objective_s >= result.lower_bound_s * (1 - 1e-9)
        results.append(result)
    middle = statistics.median_low(result.objective_s for result in results)
    return next(result for result in results if result.objective_s == middle)


def row(name: str, target: Target, budget_s: float, seeds: int, *, heads: bool) -> str:
    sizes = ENCODERS.get(name)
    if name.startswith("zoo:"):
        graph = go_opt.load(name)
    else:
        graph = from_onnx(encoder(*sizes, weights=False) if sizes else LIGHT / f"light_{name}.onnx")
    graph = graph if heads else replace(graph, heads={})
    options = {"budget_s": budget_s}
    free = median(graph, target, options, seeds)
    proven = latency_bound(
        graph, cost_tables(graph, target), loop_roles(graph), is_alone=False, fusion_is_open=True,
        counts_transfers=False,
    )  # fmt: skip
    reached_s = (free.objective_s, free.metrics.latency_s, proven.seconds)
    cells = [name, *(f"{seconds * 1e6:,.1f}" for seconds in reached_s)]
    for share in SHARES:
        try:
            limit_s = free.metrics.latency_s / share
            found = median(graph, target, options | {"max_latency_s": limit_s}, seeds)
        except InfeasibleError:
            cells.append("none")
            continue
        latency_us = found.metrics.latency_s * 1e6
        by_rows = len(rows_of_way(graph, found.plan.splits))
        numbers = f"{len(found.plan.splits) - by_rows}, {by_rows}"
        cells.append(f"{found.objective_s * 1e6:,.1f} ({latency_us:,.1f}; {numbers})")
    options["replication"] = False
    whole = median(graph, target, options | {"splits": False}, seeds)
    split = median(graph, target, options, seeds)
    rows = rows_by_op(graph)
    most = tuple(
        split_along(graph, op, factor, min(MOST_PARTS, steps_of(graph, op, factor)))
        for op, factor in rows.items()
    )
    figures = [whole.objective_s, whole.lower_bound_s, split.objective_s]
    for rival in RIVALS.values() if rows else ():
        walk = Walk(graph, target, most, budget_s, seed=0)
        rival(walk)
        figures.append(walk.best_s)
    cells += [f"{seconds * 1e6:,.1f}" for seconds in figures]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--budget", type=float, default=5.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--no-heads", action="store_true")
    given = parser.parse_args()
    time.monotonic = time.process_time  # budgets are the same on a busy machine
    light = sorted(path.stem.removeprefix("light_") for path in LIGHT.glob("*.onnx"))
    names = given.models or [*light, *ENCODERS, "zoo:gpt2_step"]
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for name in names:
        target = go_opt.target("mcm-6x6")
        print(row(name, target, given.budget, given.seeds, heads=not given.no_heads), flush=True)


if __name__ == "__main__":
    main()
