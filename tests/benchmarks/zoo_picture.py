"""The picture of docs/zoo_graphs.md: sizes, compute, and what the first plans reach."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from go_opt.env.zoo import SPLITS

if TYPE_CHECKING:
    from bench_zoo import Row

COLORS = {"train": "tab:blue", "validation": "tab:orange", "test": "tab:red"}


def write_picture(rows: Sequence[Row], path: Path) -> None:
    """Three panels; the same rows give the same bytes."""
    matplotlib.rcParams.update({"svg.hashsalt": "go-opt", "svg.fonttype": "none"})
    figure = Figure(figsize=(14, 14), layout="constrained")
    panels = figure.subplot_mosaic([["work", "sizes"], ["intervals", "intervals"]], height_ratios=[2, 3])
    _draw_work(panels["work"], rows)
    _draw_sizes(panels["sizes"], rows)
    _draw_intervals(panels["intervals"], [row for row in rows if row.entry.target == "mcm-6x6"])
    figure.savefig(path, metadata={"Date": None})


def _draw_work(panel: Axes, rows: Sequence[Row]) -> None:
    for split in SPLITS:
        entries = [row.entry for row in rows if row.entry.split == split]
        panel.scatter(
            [entry.ops for entry in entries],
            [entry.flops / 1e9 for entry in entries],
            s=22,
            color=COLORS[split],
            label=split,
            alpha=0.75,
        )
    panel.set(xscale="log", yscale="log", xlabel="ops", ylabel="GFLOP an inference", title="size and compute")
    panel.grid(alpha=0.3)
    panel.legend()


def _draw_sizes(panel: Axes, rows: Sequence[Row]) -> None:
    ops = [[row.entry.ops for row in rows if row.entry.split == split] for split in SPLITS]
    bins = np.geomspace(50, 60_000, 19)
    panel.hist(ops, bins=bins, stacked=True, color=[COLORS[split] for split in SPLITS], label=SPLITS)
    panel.set(xscale="log", xlabel="ops", ylabel="graphs", title="graphs by size")
    panel.grid(alpha=0.3)
    panel.legend()


def _draw_intervals(panel: Axes, rows: Sequence[Row]) -> None:
    """A column for each graph: bound, sliced, greedy. What has no valid plan has no mark."""
    rows = sorted(rows, key=lambda row: row.bound_s)
    place = np.arange(len(rows))
    sliced_us = np.array([row.sliced_s * 1e6 for row in rows])
    greedy_us = np.array([row.greedy_s * 1e6 for row in rows])
    bound_us = np.array([row.bound_s * 1e6 for row in rows])
    panel.vlines(place, bound_us, np.where(np.isfinite(sliced_us), sliced_us, bound_us), color="0.85")
    for what, values_us, marker, color in (
        ("greedy", greedy_us, "x", "tab:gray"),
        ("sliced", sliced_us, "o", "tab:green"),
        ("bound", bound_us, "_", "black"),
    ):
        panel.scatter(place, values_us, marker=marker, s=16, color=color, label=what)
    panel.set(yscale="log", ylabel="interval, us", title="first plans on mcm-6x6, by bound")
    panel.set_xticks(place, [row.entry.name for row in rows], rotation=90, fontsize=6)
    for label, row in zip(panel.get_xticklabels(), rows, strict=True):
        label.set_color(COLORS[row.entry.split])
    panel.margins(x=0.01)
    panel.grid(alpha=0.3, axis="y")
    panel.legend()
