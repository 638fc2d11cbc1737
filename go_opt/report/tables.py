"""Text tables: a plan by stage, its simulation, the gain of each method, the targets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
from rich.console import Console
from rich.table import Table

from go_opt.common.arrays import IntArray
from go_opt.common.units import format_bytes, format_duration, format_ratio
from go_opt.env import Metrics, Target
from go_opt.env.copies.stages import size_by_chip
from go_opt.env.critical_path import critical_path
from go_opt.env.model.metrics import STALL_CAUSES, Simulation
from go_opt.explanations.uses import host_states, rewrite_uses, split_uses
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.report.parts.plan_lines import (
    Fact,
    answer_facts,
    bound_fact,
    change_facts,
    lines_of,
    model_facts,
    simulated_fact,
    unpaired_facts,
)
from go_opt.report.parts.screen import print_lines, print_table
from go_opt.report.parts.wording import (
    StageNames,
    binds,
    counted,
    some,
    stage_cell,
    table_of,
)
from go_opt.result import Objective, OptimizeResult, Step


def print_result(
    console: Console, graph: Graph, target: Target, result: OptimizeResult, *, verbose: bool = False
) -> None:
    """Print the result, the load of the chips and, if ``verbose``, the gain of each method."""
    plan, metrics = result.plan, result.metrics
    speedup = result.reference_s / result.objective_s
    against = (
        f"{speedup:.2f}x the greedy heuristic" if math.isfinite(speedup) else "greedy finds no valid plan"
    )
    facts = [
        *_model_facts(graph, target, plan, metrics),
        *_answer_facts(graph, target, plan, metrics, result.objective, against),
    ]
    is_latency = result.objective == "latency"
    simulated_s = result.simulated_makespan_s if is_latency else result.simulated_interval_s
    if simulated_s is not None:
        facts.append(
            simulated_fact(result.objective, result.objective_s, simulated_s, result.simulation_note)
        )
    fitted = f"fitted to {target.fitted_to}; times and bounds hold for them"
    lines = [
        f"{graph.name} on {target.name}: {plan_text(graph, target, plan)}",
        *lines_of([Fact("figures", fitted)] * bool(target.fitted_to)),
        *lines_of([*facts, bound_fact(result.lower_bound_s, result.bound_reason)]),
        f"status      {_STATUS.get(result.status, result.status)}, gap {format_ratio(result.gap)}, "
        f"by {result.method!r}, {result.evaluations} evaluations in {result.wall_s:.2f} s",
        *lines_of(unpaired_facts(graph)),
        *(f"dropped     {method}" for method in result.dropped_methods),
    ]
    _print_plan(console, lines, target, plan, metrics, result.objective)
    if verbose:
        console.print()
        print_table(console, history_table(result))


_STATUS: Final = {"OPTIMAL": "OPTIMAL for the cost model"}


def print_metrics(
    console: Console, graph: Graph, target: Target, plan: Plan, metrics: Metrics, objective: Objective
) -> None:
    """Print the cost of a plan and the load of its chips."""
    validity = f"{'valid' if metrics.valid else f'INVALID: {metrics.reason}'}{_relays_text(plan)}"
    lines = [f"does not run, {validity}"]
    if math.isfinite(metrics.interval_s):
        facts = (
            _model_facts(graph, target, plan, None),
            _answer_facts(graph, target, plan, metrics, objective),
        )
        lines = [line for some_of in facts for line in lines_of(some_of)]
        lines += [f"status      {validity}", *lines_of(unpaired_facts(graph))]
    _print_plan(console, lines, target, plan, metrics, objective)


def _print_plan(
    console: Console,
    lines: Iterable[str],
    target: Target,
    plan: Plan,
    metrics: Metrics,
    objective: Objective,
) -> None:
    print_lines(console, lines)
    console.print()
    print_table(console, chips_table(target, plan, metrics, objective))
    print_simulation(console, target, plan, metrics)


def _model_facts(graph: Graph, target: Target, plan: Plan, metrics: Metrics | None) -> Iterator[Fact]:
    """Of the model, and how its ops were rewritten and split; with ``metrics``, of states on the host."""
    on_host = () if metrics is None else host_states(graph, target, plan, metrics)
    yield from model_facts(graph, target.native_dtype, on_host)
    yield from change_facts(rewrite_uses(graph, plan), split_uses(graph, target, plan))


def _answer_facts(
    graph: Graph, target: Target, plan: Plan, metrics: Metrics, objective: Objective, against: str = ""
) -> Iterator[Fact]:
    """Of the plan's metrics; the critical path only if these are not simulated."""
    has_path = objective == "latency" and metrics.simulation is None
    path = critical_path(graph, target, plan) if has_path else None
    bottleneck = StageNames.of_plan(plan).term(metrics.bottleneck)
    return answer_facts(metrics, objective, bottleneck, path, against, plan.sequences)


