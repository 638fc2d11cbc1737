"""The picture of docs/zoo_graphs.md: sizes and compute."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from go_opt.env.zoo import SPLITS, ZooEntry

COLORS = {"train": "tab:blue", "validation": "tab:orange", "test": "tab:red"}


def write_picture(entries: Sequence[ZooEntry], path: Path) -> None:
    """Two panels; the same entries give the same bytes."""
    matplotlib.rcParams.update({"svg.hashsalt": "go-opt", "svg.fonttype": "none"})
    figure = Figure(figsize=(14, 5.6), layout="constrained")
    work, sizes = figure.subplots(1, 2)
    _draw_work(work, entries)
    _draw_sizes(sizes, entries)
    figure.savefig(path, metadata={"Date": None})


def _draw_work(panel: Axes, entries: Sequence[ZooEntry]) -> None:
    for split in SPLITS:
        shown = [entry for entry in entries if entry.split == split]
        panel.scatter(
            [entry.ops for entry in shown],
            [entry.flops / 1e9 for entry in shown],
            s=22,
            color=COLORS[split],
            label=split,
            alpha=0.75,
        )
    panel.set(xscale="log", yscale="log", xlabel="ops", ylabel="GFLOP an inference", title="size and compute")
    panel.grid(alpha=0.3)
    panel.legend()


def _draw_sizes(panel: Axes, entries: Sequence[ZooEntry]) -> None:
    ops = [[entry.ops for entry in entries if entry.split == split] for split in SPLITS]
    bins = np.geomspace(50, 60_000, 19)
    panel.hist(ops, bins=bins, stacked=True, color=[COLORS[split] for split in SPLITS], label=SPLITS)
    panel.set(xscale="log", xlabel="ops", ylabel="graphs", title="graphs by size")
    panel.grid(alpha=0.3)
    panel.legend()
