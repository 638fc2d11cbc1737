"""Decode steps as processes of ONNX Runtime on this machine: the interval per token, predicted and measured.

Of each of three models a profile of the machine, then slices of its ops for 2 to 4 processes, balanced by
number of ops and by measured seconds, with 1 to 8 sequences in flight. The interval is the processor time of
the busiest process or, if it is longer, that of all stages one after the other divided by the sequences.
All plans run in each round, in random order, in the same processes. A machine is quicker in one minute than
in the next, and many plans are as fast as each other within a percent. So the seconds of a plan are the
median over rounds of its share of the round, times the mean of all rounds; *again* compares even with odd
rounds.
The interval by the clock says little where processes share cores.

    python tests/benchmarks/bench_state_run.py --seconds 20 --rounds 20 --out state.jsonl
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
from numpy.typing import NDArray
from scipy.stats import spearmanr

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import go_opt
from go_opt.env import Target, evaluate_plan
from go_opt.env.copies.splits import planned_graph
from go_opt.env.target import parse_target
from go_opt.model.plan import Plan
from go_opt.run.export.exporting import export
from go_opt.run.pipeline.check import random_inputs
from go_opt.run.pipeline.layout import Layout
from go_opt.run.pipeline.running import ALONE, expected_outputs, run_on
from go_opt.run.pipeline.workers import Workers, started
from tests.benchmarks.measuring import header, row
from tests.decoders import decoder, recurrent_stack, sliced_plan
from tests.exports import saved

STAGES = (2, 3, 4)
SEQUENCES = (1, 2, 4, 8)
MODELS = {
    "decoder": lambda: decoder(layers=6, heads=8, width=32, past=256, vocabulary=2000),
    "grouped": lambda: decoder(layers=8, heads=8, width=32, past=256, vocabulary=2000, group=4),
    "recurrent": lambda: recurrent_stack(layers=12, hidden=512),
}


def typical(seconds: NDArray) -> NDArray:
    """[plans] seconds of plans, of [plans, rounds]: the mean of rounds times the median share of a plan."""
    logs = np.log(seconds)
    shares: NDArray = np.exp(np.median(logs - logs.mean(axis=0), axis=1) + logs.mean())
    return shares


class Case:
    """A plan that was written out to run."""

    def __init__(
        self, path: Path, folder: Path, plan: Plan, target: Target, costs: Path, inferences: int
    ) -> None:
        self.folder, self.sequences = folder, plan.sequences
        manifest = export(path, plan, folder, target=target, costs=costs)
        rng = np.random.default_rng(0)
        self.inputs = [random_inputs(path, manifest, rng) for _ in range(4)]
        self.layout = Layout(manifest, inferences + ALONE)
        self.expected = expected_outputs(path, manifest, self.inputs, self.layout.inferences)

    def seconds(self, workers: Workers) -> tuple[float, float, float]:
        """Processor seconds of an interval and of an inference alone; an interval by the clock."""
        host, seconds = run_on(workers, self.folder, self.layout, self.inputs, self.expected)
        for name, worst in host.worst.items():
            assert worst.apart <= self.expected.tolerance(name, None), name
        of_stages = np.median(seconds[:, :, 0], axis=1)
        done_s = host.collected_s[ALONE:]
        interval_s = max(of_stages.max(), of_stages.sum() / self.sequences)
        return interval_s, of_stages.sum(), (done_s[-1] - done_s[0]) / (len(done_s) - 1)


def measured(
    name: str, folder: Path, seconds: float, inferences: int, rounds: int
) -> Iterator[dict[str, Any]]:
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
    kinds = [(kind, stages, sequences) for stages in STAGES for kind in weights for sequences in SEQUENCES]
    plans = [sliced_plan(graph, target, weights[kind], *numbers) for kind, *numbers in kinds]
    cases = [Case(path, folder / str(i), plan, target, costs, inferences) for i, plan in enumerate(plans)]
    ran: list[list[tuple[float, float, float]]] = [[] for _ in cases]
    rng = np.random.default_rng(0)
    with started(range(max(STAGES))) as workers:
        for _ in range(rounds):
            for i in rng.permutation(len(cases)):
                ran[i].append(cases[i].seconds(workers))
    for (kind, stages, sequences), plan, rows in zip(kinds, plans, ran, strict=True):
        metrics = evaluate_plan(planned_graph(graph, plan), target, plan)
        interval_s, alone_s, clock_s = zip(*rows, strict=True)
        yield {
            "model": name,
            "balanced by": kind,
            "stages": stages,
            "sequences": sequences,
            "predicted_s": metrics.interval_s,
            "measured_s": interval_s,
            "by_clock_s": clock_s,
            "predicted_latency_s": metrics.latency_s,
            "alone_s": alone_s,
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--seconds", type=float, default=20.0, help="of each profile")
    parser.add_argument("--rounds", type=int, default=20, help="over all plans")
    parser.add_argument("--inferences", type=int, default=24, help="of each plan, all sequences together")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, one for each plan")
    given = parser.parse_args()
    header(("model", "plans", "Spearman", "MAPE", "again: Spearman", "by clock: Spearman"))
    for name in given.models:
        with tempfile.TemporaryDirectory() as folder, given.out.open("a") as out:
            rows = []
            for found in measured(name, Path(folder), given.seconds, given.inferences, given.rounds):
                print(json.dumps(found), file=out, flush=True)
                rows.append(found)
        said = np.array([one["predicted_s"] for one in rows])
        seen, clock = (np.array([one[key] for one in rows]) for key in ("measured_s", "by_clock_s"))
        row(
            [
                name,
                str(len(rows)),
                f"{spearmanr(said, typical(seen)).statistic:.3f}",
                f"{np.abs(said / typical(seen) - 1).mean():.1%}",
                f"{spearmanr(typical(seen[:, ::2]), typical(seen[:, 1::2])).statistic:.3f}",
                f"{spearmanr(said, typical(clock)).statistic:.3f}",
            ]
        )


if __name__ == "__main__":
    main()
