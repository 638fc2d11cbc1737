"""The text of ``go-opt chips`` and of ``optimize --fewest-chips``."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.table import Table

from go_opt.api.chips import ChipCount, FewestChips
from go_opt.common.units import format_duration, format_ratio
from go_opt.report.parts.wording import counted, table_of


def count_line(found: ChipCount) -> str:
    """One number of chips, for people who wait for the others."""
    chips = counted(found.chips, "chip")
    if found.result is None:
        return f"{chips}: no plan, {found.reason}"
    return f"{chips}: interval {format_duration(found.result.longer_interval_s)}, {found.result.status}"


def counts_table(counts: Sequence[ChipCount]) -> Table:
    """One row for each number of chips; the ratio is against the fewest with a plan."""
    columns = ("chips", "used", "interval", "times as fast", "latency", "bound", "gap", "status")
    first_s = next((found.result.longer_interval_s for found in counts if found.result), math.nan)
    rows = []
    for found in counts:
        result = found.result
        if result is None:
            rows.append((found.chips, *"------", "no plan, proven" if found.is_proven else "no plan found"))
            continue
        times = f"{first_s / result.longer_interval_s:.2f}", format_duration(result.metrics.latency_s)
        bound = format_duration(result.lower_bound_s or math.inf), format_ratio(result.gap)
        interval = format_duration(result.longer_interval_s)
        rows.append((found.chips, result.plan.chips_used, interval, *times, *bound, result.status))
    return table_of(columns, rows, text=("status",))


def fewest_line(fewest: FewestChips, num_chips: int) -> str:
    """How many chips a plan needs, and how sure it is."""
    return f"chips       {fewest.chips} of {num_chips}; {fewest.claim}"
