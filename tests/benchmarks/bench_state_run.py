"""Decode steps as processes of ONNX Runtime on this machine: the interval per token, predicted and measured.

Of each of two models a profile of the machine, then slices of its ops for 2 to 4 processes, balanced by
number of ops and by measured seconds, with 1 to 8 sequences in flight. The interval is the processor time of
the busiest process or, if it is longer, that of all stages one after the other divided by the sequences. Of
three runs the quickest counts, since other programs only slow one down; *again* compares the first two. The
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
REPEATS = 3  # rounds over all plans
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
    cases = [(kind, stages, sequences) for stages in STAGES for kind in weights for sequences in SEQUENCES]
    plans = [sliced_plan(graph, target, weights[kind], *numbers) for kind, *numbers in cases]
    runs = [
        [go_opt.run_plan(path, plan, inferences=inferences, target=target, costs=costs) for plan in plans]
        for _ in range(REPEATS)
    ]
    for (kind, _, sequences), plan, ran in zip(cases, plans, zip(*runs, strict=True), strict=True):
        metrics = evaluate_plan(planned_graph(graph, plan), target, plan)
        yield {
            "model": name,
            "balanced by": kind,
            "stages": len(ran[0].stages),
            "sequences": sequences,
            "predicted_s": metrics.interval_s,
            "measured_s": [one.processor_interval_s for one in ran],
            "by_clock_s": [one.wall_interval_s for one in ran],
            "predicted_latency_s": metrics.latency_s,
            "latency_s": [one.latency_s for one in ran],
            "predicted_bytes": max(chip.predicted_bytes for chip in ran[0].memory),
            "measured_bytes": max(chip.measured_bytes for chip in ran[0].memory),
            "difference": max(one.difference for one in ran),
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
    header(("model", "plans", "Spearman", "MAPE", "again: Spearman", "by clock: Spearman"))
    for name in given.models:
        with tempfile.TemporaryDirectory() as folder, given.out.open("a") as out:
            rows = []
            for found in measured(name, Path(folder), given.seconds, given.inferences):
                print(json.dumps(found), file=out, flush=True)
                rows.append(found)
        said = np.array([one["predicted_s"] for one in rows])
        seen, clock = (np.array([one[key] for one in rows]) for key in ("measured_s", "by_clock_s"))
        least = seen.min(axis=1)
        row(
            [
                name,
                str(len(rows)),
                f"{spearmanr(said, least).statistic:.3f}",
                f"{np.abs(said / least - 1).mean():.1%}",
                f"{spearmanr(seen[:, 0], seen[:, 1]).statistic:.3f}",
                f"{spearmanr(said, clock.min(axis=1)).statistic:.3f}",
            ]
        )


if __name__ == "__main__":
    main()
