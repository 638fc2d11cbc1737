"""Plays matches in fresh processes, one or a few at a time."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

from go_opt import api
from go_opt.agents.generator import generate_graph
from go_opt.bench.matches import OURS, Match, Record, with_links_scaled
from go_opt.bench.rivals import RIVALS, Limits, Outcome, Point, compete, pose
from go_opt.common.files import write_atomically
from go_opt.env import Target
from go_opt.errors import GoOptError, InfeasibleError, InvalidInputError
from go_opt.model.graph import Graph
from go_opt.search.compiling.warm_up import warm_up

_WARM_OPS = 40
_WARM_EVALUATIONS = 12


def play(match: Match) -> Record:
    """Run ``match``; compiled functions are loaded before its clock starts.

    Raises:
      GoOptError: the model or the target cannot be loaded.
    """
    target = with_links_scaled(api.target(match.target), match.link_scale)
    graph = api.load(match.model)
    if match.method in OURS:
        warm_up()
    _outcome(match, generate_graph(0, num_ops=_WARM_OPS), target, Limits(evaluations=_WARM_EVALUATIONS))
    outcome, status = _outcome(match, graph, target, match.limits)
    return Record.of(match, graph.num_ops, outcome, status)


def _outcome(match: Match, graph: Graph, target: Target, limits: Limits) -> tuple[Outcome, str]:
    """The outcome of the method, and the status of the portfolio's answer (empty for rivals)."""
    if match.method in OURS:
        return _portfolio(match, graph, target, limits)
    problem = pose(graph, target, relays=match.relays, decide=match.decide)
    return compete(RIVALS[match.method], problem, limits, match.seed), ""


def _portfolio(match: Match, graph: Graph, target: Target, limits: Limits) -> tuple[Outcome, str]:
    """A late plan counts only if it is the first plan, as for the rivals."""
    try:
        result = api.optimize(
            graph,
            target,
            budget_s=limits.budget_s if math.isfinite(limits.budget_s) else None,
            max_evaluations=limits.evaluations,
            seed=match.seed,
            decide=match.decide,
            relays=match.relays,
            replication=False,
            splits=False,
            rewrite=False,
            policy=OURS[match.method],
        )
    except InfeasibleError as error:
        return Outcome(None, math.inf, (), 0, 0.0, 0.0, (str(error),)), ""
    curve: list[Point] = []
    for step in result.history:
        is_better = step.best_s < (curve[-1].interval_s if curve else math.inf)
        if is_better and (step.elapsed_s <= limits.budget_s or not curve):
            curve.append(Point(step.evaluations, step.elapsed_s, step.best_s))
    reached_s = curve[-1].interval_s
    notes = (result.method,)
    outcome = Outcome(
        result.plan, reached_s, tuple(curve), result.evaluations, result.wall_s, result.lower_bound_s, notes
    )
    return outcome, result.status


_BEGINNING: Final = '{"model": "'  # of a record
OVERTIME_S: Final = 120.0  # for load, warm-up and exit, in addition to twice the budget


class _Running(NamedTuple):
    match: Match
    process: SpawnProcess
    until_s: float  # on this process's monotonic clock; infinite if only evaluations are limited

    @property
    def is_late(self) -> bool:
        return time.monotonic() >= self.until_s


def play_all(matches: Sequence[Match], jobs: int) -> Generator[Record]:
    """Yields records as matches end, ``jobs`` at a time; closing the generator kills running matches.

    A process that dies, or far exceeds its budget, leaves a record with an error.
    """
    waiting = list(reversed(matches))
    running: dict[Connection, _Running] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                connection, started = _start(waiting.pop())
                running[connection] = started
            patience_s = max(0.0, min(match.until_s for match in running.values()) - time.monotonic())
            ready = wait(list(running), patience_s if math.isfinite(patience_s) else None)
            for connection in list(running):
                if connection in ready or running[connection].is_late:
                    match = running.pop(connection)
                    yield _answer(connection, match, is_late=connection not in ready)
    finally:
        for connection, match in running.items():
            _end(connection, match)


def _start(match: Match) -> tuple[Connection, _Running]:
    context = get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_play, args=(match, theirs))
    with _interrupts_ignored():
        process.start()
    theirs.close()  # so that recv raises EOFError when the process ends
    until_s = time.monotonic() + 2.0 * match.limits.budget_s + OVERTIME_S
    return ours, _Running(match, process, until_s)


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """A process started in the block ignores Ctrl-C; this process ends it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _play(match: Match, answers: Connection) -> None:
    """Runs in the child process; discards what libraries print to stdout."""
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    try:
        record = play(match)
    except GoOptError as error:
        record = Record(match, error=str(error))
    except Exception as error:
        record = Record(match, error=f"{type(error).__name__}: {error}")
    answers.send(record.to_dict())


def _answer(connection: Connection, match: _Running, *, is_late: bool) -> Record:
    try:
        if is_late:
            return Record(match.match, error="it did not end in time")
        return Record.from_dict(connection.recv())
    except EOFError:
        match.process.join()
        return Record(match.match, error=f"its process ended with code {match.process.exitcode}")
    finally:
        _end(connection, match)


def _end(connection: Connection, match: _Running) -> None:
    match.process.kill()
    match.process.join()
    match.process.close()
    connection.close()


class RecordFile:
    """A file of records; reads them and appends new ones."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.records = self._read()
        try:
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise self._refused(f"cannot be written: {error.strerror or error}") from None

    def __enter__(self) -> RecordFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def append(self, record: Record) -> None:
        """Append one record and flush it."""
        self._file.write(json.dumps(record.to_dict(), allow_nan=False) + "\n")
        self._file.flush()

    def _read(self) -> dict[Match, Record]:
        """Records without an error by match; the last one wins. Removes a truncated last line."""
        try:
            text = self._path.read_text("utf-8") if self._path.exists() else ""
        except (OSError, ValueError) as error:
            raise self._refused(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
        records: dict[Match, Record] = {}
        whole, _, rest = text.rpartition("\n")
        for number, line in enumerate(whole.splitlines(), start=1):
            record = self._record(number, line)
            if not record.error:
                records[record.match] = record
        if rest:
            if not (rest.startswith(_BEGINNING) or _BEGINNING.startswith(rest)):
                raise self._refused("is no file of records")
            write_atomically(self._path, whole + "\n" if whole else "")
        return records

    def _record(self, number: int, line: str) -> Record:
        try:
            return Record.from_dict(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise self._refused(f"has no record in line {number}") from None

    def _refused(self, reason: str) -> InvalidInputError:
        return InvalidInputError(f"--out: {str(self._path)!r} {reason}.", field="out")
