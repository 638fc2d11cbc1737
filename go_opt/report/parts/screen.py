"""Fits output to a terminal: wraps lines at words, drops or stacks table columns, never cuts text."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from go_opt.common.units import VisibleStream, visible

WIDE: Final = 240  # width of a console that is not a terminal; nothing is wrapped
_GAP: Final = 2  # between columns
_LEAST_WRAPPED: Final = 24  # least width of a column that wraps
_WITH_UNIT: Final = re.compile(r"(?<=[0-9]) (?=(?:[num]?s|[kMG]?B|[MG]?FLOP)\b)")
_TIED: Final = "\xa0"  # a non-breaking space
_BELONGS: Final = ("load", "")  # columns that stay with the column before them


def console() -> Console:
    """A console as wide as the terminal or COLUMNS; without either, wide enough for every table."""
    has_width = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal()
    # Rich styles what it prints with escape codes; names pass through visible() below.
    file = sys.stdout.stream if isinstance(sys.stdout, VisibleStream) else None
    return Console(file=file, highlight=False, width=None if has_width else WIDE)


def print_lines(console: Console, lines: Iterable[str]) -> None:
    """Print lines, wrapped at words to the screen width; continuation rows are indented."""
    for line in lines:
        for row in wrapped(visible(line), console.width):
            console.print(Text(row), soft_wrap=True)


def wrapped(line: str, width: int) -> list[str]:
    """``line`` in rows of ``width`` characters; numbers keep their units, long names stay whole."""
    if len(line) <= width or width >= WIDE:
        return [line]
    # Continuation rows are aligned with the text after a label such as ``bound       ``.
    label = re.match(r"\s*(?:\S+\s{2,})?", line)
    indent = len(label[0]) if label else 0
    rows = textwrap.wrap(
        _WITH_UNIT.sub(_TIED, line[indent:]), max(width - indent, 1),
        break_long_words=False, break_on_hyphens=False, subsequent_indent="" if indent else "  ",
    )  # fmt: skip
    rows = [row.replace(_TIED, " ") for row in rows]
    return [line[:indent] + rows[0], *(" " * indent + row for row in rows[1:])] if rows else [line]


def print_table(console: Console, table: Table, drop: Sequence[str] = ()) -> None:
    """Print all rows of ``table``; on a narrow screen with fewer columns, or in parts below each other.

    If it does not fit, the columns named in ``drop`` are dropped one by one, then bars (columns
    without a name) and empty columns. If there is no room for a last column that may wrap, its
    text is printed below each row.

    Args:
      table: plain strings without a box; its first column is repeated in every part.
    """
    names = [str(column.header) for column in table.columns]
    cells = [[_plain(cell) for cell in column.cells] for column in table.columns]
    widths = [max(map(len, (name, *column))) for name, column in zip(names, cells, strict=True)]
    kept = _kept(names, cells, widths, console.width, drop)
    is_long = not table.columns[-1].no_wrap and len(names) - 1 in kept
    below = None
    if is_long and _total(widths, kept) > console.width:
        left = console.width - _total(widths, kept[:-1]) - _GAP
        widths[-1] = left
        if left < _LEAST_WRAPPED or any(len(word) > left for cell in cells[-1] for word in cell.split(" ")):
            below = kept.pop()
    for part in _parts(names, widths, kept, console.width):
        rights = [table.columns[i].justify == "right" for i in part]
        console.print(_row([names[i] for i in part], [widths[i] for i in part], rights), style="bold")
        for number, row in enumerate(table.rows):
            if not any(cells[i][number] for i in part[1:]) and len(part) < len(kept):
                continue  # no content in this part
            lines = [[cells[i][number]] for i in part]
            if is_long and below is None and part[-1] == len(names) - 1:
                lines[-1] = wrapped_words(cells[-1][number], widths[-1])
            for depth in range(max(map(len, lines))):
                shown = [line[depth] if depth < len(line) else "" for line in lines]
                text = _row(shown, [widths[i] for i in part], rights)
                console.print(text, style=row.style or "", soft_wrap=True)
            if below is not None and part[0] == 0 and cells[below][number]:
                print_lines(console, [f"     {cells[below][number]}"])
        below = None  # only in the first part
    if table.caption is not None:
        print_lines(console, [f" {table.caption}"])


def wrapped_words(text: str, width: int) -> list[str]:
    """``text`` in rows of ``width`` characters; longer words stay whole."""
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def _plain(cell: object) -> str:
    return visible(cell.plain if isinstance(cell, Text) else str(cell))


def _kept(
    names: list[str], cells: list[list[str]], widths: list[int], width: int, drop: Sequence[str]
) -> list[int]:
    """The columns that are not dropped."""
    kept = list(range(len(names)))
    empty = [names[i] for i in kept if i > 0 and all(cell in ("-", "") for cell in cells[i])]
    for name in (*drop, "", *empty):
        if _total(widths, kept) <= width:
            break
        kept = [i for i in kept if names[i] != name or i == 0]
    return kept


def _parts(names: list[str], widths: list[int], kept: list[int], width: int) -> Iterator[list[int]]:
    """The columns of each part: the first column, and as many others as fit."""
    part: list[int] = []
    for i in kept:
        together = [i, *(j for j in kept if j == i + 1 and names[j] in _BELONGS)]
        if names[i] not in _BELONGS and len(part) > 1 and _total(widths, [*part, *together]) > width:
            yield part
            part = [kept[0]]
        part.append(i)
    yield part


def _total(widths: list[int], columns: list[int]) -> int:
    return 1 + sum(widths[i] for i in columns) + _GAP * (len(columns) - 1)


def _row(cells: Sequence[str], widths: Sequence[int], rights: Sequence[bool]) -> Text:
    padded = [
        cell.rjust(width) if is_right else cell.ljust(width)
        for cell, width, is_right in zip(cells, widths, rights, strict=True)
    ]
    return Text(" " + (" " * _GAP).join(padded).rstrip())