def chips_table(target: Target, plan: Plan, metrics: Metrics, objective: Objective = "throughput") -> Table:
    """One row per chip or replicated stage in use; loads are shares of the interval, the bottleneck is bold.

    Times of a stage are per chip and interval; its last chip sends. If the objective is latency,
    loads are shares of the makespan and times are of one inference.
    """
    of_one = objective == "latency"
    whole_s = metrics.makespan_s if of_one else metrics.interval_s
    ops = np.bincount(plan.placement, minlength=target.num_chips)
    relays = np.bincount([d for relay in plan.relays for d in relay.chips], minlength=target.num_chips)
    relayed = ("relays",) if plan.relays else ()
    names = ("compute", "load", "", "sends", "load", "weights", "activations", "streamed")
    table = table_of(("chip", "ops", *relayed, *names), text=("", "chip"))
    sent_s = np.zeros(target.num_chips)
    leaves = target.topology.link_from
    has_source = leaves >= 0
    np.maximum.at(sent_s, leaves[has_source], metrics.link_s[: len(leaves)][has_source])
    size = size_by_chip(plan.placement, plan.replication, target.num_chips)

    def loaded(seconds: float) -> tuple[str, str, str]:
        load = seconds / whole_s if whole_s else 0.0
        return format_duration(seconds), f"{load:.0%}", "#" * round(min(load, 1.0) * 10)

    for chip in np.flatnonzero(ops + relays).tolist():
        last = min(chip + int(size[chip]), target.num_chips) - 1
        table.add_row(
            stage_cell(chip, int(size[chip])),
            str(ops[chip]),
            *(str(relays[chip] or "-") for _ in relayed),
            *loaded(metrics.compute_s[chip] * (int(size[chip]) if of_one else 1)),
            *(loaded(sent_s[last])[:2] if sent_s[last] else "--"),
            format_bytes(int(metrics.weight_bytes[chip])),
            format_bytes(int(metrics.peak_bytes[chip])),
            some(format_bytes, int(metrics.stream_bytes[chip])),
            style="bold" if binds(metrics.bottleneck, chip, last) and not of_one else None,
        )
    links = list(zip(target.link_names, metrics.link_s, strict=True))
    starts = [first for first in plan.forwards if first < target.num_chips]  # a wrong plan may name others
    inside = [link for first in starts for link in links[first : first + int(size[first]) - 1]]
    busiest = [max(inside, key=lambda link: float(link[1]))] if inside else []
    for name, seconds in [*busiest, *links[-2:]]:
        style = "bold" if metrics.bottleneck == name and not of_one else None
        table.add_row(name, *[""] * (1 + len(relayed)), *loaded(seconds), style=style)
    return table


def plan_text(graph: Graph, target: Target, plan: Plan) -> str:
    """The numbers of ops, chips, kernels and relays."""
    kernels = int(plan.fusion_group.max()) + 1
    return (
        f"{graph.num_ops} ops on {plan.chips_used} of {target.num_chips} chips, "
        f"{kernels} kernels{_relays_text(plan)}"
    )


def _relays_text(plan: Plan) -> str:
    relays = sum(len(relay.chips) for relay in plan.relays)
    return f", {counted(relays, 'relay')}" if relays else ""


