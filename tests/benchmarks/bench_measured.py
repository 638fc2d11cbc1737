"""Predicted against measured: plans of other people's models as processes of ONNX Runtime on this machine.

For each model a profile of the machine, then 20 plans that the profile has not seen: even splits by nodes, by
parameters and by FLOPs, and the optimizer's, for 2, 4 and 8 processes, and random slicings. Of each plan the
busiest process's processor seconds for one inference, as predicted by the measured costs of ops, as predicted
by the rates that another model's profile fitted, and as measured. No figure is by the clock. All plans are
measured a second time after the first: how well the two agree is the best that any prediction could reach.

    python tests/benchmarks/bench_measured.py --seconds 20 --out measured.jsonl light_resnet50

With --coverage instead: how much of a profile that ONNX Runtime writes go-opt finds the ops of.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from scipy.stats import spearmanr

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import go_opt
from go_opt.costs.measured_costs import read_costs
from go_opt.env import Target, evaluate_plan
from go_opt.env.cost.tables import cost_tables, weight_bytes
from go_opt.env.target import parse_target
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.run.pipeline.results import RunResult
from tests.exports import LIGHT
from tests.go_opt.run.test_random_stages import with_random_weights

FITTED = "light_squeezenet"  # whose rates are tried on all others
SIZES = (2, 4, 8)
NUM_RANDOM = 8
BALANCES = ("nodes", "parameters", "FLOPs")
INFERENCES = 20


@dataclass(frozen=True)
class Case:
    """A plan by how it came about and how many processes it has."""

    kind: str
    size: int
    plan: Plan


def model_file(name: str, folder: Path) -> Path:
    """An ONNX file as it is, or a light model of the onnx package with random weights."""
    return Path(name) if name.endswith(".onnx") else with_random_weights(name, folder)


def targets_of(text: str) -> dict[int, Target]:
    """The machine with each number of processes."""
    assert "count = 8\n" in text
    return {
        size: parse_target(text.replace("count = 8\n", f"count = {size}\n"), "machine")
        for size in range(2, 9)
    }


def sliced(graph: Graph, on: Target, place: NDArray) -> Plan:
    each = np.arange(graph.num_ops)
    return Plan.create(
        graph, "machine", on.fingerprint, placement=place, order=each, fusion_group=each, provenance="bench"
    )


def unreplicated(*inputs: Any, **options: Any) -> go_opt.OptimizeResult:
    """A search without replicated stages."""
    return go_opt.optimize(*inputs, **options | {"replication": False})


def balanced(weights: NDArray, size: int) -> NDArray:
    """Slices of equal weight."""
    middle = np.cumsum(weights) - weights / 2
    return np.minimum(middle * size / weights.sum(), size - 1).astype(np.int64)


def cases(graph: Graph, targets: dict[int, Target], seconds: float) -> Iterator[Case]:
    weights = {
        "nodes": np.ones(graph.num_ops),
        "parameters": weight_bytes(cost_tables(graph, targets[2])).astype(float),
        "FLOPs": graph.op_flops,
    }
    for size in SIZES:
        for kind in BALANCES:
            yield Case(kind, size, sliced(graph, targets[size], balanced(weights[kind], size)))
        found = go_opt.optimize(graph, targets[size], budget_s=seconds, replication=False, policy=None)
        yield Case("go-opt", size, found.plan)
    rng = np.random.default_rng(0)
    for _ in range(NUM_RANDOM):
        size = int(rng.integers(2, 9))
        cuts = np.sort(rng.choice(graph.num_ops - 1, size - 1, replace=False) + 1)
        place = np.searchsorted(cuts, np.arange(graph.num_ops), side="right")
        yield Case("random", size, sliced(graph, targets[size], place))


def with_other_rates(plain: Graph, on: Target, plan: Plan) -> float:
    """The interval that the rates of another model's profile predict."""
    moved = Plan.create(
        plain, "machine", on.fingerprint, placement=plan.placement, order=plan.order,
        fusion_group=plan.fusion_group, provenance="bench",
    )  # fmt: skip
    return evaluate_plan(plain, on, moved).interval_s


