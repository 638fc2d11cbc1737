"""Words that explanations share: names, places, lists, tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rich.table import Table

from go_opt.explanations.terms import Place
from go_opt.report.parts.stage_names import named_stage

MOST_NAMES: Final = 3
MOST_LINES: Final = 12  # of a list
_LONG: Final = ("which is", "dearest kernel", "because")
_TEXT: Final = ("chip", "link", "then binds", "piece", "where", *_LONG)


def counted(count: int, what: str) -> str:
    """``1 op``, ``3 ops``."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def listed(names: Sequence[str], most: int) -> str:
    """The first ``most`` names, and how many there are more."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def named_place(place: Place) -> str:
    """An op with its chip, or the chips of its stage."""
    return f"`{place.op}` ({named_stage(place.chip, place.replicas)})"


def named_places(of: Sequence[Place]) -> str:
    """Ops with their chips, the farthest first."""
    farthest = sorted(of, key=lambda place: -place.chip)
    more = f" and {len(of) - MOST_NAMES} more" if len(of) > MOST_NAMES else ""
    return ", ".join(named_place(place) for place in farthest[:MOST_NAMES]) + more


def named_chips(chips: Iterable[int]) -> str:
    """``chip 3``, ``chips 3-26``, ``chips 3, 5-7``."""
    runs: list[list[int]] = []
    for chip in sorted(chips):
        if runs and chip == runs[-1][1] + 1:
            runs[-1][1] = chip
        else:
            runs.append([chip, chip])
    texts = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    return f"chip{'s' if len(runs) > 1 or runs[0][0] < runs[0][1] else ''} {', '.join(texts)}"


def table_of(columns: Sequence[str]) -> Table:
    """An empty table; text is to the left, numbers to the right."""
    table = Table(title=None, header_style="bold", box=None, padding=(0, 1))
    for name in columns:
        table.add_column(name, justify="left" if name in _TEXT else "right", no_wrap=name not in _LONG)
    return table
