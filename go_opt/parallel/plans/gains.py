"""What would make a training step faster: another figure of the target, or the same plan divided anew."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from go_opt.env import Target
from go_opt.parallel.case import Case
from go_opt.parallel.configuration import Configuration
from go_opt.parallel.machine import Machine
from go_opt.parallel.search import solve
from go_opt.parallel.space import candidate
from go_opt.parallel.step import Step

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
