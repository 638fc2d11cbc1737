"""The front of all services: what comes of calls, whoever leaves, reads slowly or sends nonsense."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from google.protobuf.wrappers_pb2 import BytesValue
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from go_opt.service.calls.admission import AdmissionLimits
from tests.serving import serve_in_thread

UNARY = ("Quick", "Search", "Poll")
KINDS = (*UNARY, "Updates", "Batches")
PATIENCE_S = 30.0
SOON_S = 0.3  # within which a call that is refused is


def packed(value: bytes) -> bytes:
    data: bytes = BytesValue(value=value).SerializeToString()
    return data


def unpacked(data: bytes) -> bytes:
    value: bytes = BytesValue.FromString(data).value
    return value


def start(channel: grpc.Channel, method: str, data: bytes, **options: Any) -> Any:
    """A call of any kind under way; iterable where it answers with a stream."""
    path = f"/toy.Toy/{method}"
    options = {"timeout": PATIENCE_S, **options}
    if method == "Updates":
        return channel.unary_stream(path)(data, **options)
    if method == "Batches":
        return channel.stream_stream(path)(iter([data]), **options)
    return channel.unary_unary(path).future(data, **options)


def eventually(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.005)


@pytest.mark.parametrize("method", UNARY)
def test_one_answer(toy_channel: grpc.Channel, toy: Any, method: str) -> None:
    assert unpacked(start(toy_channel, method, packed(b"x")).result()) == b"x"
    (call,) = toy.seen
    assert call.method == f"toy.Toy/{method}"
    assert call.client == "127.0.0.1"
    assert 0 < call.deadline_s - time.monotonic() < PATIENCE_S + 1  # gRPC rounds it up
    assert call.stop.wait(PATIENCE_S)  # nobody waits any longer


def test_updates_come_before_the_answer(toy_channel: grpc.Channel) -> None:
    assert [*map(unpacked, start(toy_channel, "Updates", packed(b"x")))] == [b"update", b"x"]


def test_each_request_of_a_stream_is_answered_in_order(toy_channel: grpc.Channel, toy: Any) -> None:
    requests = [packed(bytes([number])) for number in range(50)]
    answers = toy_channel.stream_stream("/toy.Toy/Batches")(iter(requests), timeout=PATIENCE_S)
    assert list(answers) == requests
    assert len(set(map(id, toy.seen))) == 1


def test_a_stream_without_requests_ends_well(toy_channel: grpc.Channel) -> None:
    assert list(toy_channel.stream_stream("/toy.Toy/Batches")(iter([]), timeout=PATIENCE_S)) == []


@pytest.mark.parametrize("method", UNARY)
def test_a_call_without_a_request_is_refused(toy_channel: grpc.Channel, method: str) -> None:
    call = toy_channel.stream_unary(f"/toy.Toy/{method}").future(iter([]), timeout=PATIENCE_S)
    assert call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert call.details() == "the call ended before it had sent a request."


@pytest.mark.parametrize("method", KINDS)
def test_bytes_that_are_no_message_are_refused(toy_channel: grpc.Channel, method: str) -> None:
    call = start(toy_channel, method, b"\xff\xff")
    assert call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert call.details() == "the request is no google.protobuf.BytesValue message."


@pytest.mark.parametrize("method", ["Quick", "Search", "Updates", "Batches"])
def test_an_error_keeps_its_details(toy_channel: grpc.Channel, method: str) -> None:
    call = start(toy_channel, method, packed(b"bad"))
    assert call.code() is grpc.StatusCode.INVALID_ARGUMENT
    request = error_details_pb2.BadRequest()
    assert [detail.Unpack(request) for detail in rpc_status.from_call(call).details][-1]
    assert request.field_violations[0].field == "value"


@pytest.mark.parametrize("method", ["Quick", "Search", "Updates", "Batches"])
def test_a_defect_stays_in_the_log(
    toy_channel: grpc.Channel, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    metadata = (("x-request-id", "my-call"),)
    call = start(toy_channel, method, packed(b"defect"), metadata=metadata)
    assert call.code() is grpc.StatusCode.INTERNAL
    assert "a defect" not in call.details()
    assert "KeyError: 'a defect'" in caplog.text
    assert f"call my-call of toy.Toy/{method} failed." in caplog.text


def test_an_error_of_no_known_class_is_a_defect(
    toy_channel: grpc.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    assert start(toy_channel, "Search", packed(b"base")).code() is grpc.StatusCode.INTERNAL
    assert "of no class that clients know" in caplog.text


@pytest.mark.parametrize(
    ("given", "is_kept"),
    [
        ("a-1.b_2:c/d", True),
        ("x" * 128, True),
        ("x" * 129, False),
        ("a b", False),
        ('"', False),
        ("", False),
    ],
)
def test_request_ids(toy_channel: grpc.Channel, toy: Any, given: str, is_kept: bool) -> None:
    call = start(toy_channel, "Quick", packed(b"x"), metadata=(("x-request-id", given),))
    returned = dict(call.initial_metadata())["x-request-id"]
    assert (returned == given) is is_kept
    assert len(returned) >= 8
    assert toy.seen[0].request_id == returned


@pytest.mark.parametrize("method", ["Quick", "Search", "Updates", "Batches", "Poll"])
def test_a_call_that_is_cancelled_stops_at_once(toy_channel: grpc.Channel, toy: Any, method: str) -> None:
    call = start(toy_channel, method, packed(b"wait"))
    assert toy.started.acquire(timeout=PATIENCE_S)
    call.cancel()
    start_s = time.monotonic()
    assert toy.seen[0].stop.wait(PATIENCE_S)
    assert time.monotonic() - start_s < PATIENCE_S / 2


@pytest.mark.parametrize("method", ["Search", "Updates", "Batches", "Poll"])
def test_a_deadline_stops_a_call(toy_channel: grpc.Channel, toy: Any, method: str) -> None:
    call = start(toy_channel, method, packed(b"wait"), timeout=0.3)
    assert call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert toy.seen[0].stop.wait(PATIENCE_S)


def test_a_client_that_vanishes_frees_what_it_held(toy: Any, toy_address: str) -> None:
    for method in ("Search", "Updates", "Batches", "Poll"):
        with grpc.insecure_channel(toy_address) as channel:
            call = start(channel, method, packed(b"wait"))  # held: a forgotten stream is cancelled
            assert toy.started.acquire(timeout=PATIENCE_S)
        assert call.code() is grpc.StatusCode.CANCELLED
        assert toy.seen.pop().stop.wait(PATIENCE_S)
    with grpc.insecure_channel(toy_address) as channel:  # both workers are free again
        calls = [start(channel, "Search", packed(b"wait")) for _ in range(2)]
        assert all(toy.started.acquire(timeout=PATIENCE_S) for _ in calls)
        toy.go_on.set()
        assert [unpacked(call.result()) for call in calls] == [b"wait"] * 2


def test_a_slow_reader_misses_updates_but_not_the_answer(toy_channel: grpc.Channel) -> None:
    stream = start(toy_channel, "Updates", packed(b"flood"), timeout=60)
    first = unpacked(next(stream))
    eventually(stream.is_active)
    time.sleep(0.2)  # while hundreds of updates are emitted
    *updates, last = map(unpacked, stream)
    assert last == b"last"
    numbers = [int.from_bytes(update[:4], "big") for update in (first, *updates)]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == 1999
    assert len(numbers) < 1999


def test_a_reader_that_stops_reading_and_leaves_frees_its_worker(toy_channel: grpc.Channel, toy: Any) -> None:
    stream = start(toy_channel, "Updates", packed(b"flood"))
    next(stream)
    stream.cancel()
    assert toy.seen[0].stop.wait(PATIENCE_S)
    assert unpacked(start(toy_channel, "Search", packed(b"x")).result()) == b"x"


def test_quick_calls_do_not_wait_for_searches(toy_channel: grpc.Channel, toy: Any) -> None:
    searches = [start(toy_channel, "Search", packed(b"wait")) for _ in range(2)]
    assert all(toy.started.acquire(timeout=PATIENCE_S) for _ in searches)
    assert unpacked(start(toy_channel, "Quick", packed(b"x")).result()) == b"x"
    toy.go_on.set()
    assert all(search.result() for search in searches)


@contextmanager
def crowded(toy: Any, limits: AdmissionLimits) -> Iterator[grpc.Channel]:
    """A service whose one worker is at work."""
    with (
        serve_in_thread([toy], workers=1, limits=limits) as address,
        grpc.insecure_channel(address) as channel,
    ):
        first = start(channel, "Search", packed(b"wait"))
        assert toy.started.acquire(timeout=PATIENCE_S)
        yield channel
        toy.go_on.set()
        assert first.result()


@pytest.mark.parametrize("method", ["Search", "Updates"])
def test_a_call_too_many_is_told_when_to_come_again(toy: Any, method: str) -> None:
    with crowded(toy, AdmissionLimits(waiting=0)) as channel:
        call = start(channel, method, packed(b"x"))
        assert call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert call.details() == "0 calls wait already, the limit is 0; try again in 1.0 s."
        retry = error_details_pb2.RetryInfo()
        assert [detail.Unpack(retry) for detail in rpc_status.from_call(call).details][-1]
        assert retry.retry_delay.ToMilliseconds() == 1000


def test_a_waiting_call_that_leaves_makes_room(toy: Any) -> None:
    with crowded(toy, AdmissionLimits(waiting=1)) as channel:
        late = start(channel, "Search", packed(b"x"), timeout=0.3)
        assert late.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        patient = start(channel, "Search", packed(b"y"))
        time.sleep(SOON_S)
        while patient.done():  # refused, since the service does not know yet that the other left
            patient = start(channel, "Search", packed(b"y"))
            time.sleep(SOON_S)
        toy.go_on.set()
        assert unpacked(patient.result()) == b"y"
        assert [call.method for call in toy.seen] == ["toy.Toy/Search"] * 2  # the late one never ran


def test_a_message_beyond_the_limit_is_refused(toy_address: str) -> None:
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(toy_address, options=options) as channel:
        for method in ("Quick", "Updates", "Batches"):
            call = start(channel, method, bytes(256 * 2**20 + 1), timeout=60)
            assert call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert unpacked(start(channel, "Quick", packed(b"x")).result()) == b"x"


def test_unknown_methods_are_unimplemented(toy_channel: grpc.Channel) -> None:
    assert start(toy_channel, "Nothing", b"").code() is grpc.StatusCode.UNIMPLEMENTED


def test_health_answers_while_all_threads_compute(toy_channel: grpc.Channel, toy: Any) -> None:
    stop = threading.Event()

    def compute() -> None:
        while not stop.is_set():
            sum(range(10_000))

    threads = [threading.Thread(target=compute) for _ in range(2)]
    for thread in threads:
        thread.start()
    check = health_pb2_grpc.HealthStub(toy_channel).Check
    took_s = []
    for _ in range(20):
        start_s = time.monotonic()
        check(health_pb2.HealthCheckRequest(service="toy.Toy"), timeout=PATIENCE_S)
        took_s.append(time.monotonic() - start_s)
    stop.set()
    for thread in threads:
        thread.join()
    assert sorted(took_s)[10] < 1


@pytest.mark.parametrize("method", KINDS)
def test_a_call_that_went_well_leaves_no_line(
    toy_channel: grpc.Channel, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    with caplog.at_level(logging.WARNING):
        call = start(toy_channel, method, packed(b"x"))
        if method not in UNARY:
            list(call)
        assert call.code() is grpc.StatusCode.OK
    assert caplog.text == ""
