"""Random and good plans, as Xie et al. (MLSys 2022, figure 7) compare them, each of which runs here.

For each model a profile of this machine as a package of four processes. Random plans are drawn by SAMPLE
from uniform rows. Good plans are drawn near the optimizer's and lie within 10 % of it, as predicted. All of
them run through ``MeasuredMachine``; a plan that the model calls valid and that does not run is a failure.
Figures are processor seconds of the busiest process. Afterwards as many random plans as good ones, and all
good ones, are measured a second time: how well a measurement predicts another. Rows are appended to a file,
and a run that goes on leaves out those that are there.

    python tests/benchmarks/bench_real_plans.py --out real.jsonl --random 2000 --good 200
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import pearsonr, spearmanr

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import go_opt
from go_opt.env import Target, evaluate_plan
from go_opt.env.target import parse_target
from go_opt.hardware import HardwareEnvironment
from go_opt.model.graph import Graph
from go_opt.model.plan import Candidate, Plan
from go_opt.run.profiling.measured_machine import MeasuredMachine
from go_opt.solver import placement_problem, sample
from tests.benchmarks.bench_measured import model_file

MODELS = ("light_squeezenet", "light_shufflenet", "light_densenet121")
CHIPS = 4
AGAIN = " again"  # of a kind of plans: their second measurement
GOOD = 0.10  # of the best plan's interval
SHARPNESS = (2.0, 8.0)  # log odds for the best plan's chip against each other one


def drawn(graph: Graph, on: Target, rows: NDArray, rng: np.random.Generator) -> Plan:
    problem = placement_problem(graph, on, np.arange(graph.num_ops, dtype=np.int32))
    place = sample(problem, rows, seed=int(rng.integers(2**31)), num_samples=1).placement[0]
    return placed(graph, on, place[problem.unit_of_op])


def placed(graph: Graph, on: Target, placement: NDArray) -> Plan:
    each = np.arange(graph.num_ops, dtype=np.int32)
    return Candidate("bench", placement, each, each).plan(graph, on)


def random_plans(graph: Graph, on: Target) -> Iterator[Plan]:
    rng = np.random.default_rng(0)
    while True:
        yield drawn(graph, on, np.zeros((graph.num_ops, CHIPS)), rng)


def good_plans(graph: Graph, on: Target, best: Plan) -> Iterator[Plan]:
    rng, seen = np.random.default_rng(1), set[bytes]()
    limit_s = (1 + GOOD) * evaluate_plan(graph, on, best).interval_s
    while True:
        rows = np.zeros((graph.num_ops, CHIPS))
        rows[np.arange(graph.num_ops), best.placement] = rng.uniform(*SHARPNESS)
        plan = drawn(graph, on, rows, rng)
        is_new = plan.placement.tobytes() not in seen
        seen.add(plan.placement.tobytes())
        if is_new and evaluate_plan(graph, on, plan).interval_s <= limit_s:
            yield plan


def measured(name: str, folder: Path, seconds: float, counts: dict[str, int], out: Path) -> None:
    """Append a row for each plan that is not in ``out`` yet."""
    path = model_file(name, folder)
    name = path.stem
    # The machine's figures, so that a run that goes on has the same.
    machine, costs = (out.with_name(f"{out.stem}-{name}{suffix}") for suffix in (".toml", ".csv"))
    if not costs.exists():
        go_opt.profile(path, machine, costs, chips=CHIPS, seconds=seconds)
    on = parse_target(machine.read_text(), "machine")
    graph = go_opt.with_measured_costs(go_opt.load(path, precision="as-is"), costs, on)
    best = go_opt.optimize(graph, on, budget_s=5, replication=False, policy=None).plan
    session = HardwareEnvironment(MeasuredMachine(path)).open(graph, on)
    done = [row["kind"] for row in rows_of(out) if row["model"] == name]
    sources = {"good": good_plans(graph, on, best), "random": random_plans(graph, on)}
    started_s = time.monotonic()

    def run(number: int, kind: str, plan: Plan) -> None:
        said = evaluate_plan(graph, on, plan)
        ran = session.evaluate_plans([plan])
        row = {
            "model": name, "kind": kind, "predicted_s": said.interval_s, "valid": said.valid,
            "measured_s": float(ran.objective_s[0]) if ran.valid[0] else None,
            "placement": plan.placement.tolist(),
        }  # fmt: skip
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        if number % 50 == 49:
            print(f"{name}: {number + 1} {kind} after {time.monotonic() - started_s:.0f} s", flush=True)

    for kind, plans in sources.items():
        for number in range(counts[kind]):
            plan = next(plans)
            if number >= done.count(kind):
                run(number, kind, plan)
    for kind in sources:
        firsts = [row for row in rows_of(out) if (row["model"], row["kind"]) == (name, kind)]
        for number, row in enumerate(firsts[: counts["good"]]):
            if number >= done.count(kind + AGAIN):
                run(number, kind + AGAIN, placed(graph, on, np.array(row["placement"])))


def rows_of(out: Path) -> list[dict]:
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def table(rows: list[dict]) -> Iterator[str]:
    yield "| model | plans | predicted valid that did not run | Pearson | Spearman | MAPE |"
    yield "|---|---|---:|---:|---:|---:|"
    for name in dict.fromkeys(row["model"] for row in rows):
        of = {
            kind: [row for row in rows if (row["model"], row["kind"]) == (name, kind)]
            for kind in dict.fromkeys(row["kind"] for row in rows)
        }
        for kinds in (("random",), ("good",), ("random", "good")):
            these = [row for kind in kinds for row in of.get(kind, ()) if row["valid"]]
            ran = [(row["predicted_s"], row["measured_s"]) for row in these if row["measured_s"]]
            if len(ran) >= 3:
                yield line(f"{name} | {len(these)} {' and '.join(kinds)} | {len(these) - len(ran)}", ran)
        for kind in ("random", "good"):
            pairs = zip(of.get(kind, ()), of.get(kind + AGAIN, ()), strict=False)
            both = [(one["measured_s"], other["measured_s"]) for one, other in pairs]
            both = [pair for pair in both if all(pair)]
            if len(both) >= 3:
                yield line(f"{name} | {len(both)} {kind}, measured twice | ", both)


def line(start: str, pairs: list[tuple[float, float]]) -> str:
    """A row of the table: how well the first of each pair predicts the second."""
    said, seen = np.array(pairs).T
    return (
        f"| {start} | {pearsonr(said, seen).statistic:.3f} | {spearmanr(said, seen).statistic:.3f} | "
        f"{np.abs(said / seen - 1).mean():.1%} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=MODELS, help="light models of onnx, or ONNX files")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each profile")
    parser.add_argument("--random", type=int, default=2000)
    parser.add_argument("--good", type=int, default=200)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    for name in asked.models:
        with tempfile.TemporaryDirectory() as folder:
            counts = {"random": asked.random, "good": asked.good}
            measured(name, Path(folder), asked.seconds, counts, asked.out)
    print("\n".join(table(rows_of(asked.out))))


if __name__ == "__main__":
    main()
