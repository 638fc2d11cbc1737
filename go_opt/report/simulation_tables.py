"""Tables of a simulated evaluation: what keeps every chip and link busy, and what it waits for."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from go_opt.env import Metrics, Target
from go_opt.env.metrics import STALL_CAUSES, Simulation
from go_opt.report.units import format_duration

_ROUNDING_S: Final = 1e-12  # what sums of floats leave over


def print_simulation(console: Console, target: Target, metrics: Metrics) -> None:
    """Waiting of chips and links in one inference; nothing where the plan does not run."""
    simulation = metrics.simulation
    if simulation is None or not math.isfinite(metrics.interval_s):
        return
    console.print(stalls_table(metrics, simulation))
    console.print(links_table(target, metrics, simulation))
    period = (
        f"everything repeats after {simulation.period}"
        if simulation.period
        else "nothing repeats, the second half is measured"
    )
    console.print(Text(f"simulated {simulation.inferences} inferences: {period}"), soft_wrap=True)


def stalls_table(metrics: Metrics, simulation: Simulation) -> Table:
    """One row a chip that computes: its utilisation, and what it waits for in one inference."""
    table = _table("chip", "utilisation", *(f"waits for {cause}" for cause in STALL_CAUSES))
    for chip in np.flatnonzero(metrics.compute_s):
        table.add_row(
            str(chip),
            f"{simulation.utilisation[chip]:.0%}",
            *(_waiting(stall_s) for stall_s in simulation.stall_s[chip]),
            style="bold" if metrics.bottleneck.startswith(f"chip {chip} ") else None,
        )
    return table


def links_table(target: Target, metrics: Metrics, simulation: Simulation) -> Table:
    """One row a link that transfers: its load, and how long tensors wait for it in one inference."""
    table = _table("link", "transfers", "load", "tensors wait")
    for link in np.flatnonzero(metrics.link_s):
        table.add_row(
            target.link_names[link],
            format_duration(metrics.link_s[link]),
            f"{simulation.link_utilisation[link]:.0%}",
            _waiting(simulation.link_wait_s[link]),
            style="bold" if metrics.bottleneck == target.link_names[link] else None,
        )
    return table


def _waiting(seconds: float) -> str:
    return format_duration(seconds) if seconds > _ROUNDING_S else "-"


def _table(first: str, *names: str) -> Table:
    table = Table(title=None, header_style="bold", box=None, padding=(0, 1))
    table.add_column(first, no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    return table
