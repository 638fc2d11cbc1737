"""All three tasks decided by the policy, against heuristics that decide each by itself.

Run: PYTHONPATH=. python tests/benchmarks/bench_policy_joint.py --policy FILE ... --out LINES [NAME ...]

On ``mcm-6x6`` the interval: rivals place their order and kernels by the exact slicer; the
policy orders and fuses for the slicer and, turn by turn, decides all three itself. On ``gpu-4``
(``--target``) the makespan of one execution: orders and kernels are placed by earliest
finish. *list schedules* are the best of the default, depth and height orders. Times faster
than *separate heuristics* (greedy fusion, list schedules, best slice), graph by graph and as
geometric means, on ``mcm-6x6`` also where memory binds: greedy does not fit, or the best slice
of the default order streams weights. Medians over the seeds, their range where it is not a point.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
from policy_methods import (
    Search,
    checked,
    checked_row,
    finetuned,
    outcome_row,
    plan_of,
    policy_of,
    searched,
    zero_shot,
)
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
from go_opt.agents.training.problems.lessons import JOINT, ORDER_AND_FUSION
from go_opt.bench.rivals import Outcome, Problem, Trial, pose
from go_opt.env import evaluate_plan
from go_opt.env.evaluation import Evaluate, Plans
from go_opt.solver import earliest_finish_placement
from go_opt.solver.orders.cheapest import cheapest_slicing
from go_opt.solver.orders.instance import Instance
from go_opt.solver.orders.orders import fixed_orders, random_orders

SEPARATE = "separate heuristics"
DEFAULT = "greedy fusion, default order"
GREEDY = "greedy"
FIXED = (GREEDY, "no fusion, default order", DEFAULT, SEPARATE)
STRUCTURED = "structured keys"
OF_POLICY = ("zero-shot", "finetuned")
ZERO_SHOT_SAMPLES = 64
Orders = Iterator[tuple[np.ndarray, np.ndarray]]  # order, fusion_group


def main() -> None:
    parser = arguments(__doc__, evaluations=256)
    parser.add_argument("--target", choices=("mcm-6x6", "gpu-4"), default="mcm-6x6")
    parser.add_argument("--most-ops", type=int, default=1700)
    options = parser.parse_args()
    names = graph_names(options, options.most_ops)
    setting = f"{options.target}, {options.evaluations} evaluations"
    parts = []
    for name in names:
        parts += [Part(name, method, ALL_SEEDS, setting) for method in fixed_of(options.target)]
        parts += parts_of(name, setting, options, drawn=[STRUCTURED], of_policy=OF_POLICY)
    report(names, rows_of(parts, partial(work, options.target, options.evaluations), options), options)


def work(target: str, evaluations: int, part: Part) -> Row:
    problem = pose(go_opt.load(f"zoo:{part.graph}"), go_opt.target(target), relays=False)
    is_sliced = target == "mcm-6x6"
    if part.method in OF_POLICY:
        lessons = [ORDER_AND_FUSION, JOINT] if is_sliced else [ORDER_AND_FUSION]
        make = zero_shot if part.method == "zero-shot" else finetuned
        search = make(policy_of(part), lessons)
    elif part.method == GREEDY:
        search = GREEDY
    else:
        search = ordered(part.method)
    if is_sliced:
        return checked_row(problem, searched(search, problem, evaluations, part.seed), evaluations)
    problem = replace(problem, evaluate=makespans(problem.instance))
    return checked_makespan(problem, searched(search, problem, evaluations, part.seed), evaluations)


def fixed_of(target: str) -> tuple[str, ...]:
    """What draws nothing; earliest finish on the default order is the greedy heuristic of ``gpu-4``."""
    return FIXED if target == "mcm-6x6" else FIXED[1:]


def ordered(method: str) -> Search:
    """The best slices of the orders and kernels of a heuristic."""

    def search(trial: Trial, seed: int) -> None:
        instance = trial.problem.instance
        for order, group in orders_of(method, instance, seed):
            trial.one(cheapest_slicing(instance, order, group).placement, order, group)

    return search


def orders_of(method: str, instance: Instance, seed: int) -> Orders:
    order, group = instance.order, instance.fusion_group
    if method == STRUCTURED:
        for order in random_orders(instance.graph, instance.tables, group, seed):
            yield order, group
    yield order, order if method.startswith("no fusion") else group
    if method == SEPARATE:
        for _, order in fixed_orders(instance.graph, group):
            yield order, group


def makespans(case: Instance) -> Evaluate:
    """Makespan seconds of orders and kernels placed by earliest finish, wherever they were placed."""

    def evaluate(placement: Plans, order: Plans, fusion_group: Plans) -> np.ndarray:
        return np.array([makespan_s(*plan) for plan in zip(order, fusion_group, strict=True)])

    def makespan_s(order: np.ndarray, group: np.ndarray) -> float:
        plan = plan_of(case, earliest_finish(case, order, group), order, group)
        metrics = evaluate_plan(case.graph, case.target, plan)
        return metrics.makespan_s if metrics.valid else math.inf

    return evaluate


def earliest_finish(case: Instance, order: np.ndarray, group: np.ndarray) -> np.ndarray:
    return earliest_finish_placement(case.tables, order, group, case.tables.num_chips)


def checked_makespan(problem: Problem, outcome: Outcome, evaluations: int) -> Row:
    if outcome.plan is not None:
        case, order, group = problem.instance, outcome.plan.order, outcome.plan.fusion_group
        metrics = checked(case, plan_of(case, earliest_finish(case, order, group), order, group))
        assert math.isclose(metrics.makespan_s, outcome.interval_s, rel_tol=1e-9)
    return outcome_row(outcome, evaluations)


def report(names: list[str], rows: dict[Part, Row], options: argparse.Namespace) -> None:
    possible = (*fixed_of(options.target), STRUCTURED, *OF_POLICY)
    methods = [method for method in possible if any(part.method == method for part in rows)]
    found = {
        name: {method: by_seed(rows, name, method, options.seeds) for method in methods}
        for name in complete_graphs(rows, names, methods, options.seeds)
    }
    found = {
        name: of_graph
        for name, of_graph in found.items()
        if math.isfinite(reached_s(of_graph[SEPARATE][0], options.evaluations))
    }
    left_out = [name for name in names if name not in found]
    if left_out:
        print(f"Left out, without all runs or a plan of the separate heuristics: {', '.join(left_out)}.")
    if not found:
        return
    is_bound = {
        name: options.target == "mcm-6x6" and memory_binds(of_graph) for name, of_graph in found.items()
    }
    columns = columns_of(methods, options.evaluations)
    print_table(
        f"Microseconds, {options.target} (memory-bound graphs marked)",
        ["graph", *(label for label, _, _ in columns)],
        (
            [
                name + (" \\*" if is_bound[name] else ""),
                *(
                    spread([reached_s(row, samples) * 1e6 for row in of_graph[method]], ".1f")
                    for _, method, samples in columns
                ),
            ]
            for name, of_graph in found.items()
        ),
    )
    bound = [name for name in found if is_bound[name]]
    groups = {f"all {len(found)}": list(found), f"memory-bound {len(bound)}": bound}
    print_table(
        f"Times faster than {SEPARATE}, geometric means, {options.target}",
        ["method", *(title for title, chosen in groups.items() if chosen), "wins", "losses"],
        (
            [
                label,
                *(
                    spread(speedups(found, chosen, method, samples), ".3f")
                    for chosen in groups.values()
                    if chosen
                ),
                *wins_and_losses(found, method, samples),
            ]
            for label, method, samples in columns
        ),
    )


def columns_of(methods: list[str], evaluations: int) -> list[tuple[str, str, int]]:
    """``(label, method, samples)``: what draws is shown after the first samples too."""
    columns = []
    for method in methods:
        if method in (STRUCTURED, "zero-shot") and evaluations > ZERO_SHOT_SAMPLES:
            columns.append((f"{method}, {ZERO_SHOT_SAMPLES}", method, ZERO_SHOT_SAMPLES))
        columns.append((method if method in FIXED else f"{method}, {evaluations}", method, evaluations))
    return columns


def memory_binds(of_graph: dict[str, list[Row]]) -> bool:
    greedy_s = reached_s(of_graph[GREEDY][0], 1)
    return math.isinf(greedy_s) or of_graph[DEFAULT][0].get("streams", True)


def ratios_of(of_graph: dict[str, list[Row]], method: str, samples: int) -> list[float]:
    """Times faster than the separate heuristics, by seed; 0 without a plan."""
    base_s = reached_s(of_graph[SEPARATE][0], samples)
    return [base_s / reached_s(row, samples) for row in of_graph[method]]


def speedups(
    found: dict[str, dict[str, list[Row]]], names: list[str], method: str, samples: int
) -> list[float]:
    """For each seed the geometric mean over the graphs that the method has a plan for."""
    by_graph = [ratios_of(found[name], method, samples) for name in names]
    return [geometric_mean(of_seed) for of_seed in zip(*filter(all, by_graph), strict=True)]


def wins_and_losses(found: dict[str, dict[str, list[Row]]], method: str, samples: int) -> tuple[str, str]:
    """Graphs on which the median is more than 0.1 % ahead, or behind."""
    medians = [statistics.median(ratios_of(of_graph, method, samples)) for of_graph in found.values()]
    return str(sum(m > 1.001 for m in medians)), str(sum(m < 0.999 for m in medians))


if __name__ == "__main__":
    main()
