"""What would make a training step faster: the same plan, costed with one figure changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from go_opt.env import Target
from go_opt.parallel.case import Case
from go_opt.parallel.machine import Machine
from go_opt.parallel.step import Step


class Gain(NamedTuple):
    """A change, and the step with it."""

    what: str
    step_s: float


def gains(step: Step) -> list[Gain]:
    """Each change with the seconds of the step with it, the largest gain first."""
    found = [Gain(what, Step(case, step.chosen, step.layers).step_s) for what, case in _changes(step.case)]
    if step.chosen.pipeline > 1:
        found.append(Gain("no bubble", step.step_s - step.terms_s["bubble_s"]))
    return sorted((one for one in found if one.step_s < step.step_s), key=lambda one: one.step_s)


def _changes(case: Case) -> Iterator[tuple[str, Case]]:
    target = case.machine.target

    def changed(change: Callable[[Target], Target]) -> Case:
        return replace(case, machine=Machine(change(target)))

    yield "twice the rate of products", changed(_with_fast_products)
    yield "twice the bandwidth of the memory", changed(_with_fast_memory)
    yield "twice the rate within nodes", changed(_with_fast_node)
    if len(target.levels) > 1:
        yield "twice the rate among nodes", changed(_with_fast_cluster)
    yield "a host that takes no time", changed(_with_fast_host)


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
