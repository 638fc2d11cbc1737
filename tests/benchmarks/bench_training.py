"""What do the decisions of a training step earn, and how close is the proof?

    python tests/benchmarks/bench_training.py

Prints the best step of each model with its proven gap, the seconds of processor time of the search, and how
much longer the best step is without a decision: with layers divided evenly among ranks (*even*), with that
and one kind of recomputation for all layers (*one kind*), with one stage a device (*1F1B*), without ZeRO, and
with gradients summed behind the last pass (*no overlap*).
Rows with a number of ranks have the pipeline's degree given.

Where CALCULON names a checkout of Calculon, the same search runs under Calculon's cost, against Calculon's
evaluation of the full grid of its own options: the best step is never worse, in a tenth of the time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import numpy as np

from go_opt.env import load_target
from go_opt.parallel import Case, Configuration, cost_step, plan_step
from go_opt.parallel.configuration import RECOMPUTE
from go_opt.parallel.search import Candidate, candidates, solve
from go_opt.parallel.step import pipeline_s
from tests.benchmarks.calculon_cost import VARIABLE, CalculonCase, calculon_grid, calculon_step, checkout

BUDGET_S: Final = 120.0
CHECKED: Final = 100  # configurations
RIVAL: Final = ("18.4B", "39.1B", "175B", "1T")
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
    "9B, 256k tokens": (
        "gpt:hidden=3584,layers=42,heads=16,kv_heads=8,mlp=14336,gated=on,sequence=4096,vocabulary=256000",
        64,
        128,
    ),
    "50 layers": ("gpt:hidden=12288,layers=50,heads=96,sequence=2048", 512, 1536),
}
# With the pipeline's degree given: the head weighs some layers, or the ranks do not divide the layers.
OF_RANKS: Final = (("8B, 128k tokens", 8), ("9B, 256k tokens", 4), ("9B, 256k tokens", 8), ("50 layers", 8))


def even_s(one: Candidate) -> float:
    """With layers divided evenly, each of which recomputes what it wants."""
    counts = [sum(layers) for layers in cost_step(one.case, one.chosen).layers]
    seconds, _ = one.table(np.inf)
    if max(counts) >= seconds.shape[1]:
        return np.inf
    of_ranks, v = seconds[np.arange(len(counts)), counts], one.chosen.stages_per_device
    return pipeline_s(of_ranks.tolist(), int(one.number), v, one.block.head_s) + one.fixed_s


def one_kind_s(one: Candidate) -> float:
    """With layers divided evenly and one kind of recomputation for all."""
    if max(sum(layers) for layers in cost_step(one.case, one.chosen).layers) % one.chosen.stages_per_device:
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


def our_row(name: str, ranks: int | None) -> str:
    """The best step, and without each decision; of all pipelines or of one with so many ranks."""
    model, devices, batch = CASES[name]
    case = Case.read(model, load_target(f"dgx-a100-{devices}"), batch)

    def allows(chosen: Configuration) -> bool:
        return ranks is None or chosen.pipeline == ranks

    plan_step(case, BUDGET_S, allows=allows)
    begin = time.process_time()
    plan = plan_step(case, BUDGET_S, allows=allows)
    took = time.process_time() - begin
    assert devices < 3072 or plan.gap <= 0.02, name
    assert took <= 2.0, name
    ranked = sorted(candidates(case, allows), key=lambda one: one.formula_s(one.least_work_s))
    others = (
        least(ranked, even_s),
        least(ranked, one_kind_s),
        least((one for one in ranked if one.chosen.stages_per_device == 1), None),
        least((one for one in ranked if one.chosen.zero == 0), None),
        least((one for one in ranked if not one.chosen.overlap), None),
    )
    cells = [f"{other / plan.best.step_s:.3f}x" if np.isfinite(other) else "none" for other in others]
    first = [str(devices), f"{plan.best.step_s:.3f} s", f"{plan.gap:.2%}", f"{took:.2f} s"]
    named = name if ranks is None else f"{name}, {ranks} ranks"
    return f"| {named} | {' | '.join([*first, *cells])} |"


def is_known(chosen: Configuration) -> bool:
    """Whether Calculon's grid has it."""
    return chosen.zero < 2 and not chosen.overlap


def rival_row(name: str) -> str:
    """The search under Calculon's cost, and Calculon on its own grid; times are of the processor."""
    model, devices, batch = CASES[name]
    case = CalculonCase.read(model, load_target(f"dgx-a100-{devices}"), batch)
    calculon_step(case.model, batch, next(calculon_grid(case)))  # loads it
    begin = time.process_time()
    plan = plan_step(case, BUDGET_S, allows=is_known)
    ours_s = time.process_time() - begin
    begin, grid = time.process_time(), list(calculon_grid(case))
    found = [calculon_step(case.model, batch, one, limits_memory=True) for one in grid]
    theirs_s = time.process_time() - begin
    best_s = min(one.get_total_time() for one in found if one is not None)
    # A grid's interleaved schedules may have micro-batches in any number, ours in multiples of the ranks.
    alike = [one for one in grid if one.stages_per_device == 1 or not one.micro_batches(batch) % one.pipeline]
    for k in np.random.default_rng(0).choice(len(alike), CHECKED, replace=False):
        whole = calculon_step(case.model, batch, alike[k])
        if whole is not None:
            step = cost_step(case, alike[k])
            assert np.isclose(step.step_s, whole.get_total_time(), rtol=1e-9), alike[k]
            assert np.isclose(max(step.memory_bytes), whole.get_mem_tier1_cap_req(), rtol=1e-9), alike[k]
    assert plan.best.step_s <= best_s * (1 + 1e-9), name
    assert ours_s <= 0.1 * theirs_s, name
    cells = (
        f"{len(grid)}", f"{theirs_s:.1f} s", f"{best_s:.3f} s",
        f"{plan.configurations}", f"{ours_s:.2f} s", f"{plan.best.step_s:.3f} s", f"{plan.gap:.2%}",
    )  # fmt: skip
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    columns = ("GPUs", "best", "gap", "search", "even", "one kind", "1F1B", "no ZeRO", "no overlap")
    print(f"| | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}")
    for name, ranks in [*((name, None) for name in CASES), *OF_RANKS]:
        print(our_row(name, ranks), flush=True)
    if checkout() is None:
        print(f"without Calculon: {VARIABLE} names no checkout of it")
        return
    columns = ("grid", "time", "best", "ours", "time", "best", "gap")
    print(f"\n| | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}")
    for name in RIVAL:
        print(rival_row(name), flush=True)


if __name__ == "__main__":
    main()
