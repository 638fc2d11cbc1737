"""What Prometheus reads of a service."""

from __future__ import annotations

import urllib.request
from typing import Any

import grpc
import pytest
from google.protobuf.wrappers_pb2 import BytesValue
from prometheus_client.parser import text_string_to_metric_families

from go_opt.errors import InvalidInputError
from go_opt.service.calls.admission import AdmissionLimits
from go_opt.service.calls.security import Security
from go_opt.service.observability import Metrics, Observability
from go_opt.service.server import serve
from go_opt.service.transport.address import parse_address
from tests.serving import serve_in_thread

PATIENCE_S = 10.0


def call(channel: grpc.Channel, method: str, value: bytes) -> Any:
    data = BytesValue(value=value).SerializeToString()
    return channel.unary_unary(f"/toy.Toy/{method}").future(data, timeout=PATIENCE_S)


def scraped(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """Values by name and labels, these in the order of their names, as a scraper gets them."""
    with metrics.served(parse_address("127.0.0.1:0")) as address:
        text = urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_S).read().decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_calls_are_counted_timed_and_weighed(toy: Any) -> None:
    metrics = Metrics()
    with (
        serve_in_thread([toy], workers=1, metrics=metrics, limits=AdmissionLimits(waiting=0)) as address,
        grpc.insecure_channel(address) as channel,
    ):
        size = len(call(channel, "Search", b"x" * 1000).result())
        assert call(channel, "Search", b"bad").exception()
        running = call(channel, "Search", b"wait")
        assert toy.started.acquire(timeout=PATIENCE_S)
        assert call(channel, "Search", b"too many").code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        seen = scraped(metrics)
        toy.go_on.set()
        assert running.result()
    assert seen["go_opt_calls_total", "OK", "toy.Toy/Search"] == 1
    assert seen["go_opt_calls_total", "INVALID_ARGUMENT", "toy.Toy/Search"] == 1
    assert seen["go_opt_calls_total", "RESOURCE_EXHAUSTED", "toy.Toy/Search"] == 1
    assert seen["go_opt_call_seconds_count", "toy.Toy/Search"] == 3
    assert seen["go_opt_call_wait_seconds_count", "toy.Toy/Search"] == 3
    assert seen["go_opt_calls_open", "toy.Toy/Search"] == 1
    assert seen["go_opt_received_bytes_total", "toy.Toy/Search"] == size + 5
    assert seen["go_opt_sent_bytes_total", "toy.Toy/Search"] == size
    assert seen["go_opt_lane_running", "search"] == 1
    assert seen["go_opt_lane_workers", "search"] == 1
    assert seen["go_opt_lane_waiting", "search"] == 0
    assert seen["go_opt_lane_refused_total", "search"] == 1
    assert seen["go_opt_lane_running", "quick"] == 0
    assert seen[("go_opt_toys",)] == 3
    assert seen[("process_resident_memory_bytes",)] > 0


def test_two_servers_count_apart(toy: Any) -> None:
    one, other = Metrics(), Metrics()
    with (
        serve_in_thread([toy], metrics=one) as address,
        serve_in_thread([toy], metrics=other),
        grpc.insecure_channel(address) as channel,
    ):
        assert call(channel, "Quick", b"x").result()
    assert scraped(one)["go_opt_calls_total", "OK", "toy.Toy/Quick"] == 1
    assert ("go_opt_calls_total", "OK", "toy.Toy/Quick") not in scraped(other)


def test_names_that_callers_make_up_are_no_labels(toy: Any) -> None:
    metrics = Metrics()
    with serve_in_thread([toy], metrics=metrics) as address, grpc.insecure_channel(address) as channel:
        for number in range(5):
            assert call(channel, f"Made{number}", b"").code() is grpc.StatusCode.UNIMPLEMENTED
    assert not any("Made" in label for key in scraped(metrics) for label in key)


@pytest.mark.parametrize(
    ("address", "words"),
    [("127.0.0.1", "metrics must be HOST:PORT"), ("0.0.0.0:0", "metrics are not encrypted")],
)
def test_an_address_that_cannot_be_used_is_refused(address: str, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words) as error:
        serve("127.0.0.1:0", list, observability=Observability(metrics=address))
    assert error.value.field == "metrics"


def test_metrics_for_other_machines_leave_calls_as_they_are() -> None:
    observability = Observability(metrics="0.0.0.0:0", metrics_to_others=True)
    with observability.open(Security()) as (_, metrics):
        assert metrics is not None
        address = metrics.address
        assert address is not None
        assert (
            urllib.request.urlopen(f"http://127.0.0.1:{address.port}/metrics", timeout=PATIENCE_S).status
            == 200
        )
    with pytest.raises(InvalidInputError, match="would have no encryption") as error:
        serve("0.0.0.0:0", list, observability=observability)
    assert error.value.field == "insecure"


def test_a_busy_port_is_refused() -> None:
    with (
        Metrics().served(parse_address("127.0.0.1:0")) as address,
        pytest.raises(InvalidInputError, match=r"cannot listen on .*: Address already in use"),
    ):
        serve("127.0.0.1:0", list, observability=Observability(metrics=str(address)))
