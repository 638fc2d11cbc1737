"""Records on disk, one JSON object a line: a run that was cut short goes on where it stopped."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType

from go_opt.bench.matches import Match, Record
from go_opt.errors import InvalidInputError


class RecordFile:
    """The records of a file, and a place to append more."""

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
        """Write one record, whole, at once."""
        self._file.write(json.dumps(record.to_dict(), allow_nan=False) + "\n")
        self._file.flush()

    def _read(self) -> dict[Match, Record]:
        """By match, the last counts; of a line that was cut off nothing stays."""
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
            if not rest.startswith("{"):
                raise self._refused("is no file of records")
            self._path.write_text(whole + "\n" if whole else "", "utf-8")
        return records

    def _record(self, number: int, line: str) -> Record:
        try:
            return Record.from_dict(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise self._refused(f"has no record in line {number}") from None

    def _refused(self, reason: str) -> InvalidInputError:
        return InvalidInputError(f"--out: {str(self._path)!r} {reason}.", field="out")
