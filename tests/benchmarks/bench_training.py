"""What do the decisions of a training step earn, and how close is the proof?

    python tests/benchmarks/bench_training.py

Prints the best step of each model with its proven gap, the seconds of processor time of the search, and how
much longer the best step is without a decision: with as many layers on each rank (*even*), with one kind of
recomputation for all layers and even ranks (*one kind*), with one stage a device (*1F1B*), without ZeRO.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import numpy as np

from go_opt.env import load_target
from go_opt.parallel import Case, cost_step, plan_step
from go_opt.parallel.configuration import RECOMPUTE
from go_opt.parallel.search import solve
from go_opt.parallel.space import Candidate, candidates
from go_opt.parallel.step import pipeline_s

BUDGET_S: Final = 120.0
CASES: Final = {
    "18.4B": ("gpt:hidden=6144,layers=40,heads=48,sequence=2048", 256, 1024),
    "39.1B": ("gpt:hidden=8192,layers=48,heads=64,sequence=2048", 512, 1536),
    "175B": ("gpt:hidden=12288,layers=96,heads=96,sequence=2048", 512, 1536),
    "1T": ("gpt:hidden=25600,layers=128,heads=160,sequence=2048", 3072, 3072),
    "8B, 128k tokens": (
        "gpt:hidden=4096,layers=32,heads=32,kv_heads=8,mlp=14336,gated=on,sequence=8192,vocabulary=128256",
        64,
        128,
    ),
    "50 layers": ("gpt:hidden=12288,layers=50,heads=96,sequence=2048", 512, 1536),
}


def even_s(one: Candidate) -> float:
    """With as many layers on each rank, each of which recomputes what it wants."""
    each, rest = divmod(one.case.model.layers, one.chosen.pipeline)
    seconds, _ = one.table(np.inf)
    if rest or each >= seconds.shape[1] or not np.isfinite(seconds[:, each]).all():
        return np.inf
    v = one.chosen.stages_per_device
    return pipeline_s(seconds[:, each].tolist(), int(one.number), v) + one.fixed_s


def one_kind_s(one: Candidate) -> float:
    """With as many layers on each rank and one kind of recomputation for all."""
    if one.case.model.layers % one.chosen.pipeline:
        return np.inf
    steps = [cost_step(one.case, replace(one.chosen, recompute=kind)) for kind in RECOMPUTE]
    return min((step.step_s for step in steps if not step.lacks), default=np.inf)


def solved_s(one: Candidate, at_most_s: float) -> float:
    found = solve(one, at_most_s)
    return np.inf if found is None else found.step_s


def least(ranked: Iterable[Candidate], seconds: object) -> float:
    best_s = np.inf
    for one in ranked:
        if one.formula_s(one.least_fitting_work_s) < best_s:
            took = seconds(one) if seconds is not None else solved_s(one, best_s)  # type: ignore[operator]
            best_s = min(best_s, took)
    return best_s


def main() -> None:
    columns = ("GPUs", "best", "gap", "search", "even", "one kind", "1F1B", "no ZeRO")
    print(f"| | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}")
    for name, (model, devices, batch) in CASES.items():
        case = Case.read(model, load_target(f"dgx-a100-{devices}"), batch)
        plan_step(case, BUDGET_S)
        begin = time.process_time()
        plan = plan_step(case, BUDGET_S)
        took = time.process_time() - begin
        ranked = sorted(candidates(case), key=lambda one: one.formula_s(one.least_work_s))
        others = (
            least(ranked, even_s),
            least(ranked, one_kind_s),
            least((one for one in ranked if one.chosen.stages_per_device == 1), None),
            least((one for one in ranked if one.chosen.zero == 0), None),
        )
        cells = [f"{other / plan.best.step_s:.3f}x" if np.isfinite(other) else "none" for other in others]
        first = [str(devices), f"{plan.best.step_s:.3f} s", f"{plan.gap:.2%}", f"{took:.2f} s"]
        print(f"| {name} | {' | '.join([*first, *cells])} |", flush=True)


if __name__ == "__main__":
    main()
