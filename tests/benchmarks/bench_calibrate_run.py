"""go-opt calibrate --run against genetic search: plans of light models as four processes of ONNX Runtime.

Plans are made with the rates that go-opt profile fits to another model. No stages are replicated, because
replicating the whole model is best where memory does not bind. Genetic search has the three cuts of the
default order as keys, and the first plan's among the first; its five fastest plans are measured twice more to
choose one. The best plans are measured again, in turn, and their medians compared. The errors are of the
chips of the genetic search's plans, as the figures of calibrate and a fit of five terms to the same samples
predict them.

    python tests/benchmarks/bench_calibrate_run.py --target machine.toml --seconds 1200 light_shufflenet
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import go_opt
from go_opt.calibration import calibrating
from go_opt.calibration.chip_fit import observe
from go_opt.calibration.samples import Sample, fastest, write_samples
from go_opt.env import Target
from go_opt.hardware import HardwareEnvironment
from go_opt.model.plan import Plan
from go_opt.run.profiling.measured_machine import MeasuredMachine
from go_opt.solver.orders.genetic import genetic_search
from tests.benchmarks.bench_measured import sliced, unreplicated
from tests.benchmarks.calibrate_rivals import chip_quantities, five_terms, ops_of
from tests.go_opt.run.test_random_stages import with_random_weights

SAMPLES, EVALUATIONS, AGAIN, FRONT = 10, 200, 9, 5


def processor_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def compare(name: str, on: Target, folder: Path, end_s: float) -> None:
    path = with_random_weights(name, folder)
    graph, machine, begun_s = go_opt.load(path), MeasuredMachine(path), processor_s()
    calibration = calibrating.Calibration(graph, on, HardwareEnvironment(machine), folder / f"{name}.json")
    *_, learned = calibration.run(SAMPLES)
    ours_s, held = processor_s() - begun_s, list[Sample]()

    def measured(plan: Plan) -> Sample:
        answer = machine.evaluate(graph, on, plan)
        if answer is None:
            return Sample(plan, np.inf)
        return Sample(plan, answer.seconds, np.array(answer.chip_s))

    def interval_s(cuts: NDArray) -> float:
        if time.time() > end_s:
            return np.inf
        place = np.searchsorted(np.sort(cuts) * graph.num_ops, np.arange(graph.num_ops), side="right")
        held.append(measured(sliced(graph, on, place)))
        return held[-1].interval_s

    first = calibration.samples[0]
    shares = np.cumsum(np.bincount(first.plan.placement, minlength=on.num_chips))[:-1] / graph.num_ops
    begun_s = processor_s()
    first_keys = np.minimum(shares, 0.999)
    genetic_search(interval_s, on.num_chips - 1, evaluations=EVALUATIONS, seed=0, first=first_keys)
    theirs_s = processor_s() - begun_s
    write_samples(folder / f"{name}-genetic.json", name, held)
    front = sorted(held, key=lambda sample: sample.interval_s)[:FRONT]
    rival = fastest(front + [measured(one.plan) for one in front * 2])
    bests = [calibration.best.plan, rival.plan, first.plan]
    again = np.median([[measured(plan).interval_s for plan in bests] for _ in range(AGAIN)], axis=0)
    print(f"{name}: again calibrate {again[0]:.3e}, genetic {again[1]:.3e}, first {again[2]:.3e} s")
    print(f"  processor time {ours_s:.0f} s for {SAMPLES} samples, {theirs_s:.0f} s for {len(held)}")
    soon = [f"{min(one.interval_s for one in held[:count]):.3e}" for count in (10, 20, 50, 100, EVALUATIONS)]
    print(f"  genetic after 10, 20, 50, 100, all: {soon}; calibrate {calibration.best.interval_s:.3e}")
    seen = observe(graph, on, [sample for sample in held if np.isfinite(sample.interval_s)])
    assert learned.chips is not None
    by_fit = learned.chips.predicted_s(learned.chips.best()[0][1], seen)
    ops = ops_of(graph, on)
    by_terms = chip_quantities(ops, seen) @ five_terms(ops, on, calibration.samples)
    for fit, predicted_s in (("calibrate", by_fit), ("five terms", by_terms)):
        off = np.abs(predicted_s / seen.seconds - 1)
        print(f"  {fit}: error of {len(off)} chips {off.mean():.1%}, median {np.median(off):.1%}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+")
    parser.add_argument("--target", type=Path, required=True, help="of go-opt profile")
    parser.add_argument("--folder", type=Path, help="keep models and samples here")
    parser.add_argument("--seconds", type=float, default=np.inf, help="by the clock, for each model")
    options = parser.parse_args()
    vars(calibrating).update(optimize=unreplicated)
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            end_s = time.time() + options.seconds
            compare(name, go_opt.target(options.target), options.folder or Path(folder), end_s)


if __name__ == "__main__":
    main()
