"""The log of a service: one line per call or event, written outside the event loop."""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from logging.handlers import QueueHandler, QueueListener
from typing import Any, Final, Literal

import grpc

from go_opt.common.units import json_line, visible
from go_opt.service.calls.call import Call, Outcome

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
_LOGGER: Final = "go_opt"
_MAX_LINES: Final = 10_000  # waiting to be written
_FLUSH_S: Final = 0.3
_FIELDS: Final = "call"  # attribute of records that holds a call's fields
_log = logging.getLogger(__name__)
# Faults and limits of the service; errors of callers are logged as info.
_LEVELS: Final = {
    grpc.StatusCode.INTERNAL: logging.ERROR,
    grpc.StatusCode.UNKNOWN: logging.ERROR,
    grpc.StatusCode.UNAVAILABLE: logging.WARNING,
    grpc.StatusCode.RESOURCE_EXHAUSTED: logging.WARNING,
    grpc.StatusCode.UNAUTHENTICATED: logging.WARNING,
}


class CallLog:
    """Logs every call when it ends."""

    def started(self, call: Call, metadata: Mapping[str, str | bytes]) -> None:
        pass

    def finished(self, call: Call, outcome: Outcome) -> None:
        level = _LEVELS.get(outcome.code, logging.INFO)
        if not _log.isEnabledFor(level):
            return
        fields = {
            "request_id": call.request_id,
            "client": call.client,
            "method": call.method,
            "code": outcome.code.name,
            "wall_s": round(outcome.wall_s, 6),
            "waited_s": round(outcome.waited_s, 6),
            "received_bytes": outcome.received_bytes,
            "sent_bytes": outcome.sent_bytes,
        }
        if outcome.message:
            fields["error"] = outcome.message
        _log.log(level, "%s %s", call.method, outcome.code.name, extra={_FIELDS: fields})


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, message, and the fields of a call."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, _FIELDS, {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json_line(line)

    converter = staticmethod(time.gmtime)


class TextFormatter(logging.Formatter):
    """The same as text: ``12:00:01 INFO go_opt.v1.Optimizer/Optimize OK client=… wall_s=…``."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:
        fields = getattr(record, _FIELDS, {})
        told = (f" {key}={value!r}" for key, value in fields.items() if key not in ("method", "code"))
        return super().formatMessage(record) + "".join(told)


class _Queue(QueueHandler):
    """Queues records unchanged; drops lines rather than block the service."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record

    def handleError(self, record: logging.LogRecord) -> None:
        pass


class _Listener(QueueListener):
    def __init__(self, lines: queue.Queue[Any], writer: logging.Handler) -> None:
        super().__init__(lines, writer)
        self._lines = lines

    def enqueue_sentinel(self) -> None:
        self._lines.put(None)  # blocks while the queue is full


@contextmanager
def logging_to_stderr(style: LogFormat, level: LogLevel) -> Iterator[None]:
    """Log the messages of go-opt and gRPC; a stalled reader of stderr blocks nobody."""
    lines: queue.Queue[Any] = queue.Queue(_MAX_LINES)
    writer = logging.StreamHandler(sys.stderr)
    writer.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    listener = _Listener(lines, writer)
    handler = _Queue(lines)
    root, own = logging.getLogger(), logging.getLogger(_LOGGER)
    root.addHandler(handler)
    own.setLevel(level.upper())
    listener.start()
    try:
        yield
    finally:
        root.removeHandler(handler)
        own.setLevel(logging.NOTSET)
        flushing = threading.Thread(target=listener.stop, daemon=True)
        flushing.start()
        flushing.join(_FLUSH_S)
