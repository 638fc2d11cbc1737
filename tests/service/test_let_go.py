"""Requests do not outlive their calls: nothing of them waits for the collection of garbage."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator

import grpc
import pytest
from google.protobuf.wrappers_pb2 import BytesValue

from go_opt.service.calls.admission import AdmissionLimits
from tests.service.conftest import ToyService
from tests.service.jobs.conftest import eventually
from tests.serving import serve_in_thread

SIZE = 2**21
PATIENCE_S = 20.0
NO_MESSAGE = b"\xff" * SIZE
LARGE = BytesValue(value=bytes(SIZE)).SerializeToString()


@pytest.fixture
def without_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    tracemalloc.start()
    yield
    tracemalloc.stop()
    gc.enable()


def held_bytes() -> int:
    """In blocks as large as the requests, wherever they are."""
    traces = tracemalloc.take_snapshot().traces
    return sum(trace.size for trace in traces if trace.size >= SIZE)


def status_of(channel: grpc.Channel, method: str, data: bytes) -> grpc.StatusCode:
    code: grpc.StatusCode = channel.unary_unary(f"/toy.Toy/{method}").future(data, timeout=PATIENCE_S).code()
    return code


@pytest.mark.parametrize("method", ["Quick", "Search", "Updates", "Batches", "Poll"])
@pytest.mark.usefixtures("without_garbage_collection")
def test_a_refused_message_is_let_go(method: str, toy_channel: grpc.Channel) -> None:
    for _ in range(3):
        assert status_of(toy_channel, method, NO_MESSAGE) is grpc.StatusCode.INVALID_ARGUMENT
    eventually(lambda: held_bytes() <= len(NO_MESSAGE) + 99)  # the test's own


@pytest.mark.usefixtures("without_garbage_collection")
def test_an_answered_message_is_let_go(toy_channel: grpc.Channel) -> None:
    for _ in range(3):
        assert status_of(toy_channel, "Quick", LARGE) is grpc.StatusCode.OK
    eventually(lambda: held_bytes() == 0)


@pytest.mark.usefixtures("without_garbage_collection")
def test_a_message_that_may_not_wait_is_let_go(toy: ToyService) -> None:
    limits = AdmissionLimits(waiting=9, waiting_per_client=9, waiting_bytes=1000)
    with (
        serve_in_thread([toy], workers=1, limits=limits) as address,
        grpc.insecure_channel(address) as channel,
    ):
        search = channel.unary_unary("/toy.Toy/Search")
        runs = search.future(BytesValue(value=b"wait").SerializeToString())
        assert toy.started.acquire(timeout=PATIENCE_S)
        waits = search.future(BytesValue(value=b"small").SerializeToString())
        for method in ("Search", "Updates", "Search"):
            assert status_of(channel, method, LARGE) is grpc.StatusCode.RESOURCE_EXHAUSTED
        eventually(lambda: held_bytes() == 0)
        toy.go_on.set()
        assert {runs.code(), waits.code()} == {grpc.StatusCode.OK}
