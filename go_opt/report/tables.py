"""Tables for people: the plan stage by stage, what each method added, the targets."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from rich.text import Text

from go_opt.env import Metrics, Target
from go_opt.env.stages import size_by_chip
from go_opt.graph import Graph
from go_opt.plan import Plan
from go_opt.report.simulation_tables import print_simulation
from go_opt.report.stage_names import StageNames, binds, stage_cell
from go_opt.report.units import format_bytes, format_duration, format_ratio
from go_opt.result import OptimizeResult, Step


def console() -> Console:
    """A console as wide as the terminal; where there is none, wide enough for every table."""
    width = None if sys.stdout.isatty() else 240
    return Console(highlight=False, width=width)


def print_result(console: Console, graph: Graph, target: Target, result: OptimizeResult) -> None:
    """The chips with their load, what each method added, and the summary."""
    console.print(chips_table(target, result.plan, result.metrics))
    metrics = result.metrics
    print_simulation(console, target, result.plan, metrics)
    console.print(history_table(result))
    speedup = result.reference_s / _objective_s(result)
    against = (
        f"{speedup:.2f}x the greedy heuristic" if math.isfinite(speedup) else "greedy finds no valid plan"
    )
    lines = [
        f"{graph.name} on {target.name}: {graph.num_ops} ops on {result.plan.chips_used} of "
        f"{target.num_chips} chips, {_num_kernels(result.plan)} kernels{_copies_text(result.plan)}",
        f"interval    {format_duration(metrics.interval_s)} ({metrics.throughput_per_s:.6g} inferences/s), "
        f"{against}",
        f"latency     {format_duration(metrics.latency_s)}, alone {format_duration(metrics.makespan_s)}",
        f"bottleneck  {StageNames.of_plan(result.plan).term(metrics.bottleneck)}",
        f"bound       {format_duration(result.lower_bound_s or math.inf)}: {result.bound_reason}",
        f"status      {result.status}, gap {format_ratio(result.gap)}, by {result.method!r}, "
        f"{result.evaluations} evaluations in {result.wall_s:.2f} s",
    ]
    for line in lines:
        console.print(Text(line), soft_wrap=True)


def print_metrics(console: Console, target: Target, plan: Plan, metrics: Metrics) -> None:
    """The chips with their load and the interval of a plan."""
    console.print(chips_table(target, plan, metrics))
    print_simulation(console, target, plan, metrics)
    validity = "valid" if metrics.valid else f"INVALID: {metrics.reason}"
    summary = (
        f"interval {format_duration(metrics.interval_s)}, latency {format_duration(metrics.latency_s)}, "
        f"bottleneck {StageNames.of_plan(plan).term(metrics.bottleneck)}, {validity}"
        if math.isfinite(metrics.interval_s)
        else f"does not run, {validity}"
    )
    console.print(Text(summary + _copies_text(plan)), soft_wrap=True)


def chips_table(target: Target, plan: Plan, metrics: Metrics) -> Table:
    """One row a chip, or replicated stage, in use; loads in percent of the interval, the bottleneck marked.

    Times of a stage are shares of its chips, of an interval; it sends from its last one.
    """
    table = Table(title=None, header_style="bold", box=None, padding=(0, 1))
    ops = np.bincount(plan.placement, minlength=target.num_chips)
    copies = _copies_by_chip(target, plan)
    names = ("compute", "load", "", "sends", "load", "weights", "activations", "streamed")
    for name in ("chip", "ops", *copies, *names):
        table.add_column(name, justify="left" if name in ("", "chip") else "right", no_wrap=True)
    sent_s = np.zeros(target.num_chips)
    leaves = target.topology.link_from
    has_source = leaves >= 0
    np.maximum.at(sent_s, leaves[has_source], metrics.link_s[: len(leaves)][has_source])
    size = size_by_chip(plan.placement, plan.replication, target.num_chips)
    for chip in np.flatnonzero(sum(copies.values(), start=ops)).tolist():
        last = min(chip + int(size[chip]), target.num_chips) - 1
        load, sent = (seconds / metrics.interval_s if metrics.interval_s else 0.0
                      for seconds in (metrics.compute_s[chip], sent_s[last]))  # fmt: skip
        table.add_row(
            stage_cell(chip, int(size[chip])),
            str(ops[chip]),
            *(str(number[chip] or "-") for number in copies.values()),
            format_duration(metrics.compute_s[chip]),
            f"{load:.0%}",
            _bar(load),
            format_duration(sent_s[last]) if sent_s[last] else "-",
            f"{sent:.0%}" if sent_s[last] else "-",
            format_bytes(int(metrics.weight_bytes[chip])),
            format_bytes(int(metrics.peak_bytes[chip])),
            format_bytes(int(metrics.stream_bytes[chip])) if metrics.stream_bytes[chip] else "-",
            style="bold" if binds(metrics.bottleneck, chip, last) else None,
        )
    for name, seconds in zip(target.link_names[-2:], metrics.link_s[-2:], strict=True):
        load = seconds / metrics.interval_s if metrics.interval_s else 0.0
        style = "bold" if metrics.bottleneck == name else None
        blank = [""] * (1 + len(copies))
        table.add_row(name, *blank, format_duration(seconds), f"{load:.0%}", _bar(load), style=style)
    return table


def _copies_by_chip(target: Target, plan: Plan) -> dict[str, NDArray[np.int64]]:
    """By what there is of them, relays and clones: their number on each chip [D]."""
    chips = {
        "relays": [chip for relay in plan.relays for chip in relay.chips],
        "clones": [clone.chip for clone in plan.clones],
    }
    return {name: np.bincount(on, minlength=target.num_chips) for name, on in chips.items() if on}


def _copies_text(plan: Plan) -> str:
    relays = sum(len(relay.chips) for relay in plan.relays)
    named = ((relays, "relay"), (len(plan.clones), "clone"))
    return "".join(f", {number} {name}{'s' * (number > 1)}" for number, name in named if number)


def history_table(result: OptimizeResult) -> Table:
    """One row a method: how often it was asked, its best, and what it added."""
    table = Table(title=None, header_style="bold", box=None, padding=(0, 1))
    for name in ("method", "evaluations", "its best", "best so far", "added", "after"):
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    before_s = math.inf
    for steps in _by_method(result.history):
        best_s = steps[-1].best_s
        added = before_s / best_s - 1.0 if math.isfinite(before_s) else 0.0
        table.add_row(
            steps[0].method,
            str(len(steps)),
            format_duration(min(step.objective_s for step in steps)),
            format_duration(best_s),
            f"{added:.1%}" if added > 0 else "-",
            f"{steps[-1].elapsed_s:.2f} s",
        )
        before_s = best_s
    return table


def targets_table(targets: Sequence[Target]) -> Table:
    """The targets that ship, one row each."""
    table = Table(title=None, header_style="bold", box=None, padding=(0, 1))
    for name in ("name", "chips", "links", "native type", "description"):
        table.add_column(name, justify="right" if name in ("chips", "links") else "left", no_wrap=True)
    for target in targets:
        table.add_row(
            target.name,
            str(target.num_chips),
            f"{target.topology.num_links} ({target.topology.kind})",
            target.native_dtype,
            target.description,
        )
    return table


def _by_method(history: Sequence[Step]) -> list[list[Step]]:
    """Steps of one method together, methods in the order of their first step."""
    groups: dict[str, list[Step]] = {}
    for step in history:
        groups.setdefault(step.method, []).append(step)
    return list(groups.values())


def _objective_s(result: OptimizeResult) -> float:
    return result.metrics.makespan_s if result.objective == "latency" else result.metrics.interval_s


def _num_kernels(plan: Plan) -> int:
    return int(plan.fusion_group.max()) + 1


def _bar(share: float) -> str:
    return "#" * round(min(share, 1.0) * 10)
