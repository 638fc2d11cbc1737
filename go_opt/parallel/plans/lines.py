"""Training steps as lines."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Final

from go_opt.common.units import format_bytes, format_duration, format_ratio
from go_opt.parallel.configuration import RECOMPUTE, Configuration
from go_opt.parallel.pairs import pairs_text
from go_opt.parallel.plans.gains import Gain
from go_opt.parallel.schedule import simulate
from go_opt.parallel.search import StepPlan
from go_opt.parallel.step import Layers, Step

TERMS: Final = {
    "compute_s": "kernels, forwards and backwards",
    "recompute_s": "kernels that run again",
    "host_s": "waiting for the host",
    "collectives_s": "collectives of tensor and expert parallelism",
    "bubble_s": "idle in the pipeline",
    "messages_s": "messages between stages",
    "reduction_s": "gradients and weights among replicas",
    "optimizer_s": "update of the weights",
}


def result_lines(found: Step | StepPlan) -> Iterator[str]:
    """A costed step, or the answer of a search."""
    return _plan_lines(found) if isinstance(found, StepPlan) else _step_lines(found)


def _step_lines(step: Step) -> Iterator[str]:
    """The step's time, its parts, and the memory of the fullest rank."""
    tokens_per_s = step.case.batch * step.case.model.sequence / step.step_s
    number = step.chosen.micro_batches(step.case.batch)
    passed = "1 micro-batch" if number == 1 else f"{number} micro-batches"
    yield f"step        {format_duration(step.step_s)} ({tokens_per_s:.4g} tokens/s), {passed}"
    for name, seconds in step.terms_s.items():
        if seconds > 0:
            share = seconds / step.step_s
            yield f"  {format_duration(seconds):>10}  {share:4.0%}  {TERMS[name]}"
    most = max(step.memory_bytes)
    rank = step.memory_bytes.index(most)
    limit = format_bytes(step.case.memory_bytes)
    yield f"memory      {format_bytes(most)} of {limit}, rank {rank} of {len(step.memory_bytes)}"
    if step.lacks:
        yield f"lacks       {' '.join(step.lacks[:4])}{' …' if len(step.lacks) > 4 else ''}"


def _plan_lines(plan: StepPlan) -> Iterator[str]:
    """The first choice with its layers, the bound, and the choices behind it."""
    best = plan.best
    yield f"plan        {parallel_text(best.chosen)}"
    yield f"layers      {_layers_text(best)}"
    yield from _step_lines(best)
    yield f"simulated   {format_duration(simulate(best).step_s)}"
    below = f"no schedule in any of {plan.configurations} configurations is below"
    yield f"bound       {format_duration(plan.lower_bound_s)}: {below}"
    how = "" if plan.is_complete else ", stopped early"
    yield f"status      {plan.status}, gap {format_ratio(plan.gap)}, in {plan.wall_s:.2f} s{how}"
    for step in plan.choices[1:]:
        yield f"next        {format_duration(step.step_s)}  {parallel_text(step.chosen)}"


def explanation_lines(step: Step, gains: list[Gain]) -> Iterator[str]:
    """A step, and what would make it faster."""
    yield from _step_lines(step)
    for gain in gains:
        saved_s = step.step_s - gain.step_s
        yield f"gain        {format_duration(saved_s)} ({saved_s / step.step_s:.0%}) with {gain.what}"


def parallel_text(chosen: Configuration) -> str:
    """The text of a configuration, as ``--parallel`` takes it, without what is at its default."""
    default = Configuration()
    return pairs_text(
        {name: value for name, value in vars(chosen).items() if value != getattr(default, name)}
    )


def _layers_text(step: Step) -> str:
    """Layers of ranks, runs of equal ranks together: ``6 x 12 (none), 2 x 12 (9 none, 3 full)``."""
    texts = []
    for layers, run in groupby(step.layers):
        texts.append(f"{len(list(run))} x {sum(layers)} ({kinds_text(layers)})")
    return ", ".join(texts) + " recomputed"


def kinds_text(layers: Layers) -> str:
    """What layers of a rank recompute: ``none``, or ``9 none, 3 full``."""
    kinds = [(n, name) for n, name in zip(layers, RECOMPUTE, strict=True) if n]
    return kinds[0][1] if len(kinds) == 1 else ", ".join(f"{n} {name}" for n, name in kinds)
