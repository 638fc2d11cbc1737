"""A service in a process of its own: it starts, drains on a signal and exits with 0."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import grpc
import pytest
from google.protobuf.wrappers_pb2 import BytesValue
from grpc_health.v1 import health_pb2, health_pb2_grpc

ROOT = Path(__file__).parents[2]
# The promise is of seconds: the service takes up to 4.1 of the 5 itself.
in_seconds = pytest.mark.flaky(reruns=2, reason="a busy machine takes seconds of its own")
PROGRAM = """
import asyncio, sys
sys.path.insert(0, {folder!r})
from conftest import ToyService
from go_opt.service.server import serve

class Toy(ToyService):
    def work(self, data, call):
        print("working", file=sys.stderr, flush=True)
        return super().work(data, call)

    async def poll(self, data, call):
        print("working", file=sys.stderr, flush=True)
        return await super().poll(data, call)

    async def drain(self):
        print("draining", file=sys.stderr, flush=True)

    def close(self):
        print("closed", file=sys.stderr, flush=True)

serve("127.0.0.1:0", lambda: [Toy()], workers=2)
"""


@contextmanager
def service() -> Iterator[tuple[subprocess.Popen[str], IO[str], grpc.Channel]]:
    program = PROGRAM.format(folder=str(Path(__file__).parent))
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        assert line.startswith("listening on 127.0.0.1:"), line + process.stderr.read()
        with grpc.insecure_channel(line.removeprefix("listening on ").strip()) as channel:
            yield process, process.stderr, channel
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def call(channel: grpc.Channel, method: str, value: bytes) -> Any:
    data = BytesValue(value=value).SerializeToString()
    return channel.unary_unary(f"/toy.Toy/{method}").future(data, timeout=20)


def seconds_to_end(process: subprocess.Popen[str], start_s: float) -> float:
    assert process.wait(20) == 0
    return time.monotonic() - start_s


@in_seconds
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_service_ends_at_once(number: signal.Signals) -> None:
    with service() as (process, stderr, channel):
        assert call(channel, "Quick", b"x").result()
        start_s = time.monotonic()
        process.send_signal(number)
        assert seconds_to_end(process, start_s) < 2
        assert stderr.read() == "working\ndraining\nclosed\n"


@in_seconds
def test_calls_under_way_answer_while_the_service_drains() -> None:
    with service() as (process, stderr, channel):
        search, poll = call(channel, "Search", b"wait"), call(channel, "Poll", b"wait")
        assert [stderr.readline(), stderr.readline()] == ["working\n"] * 2
        start_s = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert stderr.readline() == "draining\n"
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
        refused = call(channel, "Quick", b"x")
        assert refused.code() is grpc.StatusCode.UNAVAILABLE
        assert refused.details() == "the service is draining."
        assert poll.code() is grpc.StatusCode.UNAVAILABLE
        assert not search.done()  # it goes on, and is then told to answer what it has
        assert search.result() == BytesValue(value=b"wait").SerializeToString()
        assert seconds_to_end(process, start_s) < 5


@in_seconds
def test_a_call_that_waits_is_sent_elsewhere_at_once() -> None:
    with service() as (process, stderr, channel):
        searches = [call(channel, "Search", b"wait") for _ in range(3)]
        assert [stderr.readline(), stderr.readline()] == ["working\n"] * 2
        start_s = time.monotonic()
        process.send_signal(signal.SIGTERM)
        codes = {search.code() for search in searches if search.exception(timeout=20)}
        assert codes == {grpc.StatusCode.UNAVAILABLE}
        assert sum(search.exception() is None for search in searches) == 2
        assert seconds_to_end(process, start_s) < 5


@in_seconds
def test_a_call_that_does_not_stop_is_cut_off() -> None:
    with service() as (process, stderr, channel):
        search = call(channel, "Search", b"deaf")
        assert stderr.readline() == "working\n"
        start_s = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert search.code() is grpc.StatusCode.UNAVAILABLE
        assert search.details() == "the service stopped before the call was done."
        assert seconds_to_end(process, start_s) < 5


@in_seconds
def test_a_second_signal_ends_at_once() -> None:
    with service() as (process, stderr, channel):
        search = call(channel, "Search", b"deaf")
        assert stderr.readline() == "working\n"
        process.send_signal(signal.SIGINT)
        assert stderr.readline() == "draining\n"
        start_s = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 128 + signal.SIGINT
        assert time.monotonic() - start_s < 1
        assert search.exception() is not None
