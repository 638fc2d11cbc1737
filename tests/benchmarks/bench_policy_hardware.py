"""Hardware the policy has not seen: the simulator as a black box, one sample one simulation.

Run: PYTHONPATH=. python tests/benchmarks/bench_policy_hardware.py --policy FILE ... --out LINES [NAME ...]

The policy was pretrained on the analytical model; its rewards here are simulated intervals on
``mcm-6x6``, and so are those of every rival. *re-evaluated* is the plan that the portfolio
without a policy finds by the analytical model, simulated once; *annealing from it* goes on from
there on the simulator. Finetuning decides order and kernels for the slicer, which reads the
analytical costs, and placements by itself; so does *scratch*. *plan, then finetuned* spends its
first sample on the portfolio's plan, as *annealing from it* does. *screened* costs four of the
policy's proposals a sample by the analytical model and simulates the best ones, best first. Best
simulated interval in microseconds after 1, 20 and 200 samples, times faster than *re-evaluated*
as geometric means over the graphs on which that plan runs, and the share of samples whose plan
failed. Medians over the seeds (for the policy: training seeds), their range where it is not a
point.
"""

from __future__ import annotations

import argparse
import itertools
import math
from dataclasses import replace
from functools import partial
from operator import itemgetter

import numpy as np
from policy_methods import (
    Failures,
    Search,
    checked_row,
    finetuned,
    from_scratch,
    policy_of,
    searched,
    zero_shot,
)
from policy_runs import (
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
from go_opt.agents.decoding.proposals import advice, policy_plans
from go_opt.agents.policy.network import Policy
from go_opt.agents.training.problems.environment import LocalEnvironment, open_session
from go_opt.agents.training.problems.lessons import ORDER_AND_FUSION, PLACEMENT
from go_opt.bench.rivals import Trial, pose
from go_opt.bench.rivals.placement_search import anneal
from go_opt.bench.rivals.problem import unit_problem
from go_opt.solver.orders.cheapest import cheapest_slicing

BUDGETS = (1, 20, 200)
LESSONS = (ORDER_AND_FUSION, PLACEMENT)
ANALYTICAL_EVALUATIONS = 64
ANALYTICAL = "re-evaluated"
FROM_IT = "annealing from it"
RANDOM = "random"
SCRATCH = "scratch"
RIVALS = (ANALYTICAL, FROM_IT, RANDOM, SCRATCH)
PLAN_FIRST = "plan, then finetuned"
SCREENED = "screened"
OF_POLICY = ("zero-shot", "finetuned", PLAN_FIRST, SCREENED)
SCREENED_PER_SAMPLE = 4
METHODS = (*RIVALS, *OF_POLICY)


def main() -> None:
    parser = arguments(__doc__, evaluations=BUDGETS[-1])
    parser.add_argument("--most-ops", type=int, default=800)
    options = parser.parse_args()
    names = graph_names(options, options.most_ops)
    setting = f"{options.evaluations} evaluations"
    parts = []
    for name in names:
        parts += parts_of(name, setting, options, drawn=RIVALS, of_policy=OF_POLICY)
    report(names, rows_of(parts, partial(work, options.evaluations), options), options)


def work(evaluations: int, part: Part) -> Row:
    graph, target = go_opt.load(f"zoo:{part.graph}"), go_opt.target("mcm-6x6")
    with open_session(LocalEnvironment("simulated"), graph, target) as session:
        evaluate = Failures(lambda *plans: session.evaluate(*plans).objective_s)
        problem = pose(graph, target, relays=False, evaluate=evaluate)
        outcome = searched(search_of(part), problem, evaluations, part.seed)
    return checked_row(problem, outcome, evaluations, "simulated") | {"failed": evaluate.failed}


def search_of(part: Part) -> Search | str:
    if part.method == RANDOM:
        return RANDOM
    if part.method in (ANALYTICAL, FROM_IT):
        return partial(from_analytical, goes_on=part.method == FROM_IT)
    if part.method == SCRATCH:
        return from_scratch(LESSONS)
    policy = policy_of(part)
    if part.method == SCREENED:
        return partial(screened, policy)
    if part.method == PLAN_FIRST:
        return partial(plan_first, finetuned(policy, LESSONS))
    return (zero_shot if part.method == "zero-shot" else finetuned)(policy, LESSONS)


def plan_first(search: Search, trial: Trial, seed: int) -> None:
    """The portfolio's plan, then ``search``."""
    from_analytical(trial, seed, goes_on=False)
    search(trial, seed)


def screened(policy: Policy, trial: Trial, seed: int) -> None:
    """The best by the analytical model of many proposals, each placement once."""
    instance, left = trial.problem.instance, int(trial.left)
    evaluate = replace(trial.problem, evaluate=None).interval_s
    drawn = policy_plans(advice(policy, instance.graph, instance.target), instance, seed)
    costed = {}
    for plan in itertools.islice(drawn, SCREENED_PER_SAMPLE * left):
        placement = plan.placement
        if placement is None:
            placement = cheapest_slicing(instance, plan.order, plan.fusion_group).placement
        arrays = (placement, plan.order, plan.fusion_group)
        key = placement.tobytes() + plan.fusion_group.tobytes()
        costed.setdefault(key, (float(evaluate(*(array[None] for array in arrays))[0]), arrays))
    for _, arrays in sorted(costed.values(), key=itemgetter(0))[:left]:
        trial.one(*arrays)


def from_analytical(trial: Trial, seed: int, *, goes_on: bool) -> None:
    """The portfolio's plan by the analytical model; then annealing with its order and kernels."""
    problem = trial.problem
    plan = go_opt.optimize(
        problem.graph, problem.target, max_evaluations=ANALYTICAL_EVALUATIONS, seed=seed, policy=None,
        relays=False, replication=False,
    ).plan  # fmt: skip
    interval_s = trial.one(plan.placement, plan.order, plan.fusion_group)
    if not goes_on:
        return
    planned = replace(problem.instance, order=plan.order, fusion_group=plan.fusion_group)
    trial.problem = replace(problem, instance=planned, kernels=plan.fusion_group)
    units = unit_problem(trial.problem)
    start = np.zeros(units.num_units, dtype=np.int32)
    start[units.unit_of_op] = plan.placement
    anneal(trial, units, start, interval_s, np.random.default_rng(seed))


def report(names: list[str], rows: dict[Part, Row], options: argparse.Namespace) -> None:
    methods = [method for method in METHODS if any(part.method == method for part in rows)]
    found = {
        name: {method: by_seed(rows, name, method, options.seeds) for method in methods}
        for name in complete_graphs(rows, names, methods, options.seeds)
    }
    if not found:
        return
    budgets = [budget for budget in BUDGETS if budget <= options.evaluations]
    for budget in budgets:
        print_table(
            f"Simulated microseconds after {budget} samples",
            ["graph", *methods],
            (
                [
                    name,
                    *(
                        spread([reached_s(row, budget) * 1e6 for row in of_graph[method]], ".1f")
                        for method in methods
                    ),
                ]
                for name, of_graph in found.items()
            ),
        )
    runs = [
        of_graph
        for of_graph in found.values()
        if all(math.isfinite(base_s(row)) for row in of_graph[ANALYTICAL])
    ]
    print_table(
        f"Times faster than the plan re-evaluated, {len(runs)} of {len(found)} graphs, and failed samples",
        ["method", *map(str, budgets), "no plan", "failed"],
        (
            [
                method,
                *(spread(speedups(runs, method, budget), ".3f") for budget in budgets),
                str(sum(without_plan(of_graph[method]) for of_graph in found.values())),
                failed_share([row for of_graph in found.values() for row in of_graph[method]]),
            ]
            for method in methods
        ),
    )


def speedups(runs: list[dict[str, list[Row]]], method: str, budget: int) -> list[float]:
    """For each seed the geometric mean over the graphs; 0 where one has no plan yet."""
    by_graph = [
        [base_s(base) / reached_s(row, budget) for base, row in zip(of[ANALYTICAL], of[method], strict=True)]
        for of in runs
    ]
    return [geometric_mean(of_seed) for of_seed in zip(*by_graph, strict=True)]


def base_s(row: Row) -> float:
    return reached_s(row, 1)


def without_plan(rows: list[Row]) -> bool:
    return any(math.isinf(reached_s(row, row["evaluations"])) for row in rows)


def failed_share(rows: list[Row]) -> str:
    return f"{sum(row['failed'] for row in rows) / max(1, sum(row['spent'] for row in rows)):.1%}"


if __name__ == "__main__":
    main()
