"""Prints results: as JSON, or as lines and tables that fit the screen."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table


def print_json(data: Any) -> None:
    typer.echo(json.dumps(data, allow_nan=False))


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