def history_table(result: OptimizeResult) -> Table:
    """One row per method, in the order of their first steps: its evaluations, its best, and its gain."""
    by_method: dict[str, list[Step]] = {}
    for step in result.history:
        by_method.setdefault(step.method, []).append(step)
    table = table_of(("method", "evaluations", "its best", "best so far", "added", "after"), text=("method",))
    before_s = math.inf
    for method, steps in by_method.items():
        best_s = steps[-1].best_s
        added = before_s / best_s - 1.0 if math.isfinite(before_s) else 0.0
        table.add_row(
            method,
            str(len(steps)),
            format_duration(min(step.objective_s for step in steps)),
            format_duration(best_s),
            f"{added:.1%}" if added > 0 else "-",
            f"{steps[-1].elapsed_s:.2f} s",
        )
        before_s = best_s
    return table


def targets_table(targets: Sequence[Target]) -> Table:
    """The shipped targets, one row each."""
    columns = ("name", "chips", "links", "native type", "description")
    rows = (
        (one.name, one.num_chips, f"{one.topology.num_links} ({one.topology.kind})", one.native_dtype,
         one.description)
        for one in targets
    )  # fmt: skip
    return table_of(columns, rows, text=("name", "native type", "description"))


_ROUNDING_S: Final = 1e-12  # rounding error of float sums


def print_simulation(console: Console, target: Target, plan: Plan, metrics: Metrics) -> None:
    """Print the waiting times of chips and links per inference, unless the plan does not run."""
    simulation = metrics.simulation
    if simulation is None or not math.isfinite(metrics.interval_s):
        return
    size = size_by_chip(plan.placement, plan.replication, target.num_chips)
    console.print()
    print_table(console, stalls_table(size, metrics, simulation))
    console.print()
    print_table(console, links_table(size, target, metrics, simulation))
    period = (
        f"everything repeats after {simulation.period}"
        if simulation.period
        else "no steady period found, the interval is the mean of the second half"
    )
    print_lines(console, [f"simulated {simulation.inferences} inferences: {period}"])


def stalls_table(size: IntArray, metrics: Metrics, simulation: Simulation) -> Table:
    """One row per chip that computes: its utilisation, and its waiting times per inference.

    Args:
      size: [D] number of chips of the stage that starts at each chip; a stage's row shows means.
    """
    table = table_of(("chip", "utilisation", *(f"waits for {cause}" for cause in STALL_CAUSES)))
    for first, end in _stages(size):
        if not metrics.compute_s[first:end].any():
            continue
        table.add_row(
            stage_cell(first, end - first),
            f"{simulation.utilisation[first:end].mean():.0%}",
            *(_waiting(stall_s) for stall_s in simulation.stall_s[first:end].mean(axis=0)),
            style="bold" if binds(metrics.bottleneck, first, end - 1) else None,
        )
    return table


def links_table(size: IntArray, target: Target, metrics: Metrics, simulation: Simulation) -> Table:
    """One row per link in use: its load, and the waiting time of tensors for it per inference.

    Of the links inside a stage, only the busiest has a row.
    """
    table = table_of(("link", "transfers", "load", "tensors wait"))
    inside = [range(first, end - 1) for first, end in _stages(size)]
    hidden = {link for links in inside for link in links} - {
        max(links, key=lambda link: float(metrics.link_s[link])) for links in inside if links
    }
    for link in np.flatnonzero(metrics.link_s).tolist():
        if link in hidden:
            continue
        table.add_row(
            target.link_names[link],
            format_duration(metrics.link_s[link]),
            f"{simulation.link_utilisation[link]:.0%}",
            _waiting(simulation.link_wait_s[link]),
            style="bold" if metrics.bottleneck == target.link_names[link] else None,
        )
    return table


def _stages(size: IntArray) -> Iterator[tuple[int, int]]:
    """The first chip of each stage, and the chip after its last."""
    chip = 0
    while chip < len(size):
        yield chip, min(chip + int(size[chip]), len(size))
        chip += int(size[chip])


def _waiting(seconds: float) -> str:
    return format_duration(seconds) if seconds > _ROUNDING_S else "-"
