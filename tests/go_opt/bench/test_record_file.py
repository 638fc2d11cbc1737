"""Records on disk: appended, taken up again, refused where they are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from go_opt.bench.matches import Match, Record
from go_opt.bench.processes import RecordFile
from go_opt.bench.rivals import Point
from go_opt.errors import InvalidInputError


def record(seed: int, **fields) -> Record:
    return Record(
        Match("zoo:vgg16", "mcm-6x6", "slice", seed, 1.0), 58, 2e-5, (Point(1, 0.1, 2e-5),), **fields
    )


def test_what_is_appended_is_there_again(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    with RecordFile(path) as file:
        assert file.records == {}
        file.append(record(0))
        file.append(record(1, error="killed"))
    with RecordFile(path) as file:
        # What failed is played again.
        assert file.records == {record(0).match: record(0)}
        file.append(record(1))
    with RecordFile(path) as file:
        assert list(file.records.values()) == [record(0), record(1)]


def test_a_line_that_was_cut_off_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    with RecordFile(path) as file:
        file.append(record(0))
        file.append(record(1))
    whole = path.read_text()
    path.write_text(whole[:-20])
    with RecordFile(path) as file:
        assert list(file.records) == [record(0).match]
        file.append(record(1))
    assert path.read_text() == whole


@pytest.mark.parametrize("text", ["hello\n", '{"model": "x"}\n', "[1, 2]\n", "no line at all", "\xff\n"])
def test_files_of_others_stay_as_they_are(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text, "latin-1")
    with pytest.raises(InvalidInputError, match=r"--out: .*notes\.txt"):
        RecordFile(path)
    assert path.read_text("latin-1") == text
