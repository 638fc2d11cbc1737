"""Health, log, metrics and traces of a service."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from grpc_health.v1 import health, health_pb2

from go_opt.service.calls.call import Observer
from go_opt.service.calls.calls import Service
from go_opt.service.calls.security import Security
from go_opt.service.observability.logs import CallLog, LogFormat, LogLevel, logging_to_stderr
from go_opt.service.observability.metrics import Metrics
from go_opt.service.observability.tracing import tracing_to
from go_opt.service.transport.address import parse_address

_LOOK_S: Final = 0.05
_Status = health_pb2.HealthCheckResponse
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Watching:
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
                stack.enter_context(metrics.served(place))
            yield observers, metrics


class Readiness:
    """Sets the health of each service, and of the server once all services are ready.

    Calls that arrive earlier wait.
    """

    def __init__(self, health_checks: health.aio.HealthServicer, services: Sequence[Service]) -> None:
        self._health = health_checks
        self._services = tuple(services)
        self._loading: set[Service] = set(services)
        self._watching: asyncio.Task[None] | None = None
        self.reached = asyncio.Event()

    async def tell(self) -> None:
        """Check the services that were not ready, and update the health."""
        for service in self._services:
            if service.is_ready():
                self._loading.discard(service)
            await self._set(service.name, service not in self._loading)
        await self._set("", not self._loading)

    def watch(self) -> None:
        """Poll until all services are ready."""
        self._watching = asyncio.create_task(self._watch())

    async def drain(self) -> None:
        """Set the health of all services to not serving."""
        if self._watching is not None:
            self._watching.cancel()
        await self._health.enter_graceful_shutdown()

    async def _watch(self) -> None:
        while self._loading:
            await asyncio.sleep(_LOOK_S)
            await self.tell()
        self.reached.set()
        _log.info("ready.")

    async def _set(self, name: str, serves: bool) -> None:
        await self._health.set(name, _Status.SERVING if serves else _Status.NOT_SERVING)
