"""Random plans of training steps run on this machine: does each give what the step on one device gives?

python -m tests.benchmarks.bench_step_runs --cases 20
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from go_opt.env import load_target
from go_opt.errors import InvalidInputError
from go_opt.parallel import Case, Configuration, cost_step
from go_opt.parallel.configuration import pairs_text
from go_opt.parallel.execution.running import MOST_DEVICES, StepRun, run_step
from go_opt.parallel.plans.answers import StepAnswer
from go_opt.parallel.step import Step


def random_answer(rng: np.random.Generator) -> StepAnswer:
    """A plan of a tiny model on two to eight devices; with one stage a device its layers lie at random."""

    def one(*values: int) -> int:
        return int(rng.choice(values))

    while True:
        experts, layers = one(1, 1, 2, 4), one(1, 2, 3, 4, 5)
        sizes = {"hidden": 16, "heads": 4, "sequence": 8, "layers": layers, "vocabulary": one(32, 33, 37)}
        sizes |= {"kv_heads": one(1, 2, 4), "experts": experts, "experts_per_token": one(1, min(2, experts))}
        model = f"gpt:{pairs_text(sizes)},gated={rng.choice(['on', 'off'])}"
        t, p, d, e = one(1, 2, 4), one(1, 2, 2, 3, 4), one(1, 2, 3), one(1, 2)
        v = one(1, 1, 2) if p > 1 else 1
        parallel = {"tensor": t, "pipeline": p, "data": d, "expert": e, "micro_batch": one(1, 2)}
        parallel |= {"stages_per_device": v, "zero": one(0, 1, 2, 3), "sequence_parallel": bool(one(0, 1))}
        schedule = "interleaved" if v > 1 else rng.choice(["1f1b", "gpipe"])
        text = f"{pairs_text(parallel)},schedule={schedule},recompute={rng.choice(['none', 'full'])}"
        batch = d * e * parallel["micro_batch"] * one(1, 2, 3, 4)
        if not 2 <= t * p * d * e <= MOST_DEVICES:
            continue
        try:
            step = cost_step(Case.read(model, load_target(f"dgx-a100-{t * p * d * e}"), batch), text)
        except InvalidInputError:  # a degree does not divide a size
            continue
        return StepAnswer(step if v > 1 else with_random_layers(step, rng), model)


def with_random_layers(step: Step, rng: np.random.Generator) -> Step:
    """The step with layers divided among ranks at random, each of which recomputes what it happens to."""
    layers, ranks = step.case.model.layers, step.chosen.pipeline
    cuts = np.sort(rng.choice(np.arange(1, layers), ranks - 1, replace=False)) if ranks > 1 else []
    counts = np.diff([0, *cuts, layers])
    rows = [rng.multinomial(count, [1 / 3] * 3).tolist() for count in counts]
    return replace(step, layers=tuple((none, some, full) for none, some, full in rows))


def run(answer: StepAnswer) -> StepRun:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        answer.save(path)
        return run_step(answer.model, path, tolerance=1e-9)


def text_of(answer: StepAnswer) -> str:
    default = Configuration()
    chosen = {
        name: value for name, value in vars(answer.step.chosen).items() if value != getattr(default, name)
    }
    return f"{answer.model} batch {answer.step.case.batch} {pairs_text(chosen)} {answer.step.layers}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    worst = 0.0
    for number in range(given.cases):
        answer = random_answer(np.random.default_rng([given.seed, number]))
        result = run(answer)  # raises if anything differs
        gap = max(result.loss_difference, result.gradient_difference, result.weight_difference)
        assert all(rank.in_flight == rank.planned_in_flight for rank in result.ranks)
        print(f"{gap:.0e}  {text_of(answer)}", flush=True)
        worst = max(worst, gap)
    print(f"{given.cases} plans, all equal up to {worst:.0e}")


if __name__ == "__main__":
    main()
