"""One line for each call, for programs or for the eye."""

from __future__ import annotations

import io
import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from google.protobuf.wrappers_pb2 import BytesValue

from go_opt.service import observability
from go_opt.service.observability import CallLog, LogFormat, LogLevel, logging_to_stderr
from tests.serving import serve_in_thread

PATIENCE_S = 10.0


@contextmanager
def logged(
    monkeypatch: pytest.MonkeyPatch, toy: Any, style: LogFormat, level: LogLevel = "info"
) -> Iterator[tuple[grpc.Channel, io.StringIO]]:
    """A service that logs; the text is whole after the block."""
    stderr = io.StringIO()
    monkeypatch.setattr("sys.stderr", stderr)
    with (
        logging_to_stderr(style, level),
        serve_in_thread([toy], observers=[CallLog()]) as address,
        grpc.insecure_channel(address) as channel,
    ):
        yield channel, stderr


def call(channel: grpc.Channel, value: bytes) -> Any:
    data = BytesValue(value=value).SerializeToString()
    metadata = (("x-request-id", "my-call"),)
    return channel.unary_unary("/toy.Toy/Quick").future(data, timeout=PATIENCE_S, metadata=metadata)


def of_calls(stderr: io.StringIO) -> list[str]:
    """The lines of calls: the service also says when it is ready."""
    return [line for line in stderr.getvalue().splitlines() if "toy.Toy" in line]


def test_a_json_line_for_each_call(monkeypatch: pytest.MonkeyPatch, toy: Any) -> None:
    with logged(monkeypatch, toy, "json") as (channel, stderr):
        assert call(channel, b"x").result()
        assert call(channel, b"bad").exception()
    good, bad = map(json.loads, of_calls(stderr))
    assert good.pop("time").endswith("Z")
    assert 0 <= good.pop("waited_s") <= good.pop("wall_s") < PATIENCE_S
    assert good == {
        "level": "info",
        "logger": "go_opt.service.observability",
        "message": "toy.Toy/Quick OK",
        "request_id": "my-call",
        "client": "127.0.0.1",
        "method": "toy.Toy/Quick",
        "code": "OK",
        "received_bytes": 3,
        "sent_bytes": 3,
    }
    assert (bad["code"], bad["error"], bad["level"]) == ("INVALID_ARGUMENT", "value is bad.", "info")


def test_a_line_for_the_eye(monkeypatch: pytest.MonkeyPatch, toy: Any) -> None:
    with logged(monkeypatch, toy, "text") as (channel, stderr):
        assert call(channel, b"x").result()
    (line,) = of_calls(stderr)
    assert " INFO toy.Toy/Quick OK request_id='my-call' client='127.0.0.1' wall_s=" in line


def test_a_defect_has_its_traceback_and_the_call_its_line(monkeypatch: pytest.MonkeyPatch, toy: Any) -> None:
    with logged(monkeypatch, toy, "json", "warning") as (channel, stderr):
        assert call(channel, b"x").result()  # below the level
        assert call(channel, b"defect").code() is grpc.StatusCode.INTERNAL
    defect, line = map(json.loads, stderr.getvalue().splitlines())
    assert defect["message"] == "call my-call of toy.Toy/Quick failed."
    assert defect["traceback"].endswith("KeyError: 'a defect'")
    assert (line["code"], line["level"]) == ("INTERNAL", "error")


def test_a_reader_of_stderr_that_stands_still_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch, toy: Any
) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(observability, "_MAX_LINES", 10)

    class Stuck(io.StringIO):
        def write(self, text: str) -> int:
            go_on.wait()
            return len(text)

    monkeypatch.setattr("sys.stderr", Stuck())
    try:
        with logging_to_stderr("text", "info"):
            for _ in range(100):
                logging.getLogger("go_opt.test").info("a line")
    finally:
        go_on.set()
