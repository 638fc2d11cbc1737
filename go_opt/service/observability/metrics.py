"""Prometheus metrics of a service, on their own port."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

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

from go_opt.service.calls.call import Call, Outcome, ServiceMetric
from go_opt.service.calls.lane import Lane
from go_opt.service.transport.address import Address, check_free

# From a list call to a search of half an hour.
_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)

_OF_LANES: Final = (  # name, help, attribute of the admission
    ("lane_running", "Workers at work.", "running"),
    ("lane_workers", "Workers there are.", "slots"),
    ("lane_waiting", "Calls that wait for a worker.", "waiting"),
    ("lane_waiting_bytes", "Requests of those.", "waiting_bytes"),
    ("lane_refused", "Calls refused since too many wait.", "refused"),
)


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

    def finished(self, call: Call, outcome: Outcome) -> None:
        self._open.labels(call.method).dec()
        self._calls.labels(call.method, outcome.code.name).inc()
        self._seconds.labels(call.method).observe(outcome.wall_s)
        self._waited.labels(call.method).observe(outcome.waited_s)
        self._received.labels(call.method).inc(outcome.received_bytes)
        self._sent.labels(call.method).inc(outcome.sent_bytes)

    def watch_lanes(self, lanes: Iterable[Lane]) -> None:
        """Report running, waiting and refused calls of each lane."""
        for name, help_, attribute in _OF_LANES:
            values = {lane.name: partial(getattr, lane.admission, attribute) for lane in lanes}
            self.registry.register(_Watched(name, help_, attribute == "refused", values))

    def watch(self, metrics: Iterable[ServiceMetric]) -> None:
        """Report the metrics of services."""
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
