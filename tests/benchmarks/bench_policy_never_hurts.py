"""The portfolio with its policy against the portfolio without, at equal evaluations.

Run: PYTHONPATH=. python tests/benchmarks/bench_policy_never_hurts.py [--evaluations N ...] [NAME ...]

On the graphs named, or the test split up to 6,000 ops on ``mcm-6x6``. Medians of three seeds.
A loss is a graph whose median with the policy is worse than that without by more than the
seeds of either spread. Asserts that every plan is verified. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import math
import statistics
from dataclasses import dataclass

import go_opt
from go_opt.env import zoo_entries
from go_opt.errors import InfeasibleError

SEEDS = (0, 1, 2)
MOST_OPS = 6000


@dataclass(frozen=True)
class Reached:
    """What three seeds reached on one graph."""

    interval_s: tuple[float, ...]
    methods: tuple[str, ...]

    @property
    def median_s(self) -> float:
        return statistics.median(self.interval_s)

    @property
    def spread(self) -> float:
        """Of the seeds, in logs."""
        return math.log(max(self.interval_s) / min(self.interval_s))

    @property
    def won_by(self) -> str:
        return self.methods[self.interval_s.index(self.median_s)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=test_split())
    parser.add_argument("--evaluations", type=int, nargs="+", default=[32, 128])
    options = parser.parse_args()
    print("| graph | evaluations | without, us | with, us | ratio | won by |")
    print("|---|---:|---:|---:|---:|---|")
    gains: dict[int, list[float]] = {number: [] for number in options.evaluations}
    losses: dict[int, list[str]] = {number: [] for number in options.evaluations}
    for name in options.names:
        for evaluations in options.evaluations:
            without, with_policy = (reached(name, evaluations, policy) for policy in ("none", "default"))
            if without is None or with_policy is None:
                print(f"| {name} | {evaluations} | no plan | no plan | | |", flush=True)
                continue
            gain = without.median_s / with_policy.median_s
            gains[evaluations].append(gain)
            if -math.log(gain) > max(without.spread, with_policy.spread, 1e-9):
                losses[evaluations].append(name)
            print(
                f"| {name} | {evaluations} | {without.median_s * 1e6:.1f} | "
                f"{with_policy.median_s * 1e6:.1f} | {gain:.3f} | {with_policy.won_by} |",
                flush=True,
            )
    for evaluations, ratios in gains.items():
        lost = ", ".join(losses[evaluations]) or "none"
        print(
            f"\n{evaluations} evaluations, {len(ratios)} graphs: {statistics.geometric_mean(ratios):.3f}x; "
            f"better on {sum(r > 1.001 for r in ratios)}, worse on {sum(r < 0.999 for r in ratios)} "
            f"(least {min(ratios):.3f}); worse beyond the spread of seeds: {lost}"
        )


def reached(name: str, evaluations: int, policy: str) -> Reached | None:
    """None where no plan was found."""
    graph = go_opt.load(f"zoo:{name}")
    target = go_opt.target("mcm-6x6")
    try:
        results = [
            go_opt.optimize(graph, target, seed=seed, max_evaluations=evaluations, policy=policy)
            for seed in SEEDS
        ]
    except InfeasibleError:
        return None
    assert all(go_opt.verify(graph, target, result.plan) == [] for result in results)
    return Reached(
        tuple(result.metrics.interval_s for result in results), tuple(result.method for result in results)
    )


def test_split() -> list[str]:
    return [
        e.name for e in zoo_entries() if e.split == "test" and e.target == "mcm-6x6" and e.ops <= MOST_OPS
    ]


if __name__ == "__main__":
    main()
