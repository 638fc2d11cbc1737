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
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from measuring import header, row

import go_opt
from go_opt.agents.training.problems.environment import Session
from go_opt.bench.rivals import RIVALS, Limits, Outcome, compete, pose
from go_opt.env import Target
from go_opt.model.graph import Graph
from tests.benchmarks.calibrate_machines import GRAPHS, MACHINES, SHEET, drawn

METHODS = ("random", "annealing", "annealing-greedy", "policy-untrained", "policy", "policy-finetuned")
EVERY = ("slice", *METHODS)
AT = (1, 20, 100)
BOOTSTRAPS = 10_000

Case = tuple[int, str]  # a machine and a graph
Line = dict[str, Any]
Lines = dict[tuple[int, str, str, int], Line]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines; what is there is not run again")
    options = parser.parse_args()
    known = read(options.out)
    cases = [(number, name) for number in MACHINES for name in GRAPHS]
    for number, name in cases:
        for method in EVERY:
            for seed in range(1 if method == "slice" else options.seeds):
                if (number, name, method, seed) not in known:
                    session = drawn(number).open(graph := go_opt.load(f"zoo:{name}"), SHEET)
                    line, _ = run(method, graph, SHEET, session, options.samples, seed)
                    line |= {"machine": number, "graph": name, "method": method, "seed": seed}
                    write(options.out, known, [line])
    report(known, cases, EVERY, [n for n in AT if n <= options.samples])
    ratios(known, cases, [n for n in AT[1:] if n <= options.samples])


def read(path: Path) -> Lines:
    """The lines of a file, if there is one."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return {key_of(line): line for line in map(json.loads, lines)}


def write(path: Path, known: Lines, lines: Iterable[Line]) -> None:
    """Adds ``lines`` to those that are known, and to the file."""
    for line in lines:
        known[key_of(line)] = line
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def key_of(line: Line) -> tuple[int, str, str, int]:
    return line["machine"], line["graph"], line["method"], line["seed"]


def run(
    method: str, graph: Graph, sheet: Target, session: Session, samples: int, seed: int
) -> tuple[Line, Outcome]:
    """The samples where the best interval falls, the number that did not fit, and seconds."""
    counts = [0, 0]

    def measured(placement: np.ndarray, order: np.ndarray, kernels: np.ndarray) -> np.ndarray:
        answer = session.evaluate(placement, order, kernels).objective_s
        counts[0] += len(answer)
        counts[1] += int(np.isinf(answer).sum())
        return answer

    problem = replace(pose(graph, sheet, relays=False), evaluate=measured)
    outcome = compete(RIVALS[method], problem, Limits(evaluations=samples), seed)
    falls = [(point.evaluations, point.interval_s) for point in outcome.curve]
    wall_s = round(outcome.wall_s, 2)
    return {"falls": falls, "samples": counts[0], "invalid": counts[1], "wall_s": wall_s}, outcome


def log_of(known: Lines, case: Case, method: str, n: int) -> float:
    """The mean log of the best interval of the first ``n`` samples over seeds; infinite without a plan."""
    logs = []
    for line in (line for key, line in known.items() if key[:3] == (*case, method)):
        at = [seconds for sample, seconds in line["falls"] if sample <= n]
        logs.append(math.log(at[-1]) if at else math.inf)
    return float(np.mean(logs))


def report(known: Lines, cases: Sequence[Case], methods: Sequence[str], at: Sequence[int]) -> None:
    """Prints means in multiples of the best that any method has, and seconds."""

    def off(case: Case, method: str, n: int) -> float:
        lines = [line["falls"] for key, line in known.items() if key[:2] == case and line["falls"]]
        return log_of(known, case, method, n) - math.log(min(falls[-1][1] for falls in lines))

    valid = [case for case in cases if all(math.isfinite(log_of(known, case, m, at[-1])) for m in methods)]
    random = [line for key, line in known.items() if key[2] == "random"]
    share = sum(line["invalid"] for line in random) / sum(line["samples"] for line in random)
    print(f"{len(valid)} of {len(cases)} cases; {share:.1%} of random samples do not fit\n")
    header(["method", *(f"@{n}" for n in at), f"without a plan @{min(20, at[-1])}", "s"])
    for method in methods:
        cells = []
        for n in at:
            logs = np.array([off(case, method, n) for case in valid])
            cells.append(f"{np.exp(logs.mean()):.3f}" if np.isfinite(logs).all() else "-")
        without = np.mean([not math.isfinite(log_of(known, case, method, min(20, at[-1]))) for case in cases])
        seconds = np.median([line["wall_s"] for key, line in known.items() if key[2] == method])
        row([method, *cells, f"{without:.0%}", f"{seconds:.1f}"])
    print()


def ratios(known: Lines, cases: Sequence[Case], at: Sequence[int]) -> None:
    """Prints rivals' intervals over the policy's, with bootstrap intervals over cases."""
    header(["ratio of intervals", "samples", "geometric mean", "95 %"])
    for other in ("policy-untrained", "annealing", "random"):
        for n in at:
            logs = np.array([[log_of(known, case, m, n) for m in ("policy", other)] for case in cases])
            logs = logs[np.isfinite(logs).all(axis=1)]
            gain = logs[:, 1] - logs[:, 0]
            picks = np.random.default_rng(0).integers(len(gain), size=(BOOTSTRAPS, len(gain)))
            low, high = np.exp(np.quantile(gain[picks].mean(axis=1), (0.025, 0.975)))
            row([f"{other} / policy", str(n), f"{np.exp(gain.mean()):.3f}", f"[{low:.3f}, {high:.3f}]"])


if __name__ == "__main__":
    main()
