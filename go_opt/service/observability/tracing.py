"""OpenTelemetry spans of calls; needs the extra ``otel``."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import grpc

from go_opt.errors import InvalidInputError
from go_opt.service.calls.call import Call, Outcome

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Span

_ENDPOINT: Final = re.compile(r"https?://[A-Za-z0-9._\[\]:-]+")
_FLUSH_S: Final = 0.5
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

    def finished(self, call: Call, outcome: Outcome) -> None:
        from opentelemetry.trace import StatusCode

        span = self._spans.pop(call)
        span.set_attribute("rpc.grpc.status_code", outcome.code.value[0])
        span.set_attribute("go_opt.waited_s", outcome.waited_s)
        if outcome.code in _FAULTS:
            span.set_status(StatusCode.ERROR, outcome.message)
        span.end()

    def close(self) -> None:
        """Send the remaining spans, for as long as a drain allows."""
        flushing = threading.Thread(target=self._provider.shutdown, daemon=True)
        flushing.start()
        flushing.join(_FLUSH_S)


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
