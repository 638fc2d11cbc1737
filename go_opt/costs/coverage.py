"""The share of measured time that is mapped to ops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from go_opt.common.units import format_duration

MOST_LISTED: Final = 5


@dataclass(frozen=True)
class Unmapped:
    """A row of a table or profile that belongs to no op."""

    name: str
    seconds: float  # zero where the row says none
    hint: str = ""  # where it stands, and what it may mean


@dataclass(frozen=True)
class Coverage:
    """The coverage of a graph by measured costs."""

    num_ops: int
    measured_ops: int
    total_s: float  # of all rows
    unmapped: tuple[Unmapped, ...]

    @property
    def mapped_share(self) -> float:
        """Of the measured seconds; 1 where nothing was measured."""
        lost_s = sum(row.seconds for row in self.unmapped)
        return 1 - lost_s / self.total_s if self.total_s else 1.0

    def lines(self) -> list[str]:
        """Text lines: the shares, and the unmapped rows, longest first."""
        share = f"{self.mapped_share:.1%} of the measured seconds"
        said = [f"costs: {self.measured_ops} of {self.num_ops} ops have measured seconds, {share} are theirs"]
        if self.unmapped:
            rows = sorted(self.unmapped, key=lambda row: -row.seconds)
            named = [
                f"{row.name!r}{f' {format_duration(row.seconds)}' if row.seconds else ''}{row.hint}"
                for row in rows[:MOST_LISTED]
            ]
            more = f" and {len(rows) - MOST_LISTED} more" if len(rows) > MOST_LISTED else ""
            said.append(f"costs: {len(rows)} rows are of no op: {', '.join(named)}{more}")
        return said
