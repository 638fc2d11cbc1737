"""What replicated stages are worth: throughput against the best placement with relays.

Run: PYTHONPATH=. python tests/benchmarks/bench_replication.py [--budget SECONDS] [--split SPLIT] [NAME ...]

Each graph is optimised twice, without replication and with, by the portfolio without a policy
for the same time. *gain*: how many times faster; *at least*: the lower bound of all placements
without replication over the interval with it, so no better placement can make the gain
smaller. Both plans are simulated, too, with all effects. Asserts that answers are verified, no
better than their bounds, and that with all effects off the simulator agrees. Prints a Markdown
table and means.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

import numpy as np

import go_opt
from go_opt.env import Target, evaluate_plan, zoo_entries
from go_opt.env.simulator.simulate import simulate_plan
from go_opt.env.target.kinds import EFFECTS
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.result import OptimizeResult

COLUMNS = ("graph", "ops", "placement", "gap", "replicated", "bound", "gap", "gain", "at least",
           "chips of each stage", "bottleneck", "simulated gain", "s")  # fmt: skip
CLOSE = 0.05


@dataclass(frozen=True)
class Row:
    """One graph, both ways."""

    name: str
    num_ops: int
    plain: OptimizeResult
    replicated: OptimizeResult
    simulated: tuple[float, float]  # intervals; infinite where the plan fails

    @property
    def gain(self) -> float:
        return self.plain.metrics.interval_s / self.replicated.metrics.interval_s

    @property
    def least_gain(self) -> float:
        return self.plain.lower_bound_s / self.replicated.metrics.interval_s

    def __str__(self) -> str:
        plain, replicated = self.plain, self.replicated
        at_sim = self.simulated[0] / self.simulated[1] if math.isfinite(sum(self.simulated)) else math.nan
        cells = (
            self.name,
            f"{self.num_ops:,}",
            f"{plain.metrics.interval_s * 1e6:,.1f}",
            f"{plain.gap:.1%}",
            f"{replicated.metrics.interval_s * 1e6:,.1f}",
            f"{replicated.lower_bound_s * 1e6:,.1f}",
            f"{replicated.gap:.1%}",
            f"{self.gain:.2f}",
            f"{self.least_gain:.2f}",
            sizes(replicated.plan),
            replicated.metrics.bottleneck,
            "fails" if math.isnan(at_sim) else f"{at_sim:.2f}",
            f"{replicated.wall_s:.1f}",
        )
        return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--split", default="test")
    parser.add_argument("--target", default="mcm-6x6")
    parser.add_argument("--budget", type=float, default=10.0)
    options = parser.parse_args()
    target = go_opt.target(options.target)
    of_split = [e.name for e in zoo_entries() if e.split == options.split and e.target == options.target]
    print("| " + " | ".join(COLUMNS) + " |")
    print("|---|" + "---:|" * 8 + "---|---|---:|---:|")
    rows = []
    for name in options.names or of_split:
        rows.append(row(name, target, options.budget))
        print(rows[-1], flush=True)
    summary(rows)


def row(name: str, target: Target, budget_s: float) -> Row:
    graph = go_opt.load(f"zoo:{name}")
    plain, replicated = (
        go_opt.optimize(graph, target, budget_s=budget_s, policy=None, replication=is_open)
        for is_open in (False, True)
    )
    for result in (plain, replicated):
        assert go_opt.verify(graph, target, result.plan) == []
        assert result.metrics.interval_s >= result.lower_bound_s * (1 - 1e-9)
    assert (plain.plan.replication == 1).all()
    check_ideal(graph, target, replicated.plan)
    simulated = tuple(simulated_s(graph, target, result.plan) for result in (plain, replicated))
    return Row(name, graph.num_ops, plain, replicated, simulated)


def check_ideal(graph: Graph, target: Target, plan: Plan) -> None:
    """With all effects off the simulator says what the model says."""
    ideal = simulate_plan(graph, target, plan, without=EFFECTS)
    if ideal.valid:
        assert math.isclose(ideal.interval_s, evaluate_plan(graph, target, plan).interval_s, rel_tol=1e-3)


def simulated_s(graph: Graph, target: Target, plan: Plan) -> float:
    metrics = evaluate_plan(graph, target, plan, fidelity="simulated")
    return metrics.interval_s if metrics.valid else math.inf


def sizes(plan: Plan) -> str:
    first, op = np.unique(plan.placement, return_index=True)
    counts = plan.replication[op].tolist()
    return " ".join(map(str, counts)) if len(first) <= 12 else f"{len(first)} stages, at most {max(counts)}"


def summary(rows: list[Row]) -> None:
    def mean(values: list[float]) -> float:
        return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan

    proven = [r for r in rows if r.plain.gap <= CLOSE]
    print(f"\ngain, all {len(rows)} graphs: {mean([r.gain for r in rows]):.2f}x")
    close = mean([r.gain for r in proven])
    print(f"gain where the placement is within 5 % of its bound ({len(proven)} graphs): {close:.2f}x")
    for most in (1e-6, 0.05):
        within = sum(r.replicated.gap <= most for r in rows)
        print(f"with replication, gap at most {most:.0%}: {within} of {len(rows)}")
    faster = [r.simulated[0] / r.simulated[1] for r in rows if math.isfinite(sum(r.simulated))]
    print(f"simulated, {len(faster)} graphs whose plans both run: {mean(faster):.2f}x")


if __name__ == "__main__":
    main()
