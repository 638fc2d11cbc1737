"""The policy where nobody has a model of the machine: samples of simulated machines that it never saw.

Run: PYTHONPATH=. python tests/benchmarks/bench_black_box.py --out LINES [--samples 100] [--seeds 3]

The machines and graphs are those of bench_calibrate.py, which compares ``go-opt calibrate`` on them. What the
methods know is the data sheet, ``mcm-6x6``; a sample is one plan that runs on the machine, also one that does
not fit. All place the default kernels, under the strict rule. Intervals are in multiples of the best that any
of them has, geometric mean over graphs, machines and seeds, of those cases where every method has a plan.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from measuring import header, row

import go_opt
from go_opt.bench.rivals import RIVALS, Limits, compete, pose
from tests.benchmarks.calibrate_machines import GRAPHS, MACHINES, SHEET, drawn

METHODS = ("random", "annealing", "annealing-greedy", "policy-untrained", "policy", "policy-finetuned")
AT = (1, 20, 100)
BOOTSTRAPS = 10_000

Line = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines; what is there is not run again")
    options = parser.parse_args()
    known = {}
    if options.out.exists():
        for line in map(json.loads, options.out.read_text("utf-8").splitlines()):
            known[key_of(line)] = line
    for number in MACHINES:
        for name in GRAPHS:
            for method in ("slice", *METHODS):
                for seed in range(1 if method == "slice" else options.seeds):
                    line: Line = {"machine": number, "graph": name, "method": method, "seed": seed}
                    if key_of(line) not in known:
                        line |= run(line, options.samples)
                        known[key_of(line)] = line
                        with options.out.open("a", encoding="utf-8") as file:
                            file.write(json.dumps(line) + "\n")
    report(known, options)


def key_of(line: Line) -> tuple[int, str, str, int]:
    return line["machine"], line["graph"], line["method"], line["seed"]


def run(line: Line, samples: int) -> Line:
    """The samples where the best interval falls, the share that did not fit, and seconds."""
    machine, graph = drawn(line["machine"]), go_opt.load(f"zoo:{line['graph']}")
    session, counts = machine.open(graph, SHEET), [0, 0]

    def measured(placement: np.ndarray, order: np.ndarray, kernels: np.ndarray) -> np.ndarray:
        answer = session.evaluate(placement, order, kernels).objective_s
        counts[0] += len(answer)
        counts[1] += int(np.isinf(answer).sum())
        return answer

    problem = replace(pose(graph, SHEET, relays=False), evaluate=measured)
    outcome = compete(RIVALS[line["method"]], problem, Limits(evaluations=samples), line["seed"])
    falls = [(point.evaluations, point.interval_s) for point in outcome.curve]
    return {
        "falls": falls, "samples": counts[0], "invalid": counts[1], "wall_s": round(outcome.wall_s, 2),
    }  # fmt: skip


def report(known: dict[tuple[int, str, str, int], Line], options: argparse.Namespace) -> None:
    """Prints means, ratios and seconds."""
    cases = [(number, name) for number in MACHINES for name in GRAPHS]
    best_s = dict.fromkeys(cases, math.inf)
    for (number, name, *_), line in known.items():
        if line["falls"]:
            best_s[number, name] = min(best_s[number, name], line["falls"][-1][1])

    def log_of(case: tuple[int, str], method: str, n: int) -> float:
        seeds = range(1 if method == "slice" else options.seeds)
        logs = []
        for seed in seeds:
            at = [s for sample, s in known[*case, method, seed]["falls"] if sample <= n]
            logs.append(math.log(at[-1] / best_s[case]) if at else math.inf)
        return float(np.mean(logs))

    at = [n for n in AT if n <= options.samples]
    every = ("slice", *METHODS)
    valid = [case for case in cases if all(math.isfinite(log_of(case, m, at[-1])) for m in every)]
    random = [line for key, line in known.items() if key[2] == "random"]
    share = sum(line["invalid"] for line in random) / sum(line["samples"] for line in random)
    print(f"{len(valid)} of {len(cases)} cases; {share:.1%} of random samples do not fit\n")
    header(["method", *(f"@{n}" for n in at), "without a plan @20", "s"])
    for method in every:
        cells = []
        for n in at:
            logs = np.array([log_of(case, method, n) for case in valid])
            cells.append(f"{np.exp(logs.mean()):.3f}" if np.isfinite(logs).all() else "-")
        without = np.mean([not math.isfinite(log_of(case, method, 20)) for case in cases])
        seconds = np.median([line["wall_s"] for key, line in known.items() if key[2] == method])
        row([method, *cells, f"{without:.0%}", f"{seconds:.1f}"])
    print()
    header(["ratio of intervals", "samples", "geometric mean", "95 %"])
    for ours, other in (("policy", "policy-untrained"), ("policy", "annealing"), ("policy", "random")):
        for n in at[1:]:
            fits = [c for c in cases if all(math.isfinite(log_of(c, m, n)) for m in (ours, other))]
            gain = np.array([log_of(case, other, n) - log_of(case, ours, n) for case in fits])
            picks = np.random.default_rng(0).integers(len(gain), size=(BOOTSTRAPS, len(gain)))
            low, high = np.exp(np.quantile(gain[picks].mean(axis=1), (0.025, 0.975)))
            row([f"{other} / {ours}", str(n), f"{np.exp(gain.mean()):.3f}", f"[{low:.3f}, {high:.3f}]"])


if __name__ == "__main__":
    main()
