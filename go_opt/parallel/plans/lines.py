"""Training steps as lines, and what would make one faster."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import Final, NamedTuple

from go_opt.common.units import format_bytes, format_duration, format_ratio
from go_opt.env import Target
from go_opt.parallel.case import Case
from go_opt.parallel.configuration import RECOMPUTE, Configuration
from go_opt.parallel.machine import Machine
from go_opt.parallel.schedule import simulate
from go_opt.parallel.search import StepPlan, solve
from go_opt.parallel.space import candidate
from go_opt.parallel.step import Layers, Step
from go_opt.parallel.transformer import pairs_text

_LESS: Final = 1.0 - 1e-9


class Gain(NamedTuple):
    """A change, and the step with it."""

    what: str
    step_s: float


def gains(step: Step) -> list[Gain]:
    """Each change with the seconds of the step with it, the largest gain first."""
    case, chosen = step.case, step.chosen
    found = [Gain(what, Step(changed, chosen, step.layers).step_s) for what, changed in _changes(case)]
    if chosen.pipeline > 1:
        found.append(Gain("no bubble", step.step_s - step.terms_s["bubble_s"]))
    now_s, roomy_s = (_divided_s(one, chosen) for one in (case, _changed(case, _with_more_memory)))
    found.append(Gain("other layers and recomputation on its ranks", now_s))
    if roomy_s < now_s:
        found.append(Gain("a tenth more memory, layers divided anew", roomy_s))
    if len(case.machine.target.levels) > 1 and chosen.micro_batches(case.batch) % (2 * chosen.pipeline) == 0:
        more = replace(chosen, data=2 * chosen.data)
        found.append(
            Gain(
                "twice the nodes, as replicas",
                Step(_changed(case, _with_more_nodes), more, step.layers).step_s,
            )
        )
    return sorted((one for one in found if one.step_s < step.step_s * _LESS), key=lambda one: one.step_s)


def _divided_s(case: Case, chosen: Configuration) -> float:
    """The step with the best layers and recomputation on each rank; infinite if none fits."""
    found = solve(candidate(case, chosen), math.inf)
    return math.inf if found is None else found.step_s


def _changed(case: Case, change: Callable[[Target], Target]) -> Case:
    return replace(case, machine=Machine(change(case.machine.target)))


def _changes(case: Case) -> Iterator[tuple[str, Case]]:
    yield "twice the rate of products", _changed(case, _with_fast_products)
    yield "twice the bandwidth of the memory", _changed(case, _with_fast_memory)
    yield "twice the rate within nodes", _changed(case, _with_fast_node)
    if len(case.machine.target.levels) > 1:
        yield "twice the rate among nodes", _changed(case, _with_fast_cluster)
    yield "a host that takes no time", _changed(case, _with_fast_host)


def _with_fast_products(target: Target) -> Target:
    kind = target.kinds[0]
    rates = {name: 2.0 * rate for name, rate in kind.matrix_flops_per_s.items()}
    return replace(target, kinds=(replace(kind, matrix_flops_per_s=rates),))


def _with_fast_memory(target: Target) -> Target:
    kind = target.kinds[0]
    return replace(target, kinds=(replace(kind, sram_bytes_per_s=2.0 * kind.sram_bytes_per_s),))


def _with_fast_node(target: Target) -> Target:
    within, *above = target.levels
    faster = tuple(
        replace(one, link_bytes_per_s=2.0 * one.link_bytes_per_s, copy_bytes_per_s=2.0 * one.copy_bytes_per_s)
        for one in target.collectives
    )
    fast = replace(within, rate_bytes_per_s=2.0 * within.rate_bytes_per_s)
    return replace(target, collectives=faster, levels=(fast, *above))


def _with_fast_cluster(target: Target) -> Target:
    within, among = target.levels
    fast = replace(among, rate_bytes_per_s=2.0 * among.rate_bytes_per_s)
    return replace(target, levels=(within, fast))


def _with_fast_host(target: Target) -> Target:
    within, *above = target.levels
    return replace(target, levels=(replace(within, host_s_per_layer=0.0), *above))


def _with_more_memory(target: Target) -> Target:
    kind = target.kinds[0]
    return replace(target, kinds=(replace(kind, sram_bytes=int(1.1 * kind.sram_bytes)),))


def _with_more_nodes(target: Target) -> Target:
    within, among = target.levels
    return replace(target, levels=(within, replace(among, size=2 * among.size)))


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
