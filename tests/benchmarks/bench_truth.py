"""What the optimizer claims against what the simulator says, over the zoo.

Run: python tests/benchmarks/bench_truth.py [--graphs NAME,...] [--budget 5s] [--seed 0] [--out FOLDER]
     [--before FOLDER]

Every graph is optimized with default options and no policy on the target it is shipped for.
Prints predicted and simulated interval with their ratio, the simulated one without the effect
``memory``, and with ``--before`` what the plans of another version (files NAME.json, as
``--out`` writes them) take in this version's simulator. Asserts that every plan runs and is valid.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

import go_opt
from go_opt.common.units import parse_duration_s
from go_opt.env import zoo_entries
from go_opt.env.simulator.simulate import simulate_plan
from go_opt.errors import InfeasibleError
from go_opt.model.codecs.plan_json import load_plan, save_plan


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--graphs", default="")
    parser.add_argument("--budget", default="5s")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--before", type=Path)
    asked = parser.parse_args()
    entries = [entry for entry in zoo_entries() if not asked.graphs or entry.name in asked.graphs.split(",")]
    budget_s = parse_duration_s(asked.budget, "--budget")
    print(
        "graph, predicted, simulated us, ratio, simulated without memory, version before, gain, status, gap"
    )
    ratios, gains, statuses = [], [], []
    for entry in entries:
        graph, target = go_opt.load(f"zoo:{entry.name}"), go_opt.target(entry.target)
        try:
            result = go_opt.optimize(graph, target, budget_s=budget_s, seed=asked.seed, policy=None)
        except InfeasibleError as error:
            print(f"{entry.name:24s} {error}", flush=True)
            continue
        assert go_opt.verify(graph, target, result.plan) == []
        simulated = simulate_plan(graph, target, result.plan)
        assert simulated.valid, (entry.name, simulated.reason)
        free = simulate_plan(graph, target, result.plan, without=("memory",))
        ratio = simulated.interval_s / result.metrics.interval_s
        before_s = _simulated_before(asked.before, entry.name, graph, target)
        gain = before_s / simulated.interval_s
        ratios.append(ratio)
        statuses.append(result.status)
        if not math.isnan(gain):
            gains.append(gain)
        times = (result.metrics.interval_s, simulated.interval_s, free.interval_s, before_s)
        predicted, actual, without, before = (f"{1e6 * seconds:.2f}" for seconds in times)
        print(
            f"{entry.name:24s} {predicted:>10s} {actual:>10s} {ratio:6.3f} {without:>8s} {before:>10s} "
            f"{gain:.3f} {result.status} {result.gap:.4f} {result.method}",
            flush=True,
        )
        if asked.out is not None:
            save_plan(replace(result.plan, model=f"zoo:{entry.name}"), asked.out / f"{entry.name}.json")
    _summary(np.array(ratios), np.array(gains), statuses)


def _simulated_before(folder: Path | None, name: str, graph, target) -> float:
    """Interval of another version's plan here: infinite where it does not run, NaN where there is none."""
    if folder is None or not (folder / f"{name}.json").exists():
        return math.nan
    return simulate_plan(graph, target, load_plan(folder / f"{name}.json")).interval_s


def _summary(ratios, gains, statuses) -> None:
    print(f"{len(ratios)} graphs, {statuses.count('OPTIMAL')} proven optimal for the cost model")
    print(f"simulated/predicted: geometric mean {np.exp(np.log(ratios).mean()):.4f}, most {ratios.max():.3f}")
    for most in (1.02, 1.10):
        print(f"  at most {most}: {(ratios <= most).mean():.1%}")
    if len(gains):
        finite = gains[np.isfinite(gains)]
        print(f"plans before do not run: {int((~np.isfinite(gains)).sum())} of {len(gains)}")
        mean = np.exp(np.log(finite).mean())
        print(f"gain over the others: geometric mean {mean:.3f}, least {finite.min():.3f}")
        print(f"  worse by more than 1 %: {int((finite < 0.99).sum())}")


if __name__ == "__main__":
    sys.exit(main())
