"""How a service is watched: its log, metrics and traces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from go_opt.service.calls.call import Observer
from go_opt.service.calls.security import Security
from go_opt.service.observability.logs import CallLog, LogFormat, LogLevel, logging_to_stderr
from go_opt.service.observability.metrics import Metrics
from go_opt.service.observability.tracing import tracing_to
from go_opt.service.transport.address import parse_address


@dataclass(frozen=True)
class Watchers:
    """What watches a service."""

    observers: tuple[Observer, ...]
    metrics: Metrics | None


@dataclass(frozen=True)
class Watching:
    """What an operator asks for.

    Args:
      metrics: ``HOST:PORT`` of Prometheus metrics; none by default.
      metrics_to_others: allow other machines to reach them, unencrypted; calls stay as they are.
      log_format: of the lines on stderr.
      log_level: the least that is logged; ``info`` is a line for each call.
      otlp_endpoint: of an OpenTelemetry collector, ``http://HOST:PORT``; none by default.
    """

    metrics: str | None = None
    log_format: LogFormat = "text"
    log_level: LogLevel = "warning"
    otlp_endpoint: str | None = None
    metrics_to_others: bool = False

    @contextmanager
    def open(self, security: Security) -> Iterator[Watchers]:
        """All of it at work, until the end of the block."""
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
            yield Watchers(tuple(observers), metrics)
