"""The commands, a module for each group of them, and how they print."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from go_opt.common.units import json_line

if TYPE_CHECKING:
    from rich.table import Table

INTERRUPTED: Final = 130  # the exit code: 128 + SIGINT, as shells report it


def print_json(data: Any) -> None:
    print(json_line(data))


def show(*parts: Iterable[str] | Table, drop: tuple[str, ...] = ()) -> None:
    """Print lines and tables; on a narrow screen, tables lose the columns ``drop`` first."""
    from rich.table import Table

    from go_opt.report.parts.screen import console, print_lines, print_table

    screen = console()
    for part in parts:
        if isinstance(part, Table):
            print_table(screen, part, drop)
        else:
            print_lines(screen, part)
