"""A picture of samples to quality: share of the gap closed by samples."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from go_opt.common.arrays import FloatArray

COLORS = {
    "random": "tab:gray",
    "annealing": "tab:olive",
    "annealing-greedy": "tab:brown",
    "scratch": "tab:orange",
    "zero-shot": "tab:green",
    "finetuned": "tab:blue",
}
POINTS = 150  # of a curve, evenly over the logarithmic axis: the file stays small


def write_curves(path: Path, curves: Mapping[str, FloatArray], title: str) -> None:
    """``curves`` [seeds, samples] by method: medians, ranges shaded; the same curves give the same bytes."""
    matplotlib.rcParams.update({"svg.hashsalt": "go-opt", "svg.fonttype": "none"})
    figure = Figure(figsize=(8, 5), layout="constrained")
    panel = figure.subplots()
    for method, shares in curves.items():
        samples = np.unique(np.geomspace(1, shares.shape[1], POINTS).round().astype(int))
        shown = shares[:, samples - 1]
        panel.plot(samples, np.median(shown, axis=0), color=COLORS[method], label=method)
        panel.fill_between(
            samples, shown.min(axis=0), shown.max(axis=0), color=COLORS[method], alpha=0.15, linewidth=0
        )
    panel.set(
        xscale="log",
        xlabel="samples",
        ylabel="share of the log gap closed",
        ylim=(0, 1),
        title=title,
    )
    panel.grid(alpha=0.3)
    panel.legend()
    figure.savefig(path, metadata={"Date": None})
