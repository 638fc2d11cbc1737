"""The pictures of docs/simulator.md: agreement graph by graph, and what each effect does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
from fidelity_tables import SETS, changing, disagreement, running, share
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

if TYPE_CHECKING:
    from bench_fidelity import Row

COLUMNS = 6
LEAST = -50.0  # %; what is below lies on the edge
COLORS = {"random": "tab:gray", "good": "tab:green"}
SPLIT_COLORS = {"train": "black", "validation": "tab:orange", "test": "tab:red"}


def write_agreement(rows: Sequence[Row], path: Path) -> None:
    """A panel for each graph: simulated against analytical interval; what does not run at the top."""
    _reproducible()
    height = math.ceil(len(rows) / COLUMNS)
    figure = Figure(figsize=(2.6 * COLUMNS, 2.6 * height), layout="constrained")
    panels = figure.subplots(height, COLUMNS, squeeze=False).flatten()
    for panel, row in zip(panels, rows, strict=False):
        _draw_graph(panel, row)
    for panel in panels[len(rows) :]:
        panel.set_axis_off()
    panels[0].legend(fontsize=7, loc="lower right")
    figure.supxlabel("interval by the analytical model, us")
    figure.supylabel("interval by the simulator, us")
    figure.savefig(path, dpi=150, metadata={"Date": None})


def _draw_graph(panel: Axes, row: Row) -> None:
    reached = [values for which in SETS for values in running(getattr(row, which))]
    known = np.concatenate([*reached, row.random.model_s, row.good.model_s]) * 1e6
    low, high = known.min() / 1.1, known.max() * 1.35
    panel.plot([low, high], [low, high], color="0.8", linewidth=1, zorder=0)
    for which in SETS:
        those = getattr(row, which)
        model_s, simulated_s = running(those)
        panel.scatter(
            model_s * 1e6,
            simulated_s * 1e6,
            s=6,
            alpha=0.5,
            color=COLORS[which],
            label=which,
            linewidths=0,
            rasterized=True,  # thousands of marks: a tenth of the bytes
        )
        failed = those.model_s[~np.isfinite(those.simulated_s)] * 1e6
        panel.scatter(
            failed,
            np.full(len(failed), high / 1.12),
            s=8,
            marker="x",
            linewidths=0.6,
            color="tab:red",
            rasterized=True,
            label="does not run" if which == "good" else None,
        )
    panel.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    panel.set_title(row.name, fontsize=9, color=SPLIT_COLORS[row.split])
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 3) if high / low > 6 else (1, 2, 3, 5, 7)))
        axis.set_major_formatter(ScalarFormatter())
        axis.set_minor_formatter(NullFormatter())
    panel.tick_params(labelsize=7)
    panel.grid(alpha=0.25)


def write_effects(rows: Sequence[Row], path: Path) -> None:
    """For each graph the disagreement, and the part of it that goes with each effect switched off."""
    _reproducible()
    figure = Figure(figsize=(13, 8), layout="constrained")
    whole, parts = figure.subplots(2, 1, sharex=True, height_ratios=[2, 3])
    place = np.arange(len(rows))
    for which, shift in zip(SETS, (-0.2, 0.2), strict=True):
        values = [disagreement(getattr(row, which)) for row in rows]
        whole.bar(place + shift, values, width=0.38, color=COLORS[which], label=which)
    whole.set_ylabel("mean |log(simulated / analytical)|")
    whole.legend()
    shown = changing(rows)
    for number, effect in enumerate(shown):
        for which, marker in zip(SETS, ("o", "s"), strict=True):
            values = [share(getattr(row, which), effect) * 100 for row in rows]
            parts.scatter(
                place + (number - len(shown) / 2 + 0.5) * 0.14,
                np.maximum(values, LEAST),
                s=22,
                marker=marker,
                facecolors="none" if which == "random" else f"C{number}",
                edgecolors=f"C{number}",
                label=effect if which == "good" else None,
            )
    parts.set_ylim(LEAST - 5, 107)
    parts.set_ylabel("% of it that goes with one effect off\n(hollow: random plans, filled: good ones)")
    parts.legend(ncols=len(shown), fontsize=8, loc="lower left")
    parts.set_xticks(place, [row.name for row in rows], rotation=60, ha="right", fontsize=8)
    for label, row in zip(parts.get_xticklabels(), rows, strict=True):
        label.set_color(SPLIT_COLORS[row.split])
    for panel in (whole, parts):
        panel.grid(alpha=0.3, axis="y")
        panel.margins(x=0.01)
    figure.savefig(path, metadata={"Date": None})


def _reproducible() -> None:
    matplotlib.rcParams.update({"svg.hashsalt": "go-opt", "svg.fonttype": "none"})
