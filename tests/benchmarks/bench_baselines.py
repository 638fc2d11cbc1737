"""Every rival of the policy in one harness: best interval after 16, 64, 256 evaluations.

Run: PYTHONPATH=. python tests/benchmarks/bench_baselines.py [--long] [--seeds 3] [NAME ...]

On the graphs named, or a sample of the zoo (half an hour); ``--target NAME`` for another
target; ``--long`` adds 1,024 evaluations. Intervals in microseconds: medians over the seeds,
their range where it is not a point. The last rows say over all graphs how many times faster
than the greedy heuristic (than one slicing, where greedy does not fit) each method is, as
the geometric mean of medians where it has a plan; *no plan* counts the graphs where it has
none at the first budget. Asserts that every plan reported is verified and costs what was
reported. Prints Markdown tables, the losses too.
"""

from __future__ import annotations

import argparse
import math
import statistics

import numpy as np

import go_opt
from go_opt.bench.baselines import METHODS, Run
from go_opt.solver.orders.instance import Instance, instance
from tests.strategies import make_plan
from tests.zoo import zoo_sample

BUDGETS = (16, 64, 256)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=zoo_sample())
    parser.add_argument("--target", default="mcm-6x6")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--long", action="store_true")
    options = parser.parse_args()
    budgets = (*BUDGETS, 1024) if options.long else BUDGETS
    target = go_opt.target(options.target)
    speedups: dict[str, list[list[float]]] = {method: [] for method in METHODS}
    for name in options.names:
        case = instance(go_opt.load(f"zoo:{name}"), target)
        print(f"\n**{name}**, {case.graph.num_ops} ops\n", flush=True)
        header(["method", "regime", *map(str, budgets)])
        greedy_s, slice_s = (METHODS[method].run(case, 1, 0).curve_s[0] for method in ("greedy", "slice"))
        start_s = float(greedy_s if math.isfinite(greedy_s) else slice_s)
        for method in METHODS.values():
            runs = [method.run(case, budgets[-1], seed) for seed in range(options.seeds)]
            for run in runs:
                check(case, run)
            reached_s = [[float(run.curve_s[budget - 1]) for run in runs] for budget in budgets]
            speedups[method.name].append([start_s / statistics.median(seconds) for seconds in reached_s])
            row([method.name, method.regime, *map(microseconds, reached_s)])
    print(f"\n**Times faster than the start, {len(options.names)} graphs**\n")
    header(["method", "regime", *map(str, budgets), "no plan"])
    for name, rows in speedups.items():
        ratios = np.array(rows)
        has_plan = (ratios > 0).all(axis=1)
        means = np.exp(np.log(ratios[has_plan]).mean(axis=0))
        cells = [f"{mean:.2f}" for mean in means]
        row([name, METHODS[name].regime, *cells, str(len(ratios) - int(has_plan.sum()))])


def check(case: Instance, run: Run) -> None:
    """The plan is valid, and go_opt costs it as the curve says."""
    if run.best is None:
        assert math.isinf(run.curve_s[-1])
        return
    placement, order, group = run.best
    plan = make_plan(case.graph, case.target, placement, order=order, fusion_group=group)
    assert go_opt.verify(case.graph, case.target, plan) == []
    interval_s = go_opt.evaluate(case.graph, case.target, plan).interval_s
    assert math.isclose(interval_s, run.curve_s[-1], rel_tol=1e-12)


def header(columns: list[str]) -> None:
    row(columns)
    print("|---|---|" + "---:|" * (len(columns) - 2))


def row(cells: list[str]) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)


def microseconds(seconds: list[float]) -> str:
    middle = statistics.median(seconds)
    text = f"{middle * 1e6:.1f}" if math.isfinite(middle) else "none"
    if max(seconds) > min(seconds) * (1 + 1e-9):
        text += f" ({min(seconds) * 1e6:.1f}-{max(seconds) * 1e6:.1f})"
    return text


if __name__ == "__main__":
    main()
