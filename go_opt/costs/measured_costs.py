"""Measured seconds of ops on chip kinds, from a CSV table, a profile of ONNX Runtime or a mapping.

    op,kind,seconds
    conv1,chip,1.2e-5
    conv2,*,8e-6
    resize,chip,excluded

A row gives the seconds of one op on one chip kind of the target. With kind ``*`` it covers every
kind that has no row of its own. The op then costs exactly that, in any kernel. Empty seconds, or
``excluded``, mean that the kind cannot run the op. Costs are part of a graph's fingerprint, so a
plan made with costs must be evaluated with the same costs.

A profile is the unchanged JSON file of ``InferenceSession.end_profiling`` (:mod:`go_opt.costs`).
"""

from __future__ import annotations

import csv
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from go_opt.common.files import open_table
from go_opt.common.outputs import COSTS_MARK
from go_opt.common.suggestion import suggestion
from go_opt.costs.coverage import MOST_LISTED, Coverage, Unmapped
from go_opt.costs.mapping import mapped_rows
from go_opt.costs.runtime_profile import is_profile, read_profile
from go_opt.env.target import Target, load_target
from go_opt.errors import InvalidInputError
from go_opt.model.builder import MAX_FLOPS as MAX_SECONDS
from go_opt.model.codecs.fields import shown
from go_opt.model.graph import Graph

COLUMNS: Final = ("op", "kind", "seconds")
EXCLUDED: Final = "excluded"
EVERY_KIND: Final = "*"
# Seconds by op and kind; None if the kind cannot run the op.
CostsByOp = Mapping[str, Mapping[str, float | None]]


class CostsWarning(UserWarning):
    """Some rows of measured costs match no op."""


@dataclass(frozen=True)
class MeasuredCosts:
    """A graph with measured costs, and how much of the graph they cover."""

    graph: Graph
    coverage: Coverage


@dataclass(frozen=True)
class _Row:
    where: str  # "line 3", for error messages
    op: str
    kind: str
    seconds: float | None


def with_measured_costs(
    graph: Graph, costs: str | Path | CostsByOp, target: Target | str | Path = "mcm-6x6"
) -> Graph:
    """Returns ``graph`` with the costs of a CSV table, a profile of ONNX Runtime, or a mapping.

    The costs replace those that the graph already has for the same op and kind. A mapping goes from
    ops to kinds to seconds. A :class:`CostsWarning` lists table rows that match no op. Use
    :func:`read_costs` to get the coverage as a value.

    Args:
      target: the target whose chip kinds the costs name.

    Raises:
      InvalidInputError: the costs are malformed, or name an unknown kind, or no op of the graph.
    """
    read = read_costs(graph, costs, target)
    if read.coverage.unmapped and not (isinstance(costs, str | Path) and is_profile(Path(costs))):
        warnings.warn(read.coverage.lines()[-1], CostsWarning, stacklevel=2)
    return read.graph


def read_costs(
    graph: Graph, costs: str | Path | CostsByOp, target: Target | str | Path = "mcm-6x6"
) -> MeasuredCosts:
    """As :func:`with_measured_costs`, but returns the unmatched rows instead of a warning."""
    on = target if isinstance(target, Target) else load_target(target)
    kinds = tuple(kind.name for kind in on.kinds)
    if isinstance(costs, Mapping):
        return _with_rows(graph, _rows_of_mapping(costs), kinds, on.name, may_miss=False)
    if is_profile(Path(costs)):
        return _with_profile(graph, Path(costs), kinds, on.name)
    return _with_rows(graph, _rows_of_file(Path(costs)), kinds, on.name, may_miss=True)


def _with_profile(graph: Graph, path: Path, kinds: tuple[str, ...], target: str) -> MeasuredCosts:
    if len(kinds) > 1:
        raise _wrong(
            f"costs {str(path)!r}: a profile is of one kind of chip, and target {target!r} has "
            f"{', '.join(kinds)}; give a table with the columns {','.join(COLUMNS)}."
        )
    rows = read_profile(path)
    seconds, lost = mapped_rows(graph, rows)
    if not seconds:
        raise _wrong(f"costs {str(path)!r}: no row is of an op of graph {graph.name!r}.")
    unmapped = tuple(Unmapped(row.name, row.seconds) for row in lost)
    coverage = Coverage(graph.num_ops, len(seconds), sum(row.seconds for row in rows), unmapped)
    return MeasuredCosts(
        _with_cells(graph, {(graph.op_index[op], kinds[0]): value for op, value in seconds.items()}), coverage
    )


def _with_rows(
    graph: Graph, rows: Sequence[_Row], kinds: tuple[str, ...], target: str, *, may_miss: bool
) -> MeasuredCosts:
    known = [row for row in rows if row.op in graph.op_index]
    lost = sorted((row for row in rows if row.op not in graph.op_index), key=lambda row: -(row.seconds or 0))
    if lost and not (may_miss and known):
        first = next(row for row in rows if row.op not in graph.op_index)
        hint = suggestion(first.op, graph.op_names)
        raise _wrong(f"{first.where}: graph {graph.name!r} has no op {first.op!r}{hint}")
    seen: dict[tuple[str, str], str] = {}
    cells: dict[tuple[int, str], float | None] = {}
    for is_for_all in (True, False):  # rows for one kind come last and win
        for row in known:
            if (row.kind == EVERY_KIND) is is_for_all:
                _check(row, kinds, target, seen)
                for kind in kinds if is_for_all else (row.kind,):
                    cells[graph.op_index[row.op], kind] = row.seconds
    unmapped = tuple(
        Unmapped(row.op, row.seconds or 0.0, _hint(row, graph) if i < MOST_LISTED else "")
        for i, row in enumerate(lost)
    )
    measured = len({op for op, _ in cells})
    total_s = sum(row.seconds or 0.0 for row in rows)
    return MeasuredCosts(_with_cells(graph, cells), Coverage(graph.num_ops, measured, total_s, unmapped))


def _hint(row: _Row, graph: Graph) -> str:
    """The line of a row that matches no op, and which op it may mean."""
    became = {node.name: node.became for node in graph.nodes_without_op}.get(row.op)
    meant = f"; the node is {became}" if became else suggestion(row.op, graph.op_names, otherwise="")
    return f" ({row.where.rpartition(', ')[2]}{meant.rstrip('?')})"


def _check(row: _Row, kinds: tuple[str, ...], target: str, seen: dict[tuple[str, str], str]) -> None:
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
    # An empty column would change the fingerprint.
    return replace(
        graph,
        measured_s=frozen_columns({kind: row for kind, row in measured.items() if not np.isnan(row).all()}),
        excluded=frozen_columns({kind: row for kind, row in excluded.items() if row.any()}),
    )


def frozen_columns(columns: dict[str, NDArray]) -> Mapping[str, NDArray]:
    """Columns of ops by kind of chip, as a graph has them."""
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
    lines = open_table(path, "costs")
    try:
        return list(_rows(csv.reader(lines, strict=True), str(path)))
    except csv.Error as error:
        raise _wrong(f"costs {str(path)!r} is not valid CSV: {error}.") from None


def _rows(lines: Any, source: str) -> Iterator[_Row]:
    """The rows of a ``csv.reader``."""
    header: list[str] = next(lines, [])
    if ",".join(header) == COSTS_MARK:
        header = next(lines, [])
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