def measure(name: str, folder: Path, seconds: float, rates: str | None) -> tuple[str, list[dict]]:
    """The text of the model's own target, and a row for each plan."""
    path = model_file(name, folder)
    profile = go_opt.profile(path, folder / "machine.toml", folder / "costs.csv", chips=8, seconds=seconds)
    print(
        f"{name}: {profile.graph.num_ops} ops, {profile.segments} segments, held-out error by rates "
        f"{profile.rates_error:.1%}, by ops {profile.ops_error:.1%}",
        flush=True,
    )
    targets = targets_of(profile.target_text)
    others = targets_of(rates or profile.target_text)
    graph = go_opt.with_measured_costs(profile.graph, folder / "costs.csv", targets[2])

    def ran(case: Case) -> RunResult:
        on = targets[case.size]
        return go_opt.run_plan(path, case.plan, inferences=INFERENCES, target=on, costs=folder / "costs.csv")

    drawn = list(cases(graph, targets, 2.0))
    first, again = [ran(case) for case in drawn], [ran(case) for case in drawn]
    rows = [
        {
            "model": name,
            "kind": case.kind,
            "size": case.size,
            "predicted_s": evaluate_plan(graph, targets[case.size], case.plan).interval_s,
            "by_rates_s": with_other_rates(profile.graph, others[case.size], case.plan),
            "measured_s": one.processor_interval_s,
            "again_s": other.processor_interval_s,
            "difference": one.difference,
        }
        for case, one, other in zip(drawn, first, again, strict=True)
    ]
    return profile.target_text, rows


def print_coverage(name: str, folder: Path) -> None:
    """Of a profile of ONNX Runtime with its default optimizations."""
    path = model_file(name, folder)
    read = read_costs(go_opt.load(str(path)), recorded_profile(path, folder))
    print(name, *read.coverage.lines(), sep="\n  ", flush=True)


def recorded_profile(path: Path, folder: Path, inferences: int = 10) -> Path:
    """The file that ONNX Runtime writes of running a model on one thread."""
    options = onnxruntime.SessionOptions()
    options.enable_profiling, options.intra_op_num_threads = True, 1
    options.log_severity_level = 3
    options.profile_file_prefix = str(folder / "profile")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    fed = {one.name: rng.normal(size=one.shape).astype(np.float32) for one in session.get_inputs()}
    for _ in range(inferences):
        session.run(None, fed)
    return Path(session.end_profiling())


def column(rows: Sequence[dict], name: str) -> NDArray:
    return np.array([row[name] for row in rows])


def summary(rows: Sequence[dict], predicted: str = "predicted_s") -> str:
    said, seen = column(rows, predicted), column(rows, "measured_s")
    regret = seen[said.argmin()] / seen.min() - 1
    return (
        f"Spearman {spearmanr(said, seen).statistic:.3f}, MAPE {np.abs(said / seen - 1).mean():.1%}, "
        f"regret of the best predicted plan {regret:.1%}"
    )


def gains(rows: Sequence[dict]) -> str:
    """How much longer the busiest process of even splits takes than that of the optimizer's plan."""
    seen = {(row["kind"], row["size"]): row["measured_s"] for row in rows if row["kind"] != "random"}
    texts = []
    for kind in BALANCES:
        ratios = [seen[kind, size] / seen["go-opt", size] for size in SIZES]
        texts.append(f"{kind} " + " ".join(f"{ratio:.2f}" for ratio in ratios))
    return ", ".join(texts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = sorted(path.stem for path in LIGHT.glob("*.onnx"))
    parser.add_argument("models", nargs="*", help=f"ONNX files, or of {', '.join(known)} (all)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each profile")
    parser.add_argument("--out", type=Path, help="append a JSON line for each plan")
    parser.add_argument("--rates", type=Path, help=f"target of {FITTED}: read, or else measured and written")
    parser.add_argument("--coverage", action="store_true", help="only how much of a profile is mapped")
    asked = parser.parse_args()
    if asked.coverage:
        for name in asked.models or known:
            with tempfile.TemporaryDirectory() as folder:
                print_coverage(name, Path(folder))
        return
    rates = asked.rates.read_text() if asked.rates and asked.rates.exists() else None
    names = [name for name in asked.models or known if name != FITTED or rates is not None]
    for name in names if rates is not None else [FITTED, *names]:
        with tempfile.TemporaryDirectory() as folder:
            own, rows = measure(name, Path(folder), asked.seconds, rates)
        print(f"  by costs of ops: {summary(rows)}")
        print(f"  by the second measurement: {summary(rows, 'again_s')}")
        if rates is not None:
            print(f"  by rates of {FITTED}: {summary(rows, 'by_rates_s')}")
        print(f"  measured against go-opt's with {SIZES} processes: {gains(rows)}", flush=True)
        rates = rates or own
        if asked.rates and not asked.rates.exists():
            asked.rates.write_text(own)
        if asked.out:
            with asked.out.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
