"""Decode steps as processes of ONNX Runtime on this machine: the interval per token, predicted and measured.

Of each of two models a profile of the machine, then slices of its ops for 2 to 4 processes, balanced by
number of ops and by measured seconds, with 1 to 8 sequences in flight. The interval is the processor time of
the busiest process or, if it is longer, that of all stages one after the other divided by the sequences. The
interval by the clock is listed too; it says little where processes share cores.

    python tests/benchmarks/bench_state_run.py --seconds 20 --out state.jsonl
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import go_opt
from go_opt.env import evaluate_plan
from go_opt.env.copies.splits import planned_graph
from go_opt.env.target import parse_target
from tests.benchmarks.measuring import header, row
from tests.decoders import decoder, recurrent_stack, sliced_plan
from tests.exports import saved

STAGES = (2, 3, 4)
SEQUENCES = (1, 2, 4, 8)
MODELS = {
    "decoder": lambda: decoder(layers=6, heads=8, width=32, past=256, vocabulary=2000),
    "recurrent": lambda: recurrent_stack(layers=12, hidden=512),
}


def measured(name: str, folder: Path, seconds: float, inferences: int) -> Iterator[dict[str, Any]]:
    path = saved(MODELS[name](), folder, name)
    costs = folder / "costs.csv"
    profile = go_opt.profile(path, folder / "machine.toml", costs, chips=max(STAGES), seconds=seconds)
    print(
        f"{name}: held-out error {profile.ops_error:.1%} by the seconds of ops", file=sys.stderr, flush=True
    )
    target = parse_target(profile.target_text, "machine")
    graph = go_opt.with_measured_costs(profile.graph, costs, target)
    weights = {
        "ops": np.ones(graph.num_ops),
        "seconds": np.array([profile.op_s[op] for op in graph.op_names]),
    }
    for stages in STAGES:
        for kind, balanced in weights.items():
            for sequences in SEQUENCES:
                plan = sliced_plan(graph, target, balanced, stages, sequences)
                metrics = evaluate_plan(planned_graph(graph, plan), target, plan)
                ran = go_opt.run_plan(path, plan, inferences=inferences, target=target, costs=costs)
                yield {
                    "model": name,
                    "balanced by": kind,
                    "stages": len(ran.stages),
                    "sequences": sequences,
                    "predicted_s": metrics.interval_s,
                    "measured_s": ran.processor_interval_s,
                    "by_clock_s": ran.wall_interval_s,
                    "predicted_latency_s": metrics.latency_s,
                    "latency_s": ran.latency_s,
                    "predicted_bytes": max(chip.predicted_bytes for chip in ran.memory),
                    "measured_bytes": max(chip.measured_bytes for chip in ran.memory),
                    "difference": ran.difference,
                }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--seconds", type=float, default=20.0, help="of each profile")
    parser.add_argument("--inferences", type=int, default=40, help="of each plan, all sequences together")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, one for each plan")
    given = parser.parse_args()
    header(("model", "plans", "Spearman", "MAPE", "by clock: Spearman", "latency: MAPE"))
    for name in given.models:
        with tempfile.TemporaryDirectory() as folder, given.out.open("a") as out:
            rows = []
            for found in measured(name, Path(folder), given.seconds, given.inferences):
                print(json.dumps(found), file=out, flush=True)
                rows.append(found)
        said, seen, clock, late, latency = (
            np.array([one[key] for one in rows])
            for key in (
                "predicted_s", "measured_s", "by_clock_s", "predicted_latency_s", "latency_s",
            )
        )  # fmt: skip
        row([
            name,
            str(len(rows)),
            f"{spearmanr(said, seen).statistic:.3f}",
            f"{np.abs(said / seen - 1).mean():.1%}",
            f"{spearmanr(said, clock).statistic:.3f}",
            f"{np.abs(late / latency - 1).mean():.1%}",
        ])  # fmt: skip


if __name__ == "__main__":
    main()
