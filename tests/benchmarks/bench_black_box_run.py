"""The policy where a sample is one execution of a plan: as worker processes of ONNX Runtime on this machine.

Run: PYTHONPATH=. python tests/benchmarks/bench_black_box_run.py --target MACHINE --out LINES
     [--samples 20] [--seeds 3] [--cases 4:light_inception_v1 ...] [--minutes 60]

The methods are those of bench_black_box.py and ``go-opt calibrate``; what they know is the target that
``go-opt profile`` fitted to another model, with the workers of the case. All place the default kernels;
``calibrate`` also chooses kernels and order, and sees the time of each worker. No stages are replicated.
Each measurement is the processor time of the busiest worker for an inference, the median of 30. A plan that
was measured in the same case and seed is not measured again, but for ``calibrate``: it counts as a sample,
and as many seconds. When all methods of a seed have ended, their plans are measured again in turn: those
medians are free of the luck of the best sample. Workers are started once for all measurements of a seed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from measuring import header, row

import go_opt
from go_opt.calibration import calibrating
from go_opt.env import Target, evaluate_plan, parse_target
from go_opt.hardware import HardwareEnvironment, Measured
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.run.pipeline import running
from go_opt.run.pipeline.workers import started
from go_opt.run.profiling.measured_machine import MeasuredMachine
from tests.benchmarks.bench_black_box import EVERY, Case, Line, Lines, read, report, run, write
from tests.benchmarks.bench_measured import unreplicated
from tests.go_opt.run.test_random_stages import with_random_weights

INFERENCES, AGAIN = 30, 5
METHODS = (*EVERY, "calibrate")
CASES = ("4:light_inception_v1", "4:light_shufflenet")


@dataclass
class Remembered:
    """A machine that measures each plan once."""

    machine: MeasuredMachine
    saved_s: float = 0.0
    known: dict[bytes, tuple[Measured | None, float]] = field(default_factory=dict)

    def evaluate(self, graph: Graph, target: Target, plan: Plan) -> Measured | None:
        key = plan.placement.tobytes() + plan.order.tobytes()
        if key in self.known:
            self.saved_s += self.known[key][1]
        else:
            begun_s = time.monotonic()
            answer = self.machine.evaluate(graph, target, plan)
            self.known[key] = answer, time.monotonic() - begun_s
        return self.known[key][0]


def with_workers(text: str, workers: int) -> Target:
    """The target of ``go-opt profile`` with so many processes."""
    before, after = text.split("\ncount = ", 1)
    rest = after.split("\n", 1)[1]
    return parse_target(f"{before}\ncount = {workers}\n{rest}", "machine")


def calibrated(
    graph: Graph, sheet: Target, machine: MeasuredMachine, samples: int, seed: int
) -> tuple[Line, Plan]:
    """As ``run``, of ``go-opt calibrate``."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "samples.json"
        calibration = calibrating.Calibration(graph, sheet, HardwareEnvironment(machine), path, seed=seed)
        for _ in calibration.run(samples):
            pass
    seen = [sample.interval_s for sample in calibration.samples]
    least = np.minimum.accumulate(seen)
    falls = [(i + 1, s) for i, s in enumerate(seen) if np.isfinite(s) and (i == 0 or s < least[i - 1])]
    invalid = int(np.isinf(seen).sum())
    return {"falls": falls, "samples": len(seen), "invalid": invalid}, calibration.best.plan


def compare(case: Case, path: Path, sheet: Target, samples: int, seed: int) -> list[Line]:
    """A line for each method: as ``run``, and what the best plan takes by the data sheet and again."""
    graph, machine = go_opt.load(path), MeasuredMachine(path, INFERENCES)
    remembered, lines, plans = Remembered(machine), list[Line](), list[Plan]()
    session = HardwareEnvironment(remembered).open(graph, sheet)
    for method in METHODS:
        begun_s = time.monotonic() + remembered.saved_s
        if method == "calibrate":
            line, plan = calibrated(graph, sheet, machine, samples, seed)
        else:
            line, outcome = run(method, graph, sheet, session, samples, seed)
            assert outcome.plan is not None
            plan = outcome.plan
        wall_s = time.monotonic() + remembered.saved_s - begun_s
        line |= {"machine": case[0], "graph": case[1], "method": method, "seed": seed, "wall_s": wall_s}
        line["predicted_s"] = evaluate_plan(graph, sheet, plan).interval_s
        lines.append(line)
        plans.append(plan)
        print(case, seed, method, line["falls"][-1], f"{line['wall_s']:.0f} s", flush=True)
    again = [[measured_s(machine, graph, sheet, plan) for plan in plans] for _ in range(AGAIN)]
    return [line | {"again_s": list(each)} for line, each in zip(lines, np.transpose(again), strict=True)]


def measured_s(machine: MeasuredMachine, graph: Graph, sheet: Target, plan: Plan) -> float:
    answer = machine.evaluate(graph, sheet, plan)
    return np.inf if answer is None else answer.seconds


def report_again(known: Lines, cases: Sequence[Case]) -> None:
    """Prints milliseconds of the methods' plans: predicted, best sample, and measured again in turn."""
    for case in cases:
        of_case = {key: line for key, line in known.items() if key[:2] == case}
        seeds = sorted({key[3] for key in of_case})
        print(f"\n{case[0]} workers, {case[1]}: milliseconds, mean and range of {len(seeds)} seeds\n")
        header(["method", "by the data sheet", "best sample", "again", "spread", "again, over slice"])
        for method in METHODS:
            lines = [of_case[*case, method, seed] for seed in seeds]
            again = np.array([line["again_s"] for line in lines])
            first = np.array([of_case[*case, "slice", seed]["again_s"] for seed in seeds])
            over = np.median(again / first, axis=1)
            spread = np.log(again).std(axis=1, ddof=1).mean()
            row([
                method, span([line["predicted_s"] * 1e3 for line in lines]),
                span([line["falls"][-1][1] * 1e3 for line in lines]),
                span(np.median(again, axis=1) * 1e3), f"{spread:.1%}", span(over),
            ])  # fmt: skip


def span(values: Sequence[float] | np.ndarray) -> str:
    """The geometric mean, with the least and the most."""
    return f"{np.exp(np.mean(np.log(values))):.3f} ({min(values):.3f} to {max(values):.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, required=True, help="of go-opt profile, of another model")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines; what is there is not run again")
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cases", nargs="+", default=CASES, help="workers:model, light ones of onnx")
    parser.add_argument("--minutes", type=float, default=np.inf, help="begin no further seed after so many")
    options = parser.parse_args()
    vars(calibrating).update(optimize=unreplicated)
    known, end_s = read(options.out), time.time() + 60 * options.minutes
    cases = [(int(workers), name) for workers, name in (case.split(":") for case in options.cases)]
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.seeds):
            for workers, name in cases:
                if (workers, name, METHODS[0], seed) not in known and time.time() < end_s:
                    path = with_random_weights(name, Path(folder))
                    sheet = with_workers(options.target.read_text("utf-8"), workers)
                    with started(range(workers)) as kept:
                        vars(running).update(started=lambda _, kept=kept: nullcontext(kept))
                        lines = compare((workers, name), path, sheet, options.samples, seed)
                    write(options.out, known, lines)
    cases = [case for case in cases if (*case, METHODS[0], 0) in known]
    report(known, cases, METHODS, [n for n in (1, 5, 10, 20) if n <= options.samples])
    report_again(known, cases)


if __name__ == "__main__":
    main()
