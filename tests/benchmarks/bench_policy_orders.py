"""Orders for the exact slicer: what a policy that was trained proposes, against what was not.

Run: PYTHONPATH=. python tests/benchmarks/bench_policy_orders.py --policy FILE ... --out LINES [NAME ...]

On ``mcm-6x6``, without relays: a method says order and kernels, the exact slicer places
them; one sample is one sliced plan. *policy* draws from the policy alone, *policy, mixed* is
what the portfolio takes from it: the prior's keys half of the time, and placements by the
policy's logits in between. Intervals in microseconds; then times faster than greedy (than one
slicing, where greedy does not fit) as geometric means over all graphs, and over the branchy
ones: those on which 256 structured untrained keys gain over 1 % on the default slice. Medians
over the seeds (for the policy: training seeds), their range where it is not a point.
"""

from __future__ import annotations

import argparse
import math
import statistics
from functools import partial

from policy_methods import checked_row, mixed, policy_of, searched, zero_shot
from policy_runs import (
    ALL_SEEDS,
    Part,
    Row,
    arguments,
    by_seed,
    complete_graphs,
    geometric_mean,
    graph_names,
    parts_of,
    print_table,
    reached_s,
    rows_of,
    spread,
)

import go_opt
from go_opt.agents.training.problems.lessons import ORDER_AND_FUSION
from go_opt.bench.rivals import pose

BUDGETS = (16, 64, 256, 1024)
SHOWN = (16, 256)  # graph by graph
STRUCTURED = "structured"
FIXED = ("greedy", "slice", "fixed-orders")  # draw nothing
DRAWN = (STRUCTURED, "genetic", "feature-mix", "genetic-fusion")
OF_POLICY = ("policy", "policy, mixed")
BRANCHY_GAIN = 1.01
BRANCHY_SAMPLES = 256


def main() -> None:
    parser = arguments(__doc__, evaluations=BUDGETS[-1])
    parser.add_argument("--most-ops", type=int, default=1700)
    options = parser.parse_args()
    names = graph_names(options, options.most_ops)
    setting = f"{options.evaluations} evaluations"
    parts = []
    for name in names:
        parts += [Part(name, method, ALL_SEEDS, setting) for method in FIXED]
        parts += parts_of(name, setting, options, drawn=DRAWN, of_policy=OF_POLICY)
    report(names, rows_of(parts, partial(work, options.evaluations), options), options)


def work(evaluations: int, part: Part) -> Row:
    problem = pose(go_opt.load(f"zoo:{part.graph}"), go_opt.target("mcm-6x6"), relays=False)
    search = part.method
    if part.method == "policy":
        search = zero_shot(policy_of(part), [ORDER_AND_FUSION])
    elif part.method == "policy, mixed":
        search = mixed(policy_of(part))
    return checked_row(problem, searched(search, problem, evaluations, part.seed), evaluations)


def report(names: list[str], rows: dict[Part, Row], options: argparse.Namespace) -> None:
    methods = [m for m in (*FIXED, *DRAWN, *OF_POLICY) if any(part.method == m for part in rows)]
    found = {
        name: {method: by_seed(rows, name, method, options.seeds) for method in methods}
        for name in complete_graphs(rows, names, methods, options.seeds)
    }
    if not found:
        return
    branchy = [name for name, of_graph in found.items() if is_branchy(of_graph)]
    for budget in (budget for budget in SHOWN if budget <= options.evaluations):
        print_table(
            f"Microseconds after {budget} evaluations (branchy graphs marked)",
            ["graph", *methods],
            (
                [
                    name + (" \\*" if name in branchy else ""),
                    *(reached_us(lines, budget) for lines in of_graph.values()),
                ]
                for name, of_graph in found.items()
            ),
        )
    budgets = [budget for budget in BUDGETS if budget <= options.evaluations]
    for title, chosen in (
        (f"all {len(found)} graphs", list(found)),
        (f"branchy: {', '.join(branchy)}", branchy),
    ):
        if chosen:
            print_table(
                f"Times faster than the start, {title}",
                ["method", *map(str, budgets)],
                (
                    [method, *(spread(speedups(found, chosen, method, budget), ".3f") for budget in budgets)]
                    for method in methods
                ),
            )


def is_branchy(of_graph: dict[str, list[Row]]) -> bool:
    structured_s = statistics.median(reached_s(row, BRANCHY_SAMPLES) for row in of_graph[STRUCTURED])
    return reached_s(of_graph["slice"][0], 1) > BRANCHY_GAIN * structured_s


def reached_us(lines: list[Row], budget: int) -> str:
    return spread([reached_s(row, budget) * 1e6 for row in lines], ".1f")


def speedups(
    found: dict[str, dict[str, list[Row]]], names: list[str], method: str, budget: int
) -> list[float]:
    """For each seed the geometric mean over the graphs that the method has a plan for."""
    by_graph = [
        [start_s(found[name]) / reached_s(row, budget) for row in found[name][method]]
        for name in names
        if math.isfinite(reached_s(found[name][method][0], budget))
    ]
    return [geometric_mean(of_seed) for of_seed in zip(*by_graph, strict=True)]


def start_s(of_graph: dict[str, list[Row]]) -> float:
    greedy_s = reached_s(of_graph["greedy"][0], 1)
    return greedy_s if math.isfinite(greedy_s) else reached_s(of_graph["slice"][0], 1)


if __name__ == "__main__":
    main()
