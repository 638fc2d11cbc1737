"""Metrics: lines and events by hand, and a resumed run's like those of one that went through."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog

from go_opt.agents.training.metric_log import FILE_NAME, TENSORBOARD_FOLDER, MetricLog, read_metric
from go_opt.errors import InvalidInputError


def events(folder: Path) -> list[Event]:
    """All events in the order TensorBoard reads them: length, its checksum, event, its checksum."""
    found = []
    for path in sorted((folder / TENSORBOARD_FOLDER).iterdir()):
        data = path.read_bytes()
        while data:
            length = int.from_bytes(data[:8], "little")
            found.append(Event.FromString(data[12 : 12 + length]))
            data = data[16 + length :]
    return found


def scalars(folder: Path) -> list[tuple[int, str, float]]:
    """What TensorBoard shows: a start takes back the events from its step on."""
    shown: list[tuple[int, str, float]] = []
    for event in events(folder):
        if event.session_log.status == SessionLog.START:
            shown = [scalar for scalar in shown if scalar[0] < event.step]
        shown += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
    return shown


def test_by_hand(tmp_path: Path) -> None:
    with MetricLog(tmp_path / "run") as log:
        log.write(1, {"reward": 0.5, "samples/s": 12})
        log.write(2, {"reward": math.nan, "samples/s": np.float32(math.inf)})
        text = (tmp_path / "run" / FILE_NAME).read_text()  # nothing is held back
        shown = scalars(tmp_path / "run")
    assert text == (
        '{"step": 1, "reward": 0.5, "samples/s": 12.0}\n{"step": 2, "reward": null, "samples/s": null}\n'
    )
    assert shown == [(1, "reward", 0.5), (1, "samples/s", 12.0)]
    assert events(tmp_path / "run")[0].file_version == "brain.Event:2"


def test_a_resumed_run_is_like_one_that_went_through(tmp_path: Path) -> None:
    with MetricLog(tmp_path / "through") as through:
        for step in range(1, 6):
            through.write(step, {"reward": step / 8})
    with MetricLog(tmp_path / "killed") as killed:
        for step in range(1, 5):
            killed.write(step, {"reward": step / 8})
    path = tmp_path / "killed" / FILE_NAME
    path.write_bytes(path.read_bytes() + b'{"step": 2')
    with MetricLog(tmp_path / "killed") as resumed:
        resumed.truncate_after(2)
        for step in range(3, 6):
            resumed.write(step, {"reward": step / 8})
    assert path.read_bytes() == (tmp_path / "through" / FILE_NAME).read_bytes()
    assert scalars(tmp_path / "killed") == scalars(tmp_path / "through")
    assert len(list((tmp_path / "killed" / TENSORBOARD_FOLDER).iterdir())) == 2


def test_truncated_while_it_is_open(tmp_path: Path) -> None:
    with MetricLog(tmp_path) as log:
        log.write(1, {"x": 1.0})
        log.write(2, {"x": 2.0})
        log.truncate_after(1)
        log.write(2, {"x": 3.0})
    assert scalars(tmp_path) == [(1, "x", 1.0), (2, "x", 3.0)]


@pytest.mark.parametrize("line", ["", "{}", "[1]", '{"step": "1"}', '{"step": 1', "\0\0", '{"step": 3}'])
def test_lines_that_are_dropped(tmp_path: Path, line: str) -> None:
    log = MetricLog(tmp_path)
    (tmp_path / FILE_NAME).write_text(f'{{"step": 1}}\n{line}\n{{"step": 2}}\n')
    log.truncate_after(2)
    steps = [json.loads(kept)["step"] for kept in (tmp_path / FILE_NAME).read_text().splitlines()]
    assert steps == [1, 2]


def test_nothing_to_truncate(tmp_path: Path) -> None:
    MetricLog(tmp_path).truncate_after(0)
    assert not (tmp_path / FILE_NAME).exists()


def test_a_run_without_a_step_has_no_metrics(tmp_path: Path) -> None:
    assert read_metric(tmp_path, "reward") == []


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInputError, match=r"^folder '.*' cannot be made: .*\.$"):
        MetricLog(tmp_path / "file")
    (tmp_path / FILE_NAME).mkdir()
    log = MetricLog(tmp_path)
    with pytest.raises(InvalidInputError, match=r"^metrics cannot be written to '.*': Is a directory\.$"):
        log.write(1, {"x": 1.0})
    with pytest.raises(InvalidInputError, match=r"^metrics cannot be written to '.*': Is a directory\.$"):
        log.truncate_after(1)
