"""Log, metrics and traces of a service.

The log has a line per call or event, written outside the event loop. Prometheus metrics have their
own port. OpenTelemetry spans need the extra ``otel``; OpenTelemetry's own instrumentation of gRPC
reports calls that end by their deadline as successful, and cannot wrap handlers that write answers.
"""

from __future__ import annotations

import logging
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from logging.handlers import QueueHandler, QueueListener
from typing import TYPE_CHECKING, Any, Final, Literal

import grpc
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    start_http_server,
)
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from go_opt.common.units import json_line, visible
from go_opt.errors import InvalidInputError
from go_opt.service.calls.calls import Call, Calls, Observer, ServiceMetric
from go_opt.service.calls.security import Security
from go_opt.service.transport.address import Address, check_free, parse_address

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Span

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
_LOGGER: Final = "go_opt"
_MAX_LINES: Final = 10_000  # waiting to be written
_FLUSH_LINES_S: Final = 0.3
_FLUSH_SPANS_S: Final = 0.5
_FIELDS: Final = "call"  # attribute of records that holds a call's fields
# Faults and limits of the service; errors of callers are logged as info.
_LEVELS: Final = {
    grpc.StatusCode.INTERNAL: logging.ERROR,
    grpc.StatusCode.UNKNOWN: logging.ERROR,
    grpc.StatusCode.UNAVAILABLE: logging.WARNING,
    grpc.StatusCode.RESOURCE_EXHAUSTED: logging.WARNING,
    grpc.StatusCode.UNAUTHENTICATED: logging.WARNING,
}
# From a list call to a search of half an hour.
_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
_OF_QUEUES: Final = (  # name, help, attribute of the admission
    ("lane_running", "Workers at work.", "running"),
    ("lane_workers", "Workers there are.", "slots"),
    ("lane_waiting", "Calls that wait for a worker.", "waiting"),
    ("lane_waiting_bytes", "Requests of those.", "waiting_bytes"),
    ("lane_refused", "Calls refused since too many wait.", "refused"),
)
_ENDPOINT: Final = re.compile(r"https?://[A-Za-z0-9._\[\]:-]+")
# Faults of the service by OpenTelemetry's conventions; other errors are the caller's.
_FAULTS: Final = frozenset(
    {
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Observability:
    """The operator's settings for log, metrics and traces.

    Args:
      metrics: ``HOST:PORT`` of Prometheus metrics; none by default.
      metrics_to_others: allow other machines to read the metrics unencrypted; does not affect calls.
      log_format: the format of the lines on stderr.
      log_level: the lowest logged level; ``info`` logs a line for each call.
      otlp_endpoint: an OpenTelemetry collector, ``http://HOST:PORT``; none by default.
    """

    metrics: str | None = None
    log_format: LogFormat = "text"
    log_level: LogLevel = "warning"
    otlp_endpoint: str | None = None
    metrics_to_others: bool = False

    @contextmanager
    def open(self, security: Security) -> Iterator[tuple[list[Observer], Metrics | None]]:
        """The observers of calls, and the metrics if they are served, until the end of the block."""
        with ExitStack() as stack:
            stack.enter_context(logging_to_stderr(self.log_format, self.log_level))
            observers: list[Observer] = [CallLog()]
            if self.otlp_endpoint is not None:
                observers.append(stack.enter_context(tracing_to(self.otlp_endpoint)))
            metrics = None
            if self.metrics is not None:
                place = parse_address(self.metrics, field="metrics")
                if not self.metrics_to_others:
                    security.check_plain_address(place)
                metrics = Metrics()
                _log.info("metrics on %s.", stack.enter_context(metrics.served(place)))
            yield observers, metrics


class CallLog:
    """Logs every call when it ends."""

    def started(self, call: Call, metadata: Mapping[str, str | bytes]) -> None:
        pass

    def finished(self, call: Call) -> None:
        level = _LEVELS.get(call.code, logging.INFO)
        if not _log.isEnabledFor(level):
            return
        fields = {
            "request_id": call.request_id,
            "client": call.client,
            "method": call.method,
            "code": call.code.name,
            "wall_s": round(call.wall_s, 6),
            "waited_s": round(call.waited_s, 6),
            "received_bytes": call.received_bytes,
            "sent_bytes": call.sent_bytes,
        }
        if call.message:
            fields["error"] = call.message
        _log.log(level, "%s %s", call.method, call.code.name, extra={_FIELDS: fields})


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
        shown = (f" {key}={value!r}" for key, value in fields.items() if key not in ("method", "code"))
        return super().formatMessage(record) + "".join(shown)


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
        flushing.join(_FLUSH_LINES_S)


class Metrics:
    """Counts and times calls; each server has its own registry.

    Labels are methods, statuses and lanes, never clients or names that callers choose, because
    such labels would grow without limit.
    """

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.address: Address | None = None  # where the metrics are served
        by_method = ("method",)
        self._calls = Counter("go_opt_calls", "Calls that ended.", ("method", "code"), registry=registry)
        self._seconds = Histogram(
            "go_opt_call_seconds", "From arrival to status.", by_method, buckets=_SECONDS, registry=registry
        )
        self._waited = Histogram(
            "go_opt_call_wait_seconds",
            "Spent waiting for a worker.",
            by_method,
            buckets=_SECONDS,
            registry=registry,
        )
        self._open = Gauge("go_opt_calls_open", "Calls without a status yet.", by_method, registry=registry)
        self._received = Counter("go_opt_received_bytes", "Of requests.", by_method, registry=registry)
        self._sent = Counter("go_opt_sent_bytes", "Of answers.", by_method, registry=registry)
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)

    def started(self, call: Call, metadata: Mapping[str, str | bytes]) -> None:
        self._open.labels(call.method).inc()

    def finished(self, call: Call) -> None:
        self._open.labels(call.method).dec()
        self._calls.labels(call.method, call.code.name).inc()
        self._seconds.labels(call.method).observe(call.wall_s)
        self._waited.labels(call.method).observe(call.waited_s)
        self._received.labels(call.method).inc(call.received_bytes)
        self._sent.labels(call.method).inc(call.sent_bytes)

    def watch_calls(self, calls: Calls) -> None:
        """Report running, waiting and refused calls of each queue."""
        for name, help_, attribute in _OF_QUEUES:
            values = {each.name: partial(getattr, each.admission, attribute) for each in calls.queues}
            self.registry.register(_Watched(name, help_, attribute == "refused", values))

    def watch(self, metrics: Iterable[ServiceMetric]) -> None:
        for metric in metrics:
            self.registry.register(_Watched(metric.name, metric.help, metric.is_total, {"": metric.read}))

    @contextmanager
    def served(self, address: Address) -> Iterator[Address]:
        """Answer ``GET /metrics`` at the address; port 0 picks a free port."""
        check_free(address, field="metrics")
        server, thread = start_http_server(address.port, address.host, self.registry)
        self.address = Address(address.host, server.server_port)
        try:
            yield self.address
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


@dataclass(frozen=True, eq=False)
class _Watched(Collector):
    """Reads values on each scrape, from another thread, so only plain numbers."""

    name: str  # without "go_opt_"
    help: str
    is_total: bool
    values: Mapping[str, Callable[[], float]]  # by lane; "" for a metric without lanes

    def collect(self) -> Iterable[Metric]:
        labels = () if "" in self.values else ("lane",)
        family = CounterMetricFamily if self.is_total else GaugeMetricFamily
        metric = family(f"go_opt_{self.name}", self.help, labels=labels)
        for lane, read in self.values.items():
            metric.add_metric((lane,)[: len(labels)], read())
        return (metric,)


class Tracer:
    """One span per call, a child of the span that the caller names in ``traceparent``.

    Args:
      processor: receives ended spans.
    """

    def __init__(self, processor: SpanProcessor) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = TracerProvider(resource=Resource.create({"service.name": "go-opt"}))
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("go_opt")
        self._propagator = TraceContextTextMapPropagator()
        self._spans: dict[Call, Span] = {}

    def started(self, call: Call, metadata: Mapping[str, str | bytes]) -> None:
        from opentelemetry.trace import SpanKind

        service, _, method = call.method.rpartition("/")
        self._spans[call] = self._tracer.start_span(
            call.method,
            self._propagator.extract(
                {key: value for key, value in metadata.items() if isinstance(value, str)}
            ),
            SpanKind.SERVER,
            {
                "rpc.system": "grpc",
                "rpc.service": service,
                "rpc.method": method,
                "go_opt.client": call.client,
                "go_opt.request_id": call.request_id,
            },
        )

    def finished(self, call: Call) -> None:
        from opentelemetry.trace import StatusCode

        span = self._spans.pop(call)
        span.set_attribute("rpc.grpc.status_code", call.code.value[0])
        span.set_attribute("go_opt.waited_s", call.waited_s)
        if call.code in _FAULTS:
            span.set_status(StatusCode.ERROR, call.message)
        span.end()

    def close(self) -> None:
        """Send the remaining spans, for as long as a drain allows."""
        flushing = threading.Thread(target=self._provider.shutdown, daemon=True)
        flushing.start()
        flushing.join(_FLUSH_SPANS_S)


@contextmanager
def tracing_to(endpoint: str) -> Iterator[Tracer]:
    """Export spans by OTLP over gRPC to an endpoint such as ``http://127.0.0.1:4317``."""
    if _ENDPOINT.fullmatch(endpoint) is None:
        raise InvalidInputError(
            "--otlp-endpoint must be http://HOST:PORT or https://HOST:PORT, such as "
            f"http://127.0.0.1:4317, not {endpoint[:100]!r}.",
            field="otlp_endpoint",
        )
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise InvalidInputError(
            "--otlp-endpoint needs OpenTelemetry: pip install 'go-opt[otel]'.", field="otlp_endpoint"
        ) from None
    tracer = Tracer(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
    try:
        yield tracer
    finally:
        tracer.close()
