"""The metrics of a training run: JSON lines as the record, and TensorBoard events for viewing."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from go_opt.common.files import make_folder, remove_temporaries, write_bytes_atomically
from go_opt.errors import InvalidInputError

FILE_NAME: Final = "metrics.jsonl"
TENSORBOARD_FOLDER: Final = "tensorboard"


class MetricLog:
    """Appends to the metrics in ``folder``, which is made where there is none.

    What :meth:`write` returned from survives a kill. The events are written by this thread:
    tensorboardX's ``SummaryWriter`` leaves that to another one, which loses the last of them
    in a kill and, dead of a full disk, blocks the run for good.

    Raises:
      InvalidInputError: the folder cannot be made or written to.
    """

    def __init__(self, folder: str | Path) -> None:
        self._path = Path(folder) / FILE_NAME
        self._events_folder = Path(folder) / TENSORBOARD_FOLDER
        self._events: EventsWriter | None = None  # opened by the first write
        self._purge_step: int | None = None  # TensorBoard forgets events from here on
        make_folder(self._events_folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """One line for ``step``; a value that is not finite becomes null, and no event."""
        finite = {name: float(value) if math.isfinite(value) else None for name, value in values.items()}
        with self._one_sentence():
            with self._path.open("a", encoding="utf-8", newline="\n") as file:
                file.write(json.dumps({"step": step, **finite}) + "\n")
            self._write_event(step, finite)

    def truncate_after(self, step: int) -> None:
        """Forget all lines after ``step`` and a torn one: a run resumes from its checkpoint there."""
        self.close()
        self._purge_step = step + 1
        with self._one_sentence():
            remove_temporaries(self._path)
            if self._path.exists():
                lines = self._path.read_bytes().splitlines(keepends=True)
                kept = [line for line in lines if line.endswith(b"\n") and _step(line) <= step]
                write_bytes_atomically(self._path, b"".join(kept))

    def close(self) -> None:
        """Close the files; a later write opens them again."""
        if self._events is not None:
            self._events.close()
            self._events = None

    def _write_event(self, step: int, values: Mapping[str, float | None]) -> None:
        if self._events is None:
            self._events = self._open_events()
        scalars = [
            Summary.Value(tag=name, simple_value=value) for name, value in values.items() if value is not None
        ]
        self._events.write_event(Event(wall_time=time.time(), step=step, summary=Summary(value=scalars)))
        self._events.flush()

    def _open_events(self) -> EventsWriter:
        # Files are named by the second, and two of one name would overwrite each other.
        number = sum(1 for _ in self._events_folder.iterdir())
        events = EventsWriter(str(self._events_folder / "events"), f".{number:06d}")
        if self._purge_step is not None:
            start = SessionLog(status=SessionLog.START)
            events.write_event(Event(wall_time=time.time(), step=self._purge_step, session_log=start))
        return events

    @contextmanager
    def _one_sentence(self) -> Iterator[None]:
        try:
            yield
        except OSError as cause:
            raise InvalidInputError(
                f"metrics cannot be written to {str(self._path.parent)!r}: {cause.strerror or cause}.",
                field="path",
            ) from None


def read_metric(folder: str | Path, name: str) -> list[tuple[int, float]]:
    """Step and value of every line that has the metric ``name``, null left out.

    None where no step was taken yet.
    """
    path = Path(folder) / FILE_NAME
    records = [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []
    return [(record["step"], record[name]) for record in records if record.get(name) is not None]


def _step(line: bytes) -> float:
    """The step of a line; infinite where it is none of a metric log."""
    try:
        step: Any = json.loads(line)["step"]
    except (ValueError, TypeError, KeyError):
        return math.inf
    return step if isinstance(step, int) else math.inf
