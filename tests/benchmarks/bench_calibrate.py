"""What learning a machine's figures is worth: go-opt calibrate and rivals on simulated machines.

Plans are made for mcm-6x6 as it ships and measured on the machines of calibrate_machines.py. Every method has
the same number of measurements and one more, of the plan that it ends with; its answer is the fastest of its
own. Of each model, also: how far the seconds of ops are off, and Spearman's correlation of predicted and
measured intervals among plans that are within 20 % of the fastest.

    python tests/benchmarks/bench_calibrate.py --out calibrate.jsonl        # goes on where it stopped
    python tests/benchmarks/bench_calibrate.py --out calibrate.jsonl --report
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import go_opt
from go_opt.calibration.calibrating import Calibration, Learned
from go_opt.env import Target, cost_tables, evaluate_plan
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from tests.benchmarks.calibrate_machines import (
    EVALUATIONS,
    GRAPHS,
    MACHINES,
    SHEET,
    Machine,
    OpSeconds,
    drawn,
    op_seconds,
    planned,
)
from tests.benchmarks.calibrate_policies import with_a_policy
from tests.benchmarks.calibrate_report import report

GOOD_PLANS, GOOD = 24, 1.2  # drawn for a correlation; times the fastest

Row = dict[str, Any]


@dataclass(eq=False)
class Case:
    """A graph on a machine, with so many measurements."""

    graph: Graph
    machine: Machine
    count: int
    seed: int
    folder: Path  # of samples, which grow from count to count

    @cached_property
    def first(self) -> Plan:
        return planned(self.graph, SHEET)

    @cached_property
    def calibration(self) -> tuple[Calibration, Learned]:
        path = self.folder / f"{self.machine.number}-{self.graph.name}-{self.seed}.json"
        options: dict[str, Any] = {"machine": self.machine.target, "seed": self.seed}
        options["machine_name"] = str(self.machine.number)
        calibration = Calibration(self.graph, SHEET, self.machine, path, **options)
        del calibration.samples[self.count :]
        *_, learned = calibration.run(self.count)
        return calibration, learned

    def interval_s(self, plan: Plan) -> float:
        return self.machine.interval_s(self.graph, plan)

    def model(self, on: Target, of: OpSeconds = lambda graph, shaped_s: shaped_s) -> Row:
        """How good a model of the machine is: a target, and the seconds of ops on it."""
        graph = replace(self.graph)
        with op_seconds(self.machine.op_s):
            true_s = cost_tables(replace(self.graph), self.machine.target).op_s[0]
        with op_seconds(of):
            op_error = np.abs(cost_tables(graph, on).op_s[0] - true_s).sum() / true_s.sum()
            row = {"op_error": float(op_error)}
            if self.seed == 0:
                plans, measured_s = good_plans(self.graph.name, self.machine.number)
                predicted_s = [
                    evaluate_plan(graph, on, replace(plan, target_fingerprint=on.fingerprint)).interval_s
                    for plan in plans
                ]
                if len(set(measured_s)) > 4:
                    row["spearman"] = float(np.nan_to_num(spearmanr(predicted_s, measured_s).statistic))
        return row


@cache
def good_plans(name: str, number: int) -> tuple[list[Plan], list[float]]:
    """Plans for what the machine is like, disturbed at random; and their measured intervals."""
    graph, machine, rng = go_opt.load(f"zoo:{name}"), drawn(number), np.random.default_rng(number)
    plans = {}
    for i in range(GOOD_PLANS):
        noise = dict(zip(graph.op_names, np.exp(0.2 * rng.standard_normal(graph.num_ops)), strict=True))

        def disturbed(graph: Graph, shaped_s: NDArray, noise: dict[str, float] = noise) -> NDArray:
            factors = np.array([noise.get(name, 1.0) for name in graph.op_names])
            return machine.op_s(graph, shaped_s) * factors

        plan = planned(graph, machine.target, disturbed, i, 6)
        plans[machine.interval_s(graph, plan)] = plan
    least_s = min(plans)
    good = {seconds: plan for seconds, plan in plans.items() if seconds <= GOOD * least_s}
    return list(good.values()), list(good)


def analytical(case: Case) -> Row:
    return {"interval_s": case.interval_s(case.first)} | case.model(SHEET)


def perfect(case: Case) -> Row:
    machine = case.machine
    plan = planned(case.graph, machine.target, machine.op_s)
    return {"interval_s": case.interval_s(plan)} | case.model(machine.target, machine.op_s)


def calibrated(case: Case) -> Row:
    """The plan for the target that was found, whatever was measured before."""
    _, learned = case.calibration
    return {"interval_s": case.interval_s(planned(case.graph, learned.target))} | case.model(learned.target)


def best_measured(case: Case) -> Row:
    calibration, learned = case.calibration
    last_s = case.interval_s(planned(case.graph, learned.target))
    return {"interval_s": min(calibration.best.interval_s, last_s)}


def annealed(case: Case) -> Row:
    """Simulated annealing of placements from the first plan, each measured."""
    rng = np.random.default_rng(case.seed)
    plan = case.first
    best_s = now_s = case.interval_s(plan)
    left = case.count
    for _ in range(20 * case.count):
        chips = np.unique(plan.placement)
        if not left or len(chips) < 2:
            break
        at = int(rng.integers(len(chips) - 1))
        in_order = plan.placement[plan.order]
        if rng.integers(2):
            place, to = np.flatnonzero(in_order == chips[at])[-1], chips[at + 1]
        else:
            place, to = np.flatnonzero(in_order == chips[at + 1])[0], chips[at]
        group = plan.fusion_group == plan.fusion_group[plan.order[place]]
        size = plan.replication[plan.placement == to][0]
        moved = replace(
            plan,
            placement=np.where(group, to, plan.placement).astype(np.int32),
            replication=np.where(group, size, plan.replication).astype(np.int32),
        )
        if go_opt.verify(case.graph, SHEET, moved):
            continue
        left -= 1
        seconds = case.interval_s(moved)
        best_s = min(best_s, seconds)
        if seconds <= now_s * (1 + 0.05 * rng.exponential() * left / case.count):
            plan, now_s = moved, seconds
    return {"interval_s": best_s}


def screened(case: Case) -> Row:
    """The fastest of the plans that the analytical model likes best."""
    rng, found = np.random.default_rng(case.seed), {}
    for i in range(2 * (case.count + 1)):
        factor = np.exp(0.3 * rng.standard_normal(case.graph.num_ops) * (i > 0))
        by_name = dict(zip(case.graph.op_names, factor, strict=True))

        def disturbed(graph: Graph, shaped_s: NDArray, by_name: dict[str, float] = by_name) -> NDArray:
            return shaped_s * np.array([by_name.get(name, 1.0) for name in graph.op_names])

        plan = planned(case.graph, SHEET, disturbed, i, 6 if i else EVALUATIONS)
        plan = replace(plan, target_fingerprint=SHEET.fingerprint)
        key = plan.placement.tobytes() + plan.fusion_group.tobytes() + plan.order.tobytes()
        found[key] = (go_opt.evaluate(case.graph, SHEET, plan).interval_s, i, plan)
    best = sorted(found.values(), key=lambda row: row[:2])[: case.count + 1]
    return {"interval_s": min(case.interval_s(plan) for _, _, plan in best)}


METHODS: dict[str, Callable[[Case], Row]] = {
    "analytical": analytical,
    "perfect": perfect,
    "calibrate, its target": calibrated,
    "calibrate, best measured": best_measured,
    "annealing": annealed,
    "screening": screened,
}


@cache
def methods(trained: Path | None) -> dict[str, Callable[[Case], Row]]:
    """With rivals that learn seconds of ops from the samples of calibrate, with its links and memory."""
    if trained is None:
        return METHODS
    from tests.benchmarks.calibrate_rivals import learned_tables

    def of(table: Callable[..., NDArray]) -> Callable[[Case], Row]:
        def method(case: Case) -> Row:
            calibration, learned = case.calibration
            op_s = table(case.graph, calibration.samples)
            by_name = dict(zip(case.graph.op_names, op_s, strict=True))

            def seconds(graph: Graph, shaped_s: NDArray) -> NDArray:
                pairs = zip(graph.op_names, shaped_s[0], strict=True)
                return np.array([[by_name.get(name, shaped) for name, shaped in pairs]])

            plan = planned(case.graph, learned.package, seconds)
            return {"interval_s": case.interval_s(plan)} | case.model(learned.package, seconds)

        return method

    return METHODS | {
        name: of(table) for name, table in learned_tables(SHEET, drawn, planned, trained).items()
    }


def tasks(options: argparse.Namespace) -> Iterator[tuple[int, str, int, list[int]]]:
    """What most is learned from comes first; long runs come after the second seed, and are of the first."""
    short, long = [c for c in options.counts if c <= 20], [c for c in options.counts if c > 20]
    seeds, first = options.seeds, options.seeds[0]
    parts = [(seed, short, options.graphs) for seed in seeds]
    parts.insert(2, (first, long, options.long_graphs or options.graphs))
    for seed, counts, names in parts:
        for number in options.machines:
            for name in names:
                yield seed, name, number, counts


def run(work: tuple[argparse.Namespace, float, set[tuple], tuple[int, str, int, list[int]]]) -> None:
    options, end_s, done, (seed, name, number, counts) = work
    folder = options.samples or options.out.with_suffix(".samples")
    for count in counts:
        case = Case(go_opt.load(f"zoo:{name}"), drawn(number), count, seed, folder)
        more = with_a_policy(count) if options.policies else {}
        for method, measure in (methods(options.trained) | more).items():
            key = {"machine": number, "graph": name, "count": count, "seed": seed, "method": method}
            if tuple(key.values()) in done or method not in (options.methods or [method]):
                continue
            if time.time() > end_s:
                return
            begun_s = time.process_time()
            row = key | measure(case) | {"processor_s": round(time.process_time() - begun_s, 2)}
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--trained", type=Path, help="also rivals that are trained; kept in this file")
    parser.add_argument("--policies", action="store_true", help="also rivals with a policy")
    parser.add_argument("--samples", type=Path, help="folder of samples (default: beside --out)")
    parser.add_argument("--methods", nargs="+", help="only these")
    parser.add_argument("--graphs", nargs="+", default=list(GRAPHS))
    parser.add_argument("--long-graphs", nargs="+", help="for more than 20 samples (default: --graphs)")
    parser.add_argument("--machines", type=int, nargs="+", default=list(MACHINES))
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 20])
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(5)))
    parser.add_argument("--seconds", type=float, default=np.inf, help="stop after so many")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    end_s = time.time() + options.seconds
    text = options.out.read_text() if options.out.exists() else ""
    rows = [json.loads(line) for line in text.splitlines()]
    if options.report:
        report(rows)
        return
    done = {(row["machine"], row["graph"], row["count"], row["seed"], row["method"]) for row in rows}
    (options.samples or options.out.with_suffix(".samples")).mkdir(exist_ok=True, parents=True)
    if options.trained:
        methods(options.trained)
    work = ((options, end_s, done, task) for task in tasks(options))
    if options.processes == 1:
        for one in work:
            run(one)
    else:
        with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
            for _ in pool.imap_unordered(run, work):
                pass


if __name__ == "__main__":
    main()
