"""Measured seconds of ops on chip kinds, from a CSV table or a mapping.

    op,kind,seconds
    conv1,chip,1.2e-5
    conv2,*,8e-6
    resize,chip,excluded

A row is one op on one kind of the target's chips, or on all of them (``*``) but those that have
a row of their own. The op then costs exactly that and is no part of a larger kernel. Nothing,
or ``excluded``, for seconds: the kind cannot run the op. Costs are part of a graph's
fingerprint, so a plan made with them is judged with them.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from go_opt.common.suggestion import suggestion
from go_opt.env.target import Target, load_target
from go_opt.errors import InvalidInputError
from go_opt.model.builder import MAX_FLOPS as MAX_SECONDS
from go_opt.model.codecs.fields import shown
from go_opt.model.graph import Graph

COLUMNS: Final = ("op", "kind", "seconds")
EXCLUDED: Final = "excluded"
EVERY_KIND: Final = "*"
# By op, by kind; None where the kind cannot run the op.
CostsByOp = Mapping[str, Mapping[str, float | None]]


@dataclass(frozen=True)
class _Row:
    where: str  # "line 3": how errors call it
    op: str
    kind: str
    seconds: float | None


def with_measured_costs(
    graph: Graph, costs: str | Path | CostsByOp, target: Target | str | Path = "mcm-6x6"
) -> Graph:
    """``graph`` with the costs of a CSV table, or of a mapping of ops to kinds to seconds.

    They take the place of what the graph says of the same op and kind.

    Args:
      target: whose chip kinds the costs are of.

    Raises:
      InvalidInputError: the table is malformed, or names an op or a kind that is not there.
    """
    on = target if isinstance(target, Target) else load_target(target)
    kinds = tuple(kind.name for kind in on.kinds)
    rows = _rows_of_mapping(costs) if isinstance(costs, Mapping) else _rows_of_file(Path(costs))
    seen: dict[tuple[str, str], str] = {}
    cells: dict[tuple[int, str], float | None] = {}
    for is_for_all in (True, False):  # what is said of one kind comes last, and counts
        for row in rows:
            if (row.kind == EVERY_KIND) is is_for_all:
                _check(row, graph, kinds, on.name, seen)
                for kind in kinds if is_for_all else (row.kind,):
                    cells[graph.op_index[row.op], kind] = row.seconds
    return _with_cells(graph, cells)


def _check(
    row: _Row, graph: Graph, kinds: tuple[str, ...], target: str, seen: dict[tuple[str, str], str]
) -> None:
    if row.op not in graph.op_index:
        raise _wrong(
            f"{row.where}: graph {graph.name!r} has no op {row.op!r}{suggestion(row.op, graph.op_names)}"
        )
    if row.kind not in (*kinds, EVERY_KIND):
        raise _wrong(
            f"{row.where}: target {target!r} has no chip kind {row.kind!r}{suggestion(row.kind, kinds)}"
        )
    if (row.op, row.kind) in seen:
        first = seen[row.op, row.kind]
        raise _wrong(f"{row.where}: op {row.op!r} on {row.kind!r} has a row already, {first}.")
    seen[row.op, row.kind] = row.where


def _with_cells(graph: Graph, cells: Mapping[tuple[int, str], float | None]) -> Graph:
    measured = {kind: seconds.copy() for kind, seconds in graph.measured_s.items()}
    excluded = {kind: is_excluded.copy() for kind, is_excluded in graph.excluded.items()}
    for (op, kind), seconds in cells.items():
        if seconds is None or kind in excluded:
            excluded.setdefault(kind, np.zeros(graph.num_ops, np.bool_))[op] = seconds is None
        if seconds is not None or kind in measured:
            of_kind = measured.setdefault(kind, np.full(graph.num_ops, np.nan))
            of_kind[op] = np.nan if seconds is None else seconds
    # A column that says nothing would change the fingerprint.
    return replace(
        graph,
        measured_s=_frozen({kind: row for kind, row in measured.items() if not np.isnan(row).all()}),
        excluded=_frozen({kind: row for kind, row in excluded.items() if row.any()}),
    )


def _frozen(columns: dict[str, NDArray]) -> Mapping[str, NDArray]:
    for column in columns.values():
        column.flags.writeable = False
    return MappingProxyType(columns)


def _rows_of_mapping(costs: CostsByOp) -> list[_Row]:
    rows = []
    for op, by_kind in costs.items():
        if not isinstance(by_kind, Mapping):
            raise _wrong(f"costs of op {op!r} must be a mapping of kinds to seconds, not {shown(by_kind)}.")
        for kind, seconds in by_kind.items():
            where = f"costs of op {op!r} on {kind!r}"
            is_number = isinstance(seconds, int | float | np.number) and not isinstance(seconds, bool)
            if seconds is not None and not is_number:
                raise _wrong(f"{where}: seconds must be a number or None, not {shown(seconds)}.")
            rows.append(_Row(where, op, kind, None if seconds is None else _seconds(where, seconds)))
    return rows


def _rows_of_file(path: Path) -> list[_Row]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return list(_rows(csv.reader(file, strict=True), str(path)))
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
    except UnicodeDecodeError:
        reason = "is not UTF-8 text"
    except csv.Error as error:
        reason = f"is not valid CSV: {error}"
    except ValueError as error:  # a path with a null byte
        if isinstance(error, InvalidInputError):
            raise
        reason = f"cannot be read: {error}"
    raise _wrong(f"costs {str(path)!r} {reason}.")


def _rows(lines: Any, source: str) -> Iterator[_Row]:
    """The rows of a ``csv.reader``."""
    header: list[str] = next(lines, [])
    if tuple(name.strip() for name in header) != COLUMNS:
        raise _wrong(f"costs {source!r}: the first line must be {','.join(COLUMNS)}, not {shown(header)}.")
    for fields in lines:
        where = f"costs {source!r}, line {lines.line_num}"
        if not fields:
            continue
        if len(fields) != len(COLUMNS):
            raise _wrong(f"{where}: {len(fields)} fields, must be {len(COLUMNS)}.")
        op, kind, text = fields[0], fields[1].strip(), fields[2].strip()
        yield _Row(where, op, kind, None if text in ("", EXCLUDED) else _seconds(where, text))


def _seconds(where: str, given: str | float) -> float:
    try:
        seconds = float(given)
    except (ValueError, OverflowError):
        seconds = math.nan
    if not 0 <= seconds <= MAX_SECONDS:  # NaN fails every comparison
        limits = f"between 0 and {MAX_SECONDS:.4g}, or {EXCLUDED}"
        raise _wrong(f"{where}: seconds must be {limits}, not {shown(given)}.")
    return seconds


def _wrong(message: str) -> InvalidInputError:
    return InvalidInputError(message, field="costs")
