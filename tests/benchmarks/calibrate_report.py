"""The table of bench_calibrate.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Cases = dict[tuple, dict[str, dict[str, Any]]]
DRAWS = 4000


def report(rows: Sequence[dict[str, Any]]) -> None:
    by_case: Cases = {}
    for row in rows:
        case = (row["machine"], row["graph"], row["count"], row["seed"])
        by_case.setdefault(case, {})[row["method"]] = row
    for is_odd, kind in ((None, "all"), (0, "even"), (1, "odd")):
        for count in sorted({case[2] for case in by_case}):
            chosen = {
                case: methods
                for case, methods in by_case.items()
                if case[2] == count
                and is_odd in (None, case[0] % 2)
                and {"analytical", "perfect"} <= {*methods}
            }
            print(f"\n{kind} machines, {count} samples, {len(chosen)} cases")
            for name in dict.fromkeys(row["method"] for row in rows):
                these = {case: methods for case, methods in chosen.items() if name in methods}
                if these:
                    _line(name, these)


def _line(name: str, cases: Cases) -> None:
    """Gain over the analytical plan, which is measured as well; intervals over graphs (bootstrap)."""
    gains, most, rival = {}, 0.0, {}
    for case, methods in cases.items():
        base = methods["analytical"]["interval_s"]
        gains[case] = np.log(base / min(base, methods[name]["interval_s"]))
        most += max(0.0, np.log(base / methods["perfect"]["interval_s"]))
        ours = methods.get("calibrate, its target")
        if ours:
            rival[case] = np.log(base / min(base, ours["interval_s"])) - gains[case]
    mean, low, high = np.exp(_interval(gains))
    share = sum(gains.values()) / max(most, 1e-9)
    text = f"{name:25s}{len(gains):4d} {mean:6.3f}x [{low:.3f}, {high:.3f}] share {share:5.0%}"
    worst = min(m["analytical"]["interval_s"] / m[name]["interval_s"] for m in cases.values())
    text += f"  worst {worst:.3f}x"
    for field in ("op_error", "spearman"):
        values = [methods[name][field] for methods in cases.values() if field in methods[name]]
        text += f"  {field} {np.mean(values):.3f}" if values else ""
    if rival:
        text += "  calibrate ahead {:+.3f} [{:+.3f}, {:+.3f}]".format(*_interval(rival))
    print(text)


def _interval(values: dict[tuple, float]) -> tuple[float, float, float]:
    """The mean, and 95 % of means over graphs drawn with replacement, of all seeds and machines of each."""
    by_graph: dict[str, list[float]] = {}
    for case, value in values.items():
        by_graph.setdefault(case[1], []).append(value)
    means = np.array([np.mean(each) for each in by_graph.values()])
    draws = means[np.random.default_rng(0).integers(len(means), size=(DRAWS, len(means)))].mean(axis=1)
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(np.mean(list(values.values()))), float(low), float(high)
