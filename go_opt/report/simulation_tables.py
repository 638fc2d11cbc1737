"""Tables of a simulated evaluation: the load and the waiting time of each chip and link."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np
from rich.console import Console
from rich.table import Table

from go_opt.common.arrays import IntArray
from go_opt.common.units import format_duration
from go_opt.env import Metrics, Target
from go_opt.env.copies.stages import size_by_chip
from go_opt.env.model.metrics import STALL_CAUSES, Simulation
from go_opt.model.plan import Plan
from go_opt.report.parts.screen import print_lines, print_table
from go_opt.report.parts.wording import binds, stage_cell, table_of

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
