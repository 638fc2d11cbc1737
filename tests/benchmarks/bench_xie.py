"""Samples to quality as Xie et al. measure it (MLSys 2022): policy, random sampling and annealing.

Run: PYTHONPATH=. python tests/benchmarks/bench_xie.py --out LINES [--seeds 3] [--samples 600] [NAME ...]

On ``mcm-6x6:paper`` with the strict triangle rule, each op a kernel, in the default order; the graphs are
those of the test and validation splits for ``mcm-6x6`` up to 1,700 ops. The reward is the greedy interval
over the best interval of the first n samples: its geometric mean over seeds, and over the graphs on which
any method gains 5 %. *to 1.6x* is the first n at which that mean gets there. Ratios come with 95 % intervals
of a bootstrap over graphs. Graphs whose greedy plan does not fit have a table of their own, in multiples of
the exact slicing of the default order.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import numpy as np
from measuring import header, row

import go_opt
from go_opt.bench.rivals import RIVALS, Limits, Problem, compete, pose
from go_opt.env import zoo_entries

METHODS = ("random", "annealing", "annealing-greedy", "policy-untrained", "policy", "policy-finetuned")
ONCE = ("greedy", "slice")  # methods that draw nothing
LONGEST = 1700
LEAST_GAIN = 1.05
AT = (1, 20, 100, 600)
GOALS = (1.6, 1.7, 1.8, 1.9, 2.0)
RATIOS = (
    ("policy", "policy-untrained", 20),
    ("policy", "policy-untrained", 100),
    ("policy-finetuned", "policy", 100),
    ("policy-finetuned", "policy", 600),
    ("policy", "annealing", 20),
    ("policy", "annealing", 100),
    ("policy", "annealing", 600),
    ("policy-finetuned", "annealing", 600),
)
BOOTSTRAPS = 10_000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=600)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines; what is there is not run again")
    options = parser.parse_args()
    names = options.names or graph_names()
    curves = {name: curves_of(name, options) for name in names}
    fits = [name for name in names if math.isfinite(curves[name]["greedy"][0, 0])]
    report_means([name for name in fits if gains(curves[name])], curves, options.samples)
    report_graphs(fits, curves, "greedy", options.samples)
    rest = [name for name in names if name not in fits]
    report_graphs(rest, curves, "slice", options.samples)


def gains(curves: dict[str, np.ndarray]) -> bool:
    """Whether any method is ``LEAST_GAIN`` times faster than greedy."""
    return bool(curves["greedy"][0, 0] >= LEAST_GAIN * min(of_method.min() for of_method in curves.values()))


def graph_names() -> list[str]:
    entries = [
        entry
        for entry in zoo_entries()
        if entry.split in ("test", "validation") and entry.target == "mcm-6x6" and entry.ops <= LONGEST
    ]
    return [entry.name for entry in sorted(entries, key=lambda entry: (entry.ops, entry.name))]


def curves_of(name: str, options: argparse.Namespace) -> dict[str, np.ndarray]:
    """By method the best interval [seeds, samples]."""
    known = {}
    if options.out.exists():
        for line in map(json.loads, options.out.read_text("utf-8").splitlines()):
            known[line["graph"], line["method"], line["seed"], line["samples"]] = line["falls"]
    problem = None
    curves = {}
    for method in (*ONCE, *METHODS):
        found = []
        for seed in range(1 if method in ONCE else options.seeds):
            key = name, method, seed, options.samples
            if key not in known:
                problem = problem or posed(name)
                known[key] = run(problem, key, options.out)
            curve = np.full(options.samples, np.inf)
            for sample, interval_s in known[key]:
                curve[sample - 1 :] = interval_s
            found.append(curve if method not in ONCE else np.full_like(curve, curve[-1]))
        curves[method] = np.array(found)
    return curves


def posed(name: str) -> Problem:
    return pose(go_opt.load(f"zoo:{name}"), go_opt.target("mcm-6x6:paper"), relays=False, decide="placement")


def run(problem: Problem, key: tuple[str, str, int, int], out: Path) -> list[tuple[int, float]]:
    """The samples where the best interval falls; also written as a line."""
    name, method, seed, samples = key
    outcome = compete(RIVALS[method], problem, Limits(evaluations=samples), seed)
    falls = [(point.evaluations, point.interval_s) for point in outcome.curve]
    line = {"graph": name, "method": method, "seed": seed, "samples": samples, "falls": falls}
    with out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line | {"wall_s": round(outcome.wall_s, 2)}) + "\n")
    return falls


def report_means(names: list[str], curves: dict[str, dict[str, np.ndarray]], samples: int) -> None:
    """Prints means over graphs, and ratios of methods."""
    # [G, seeds, samples] of log(greedy / best); without a valid plan the ratio counts as 0.001.
    logs = {
        method: np.array(
            [np.log(np.maximum(curves[name]["greedy"] / curves[name][method], 1e-3)) for name in names]
        )
        for method in (*ONCE, *METHODS)
    }
    at = [n for n in AT if n <= samples]
    print(f"\n{len(names)} graphs, in multiples of greedy\n")
    header(["method", *(f"@{n}" for n in at), *(f"to {goal}x" for goal in GOALS)])
    for method in METHODS:
        mean = np.exp(logs[method].mean(axis=(0, 1)))
        reached = [np.flatnonzero(mean >= goal) for goal in GOALS]
        needed = [str(found[0] + 1) if len(found) else "-" for found in reached]
        row([method, *(f"{mean[n - 1]:.3f}" for n in at), *needed])
    row(["exact slicing", f"{np.exp(logs['slice'][:, 0, -1].mean()):.3f}"])
    print()
    header(["ratio", "samples", "geometric mean", "95 %"])
    for ours, other, n in RATIOS:
        if n <= samples:
            gain = logs[ours][:, :, n - 1].mean(axis=1) - logs[other][:, :, n - 1].mean(axis=1)
            picks = np.random.default_rng(0).integers(len(gain), size=(BOOTSTRAPS, len(gain)))
            low, high = np.exp(np.quantile(gain[picks].mean(axis=1), (0.025, 0.975)))
            row([f"{ours} / {other}", str(n), f"{np.exp(gain.mean()):.3f}", f"[{low:.3f}, {high:.3f}]"])


def report_graphs(
    names: list[str], curves: dict[str, dict[str, np.ndarray]], reference: str, samples: int
) -> None:
    """Prints one row for each graph; where not all seeds have a valid plan, the share of those that do."""
    print(f"\nIn multiples of {reference}\n")
    header(["graph", *(f"{method} @{n}" for method in METHODS for n in (20, samples))])
    for name in names:
        cells = []
        for method in METHODS:
            for n in (20, samples):
                reference_s, best_s = curves[name][reference][0, -1], curves[name][method][:, n - 1]
                is_valid = np.isfinite(best_s)
                cells.append(f"{is_valid.mean():.0%}")
                if is_valid.all() and math.isfinite(reference_s):
                    cells[-1] = f"{np.exp(np.log(reference_s / best_s).mean()):.3f}"
        row([name, *cells])


if __name__ == "__main__":
    main()
