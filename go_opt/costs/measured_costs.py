"""Measured seconds of ops: read into a graph, how much they cover, and what a plan file says of them."""

from __future__ import annotations

import csv
import hashlib
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from go_opt.common.files import open_table, read_json
from go_opt.common.outputs import COSTS_MARK
from go_opt.common.suggestion import suggestion
from go_opt.common.units import format_duration
from go_opt.costs.runtime_profile import is_profile, mapped_rows, read_profile
from go_opt.env.target import Target, load_target
from go_opt.errors import InvalidInputError, PlanError
from go_opt.model.builder import MAX_FLOPS as MAX_SECONDS
from go_opt.model.codecs.fields import shown
from go_opt.model.graph import Graph

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


def costs_fingerprint(graph: Graph) -> str:
    """SHA-256 of the measured costs of a graph, in op order, and of the kinds that cannot run an op."""
    digest = hashlib.sha256(b"go_opt.v1.Costs")
    for mapping in (graph.measured_s, graph.excluded):
        for kind in sorted(mapping):
            digest.update(kind.encode() + b"\0" + mapping[kind].tobytes())
        digest.update(b"\1")
    return digest.hexdigest()


def costs_fact(graph: Graph, costs: Path | None) -> dict[str, dict[str, str]]:
    """The entry of a plan file about the costs it was made with; empty if there were none."""
    if costs is None:
        return {}
    return {"costs": {"file": str(costs), "fingerprint": costs_fingerprint(graph)}}


def check_remembered(plan: Path, graph: Graph, costs: Path | None) -> None:
    """Raise :class:`PlanError` if a plan file says that the plan was made with other costs."""
    data = read_json(plan, "plan file", PlanError)
    fact = data.get("costs") if isinstance(data, dict) else None
    if not isinstance(fact, dict) or fact.get("fingerprint") == costs_fingerprint(graph):
        return
    file, made_with = str(fact.get("file"))[:200], str(fact.get("fingerprint"))[:12]
    says = f"plan file {str(plan)!r}: the plan was made with the measured costs {file!r} ({made_with})"
    if costs is None:
        raise PlanError(f"{says}; give them with --costs.", field="costs")
    others = f"{str(costs)!r} gives this graph others ({costs_fingerprint(graph)[:12]})"
    raise PlanError(f"{says}, and {others}; give --costs {file}.", field="costs")
